"""The drafter that the command line names. Imports no torch."""

from dataclasses import dataclass
from typing import Literal

from ..errors import ConfigurationError

DrafterKind = Literal["eagle3", "medusa", "mtp", "draft_model"]


@dataclass(frozen=True)
class AskedDrafter:
    """A folder or an id of the hub."""

    source: str
    revision: str | None = None
    kind: DrafterKind | None = None
    """What it must be; None: whatever it is."""


def asked_drafter(source: str | None, revision: str | None, kind: DrafterKind | None = None) -> AskedDrafter | None:
    """Returns what `--drafter`, `--drafter-revision` and `--drafter-method` ask for. Raises `ConfigurationError`."""
    if source is None:
        if revision is not None:
            raise ConfigurationError("--drafter-revision names a revision of --drafter, which is not given")
        if kind is not None:
            raise ConfigurationError("--drafter-method says what --drafter is, which is not given")
        return None
    return AskedDrafter(source, revision, kind)


def check_drafter(drafter: AskedDrafter | None, speculate: int) -> None:
    """Raises `ConfigurationError` for a drafter where nothing is drafted."""
    if drafter is not None and not speculate:
        raise ConfigurationError(
            "--drafter drafts nothing without --speculate N, the number of drafts that a step checks at most: give both"
        )
