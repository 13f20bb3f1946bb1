"""Host bookkeeping, without tensors: which request owns which row, how far it is computed, and whether a plan fits
that.

Everything here depends on the plans alone, so it is equal on all ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..errors import EngineError, InvalidRequest, OutOfSlots
from .adapter_plans import AdapterChecker
from .hints import usable_hints
from .media_plans import MediaChecker, MediaItems
from .media_requests import Encode
from .requests import Chunk, Hint, Request, RequestFailure, ServingLimits, SlotRange, StepPlan
from .validation import check_request, check_slots
from .widths import WidthChecker, limit_of

Vector = NDArray[np.int64]


@dataclass(slots=True, eq=False)
class RunningRequest:
    """A request that owns a row."""

    request: Request
    refused: bool = False
    """Whether its admission failed, so that the engine thread skips its row in plans."""
    failed: bool = False
    """Whether its failure was reported. The replies thread writes it."""


@dataclass(frozen=True, slots=True)
class SlotWrite:
    """Slots of positions `position`, `position + 1`, ... of a row."""

    row: int
    position: int
    slots: Sequence[SlotRange]


@dataclass(frozen=True, slots=True)
class Computed:
    """A chunk that a step computes, with its request."""

    chunk: Chunk
    owner: RunningRequest

    @property
    def is_last(self) -> bool:
        """Whether it has the last position of its request, which then gets a token."""
        return self.chunk.first + self.chunk.count == len(self.owner.request.input_ids)

    @property
    def num_scores(self) -> int:
        """The number of prompt tokens, after positions of the chunk, whose log-probability is wanted."""
        request = self.owner.request
        following = request.num_prompt - 1 - self.chunk.first
        return max(0, min(self.chunk.count, following)) if request.prefill_logprobs else 0

    @property
    def input_ids(self) -> Vector:
        """The ids of its positions."""
        return self.owner.request.input_ids[self.chunk.first : self.chunk.first + self.chunk.count]

    @property
    def score_targets(self) -> Vector:
        """The ids whose log-probability is wanted."""
        first = self.chunk.first + 1
        return self.owner.request.input_ids[first : first + self.num_scores]


@dataclass(frozen=True)
class CheckedPlan:
    """A plan that passed all checks. It leaves out the rows of refused requests."""

    number: int
    admitted: list[Request]
    failures: list[RequestFailure]
    writes: list[SlotWrite]
    chunks: list[Computed]
    decodes: Vector
    owners: list[RunningRequest]
    """The requests that get a token: decodes, then chunks."""
    constrained: Sequence[int]
    """Rows whose sampling waits for masks, as the plan names them, those of refused requests included."""
    longest_decode: int
    """Positions that the longest of the decodes attends to."""
    encode: Sequence[Encode] = ()
    forget: Sequence[int] = ()
    adapters: Vector | None = None
    """[tokens], the number of each token's adapter, 0 for none: decodes, then chunks. None: no token uses any."""
    copies: Sequence[int] = ()
    """The numbers of adapters that are copied to the device."""
    widths: Vector | None = None
    """[decodes], the most tokens that each gets; None: one."""
    hints: Sequence[Hint] = ()
    """Of rows that run, at most one each, and only what may be used of them; none without speculation."""

    @property
    def width(self) -> int:
        """The largest of `widths`."""
        return 1 if self.widths is None else int(self.widths.max())

    @property
    def widths_of_rows(self) -> dict[int, int]:
        """The same by row; none where each is 1."""
        return {} if self.widths is None else dict(zip(self.decodes.tolist(), self.widths.tolist(), strict=True))

    @property
    def choosing(self) -> Vector:
        """The rows of `owners`, in their order."""
        return np.concatenate((self.decodes, np.array([c.chunk.row for c in self.chunks if c.is_last], dtype=np.int64)))

    @property
    def choosing_adapters(self) -> Vector | None:
        """The numbers of the adapters of `owners`, each for all places of its window; None: no token uses any."""
        if self.adapters is None:
            return None
        return np.repeat(np.array([each.request.adapter for each in self.owners], dtype=np.int64), self.width)

    @property
    def scored_adapters(self) -> Vector | None:
        """The same of each place that is scored."""
        if self.adapters is None:
            return None
        numbers = np.array([each.owner.request.adapter for each in self.chunks], dtype=np.int64)
        return np.repeat(numbers, [each.num_scores for each in self.chunks])

    @property
    def reads_media(self) -> bool:
        """Whether a chunk has positions of media."""
        return any(
            span.first < each.chunk.first + each.chunk.count and span.end > each.chunk.first
            for each in self.chunks
            for span in each.owner.request.media
        )

    @property
    def num_tokens(self) -> int:
        """The number of positions that the step computes."""
        return len(self.decodes) * self.width + sum(each.chunk.count for each in self.chunks)


@dataclass(eq=False)
class RunningRows:
    """`owners` by row, and facts about each row in columns of `num_rows` entries. Only the engine thread uses it."""

    num_rows: int
    owners: dict[int, RunningRequest] = field(default_factory=dict)
    running: NDArray[np.bool_] = field(init=False)
    """Whether a request that was not refused owns the row."""
    num_inputs: Vector = field(init=False)
    """The length of `input_ids`."""
    computed: Vector = field(init=False)
    """Positions computed by launched steps, or cached. From `num_inputs` on, one less than the request's tokens; with
    speculation it may have more.
    """
    num_slots: Vector = field(init=False)
    adapter: Vector = field(init=False)
    """The number of the request's adapter; 0: none."""
    limit: Vector = field(init=False)
    """The length at which the request ends, as `limit_of` says."""

    def reach(self, rows: Sequence[int]) -> Vector:
        """Returns the lengths that the requests of these rows can have: up to their ends, and one more than they have
        slots, because the last token needs none.
        """
        return np.minimum(self.limit[rows], self.num_slots[rows] + 1)

    def __post_init__(self) -> None:
        self.running = np.zeros(self.num_rows, dtype=np.bool_)
        self.num_inputs = np.zeros(self.num_rows, dtype=np.int64)
        self.computed = np.zeros(self.num_rows, dtype=np.int64)
        self.num_slots = np.zeros(self.num_rows, dtype=np.int64)
        self.adapter = np.zeros(self.num_rows, dtype=np.int64)
        self.limit = np.zeros(self.num_rows, dtype=np.int64)

    def copy(self) -> "RunningRows":
        """Returns a copy, to be changed on trial."""
        other = RunningRows(self.num_rows, dict(self.owners))
        other.running, other.num_inputs = self.running.copy(), self.num_inputs.copy()
        other.computed, other.num_slots = self.computed.copy(), self.num_slots.copy()
        other.adapter, other.limit = self.adapter.copy(), self.limit.copy()
        return other

    def drop(self, rows: Sequence[int]) -> None:
        """Takes rows from their requests. A row that nobody owns stays as it is."""
        for row in rows:
            self.check_row(row, "drop")
            self.owners.pop(row, None)
            self.running[row] = False

    def used_adapters(self) -> frozenset[int]:
        """Returns the numbers of adapters that requests use."""
        return frozenset(self.adapter[self.running].tolist())

    def check_row(self, row: int, name: str) -> None:
        """Raises `InvalidRequest` for a row that does not exist."""
        if not 0 <= row < self.num_rows:
            raise InvalidRequest(f"`{name}` names row {row}; --max-batch-size {self.num_rows} has rows below it")


class PlanChecker:
    """Checks plans against the rows, and advances the rows. Only the engine thread uses it.

    `recurrent` says that layers of the model keep a state of each row, so that no position of a request is cached.
    """

    def __init__(
        self,
        limits: ServingLimits,
        max_batch_prefill_tokens: int,
        vocab_size: int,
        recurrent: bool = False,
        media: MediaChecker | None = None,
        adapters: AdapterChecker | None = None,
        widths: WidthChecker | None = None,
        drafter_keeps: bool = False,
        classifies: bool = False,
    ) -> None:
        """With `drafter_keeps`, a drafter keeps what it makes of the hidden states of every position, also of the last
        one that is cached, which is therefore computed again. `classifies` says that the model is a classifier, which
        predicts no token.
        """
        self.limits = limits
        self.max_batch_prefill_tokens = max_batch_prefill_tokens
        self._vocab_size = vocab_size
        self._recurrent = recurrent
        self._widths = widths or WidthChecker()
        self._drafter_keeps = drafter_keeps
        self._classifies = classifies
        self.media = media or MediaChecker()
        self.adapters = adapters or AdapterChecker()
        self.rows = RunningRows(limits.max_batch_size)

    def apply(self, plan: StepPlan) -> CheckedPlan:
        """Executes the host's part of a plan. Raises `InvalidRequest` or `OutOfSlots` for a wrong plan, which changes
        nothing.
        """
        rows = self.rows.copy()
        rows.drop(plan.drop)
        admitted, failures = self._admit(rows, plan.admit)
        writes = [SlotWrite(request.row, 0, request.slots) for request in admitted]
        writes += self._grant(rows, plan)
        items = self.media.encode(plan.encode, plan.forget)
        residents = self.adapters.copy(plan.adapter_copies, rows.used_adapters)
        chunks = self._chunks(rows, items, plan.chunks)
        widths = self._widths.of(plan)
        decodes, widths, longest = self._decodes(rows, plan, widths)
        owners = [rows.owners[row] for row in decodes.tolist()]
        owners += [each.owner for each in chunks if each.is_last]
        self._check_constrained(plan, chunks)
        self.rows, self.media.items, self.adapters.residents = rows, items, residents
        ordered = plan.constrained, longest, plan.encode, plan.forget
        adapters = _adapters(rows, decodes, chunks, widths) if self.adapters.num_pages else None
        hints = usable_hints(plan.hints, rows.running, self._vocab_size) if self._widths.widths else ()
        others = adapters, [each.number for each in plan.adapter_copies], widths, hints
        return CheckedPlan(plan.number, admitted, failures, writes, chunks, decodes, owners, *ordered, *others)

    def _admit(self, rows: RunningRows, requests: Sequence[Request]) -> tuple[list[Request], list[RequestFailure]]:
        """Gives requests their rows. A bad request fails alone: it owns its row, and nothing is computed for it."""
        admitted: list[Request] = []
        failures: list[RequestFailure] = []
        seen = {owner.request.id for owner in rows.owners.values()} if requests else set[int]()
        for request in requests:
            row = request.row
            rows.check_row(row, "admit")
            owner = rows.owners.get(row)
            if owner is not None and not (owner.refused or owner.failed):
                raise InvalidRequest(f"`admit` gives row {row} to request {request.id}, but {owner.request.id} owns it")
            if request.id in seen:
                raise InvalidRequest(f"`admit` holds request {request.id}, which is running already")
            seen.add(request.id)
            try:
                check_request(request, self.limits, self._vocab_size, self._recurrent)
                if self._classifies and request.prefill_logprobs:
                    raise InvalidRequest("`prefill_logprobs` must be false: a classifier predicts no tokens")
                self.adapters.check_request(request)
                self.media.check_request(request)
                rows.owners[row] = RunningRequest(request)
                admitted.append(request)
            except InvalidRequest as error:
                rows.owners[row] = RunningRequest(request, refused=True, failed=True)
                failures.append(failure(request, error))
            rows.running[row] = not rows.owners[row].refused
            rows.num_inputs[row] = len(request.input_ids)
            rows.computed[row] = request.cached_length
            rows.adapter[row] = request.adapter
            rows.limit[row] = limit_of(request)
            rows.num_slots[row] = self._capped(sum(slots.length for slots in request.slots))
        return admitted, failures

    def _grant(self, rows: RunningRows, plan: StepPlan) -> list[SlotWrite]:
        writes: list[SlotWrite] = []
        for grant in plan.grants:
            self._check_owned(rows, grant.row, "grants")
            check_slots(grant.slots, self.limits.max_batch_total_tokens)
            if rows.running[grant.row]:
                position = int(rows.num_slots[grant.row])
                writes.append(SlotWrite(grant.row, position, grant.slots))
                rows.num_slots[grant.row] = self._capped(position + sum(slots.length for slots in grant.slots))
        return writes

    def _chunks(self, rows: RunningRows, items: MediaItems, chunks: Sequence[Chunk]) -> list[Computed]:
        if len({chunk.row for chunk in chunks}) != len(chunks):
            raise InvalidRequest("`chunks` names a row twice")
        total = sum(chunk.count for chunk in chunks)
        if total > self.max_batch_prefill_tokens:
            raise InvalidRequest(
                f"`chunks` hold {total} tokens, more than --max-batch-prefill-tokens {self.max_batch_prefill_tokens}"
            )
        kept = [chunk for chunk in chunks if self._check_owned(rows, chunk.row, "chunks")]
        owners = [rows.owners[chunk.row] for chunk in kept]
        for chunk in kept:
            row, end = chunk.row, chunk.first + chunk.count
            computed, num_inputs = int(rows.computed[row]), int(rows.num_inputs[row])
            if chunk.first != computed or chunk.count < 1 or end > num_inputs:
                raise InvalidRequest(
                    f"the chunk of row {row} has positions {chunk.first} to {end - 1}, but of its {num_inputs} input "
                    f"tokens {computed} are computed"
                )
            if end > rows.num_slots[row]:
                raise OutOfSlots(f"position {end - 1} of row {row} has no slot: it holds {rows.num_slots[row]}")
            if (request := rows.owners[row].request).media:
                self.media.check_chunk(items, request, chunk)
            rows.computed[row] = end
        return [Computed(self._with_hidden(*each), each[1]) for each in zip(kept, owners, strict=True)]

    def _with_hidden(self, chunk: Chunk, owner: RunningRequest) -> Chunk:
        """Adds the last cached position to the first chunk behind it, where a drafter reads its hidden states. What is
        written there, which others may share, depends on the same ids as what is there.
        """
        request, before = owner.request, chunk.first - 1
        if not self._drafter_keeps or not 0 <= before == request.cached_length - 1:
            return chunk
        if any(span.first <= before < span.end for span in request.media):
            # Its rows of the media pool may be gone.
            return chunk
        return Chunk(chunk.row, before, chunk.count + 1)

    def _decodes(self, rows: RunningRows, plan: StepPlan, widths: Vector | None) -> tuple[Vector, Vector | None, int]:
        """Returns the rows that get more tokens, their widths, and the positions that the longest of them attends to,
        which with `widths` are upper bounds.
        """
        decodes = np.asarray(plan.decode, dtype=np.int64)
        if len(decodes) == 0:
            return decodes, None, 0
        for row in (int(decodes.min()), int(decodes.max())):
            rows.check_row(row, "decode")
        if np.bincount(decodes).max() > 1:
            raise InvalidRequest("`decode` names a row twice")
        if plan.chunks and not {chunk.row for chunk in plan.chunks}.isdisjoint(plan.decode):
            raise InvalidRequest("a row is in `chunks` and in `decode`")
        for row in decodes[~rows.running[decodes]].tolist():
            self._check_owned(rows, row, "decode")
        kept = rows.running[decodes]
        decodes, widths = decodes[kept], None if widths is None else widths[kept]
        if widths is not None and len(widths) == 0:
            widths = None
        computed = rows.computed[decodes]
        if (early := computed < rows.num_inputs[decodes]).any():
            raise InvalidRequest(f"`decode` names row {decodes[early][0]}, whose last position is not computed")
        if (short := computed >= rows.num_slots[decodes]).any():
            row = int(decodes[short][0])
            raise OutOfSlots(f"position {rows.computed[row]} of row {row} has no slot: it holds {rows.num_slots[row]}")
        rows.computed[decodes] = computed + 1
        # How many drafts were right is not known here: a window ends where the row's slots do.
        longest = computed + 1 if not self._widths.widths else rows.num_slots[decodes]
        return decodes, widths, int(longest.max(initial=0))

    def _check_constrained(self, plan: StepPlan, chunks: Sequence[Computed]) -> None:
        """Raises `InvalidRequest` for a constrained row that gets no token in this step."""
        if not plan.constrained:
            return
        if len(set(plan.constrained)) != len(plan.constrained):
            raise InvalidRequest("`constrained` names a row twice")
        unfinished = {each.chunk.row for each in chunks if not each.is_last}
        named = {chunk.row for chunk in plan.chunks}.union(plan.decode) - unfinished
        if other := set(plan.constrained) - named:
            raise InvalidRequest(f"`constrained` names row {min(other)}, which gets no token in this step")

    def _check_owned(self, rows: RunningRows, row: int, name: str) -> bool:
        """Whether `row` is to be computed, which a refused request is not. Raises `InvalidRequest` for a row without a
        request.
        """
        rows.check_row(row, name)
        if row not in rows.owners:
            raise InvalidRequest(f"`{name}` names row {row}, which no request owns")
        return bool(rows.running[row])

    def _capped(self, num_slots: int) -> int:
        """Caps slots at `max_total_tokens`, past which nobody can use them."""
        return min(num_slots, self.limits.max_total_tokens)


def failure(request: Request, error: EngineError) -> RequestFailure:
    """Returns the failure of one request for an error that would otherwise end the call."""
    return RequestFailure(request.id, request.row, error.reason, str(error))


def _adapters(rows: RunningRows, decodes: Vector, chunks: Sequence[Computed], widths: Vector | None) -> Vector | None:
    """Returns the adapter of each token of a step, or None where none uses any."""
    numbers = np.concatenate((rows.adapter[decodes], [each.owner.request.adapter for each in chunks])).astype(np.int64)
    if not numbers.any():
        return None
    width = 1 if widths is None else int(widths.max())
    counts = [width] * len(decodes) + [each.chunk.count for each in chunks]
    return np.repeat(numbers, counts)
