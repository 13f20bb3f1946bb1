"""The drafter that the command line names. Imports no torch."""

from dataclasses import dataclass

from ..errors import ConfigurationError


@dataclass(frozen=True)
class AskedDrafter:
    """A folder or an id of the hub."""

    source: str
    revision: str | None = None


def asked_drafter(source: str | None, revision: str | None) -> AskedDrafter | None:
    """Returns what `--drafter` and `--drafter-revision` ask for. Raises `ConfigurationError`."""
    if source is None:
        if revision is not None:
            raise ConfigurationError("--drafter-revision names a revision of --drafter, which is not given")
        return None
    return AskedDrafter(source, revision)


def check_drafter(drafter: AskedDrafter | None, speculate: int) -> None:
    """Raises `ConfigurationError` for a drafter where nothing is drafted."""
    if drafter is not None and not speculate:
        raise ConfigurationError(
            "--drafter drafts nothing without --speculate N, the number of drafts that a step checks at most: give both"
        )
