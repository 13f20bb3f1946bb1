"""Collectives of the ranks that share one model: gloo on CPU, NCCL on CUDA, nothing when alone.

Every rank calls the same collectives in the same order; a rank that does not come within the time limit makes the
others fail with `EngineFailed` rather than wait for ever.
Sums on CUDA go through memory that the ranks share where that is there and faster than NCCL (`algorithms.py`).
"""

import logging
import math
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import text_generation_kernels as kernels

from ..config.parallel import ParallelConfig
from ..errors import EngineFailed
from .peer_copies import PLACES
from .peer_memory import PeerMemory, can_map, peer_memory
from .rendezvous import meeting_place, meeting_store
from .pending import SentAllReduce, PendingAllReduce, count_wrong
from .algorithms import USUAL_HIDDEN_SIZE, Algorithm, AlgorithmTable, measure

NEVER_OVERLAPPED = sys.maxsize
"""`TensorParallelGroup.overlapped_bytes` of a group whose sums do not run beside products."""
CLOSING_LIMIT_S = 1.0
"""How long kernels wait for other ranks once this one leaves."""
_OVERLAPPED_BYTES = 12 << 20
"""From here on parts win: in two parts a layer of 70B took 6 % longer than whole for 512 tokens of 16 KiB on two H200,
9 % less time for 768, and 3 to 6 % less for 1,024 to 4,096. Whole steps: docs/lab/2026-11-two-cards.md. Warm-up times
a step in both algorithms, because it depends on the ranks, on what connects them and on the model."""
_LONGEST_ROW = 1 << 13
_SHORTEST_ROW = 1 << 8

logger = logging.getLogger(__name__)


class TensorParallelGroup:
    """Made by `init_group`, used by the engine thread alone, but for `check`.

    `local_world_size`: ranks that share this host, all of them unless told otherwise.
    """

    def __init__(self, rank: int, world_size: int, device: torch.device, local_world_size: int | None = None) -> None:
        self.rank = rank
        self.world_size = world_size
        self.local_world_size = local_world_size or world_size
        self.expert_parallel = False
        """Whether each of several ranks has some of a mixture's experts whole; else each has a part of every one."""
        self.deterministic = False
        """Whether a token's sum must be the same to the bit whatever else is in the message."""
        self._device = device
        self._peers: PeerMemory | None = None
        self._algorithms = AlgorithmTable()
        self.overlapped_bytes = NEVER_OVERLAPPED
        """Steps with messages of so many bytes are computed in parts, so that sums run beside products."""

    def all_reduce(self, tensor: Tensor) -> None:
        """Sums `tensor` over the ranks, in place."""
        if self.world_size == 1:
            return
        # Two numbers have one sum. The order of more follows, in the libraries, from an element's place in the message.
        if self.deterministic and self.world_size > 2:
            self._add_in_rank_order(tensor)
            return
        rows = _as_rows(tensor)
        if rows is None or not self._reduced(self._algorithms.of(_num_bytes(rows)), rows):
            with self._collective():
                dist.all_reduce(tensor)

    def _add_in_rank_order(self, tensor: Tensor) -> None:
        """`all_reduce` in float32. Additions one by one: the order of torch's reductions depends on the shape."""
        first, *others = self.all_gather(tensor.contiguous())
        total = first.float()
        for part in others:
            total += part
        tensor.copy_(total)

    def begin_all_reduce(self, x: Tensor, place: int) -> PendingAllReduce:
        """Begins to sum `x` [N, hidden] over the ranks, in place, beside the kernels that follow on this stream; it is
        not to be touched before the end. At most two sums are under algorithm, and `place` counts them: 0, 1, 2, 3, 0, ...
        """
        if self._peers is not None and self._peers.copies.fits(x):
            return self._peers.copies.begin(x, place)
        self.all_reduce(x)
        return PendingAllReduce(x, None)

    def begin_gemv_all_reduce(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> PendingAllReduce | None:
        """The sum over the ranks of `x @ weight.T + bias` [1, outputs], where the product can send its results to them
        itself; None otherwise. Nothing else is summed up before its end.
        """
        if self._peers is None or self._algorithms.of(weight.shape[0] * weight.element_size()) is not Algorithm.ONE_SHOT:
            return None
        exchange = self._peers.exchange
        if not kernels.send_linear(x, weight, bias, exchange):
            return None
        return SentAllReduce(x.new_empty(1, weight.shape[0]), None, exchange)

    def allreduce_add_norm(
        self,
        x: Tensor,
        residual: Tensor,
        weight: Tensor,
        eps: float,
        scale: float = 1.0,
        x_weight: Tensor | None = None,
        *eight_bit: Any,
    ) -> None:
        """`all_reduce(x)`, then `add_rms_norm` of it into `x` and `residual`, as one operator where that is faster and
        nothing is written in 8 bits. `eight_bit`: the last arguments of `add_rms_norm`.
        """
        algorithm = self._algorithms.of(_num_bytes(x))
        apart = self.world_size == 1 or len(eight_bit) > 0
        if apart or not self._reduced(algorithm, x, residual, weight, eps, scale, x_weight):
            self.all_reduce(x)
            kernels.add_rms_norm(x, residual, weight, eps, x, scale, x_weight, *eight_bit)

    def _reduced(
        self,
        algorithm: Algorithm,
        x: Tensor,
        residual: Tensor | None = None,
        weight: Tensor | None = None,
        eps: float = 0.0,
        scale: float = 1.0,
        x_weight: Tensor | None = None,
    ) -> bool:
        """False where this algorithm is not ours, or does not take these tensors; nothing has happened then."""
        if self._peers is None or algorithm is Algorithm.LIBRARY or not kernels.reducible(x, residual):
            return False
        two_shots = algorithm is Algorithm.TWO_SHOTS
        exchange = self._peers.exchange
        if not (kernels.fits_two_shots if two_shots else kernels.fits_one_shot)(x, exchange):
            return False
        kernels.allreduce_add_norm(x, residual, weight, eps, x, scale, x_weight, exchange, two_shots)
        return True

    def limit_waits(self, seconds: float) -> None:
        """How long kernels may wait for another rank from now on."""
        if self._peers is not None:
            self._peers.limit_waits(seconds)

    def check(self) -> None:
        """Raises `EngineFailed` where a rank did not come in time, so that results so far mean nothing. Any thread."""
        if self._peers is not None and self._peers.lost:
            raise EngineFailed(f"rank {self.rank} timed out waiting for another of {self.world_size} shards")

    def all_gather(self, tensor: Tensor) -> Tensor:
        """`tensor` [...] of every rank, [world_size, ...], on all of them. Contiguous tensors of one shape."""
        gathered = tensor.new_empty(self.world_size * tensor.shape[0], *tensor.shape[1:])
        with self._collective():
            dist.all_gather_into_tensor(gathered, tensor)
        return gathered.unflatten(0, (self.world_size, -1))

    def all_to_all(self, tensor: Tensor) -> Tensor:
        """`tensor` [world_size, ...], contiguous: entry r goes to rank r. Returns what came, entry r from rank r."""
        received = torch.empty_like(tensor)
        with self._collective():
            dist.all_to_all_single(received, tensor)
        return received

    def min_int(self, value: int) -> int:
        """The smallest `value` of all ranks."""
        return -self.max_ints([-value])[0]

    def max_ints(self, values: Sequence[int]) -> list[int]:
        """The largest of all ranks in each place; every rank gives as many."""
        if self.world_size == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.int64, device=self._device)
        with self._collective():
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return tensor.tolist()

    def close(self) -> None:
        """Leaves the group, waiting for nobody. Safe to call twice.

        A communicator of NCCL is left to the end of the process: its own end waits for the other ranks, and for every
        CUDA graph that has captured a collective.
        """
        self.limit_waits(CLOSING_LIMIT_S)
        if self.world_size > 1 and self._device.type != "cuda" and dist.is_initialized():
            dist.destroy_process_group()

    def open_peer_memory(self, limit_s: float, hidden_size: int) -> None:
        """Sets up sums through memory of all ranks, where they have any, and measures when they are faster than NCCL.

        Called by all ranks together, once. `limit_s`: as in `limit_waits`; `hidden_size`: as in `measure`.
        """
        if not self.min_int(can_map(self.world_size)):
            logger.info("all-reduce uses NCCL alone: the devices cannot write to each other's memory")
            return
        opened = peer_memory(self.rank, self.world_size, self._device, limit_s)
        if not self.min_int(isinstance(opened, PeerMemory)) or isinstance(opened, str):
            logger.warning("all-reduce uses NCCL alone: %s", opened)
            return
        self._peers = opened
        if right := self._copies_are_right():
            self.overlapped_bytes = _OVERLAPPED_BYTES
        self._algorithms = AlgorithmTable.fastest(self._timings(hidden_size))
        self.check()
        if not self._algorithms.any_of_ours and not right:
            self._peers = None

    def _copies_are_right(self) -> bool:
        """Whether sums that run beside other kernels are right on these devices: nothing later would show it."""
        right = self.min_int(count_wrong(self.begin_all_reduce, self.rank, self.world_size, PLACES, self._device) == 0) == 1
        if not right:
            logger.warning("all-reduce does not overlap with GEMMs: its self-check failed")
        return right

    def _timings(self, hidden_size: int) -> dict[int, dict[Algorithm, int]]:
        """Nanoseconds of each algorithm on the slowest rank, which are written to the log. None of ours is chosen yet."""

        def reduce(algorithm: Algorithm, x: Tensor, residual: Tensor, weight: Tensor) -> None:
            if algorithm is Algorithm.LIBRARY:
                self.allreduce_add_norm(x, residual, weight, 1e-5)
            elif not self._reduced(algorithm, x, residual, weight, 1e-5):
                raise ValueError(f"{algorithm.value} does not take {_num_bytes(x)} bytes")

        found = measure(reduce, self._device, hidden_size)
        slowest = iter(self.max_ints([ns for times in found.values() for ns in times.values()]))
        found = {size: {algorithm: next(slowest) for algorithm in times} for size, times in found.items()}
        table = {
            f"{size >> 10} KiB": ", ".join(f"{algorithm.value} {ns / 1000:.1f}" for algorithm, ns in times.items())
            for size, times in found.items()
        }
        if self.rank == 0:
            logger.info("all-reduce timings, microseconds in a CUDA graph", extra=table)
        return found

    @contextmanager
    def _collective(self) -> Generator[None, None, None]:
        try:
            yield
        except RuntimeError as error:
            raise EngineFailed(f"rank {self.rank} lost the group of {self.world_size} shards: {error}") from error


def init_group(
    parallel: ParallelConfig,
    device: torch.device,
    timeout_s: float,
    hidden_size: int | None = None,
    deterministic: bool = False,
) -> TensorParallelGroup:
    """Meets the other ranks within `timeout_s`, which then limits every collective too. `hidden_size`: values of a
    token of the model, where they are known; the algorithm of summing is chosen by messages of such tokens, but where sums
    are `deterministic`.

    Raises EngineFailed when the ranks do not come.
    """
    group = TensorParallelGroup(parallel.rank, parallel.world_size, device, parallel.local_world_size)
    if parallel.world_size == 1:
        return group
    group.expert_parallel = parallel.expert_parallel
    group.deterministic = deterministic
    try:
        store = meeting_store(parallel, timeout_s)
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            store=store,
            rank=parallel.rank,
            world_size=parallel.world_size,
            timeout=timedelta(seconds=timeout_s),
            device_id=device if device.type == "cuda" else None,
        )
    except (RuntimeError, ValueError, OSError) as error:  # torch raises either of the first, by cause
        place, remedy = meeting_place(parallel)
        raise EngineFailed(
            f"rank {parallel.rank} could not meet the other {parallel.world_size - 1} shards {place} "
            f"within {timeout_s:g} s; {remedy}: {error}"
        ) from error
    if device.type == "cuda":
        if reason := _library_alone(parallel, deterministic):
            logger.info("all-reduce uses NCCL alone: %s", reason)
        else:
            group.open_peer_memory(timeout_s, hidden_size or USUAL_HIDDEN_SIZE)
    return group


def _library_alone(parallel: ParallelConfig, deterministic: bool) -> str | None:
    """Why memory of other devices is not even tried; None: it is."""
    if parallel.node is not None:
        return "devices of several nodes cannot write to each other's memory"
    if deterministic:
        return "with --deterministic every all-reduce adds in one order"
    if not parallel.peer_memory:
        return "DISABLE_PEER_MEMORY is set"
    return None if kernels.triton_enabled() else "custom kernels are not used"


def _num_bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _as_rows(tensor: Tensor) -> Tensor | None:
    """`tensor` as [rows, n] for the kernels, or None where they would be slow: rows of a few values each."""
    if not tensor.is_contiguous():
        return None
    if tensor.numel() <= _LONGEST_ROW:
        return tensor.view(1, -1)
    length = tensor.shape[-1] if tensor.dim() > 1 else math.gcd(tensor.numel(), _LONGEST_ROW)
    return tensor.view(-1, length) if length >= _SHORTEST_ROW else None
