"""What a call may do, decided before it changes anything: new requests into rows, listed requests out of batches."""

import dataclasses
from collections.abc import Sequence

from ..errors import EngineError, InvalidRequest, OutOfSlots
from .batches import BatchTable, RunningRequest
from .replies import failure
from .requests import Batch, CachedBatch, Copy, Grant, Request, RequestFailure, ServingLimits, SlotRange
from .rows import RowTable
from .validation import check_request, check_slots


class Admission:
    """The rules. They look at the call and at replicated state alone, so all ranks agree. Engine thread only."""

    def __init__(
        self,
        limits: ServingLimits,
        max_batch_prefill_tokens: int,
        vocab_size: int,
        table: RowTable,
        batches: BatchTable,
    ) -> None:
        self._limits = limits
        self._max_batch_prefill_tokens = max_batch_prefill_tokens
        self._vocab_size = vocab_size
        self._table = table
        self._batches = batches

    def admit(self, batch: Batch) -> tuple[list[RunningRequest], list[RequestFailure]]:
        """Gives each good request of a new batch, and each of its copies, a row. A bad one fails with its copies alone.

        Raises `InvalidRequest` for a batch that is wrong as a whole.
        """
        self._check_new_batch(batch)
        good: list[Request] = []
        failures: list[RequestFailure] = []
        num_rows = 0
        for request in batch.requests:
            try:
                check_request(request, self._limits, self._vocab_size)
                num_rows += 1 + len(request.copies)
                if num_rows > self._table.num_free:
                    num_rows -= 1 + len(request.copies)
                    raise InvalidRequest(f"all rows are taken; --max-batch-size is {self._limits.max_batch_size}")
                good.append(request)
            except InvalidRequest as error:
                failures += _failures(request, error)
        num_tokens = sum(len(request.input_ids) for request in good)
        if num_tokens > self._max_batch_prefill_tokens:
            raise InvalidRequest(
                f"the prompts of the batch hold {num_tokens} tokens, more than --max-batch-prefill-tokens "
                f"{self._max_batch_prefill_tokens}"
            )
        return [running for request in good for running in self._open(request)], failures

    def listed(
        self, batches: Sequence[CachedBatch], grants: Sequence[Grant]
    ) -> tuple[list[RunningRequest], list[RunningRequest], dict[int, list[SlotRange]]]:
        """Requests to step, requests to drop, and slots granted by request. Changes nothing."""
        if not batches:
            raise InvalidRequest("must provide at least one batch")
        if len({batch.id for batch in batches}) != len(batches):
            raise InvalidRequest("`batches` lists a batch twice")
        kept: list[RunningRequest] = []
        dropped: list[RunningRequest] = []
        for batch in batches:
            wanted, unwanted = self._batches.select(batch)
            kept += wanted
            dropped += unwanted
        granted: dict[int, list[SlotRange]] = {r.id: [] for r in kept} if grants else {}
        for grant in grants:
            if grant.request_id not in granted:
                raise InvalidRequest(f"`grants` names request {grant.request_id}, which `batches` does not list")
            granted[grant.request_id] += grant.slots
        return kept, dropped, granted

    def apply_grants(
        self, running: Sequence[RunningRequest], granted: dict[int, list[SlotRange]]
    ) -> tuple[list[RunningRequest], list[RequestFailure]]:
        """Appends granted slots. Who has a bad grant, or no slot for the step it waits for, fails and loses the row."""
        checked: list[tuple[RunningRequest, list[SlotRange]]] = []
        errors: dict[int, EngineError] = {}
        for r in running:
            slots = granted.get(r.id)
            if not slots:
                continue
            try:
                check_slots(slots, self._limits.max_batch_total_tokens)
                checked.append((r, slots))
            except InvalidRequest as error:
                errors[r.id] = error
        self._table.grant(checked)
        for r in running:
            if not (r.id in errors or r.is_waited_for or r.has_slot):
                errors[r.id] = OutOfSlots(f"position {r.length - 1} has no slot: only {r.num_slots} were granted")
        if not errors:
            return list(running), []
        self._table.release([r for r in running if r.id in errors])
        failures = [failure(request_id, error) for request_id, error in errors.items()]
        return [r for r in running if r.id not in errors], failures

    def _check_new_batch(self, batch: Batch) -> None:
        if not batch.requests:
            raise InvalidRequest(f"batch {batch.id} must hold at least one request")
        if batch.id in self._batches:
            raise InvalidRequest(f"batch {batch.id} is already in the cache; choose another id")
        seen = {running.id for running in self._batches.running()}
        for request in batch.requests:
            for request_id in (request.id, *(copy.id for copy in request.copies)):
                if request_id in seen:
                    raise InvalidRequest(f"request {request_id} is already running; choose another id")
                seen.add(request_id)

    def _open(self, request: Request) -> list[RunningRequest]:
        lead = RunningRequest(request, self._table.take())
        copies = [RunningRequest(_copied(request, copy), self._table.take(), lead) for copy in request.copies]
        return [lead, *copies]


def _copied(request: Request, copy: Copy) -> Request:
    """A copy as a request of its own: the prompt's slots are those of `request`, the others its own."""
    return dataclasses.replace(
        request,
        id=copy.id,
        parameters=dataclasses.replace(request.parameters, seed=copy.seed),
        slots=(*_first(request.slots, len(request.input_ids)), *copy.slots),
        prefill_logprobs=False,
        copies=(),
    )


def _first(slots: Sequence[SlotRange], count: int) -> list[SlotRange]:
    """The first `count` of `slots`."""
    taken = []
    for slot_range in slots:
        length = min(slot_range.length, count)
        taken.append(SlotRange(slot_range.start, length))
        count -= length
    return taken


def _failures(request: Request, error: EngineError) -> list[RequestFailure]:
    return [failure(request_id, error) for request_id in (request.id, *(copy.id for copy in request.copies))]
