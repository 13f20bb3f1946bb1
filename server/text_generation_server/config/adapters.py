"""The adapters that the command line names: `--lora-adapters id,id@revision,name=folder`, as TGI writes them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import ConfigurationError
from .object_url import is_object_url

_FLAG = "--lora-adapters"
_BASE = "tgi"
"""What clients of TGI call any model."""
_LONGEST_NAME = 256
"""Bytes of `model` in a request."""


@dataclass(frozen=True)
class AskedAdapter:
    """One adapter of the flag."""

    name: str
    """What requests call it."""
    source: str
    """A folder, an id of the hub, or a URL of an object store."""
    revision: str | None = None
    flag: str = _FLAG
    """The flag that names it."""


@dataclass(frozen=True)
class FoundAdapter:
    """An adapter whose files are on this machine."""

    name: str
    source: str
    folder: Path


def parse_adapters(text: str | None) -> tuple[AskedAdapter, ...]:
    """Reads the flag; its entries have commas between them. An adapter without a name is called by its folder or id.
    Raises ConfigurationError.
    """
    entries = [entry.strip() for entry in (text or "").split(",")]
    adapters = tuple(_parse(entry) for entry in entries if entry)
    _check_names([each.name for each in adapters])
    return adapters


def _parse(entry: str) -> AskedAdapter:
    name, equals, place = (part.strip() for part in entry.partition("="))
    if is_object_url(entry):
        # A prefix may hold any sign.
        name, equals = entry, ""
    place = place if equals else name
    source, at, revision = _parts_of(place)
    if not name or not source or (at and not revision):
        raise ConfigurationError(
            f"{_FLAG} cannot be read at `{entry}`: write id, id@revision, name=folder, name=id@revision or "
            "name=s3://bucket/prefix, with commas between them"
        )
    return AskedAdapter(name if equals else source, source, revision or None)


def parse_merged(text: str | None) -> AskedAdapter | None:
    """Reads `--merge-adapter`: a folder, an id of the hub, id@revision, or a URL of an object store; an empty one is
    none. Raises ConfigurationError.
    """
    if not (place := (text or "").strip()):
        return None
    source, at, revision = _parts_of(place)
    if not source or (at and not revision):
        raise ConfigurationError(
            f"--merge-adapter cannot be read at `{place}`: write a folder, id, id@revision or s3://bucket/prefix"
        )
    return AskedAdapter(source, source, revision or None, "--merge-adapter")


def parse_source(name: str, place: str) -> AskedAdapter:
    """Reads what an adapter is loaded from: a folder, an id of the hub, id@revision, or a URL of an object store."""
    source, _, revision = _parts_of(place)
    return AskedAdapter(name, source, revision or None)


def _parts_of(place: str) -> tuple[str, str, str]:
    # Folders and object stores have no revisions, and their names may hold an `@`.
    has_none = place.startswith(("/", ".", "~")) or is_object_url(place)
    return (place, "", "") if has_none else place.partition("@")


def _check_names(names: Sequence[str]) -> None:
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigurationError(
            f"{_FLAG} names `{twice[0]}` twice: give each adapter a name of its own, as name=folder"
        )
    for name in names:
        if name == _BASE or len(name.encode()) > _LONGEST_NAME or not name.isprintable():
            raise ConfigurationError(
                f"{_FLAG} has an adapter that requests cannot name, `{name[:64]}`: give it another name, as "
                f"name=folder, of printable characters, at most {_LONGEST_NAME} bytes, and not `{_BASE}`, the base"
            )
