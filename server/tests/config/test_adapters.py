"""The flag that names adapters."""

import pytest

from text_generation_server.config.adapters import AskedAdapter, parse_adapters, parse_merged
from text_generation_server.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, []),
        ("", []),
        ("org/a", [AskedAdapter("org/a", "org/a")]),
        ("org/a@v2, b=/srv/x@y", [AskedAdapter("org/a", "org/a", "v2"), AskedAdapter("b", "/srv/x@y")]),
        ("b=org/a@refs/pr/1,", [AskedAdapter("b", "org/a", "refs/pr/1")]),
        ("./pirate", [AskedAdapter("./pirate", "./pirate")]),
        ("c=s3://models/c@1", [AskedAdapter("c", "s3://models/c@1")]),
        ("s3://models/c=1", [AskedAdapter("s3://models/c=1", "s3://models/c=1")]),
        ("my pirate = /srv/x", [AskedAdapter("my pirate", "/srv/x")]),
    ],
)
def test_forms(text: str | None, expected: list[AskedAdapter]) -> None:
    assert list(parse_adapters(text)) == expected


@pytest.mark.parametrize(
    "text", ["=x", "a=", "a=@v1", "org/a@", "a=x,a=y", "org/a,org/a@v2", "tgi=/x", f"{'n' * 257}=/x", "a\nb=/x"]
)
def test_what_cannot_be_read_is_named(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--lora-adapters"):
        parse_adapters(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, None),
        (" ", None),
        ("/srv/x@y", ("/srv/x@y", None)),
        ("org/a", ("org/a", None)),
        ("org/a@v2", ("org/a", "v2")),
        ("s3://models/c@1", ("s3://models/c@1", None)),
    ],
)
def test_one_that_is_merged(text: str | None, expected: tuple[str, str | None] | None) -> None:
    found = parse_merged(text)
    assert (None if found is None else (found.source, found.revision)) == expected
    assert found is None or found.flag == "--merge-adapter"


@pytest.mark.parametrize("text", ["@v1", "org/a@"])
def test_a_merged_one_that_cannot_be_read_is_named(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--merge-adapter"):
        parse_merged(text)
