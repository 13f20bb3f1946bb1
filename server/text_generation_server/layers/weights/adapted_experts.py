"""What adapters add to the experts of a mixture, in rank pages of `text_generation_kernels.moe.expert_factors`.

An adapter has a pair of factors for each expert. Rows of B and columns of A go through the cuts of the rank's shard
(`experts/shard.py`), gate rows first, and B of the second matrix gets the factor of the expert's output. Where gate and
up have an A each, the first matrix has the units of both, each with zeros in the other's rows of B.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from text_generation_kernels import RANK_UNITS, ExpertFactors

from ...adapters import Change, Delta, ExpertDeltas
from ...errors import AdapterError
from .current_adapters import Room, pinned
from .experts import ExpertShard, shared_experts


@dataclass(frozen=True)
class _Pair:
    """A pair of factors, with the rows and columns of this rank."""

    a: Tensor
    """[rank, inputs]"""
    b: Tensor
    """[outputs, rank]"""
    scale: float


_Pairs = list[list[_Pair]]
"""Of each expert of this rank, the pairs that are added up."""


@dataclass(frozen=True)
class ExpertPages:
    """The factors of one adapter on one matrix of all experts of this rank."""

    a: Tensor
    """[pages, experts, units, inputs]"""
    b: Tensor
    """[pages, experts, outputs, units]"""
    scale: Tensor
    """[pages, experts, units] float32"""

    def pinned(self, device: torch.device) -> "ExpertPages":
        """Returns the same in memory from which `device` copies by itself."""
        return ExpertPages(*(pinned(each, device) for each in (self.a, self.b, self.scale)))

    @property
    def nbytes(self) -> int:
        """The bytes of all tensors."""
        return self.a.nbytes + self.b.nbytes + self.scale.nbytes


@dataclass(frozen=True)
class ExpertChange:
    """What one adapter adds to both matrices."""

    up: ExpertPages | None
    down: ExpertPages | None

    def pinned(self, device: torch.device) -> "ExpertChange":
        """Returns the same in memory from which `device` copies by itself."""
        up, down = (None if each is None else each.pinned(device) for each in (self.up, self.down))
        return ExpertChange(up, down)

    @property
    def nbytes(self) -> int:
        """The bytes of all tensors."""
        return sum(each.nbytes for each in (self.up, self.down) if each is not None)


@dataclass(frozen=True)
class ExpertSite:
    """The experts of a layer: the routed ones of this rank, then those that the shared one has become."""

    shard: ExpertShard
    """Its spec has a shared expert only where that is among the experts."""

    def of(self, changes: Mapping[str, Change]) -> ExpertChange | None:
        """Returns what an adapter with these changes adds; None: nothing. Raises AdapterError for factors of another
        size, and ModelFilesError.
        """
        if not self.names_of(changes):
            return None
        spec, inner, hidden = self.shard.spec, self.shard.inner, self.shard.hidden
        up, down = [], []
        for expert in range(len(self.shard.experts)):
            first, second = self._routed(changes, expert)
            up.append(first)
            down.append(second)
        for index in range(shared_experts(spec)):
            first, second = self._shared(changes, index)
            up.append(first)
            down.append(second)
        if (scales := self.shard.scales()) is not None:
            for pairs, scale in zip(down, scales.tolist(), strict=False):
                pairs[:] = [replace(each, b=each.b.float() * scale) for each in pairs]
        like = self.shard.checkpoint.source.empty((0,))
        outputs = (2 if spec.gated else 1) * inner
        return ExpertChange(_pages(up, outputs, hidden, like), _pages(down, hidden, inner, like))

    def units(self, changes: Mapping[str, Change]) -> int:
        """Returns how many rank units an adapter with these changes needs."""
        if not self.names_of(changes):
            return 0
        experts = range(len(self.shard.experts))
        found = [pairs for expert in experts for pairs in self._routed(changes, expert)]
        found += [pairs for index in range(shared_experts(self.shard.spec)) for pairs in self._shared(changes, index)]
        return max(sum(len(each.a) for each in pairs) for pairs in found)

    def names_of(self, changes: Mapping[str, Change]) -> set[str]:
        """Returns the changed tensors that are factors of these experts, on whichever rank."""
        return set(self._names(changes))

    def _names(self, changes: Mapping[str, Change]) -> Iterator[str]:
        shard, names = self.shard, self.shard.checkpoint.names
        templates = [shard.name(each) for each in names.shared(shard.spec.gated)] if shard.spec.shared_inner else []
        numbers = range(shard.spec.experts) if names.experts_layout == "each" else range(1)
        templates += [shard.name(each, expert) for expert in numbers for each in names.experts(shard.spec.gated)]
        for name in dict.fromkeys(templates):
            for stored in (name, f"{name}.weight"):
                change = changes.get(stored)
                if isinstance(change, ExpertDeltas) or (isinstance(change, Delta) and not _has_options(change)):
                    yield stored

    def _routed(self, changes: Mapping[str, Change], place: int) -> tuple[list[_Pair], list[_Pair]]:
        """Returns the pairs of both matrices of a routed expert."""
        shard, names = self.shard, self.shard.checkpoint.names
        expert, templates = shard.experts[place], names.experts(shard.spec.gated)
        if names.experts_layout == "each":
            return self._network(changes, tuple(shard.name(each, expert) for each in templates), shard.spec.inner, 0)
        is_transposed = names.experts_layout == "transposed"
        up, down = (_of_expert(changes, shard.name(templates[at]), expert, is_transposed) for at in (0, -1))
        first: list[_Pair] = []
        if up is not None:
            self._check(up, 2 * shard.spec.inner, shard.hidden)
            is_interleaved = names.experts_layout == "interleaved"
            halves = (up.b[0::2], up.b[1::2]) if is_interleaved else up.b.chunk(2)
            rows = torch.cat([half[shard.start : shard.stop] for half in halves])
            first.append(_Pair(up.a, rows, up.scale))
        return first, self._second(down, shard.spec.inner, 0)

    def _shared(self, changes: Mapping[str, Change], index: int) -> tuple[list[_Pair], list[_Pair]]:
        """Returns the pairs of an expert that is a part of the shared one."""
        shard = self.shard
        names = tuple(shard.name(each) for each in shard.checkpoint.names.shared(shard.spec.gated))
        return self._network(changes, names, shard.spec.shared_inner, index * shard.spec.inner)

    def _network(
        self, changes: Mapping[str, Change], names: tuple[str, ...], inner: int, at: int
    ) -> tuple[list[_Pair], list[_Pair]]:
        """Returns the pairs of a network of `inner` elements with matrices of its own, from its row `at` on. Gate and
        up of one name are one matrix, gate first.
        """
        start, stop = self.shard.span(inner, at)
        parts = names[:-1]
        is_fused = len(parts) == 2 and parts[0] == parts[1]
        found: list[_Pair] = []
        for half, name in enumerate(parts):
            delta = _delta(changes, name)
            if delta is None:
                continue
            self._check(delta, 2 * inner if is_fused else inner, self.shard.hidden)
            first = half * inner if is_fused else 0
            rows = delta.b[first + start : first + stop]
            placed = rows.new_zeros(len(parts) * self.shard.inner, delta.rank)
            placed[half * self.shard.inner :][: len(rows)] = rows
            found.append(_Pair(delta.a, placed, delta.scale))
        return _joined(found), self._second(_delta(changes, names[-1]), inner, at)

    def _second(self, delta: Delta | None, inner: int, at: int) -> list[_Pair]:
        """Returns the pair of the second matrix, with this rank's columns of A."""
        if delta is None:
            return []
        self._check(delta, self.shard.hidden, inner)
        start, stop = self.shard.span(inner, at)
        columns = delta.a.new_zeros(delta.rank, self.shard.inner)
        columns[:, : stop - start] = delta.a[:, start:stop]
        return [_Pair(columns, delta.b, delta.scale)]

    def _check(self, delta: Delta, outputs: int, inputs: int) -> None:
        """Raises AdapterError for factors of another size, which of a quantised matrix only the layer knows."""
        found = delta.b.shape[0], delta.a.shape[1]
        if found != (outputs, inputs):
            raise AdapterError(
                f"the adapter has factors of a matrix {list(found)}, but those of experts in layer {self.shard.layer} "
                f"of the model are {[outputs, inputs]}: it is of another model"
            )


class ExpertTables:
    """What all adapters add to the experts of one layer of this rank, on the device."""

    def __init__(self, made: Sequence[ExpertChange], room: Room, device: torch.device) -> None:
        """Allocates what `made` needs."""
        self.up = _allocated([each.up for each in made], room, device)
        """Of gate and up; None: no adapter changes it."""
        self.down = _allocated([each.down for each in made], room, device)

    def has_room(self, made: ExpertChange) -> bool:
        """Whether there is room for what an adapter adds."""
        both = (self.up, made.up), (self.down, made.down)
        return all(own is None or (table is not None and len(own.a) <= table.most_pages) for table, own in both)

    def put(self, number: int, first_page: int, made: ExpertChange | None) -> None:
        """Queues copies of an adapter to its pages, and to the row of its number. None: it adds nothing."""
        _write(self.up, number, first_page, None if made is None else made.up)
        _write(self.down, number, first_page, None if made is None else made.down)

    @property
    def nbytes(self) -> int:
        """The bytes of all tensors."""
        return sum(each.nbytes for each in (self.up, self.down) if each is not None)


def _allocated(made: Sequence[ExpertPages | None], room: Room, device: torch.device) -> ExpertFactors | None:
    found = [each for each in made if each is not None]
    if not found:
        return None
    like, most = found[0], max(len(each.a) for each in found)
    a, b, scale = (
        torch.zeros((room.pages, *each.shape[1:]), dtype=each.dtype, device=device)
        for each in (like.a, like.b, like.scale)
    )
    spans = torch.zeros(1 + room.adapters, 2, dtype=torch.int32, device=device)
    return ExpertFactors(a, b, scale, spans, most)


def _write(factors: ExpertFactors | None, number: int, first_page: int, made: ExpertPages | None) -> None:
    if factors is None:
        return
    count = 0 if made is None else len(made.a)
    if made is not None:
        own = slice(first_page, first_page + count)
        for table, values in ((factors.a, made.a), (factors.b, made.b), (factors.scale, made.scale)):
            table[own].copy_(values, non_blocking=True)
    for index, value in enumerate((first_page, count)):
        factors.spans[number, index].fill_(value)


def _pages(pairs: _Pairs, outputs: int, inputs: int, like: Tensor) -> ExpertPages | None:
    """Returns the pairs of all experts in pages; None: there are none."""
    units = max((sum(len(each.a) for each in own) for own in pairs), default=0)
    if not units:
        return None
    count, experts = -(-units // RANK_UNITS), len(pairs)
    a = like.new_zeros(experts, count * RANK_UNITS, inputs)
    b = like.new_zeros(experts, outputs, count * RANK_UNITS)
    scale = torch.zeros(experts, count * RANK_UNITS, device=like.device)
    for expert, own in enumerate(pairs):
        first = 0
        for each in own:
            place = slice(first, first + len(each.a))
            a[expert, place], b[expert, :, place], scale[expert, place] = each.a, each.b, each.scale
            first = place.stop
    return ExpertPages(
        a.unflatten(1, (count, RANK_UNITS)).transpose(0, 1).contiguous(),
        b.unflatten(2, (count, RANK_UNITS)).permute(2, 0, 1, 3).contiguous(),
        scale.unflatten(1, (count, RANK_UNITS)).transpose(0, 1).contiguous(),
    )


def _joined(pairs: list[_Pair]) -> list[_Pair]:
    """Returns gate and up as one pair, where they have one A, as in PEFT's flattened layout."""
    if len(pairs) != 2 or pairs[0].scale != pairs[1].scale or pairs[0].a.data_ptr() != pairs[1].a.data_ptr():
        return pairs
    return [replace(pairs[0], b=pairs[0].b + pairs[1].b)]


def _delta(changes: Mapping[str, Change], module: str) -> Delta | None:
    change = changes.get(f"{module}.weight")
    return change if isinstance(change, Delta) and not _has_options(change) else None


def _of_expert(changes: Mapping[str, Change], name: str, expert: int, is_transposed: bool) -> Delta | None:
    """Returns the change of one expert of a tensor of all. `is_transposed`: it is stored [experts, inputs, outputs]."""
    change = changes.get(name, changes.get(f"{name}.weight"))
    if not isinstance(change, ExpertDeltas):
        return None
    delta = change.experts[expert]
    # A class that stores inputs first without saying so has trained the transposed matrix.
    return replace(delta, a=delta.b.t(), b=delta.a.t()) if is_transposed and not delta.transposed else delta


def _has_options(delta: Delta) -> bool:
    return delta.magnitude is not None or delta.bias is not None
