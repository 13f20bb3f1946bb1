"""Host bookkeeping of adapters, without tensors: which adapter each number is, on which pages, and whether plans and
requests fit that.

Everything here depends on LoadAdapter and the plans alone, so it is equal on all ranks. A caller names an adapter in a
plan once every rank has answered its LoadAdapter, and in a request once every rank has said that its copy is ready.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass

from text_generation_kernels import AdapterPages

from ..errors import InvalidRequest
from ..models.adapter_pool import HostAdapter
from .adapter_requests import AdapterCopy
from .requests import Request


@dataclass(eq=False)
class Resident:
    """An adapter on the device, or on its way there."""

    first_page: int
    pages: int
    by_output: bool
    """See `HostAdapter`."""
    adapter: HostAdapter | None = None
    """None: nobody's, for warm-up."""
    ready: bool = False
    """Whether a reply has said that its copy is done. The replies thread writes it."""

    @property
    def end(self) -> int:
        """The page behind its last."""
        return self.first_page + self.pages


Residents = Mapping[int, Resident]
"""By number."""


class AdapterChecker:
    """Checks everything about adapters, and knows which are on the device. Only the engine thread uses it.

    With no `pages`, requests have no adapters. `find` returns an adapter in host memory by its generation, and `fits`
    says whether the device has room for all that an adapter changes.
    """

    def __init__(
        self,
        pages: int = 0,
        find: Callable[[int], HostAdapter | None] = lambda _: None,
        fits: Callable[[HostAdapter], bool] = lambda _: True,
    ) -> None:
        self.num_pages = pages
        self._find = find
        self._fits = fits
        self.clear()

    @property
    def residents(self) -> Residents:
        """The adapters that have numbers."""
        return self._residents

    @residents.setter
    def residents(self, residents: Residents) -> None:
        if residents is not self._residents:
            self._residents = residents
            self.pages = _pages(residents, self.num_pages)

    def clear(self) -> None:
        """Forgets all numbers."""
        self._residents: Residents = {}
        self.pages = _pages({}, self.num_pages)
        """Of number i those with index i - 1."""

    def copy(self, copies: Sequence[AdapterCopy], used: Callable[[], Set[int]]) -> Residents:
        """Returns who has which number after a plan's copies; requests that run use the numbers `used`. Raises
        `InvalidRequest` for wrong ones.
        """
        if not copies:
            return self._residents
        found, kept = dict(self._residents), set(used())
        for each in copies:
            resident = self._resident(each)
            for number in [other for other, held in found.items() if other == each.number or _overlap(held, resident)]:
                if number in kept:
                    raise InvalidRequest(
                        f"`adapter_copies` overwrites adapter {number} with {each.number}, which requests that run, or "
                        "a copy of the same plan, need"
                    )
                del found[number]
            found[each.number] = resident
            kept.add(each.number)
        return found

    def _resident(self, copy: AdapterCopy) -> Resident:
        if not 1 <= copy.number <= self.num_pages:
            raise InvalidRequest(f"`adapter_copies` names number {copy.number}; Warmup had {self.num_pages} pages")
        if (adapter := self._find(copy.generation)) is None:
            raise InvalidRequest(
                f"`adapter_copies` names generation {copy.generation:x}, which LoadAdapter has not brought"
            )
        if copy.first_page < 0 or copy.first_page + adapter.pages > self.num_pages:
            raise InvalidRequest(
                f"`adapter_copies` names pages {copy.first_page} to {copy.first_page + adapter.pages - 1} of "
                f"{self.num_pages}"
            )
        if not self._fits(adapter):
            raise InvalidRequest(
                f"`adapter_copies` names generation {copy.generation:x}, which changes more than those loaded before "
                "Warmup: set `adapters_later` there"
            )
        return Resident(copy.first_page, adapter.pages, adapter.by_output, adapter)

    def check_request(self, request: Request) -> None:
        """Raises `InvalidRequest` for a request that names an adapter of which no copy is ready."""
        if not request.adapter:
            return
        if not self.num_pages:
            raise InvalidRequest("`adapter` must be 0: Warmup had `adapter_pages` 0 (--lora-adapters)")
        resident = self._residents.get(request.adapter)
        if resident is None or not resident.ready:
            state = "has no copy" if resident is None else "has a copy that is not ready"
            raise InvalidRequest(
                f"`adapter` {request.adapter} {state} on this shard: name it once replies have it in `adapters_ready`"
            )


def _overlap(one: Resident, other: Resident) -> bool:
    return one.first_page < other.end and other.first_page < one.end


def _pages(residents: Residents, count: int) -> AdapterPages:
    held = (residents.get(number) for number in range(1, count + 1))
    return AdapterPages.of([() if each is None else range(each.first_page, each.end) for each in held])
