"""Every example in the README and in docstrings runs."""

from __future__ import annotations

import doctest
import re
from importlib import import_module
from pathlib import Path

import pytest
from stub import TEXT, Stub

from text_generation import Client

README = Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)
ENDPOINTS = ["endpoints.generate", "endpoints.info", "endpoints.openai"]
MODULES = ["__init__", "client", "async_client", "joining", "images", *ENDPOINTS]


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_blocks_of_the_readme(
    number: int, stub: Stub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cat.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    code = BLOCKS[number].replace("http://127.0.0.1:3000", stub.url)
    exec(compile(code, f"README.md, block {number}", "exec"), {"__name__": "__main__"})
    expected = "wrong parameter" if "errors" in code else TEXT
    assert expected in capsys.readouterr().out


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name: str, stub: Stub) -> None:
    module = import_module(f"text_generation.{name}".removesuffix(".__init__"))
    found = [test for test in doctest.DocTestFinder().find(module) if test.examples]
    assert found
    for test in found:
        test.globs["client"] = Client(stub.url)
        for example in test.examples:
            example.source = example.source.replace("http://127.0.0.1:3000", stub.url)
        runner = doctest.DocTestRunner()
        runner.run(test, clear_globs=False)
        assert runner.failures == 0
