"""Which requests a cached batch holds, and how far each has come: host bookkeeping, no tensors."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ..errors import InvalidRequest, UnknownBatch
from .requests import CachedBatch, Request, Tokens


@dataclass(frozen=True)
class Choice:
    """What was chosen for one row. `token` is a valid id even when `valid` is false: NaN or infinite scores."""

    token: int
    logprob: float
    valid: bool
    top_tokens: Tokens | None


@dataclass(slots=True, eq=False)
class RunningRequest:
    """A request that owns a row. Lives on the engine thread from Prefill until it ends or is dropped."""

    request: Request
    row: int
    copy_of: "RunningRequest | None" = None
    """The request of the same prefill whose prompt this one reads."""
    num_slots: int = 0
    """Slots written to the row's slot table, for positions 0 .. num_slots - 1."""
    launched: int = 0
    """Tokens whose computation was put on the device's stream."""
    generated: int = 0
    """Tokens that were reported."""
    arrived: list[Choice] = field(default_factory=list)
    """Choices that are on the host and not reported yet."""
    released: bool = False
    """It ended or was dropped. What steps in flight still compute for it is nobody's."""

    @property
    def id(self) -> int:
        """Of the request."""
        return self.request.id

    @property
    def length(self) -> int:
        """Reported tokens of prompt and output; the newest has no KV yet, so `length - 1` slots are in use."""
        return len(self.request.input_ids) + self.generated

    @property
    def is_waited_for(self) -> bool:
        """Some step that computes a token of it has not been reported."""
        return self.launched > self.generated

    @property
    def has_slot(self) -> bool:
        """The next step can write its KV."""
        return len(self.request.input_ids) + self.launched <= self.num_slots

    @property
    def may_step(self) -> bool:
        """Its length, which is known ahead, does not end it before the next step, and that step has a slot."""
        return self.launched < self.request.stopping_parameters.max_new_tokens and self.has_slot


class BatchTable:
    """Cached batches by id. A request is in at most one of them."""

    def __init__(self) -> None:
        self._batches: dict[int, list[RunningRequest]] = {}

    def __contains__(self, batch_id: int) -> bool:
        return batch_id in self._batches

    def running(self) -> list[RunningRequest]:
        """All requests, batch by batch in the order of their first Prefill."""
        return [running for batch in self._batches.values() for running in batch]

    def get(self, batch_id: int) -> list[RunningRequest]:
        """Raises `UnknownBatch`."""
        batch = self._batches.get(batch_id)
        if batch is None:
            raise UnknownBatch(f"batch {batch_id} is not in the cache")
        return batch

    def select(self, batch: CachedBatch) -> tuple[list[RunningRequest], list[RunningRequest]]:
        """Splits a cached batch into what `batch.request_ids` lists and what it leaves out, each in cached order.

        Raises `UnknownBatch` for a request that the batch does not hold and `InvalidRequest` for one listed twice.
        """
        cached = self.get(batch.id)
        wanted = set(batch.request_ids)
        if len(wanted) != len(batch.request_ids):
            raise InvalidRequest(f"batch {batch.id} lists a request twice in `request_ids`")
        unknown = wanted - {running.id for running in cached}
        if unknown:
            raise UnknownBatch(f"batch {batch.id} does not hold request {min(unknown)}")
        return [r for r in cached if r.id in wanted], [r for r in cached if r.id not in wanted]

    def store(self, batch_id: int, running: Sequence[RunningRequest]) -> CachedBatch | None:
        """Caches `running` under `batch_id`; an empty batch is not kept. Returns what the reply says of it."""
        if not running:
            self._batches.pop(batch_id, None)
            return None
        self._batches[batch_id] = list(running)
        return CachedBatch(batch_id, tuple(r.id for r in running), sum(r.length - 1 for r in running))

    def remove(self, batch_ids: Iterable[int]) -> list[RunningRequest]:
        """Forgets batches, known or not, and returns the requests they held."""
        return [running for batch_id in batch_ids for running in self._batches.pop(batch_id, [])]

    def ids(self) -> list[int]:
        """Of all cached batches."""
        return list(self._batches)
