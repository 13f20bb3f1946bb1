"""Plain dataclasses of the contract about adapters; see `requests.py`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AdapterSource:
    """Where the files of an adapter are."""

    name: str
    """For messages and the log."""
    source: str
    """A folder, or a hub id with or without `@revision` that has been downloaded."""
    untrusted: bool = False
    """Whether whoever named it is not the operator."""
    generation: int = 0
    """The contents that it must have; 0: any."""


@dataclass(frozen=True, slots=True)
class AdapterLoaded:
    """An adapter in host memory."""

    generation: int
    """Not 0, and equal for equal contents."""
    rank: int
    """The highest of its matrices."""
    pages: int
    """That it takes on the device."""
    num_bytes: int
    """Of host memory."""


@dataclass(frozen=True, slots=True)
class AdapterCopy:
    """From the step of its plan on, `number` is the adapter with this generation, on the pages from `first_page` on."""

    number: int
    generation: int
    first_page: int
