"""The factors of adapters in memory: of one adapter on the host, and of all that are on the device.

A page of the device is one record with what an adapter has of it at every site, so a few copies of megabytes bring an
adapter, however many layers there are. Outputs that DoRA multiplies, and biases, lie in a record for each adapter.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from text_generation_kernels import RANK_UNITS

from ...adapters.threads import in_threads
from .adapted import SitePages
from .current_adapters import pinned
from .linear import Linear
from .low_rank import LowRankPages
from .records import Field, RecordLayout
from .sites import Site

_BLOCK_BYTES = 8 << 20
"""Of one piece of page-locked memory: torch rounds each up to a power of two, and a large one would hold up the driver
for long."""

RowKind = Literal["factors", "bias", "unscaled_bias"]
"""What an adapter has for each output of a site; `SitePages` says what each is."""
_PLAIN: Mapping[RowKind, float] = {"factors": 1.0, "bias": 0.0, "unscaled_bias": 0.0}


@dataclass(frozen=True)
class HostSite:
    """What the host knows of a linear layer of this rank."""

    site: Site
    bias: Tensor | None
    """That of the base, float32."""
    in_layer: bool = True
    """Whether it is of a decoder layer."""

    @classmethod
    def of(cls, linear: Linear, site: Site, in_layer: bool) -> "HostSite":
        """Of a layer on the device."""
        scales, bias = site.input_scales, linear.bias
        host = replace(site, input_scales=None if scales is None else scales.cpu())
        return cls(host, None if bias is None else bias.detach().float().cpu(), in_layer)

    @property
    def has_bias(self) -> bool:
        """Whether a rank adds a bias to its outputs."""
        return self.bias is not None or not self.site.adds_bias

    @property
    def row_kinds(self) -> tuple[RowKind, ...]:
        """Returns what an adapter may have for each output."""
        return ("factors",) if self.bias is None else ("factors", "bias", "unscaled_bias")

    def page_fields(self, dtype: torch.dtype) -> list[Field]:
        """Returns what a page holds of it: A, B and the scales."""
        parts = len(self.site.modules)
        a, b = (parts, RANK_UNITS, self.site.own_inputs), (self.site.outputs, RANK_UNITS)
        return [Field(a, dtype), Field(b, dtype), Field((parts,), torch.float32)]


@dataclass(frozen=True)
class _Block:
    """Bytes of one page, from `offset` behind the first byte of a site on."""

    site: int
    page: int
    offset: int
    data: Tensor


@dataclass(frozen=True)
class _Row:
    """[outputs] float32 of one site."""

    site: int
    kind: RowKind
    values: Tensor


@dataclass(frozen=True)
class HostFactors:
    """What one adapter adds to the linear layers of this rank, in host memory from which a device copies by itself.
    Sites go by their numbers in the list of all sites.
    """

    pages: int
    blocks: Sequence[_Block]
    rows: Sequence[_Row]
    sites: frozenset[int]
    """Those with factors."""

    @classmethod
    def of(
        cls, sites: Sequence[HostSite], changed: Mapping[int, LowRankPages], pages: int, device: torch.device
    ) -> "HostFactors":
        """Packs the factors `changed`, by site, of which each has at most so many pages, for copies to `device`."""
        factors = frozenset(number for number, each in changed.items() if each.rank)
        blocks: list[_Block] = []
        writes: list[Callable[[], None]] = []
        for run in _runs(factors):
            for block, own in _blocks(sites, changed, run, pages, device):
                blocks.append(block)
                writes += own
        in_threads(lambda write: write(), writes)
        rows = [
            _Row(number, kind, pinned(values, device))
            for number, each in changed.items()
            for kind, values in _row_values(each, sites[number].bias)
        ]
        return cls(pages, blocks, rows, factors)

    @property
    def nbytes(self) -> int:
        """The bytes of host memory."""
        return sum(each.data.nbytes for each in self.blocks) + sum(each.values.nbytes for each in self.rows)


@dataclass(frozen=True)
class AdapterRoom:
    """What the device has room for."""

    pages: int
    """And as many numbers of adapters, from 1 on."""
    sites: Sequence[int]
    """The sites that have pages, ascending."""
    rows: frozenset[tuple[int, RowKind]] = field(default_factory=frozenset)
    """The sites that have rows by adapter."""

    @classmethod
    def of(cls, sites: Sequence[HostSite], pages: int, adapters: Iterable[HostFactors], later: bool) -> "AdapterRoom":
        """For what these adapters change, and with `later` for all that any changes in decoder layers."""
        every = {number for number, each in enumerate(sites) if each.in_layer and later}
        rows: set[tuple[int, RowKind]] = {(number, kind) for number in every for kind in sites[number].row_kinds}
        for factors in adapters:
            every |= factors.sites
            rows |= {(each.site, each.kind) for each in factors.rows}
        # Where one adapter has factors and another a bias, the base's bias is in both.
        rows |= {(site, "unscaled_bias") for site, _ in rows if sites[site].bias is not None}
        return cls(pages, sorted(every), frozenset(rows))

    def pages_layout(self, sites: Sequence[HostSite], dtype: torch.dtype) -> RecordLayout:
        """Returns where each site has its three fields in a page, for a model of this type."""
        return RecordLayout([each for number in self.sites for each in sites[number].page_fields(dtype)])

    def rows_layout(self, sites: Sequence[HostSite]) -> RecordLayout:
        """Returns where each of `rows`, in ascending order, lies in the record of an adapter."""
        return RecordLayout([Field((sites[site].site.outputs,), torch.float32) for site, _ in sorted(self.rows)])

    def num_bytes(self, sites: Sequence[HostSite], dtype: torch.dtype) -> int:
        """Returns the bytes of `AdapterMemory`."""
        return self.pages * self.pages_layout(sites, dtype).nbytes + (1 + self.pages) * self.rows_layout(sites).nbytes


class AdapterMemory:
    """The pages and rows of all adapters on the device. The engine thread owns it."""

    def __init__(self, sites: Sequence[HostSite], room: AdapterRoom, dtype: torch.dtype, device: torch.device) -> None:
        """Allocates memory for adapters of a model of type `dtype`; they add nothing yet."""
        self.room = room
        self.device = device
        self._sites = sites
        self._layout = room.pages_layout(sites, dtype)
        self._pages = torch.zeros(room.pages, self._layout.nbytes, dtype=torch.uint8, device=device)
        self._first = {site: 3 * place for place, site in enumerate(room.sites)}
        layout = room.rows_layout(sites)
        self._records = torch.zeros(1 + room.pages, layout.nbytes, dtype=torch.uint8, device=device)
        self._rows = {key: layout.view(self._records, place) for place, key in enumerate(sorted(room.rows))}
        for (_, kind), view in self._rows.items():
            view.fill_(_PLAIN[kind])

    @property
    def nbytes(self) -> int:
        """The bytes of all of it."""
        return self._pages.nbytes + self._records.nbytes

    def of_site(self, number: int) -> SitePages | None:
        """Returns what layers read of a site; None: adapters do not change it."""
        pages = None
        if (first := self._first.get(number)) is not None:
            a, b, scale = (self._layout.view(self._pages, first + each) for each in range(3))
            pages = a, b, scale
        kinds: tuple[RowKind, ...] = ("factors", "bias", "unscaled_bias")
        rows = [self._rows.get((number, kind)) for kind in kinds]
        if pages is None and all(each is None for each in rows):
            return None
        return SitePages(self._sites[number].site, pages, *rows)

    def fits(self, factors: HostFactors) -> bool:
        """Whether there is room for all that an adapter changes."""
        rows = {(row.site, row.kind) for row in factors.rows}
        return self._first.keys() >= factors.sites and self._rows.keys() >= rows

    def put(self, factors: HostFactors, number: int, first_page: int) -> None:
        """Queues copies of an adapter to its pages and to the row of its number."""
        self._pages[first_page : first_page + factors.pages].zero_()
        for each in factors.blocks:
            start = self._layout.starts[self._first[each.site]] + each.offset
            page = self._pages[first_page + each.page]
            page[start : start + len(each.data)].copy_(each.data, non_blocking=True)
        if self._rows:
            self._records[number].copy_(self._records[0])
        for row in factors.rows:
            self._rows[row.site, row.kind][number].copy_(row.values, non_blocking=True)


def _runs(changed: Iterable[int]) -> list[list[int]]:
    """Returns the sites in runs of neighbours."""
    ordered = sorted(changed)
    grouped = groupby(enumerate(ordered), key=lambda each: each[1] - each[0])
    return [[site for _, site in group] for _, group in grouped]


def _blocks(
    sites: Sequence[HostSite], changed: Mapping[int, LowRankPages], run: list[int], pages: int, device: torch.device
) -> Iterator[tuple[_Block, list[Callable[[], None]]]]:
    """Yields blocks of sites that are neighbours in every page, some fields in each, with what writes their fields."""
    dtype = next(iter(changed[run[0]].b.values())).dtype
    layout = RecordLayout([each for site in run for each in sites[site].page_fields(dtype)])
    for fields in layout.cuts(_BLOCK_BYTES if device.type == "cuda" else layout.nbytes):
        start, stop = layout.starts[fields.start], layout.end_of(fields.stop - 1)
        for page in range(pages):
            data = _new(stop - start, device)
            writes = [
                partial(_write, changed[run[index // 3]], index % 3, page, partial(layout.array, data, index, start))
                for index in fields
            ]
            yield _Block(run[0], page, start, data), writes


def _new(size: int, device: torch.device) -> Tensor:
    """Returns bytes from which `device` copies by itself. NumPy asks for huge pages, else 84 MB take 40 ms longer."""
    if device.type == "cuda":
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)
    return torch.from_numpy(np.empty(size, dtype=np.uint8))


def _write(own: LowRankPages, kind: int, page: int, field: Callable[[], NDArray[Any]]) -> None:
    """Writes a field of a page of a site: A, B or the scales."""
    if kind == 0:
        own.write_a(page * RANK_UNITS, field())
    elif kind == 1:
        own.write_b(page * RANK_UNITS, field())
    else:
        field().view(np.float32)[:] = own.scales if page * RANK_UNITS < own.rank else 0.0


def _row_values(own: LowRankPages, base_bias: Tensor | None) -> Iterator[tuple[RowKind, Tensor]]:
    """Yields what an adapter has for each output. Where the base's bias was added before outputs are multiplied, what
    it adds is `c b + (1 - c) b`, so that outputs of tokens without adapter keep their bits.
    """
    if own.row_factors is not None:
        yield "factors", own.row_factors.float()
    if own.bias is not None:
        yield "bias", own.bias.float()
    if base_bias is not None and (own.row_factors is not None or own.bias is not None):
        rest = torch.zeros_like(base_bias) if own.row_factors is None else (1 - own.row_factors) * base_bias
        yield "unscaled_bias", rest if own.bias is None else rest + own.bias
