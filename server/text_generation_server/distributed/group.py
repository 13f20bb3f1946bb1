"""Collectives of the ranks that share one model: gloo on CPU, NCCL on CUDA, nothing for a single rank.

Every rank calls the same collectives in the same order; a rank that does not come within the time limit makes the
others fail with `EngineFailed` rather than wait for ever. All-reduces on CUDA go over peer memory where ranks have it
and it is faster than NCCL (`algorithms.py`).
"""

import logging
import math
import os
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

import text_generation_kernels as kernels

from ..config.parallel import ParallelConfig
from ..errors import EngineFailed
from .algorithms import SIZES, USUAL_HIDDEN_SIZE, Algorithm, AlgorithmTable, measure
from .peer_copies import PLACES
from .peer_memory import PeerMemory, can_map, peer_memory
from .pending import PendingAllReduce, SentAllReduce, count_wrong
from .rendezvous import meeting_place, meeting_store

NEVER_OVERLAPPED = sys.maxsize
"""`TensorParallelGroup.overlapped_bytes` of a group whose all-reduces do not overlap with GEMMs."""
CLOSING_LIMIT_S = 1.0
"""Time that kernels wait for other ranks once this one leaves."""
_OVERLAPPED_BYTES = 12 << 20
"""Message size from which steps run as overlapped halves, unless warm-up finds whole steps faster
(docs/lab/2026-11-two-cards.md)."""
_LONGEST_ROW = 1 << 13
_SHORTEST_ROW = 1 << 8

logger = logging.getLogger(__name__)


class TensorParallelGroup:
    """Made by `init_group`; only the engine thread uses it, except for `check`.

    `local_world_size`: ranks that share this host, all of them by default.
    """

    def __init__(self, rank: int, world_size: int, device: torch.device, local_world_size: int | None = None) -> None:
        self.rank = rank
        self.world_size = world_size
        self.local_world_size = local_world_size or world_size
        self.expert_parallel = False
        """Whether each of several ranks holds whole experts of a mixture; else each holds a shard of every expert."""
        self.context_parallel = False
        """Whether each of several ranks keeps some of the positions of latent attention; else each keeps all."""
        self.deterministic = False
        """Whether the all-reduce of a token must be the same to the bit whatever else is in the message."""
        self._device = device
        self._peers: PeerMemory | None = None
        self._algorithms = AlgorithmTable()
        self.overlapped_bytes = NEVER_OVERLAPPED
        """Steps with messages of this many bytes run as overlapped halves, whose all-reduces run beside GEMMs."""

    def all_reduce(self, tensor: Tensor) -> None:
        """All-reduces `tensor` (sum), in place."""
        if self.world_size == 1:
            return
        # Two numbers have one sum. The order of more depends, in the libraries, on an element's place in the message.
        if self.deterministic and self.world_size > 2:
            self._add_in_rank_order(tensor)
            return
        rows = _as_rows(tensor)
        if rows is None or not self._reduced(self._algorithms.of(_num_bytes(rows)), rows):
            with self._collective():
                dist.all_reduce(tensor)

    def _add_in_rank_order(self, tensor: Tensor) -> None:
        """`all_reduce` in float32, one addition at a time: the order of torch's reductions depends on the shape."""
        first, *others = self.all_gather(tensor.contiguous())
        total = first.float()
        for other in others:
            total += other
        tensor.copy_(total)

    def reduce_every_size(self, length: int, dtype: torch.dtype) -> None:
        """All-reduces rows of `length` elements in messages of all sizes by which algorithms are chosen: for a compile
        dry run, where messages of any size may come later.
        """
        for size in SIZES:
            rows = max(1, size // (length * dtype.itemsize))
            self.all_reduce(torch.zeros(rows, length, dtype=dtype, device=self._device))

    def begin_all_reduce(self, x: Tensor, place: int) -> PendingAllReduce:
        """Begins to all-reduce `x` [N, hidden], in place, beside the kernels that follow on this stream; nothing may
        touch it before the end. At most two are pending, and `place` counts them: 0, 1, 2, 3, 0, ...
        """
        if self._peers is not None and self._peers.copies.fits(x):
            return self._peers.copies.begin(x, place)
        self.all_reduce(x)
        return PendingAllReduce(x, None)

    def begin_gemv_all_reduce(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> PendingAllReduce | None:
        """The all-reduce of `x @ weight.T + bias` [1, outputs], where the GEMV can send its results to the ranks
        itself; else None. No other all-reduce may begin before its end.
        """
        if (
            self._peers is None
            or self._algorithms.of(weight.shape[0] * weight.element_size()) is not Algorithm.ONE_SHOT
        ):
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
        quantised: kernels.Quantised = kernels.NOT_QUANTISED,
    ) -> None:
        """`all_reduce(x)`, then `add_rms_norm` of it into `x` and `residual`, fused where that is faster and the output
        is not quantised.
        """
        algorithm = self._algorithms.of(_num_bytes(x))
        apart = self.world_size == 1 or quantised.is_wanted
        if apart or not self._reduced(algorithm, x, residual, weight, eps, scale, x_weight):
            self.all_reduce(x)
            kernels.add_rms_norm(x, residual, weight, eps, x, scale, x_weight, quantised)

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
        """Whether this algorithm is ours and has reduced these tensors; if not, nothing has happened."""
        if self._peers is None or algorithm is Algorithm.NCCL or not kernels.reducible(x, residual):
            return False
        two_shots = algorithm is Algorithm.TWO_SHOTS
        exchange = self._peers.exchange
        if not (kernels.fits_two_shots if two_shots else kernels.fits_one_shot)(x, exchange):
            return False
        kernels.allreduce_add_norm(x, residual, weight, eps, x, scale, x_weight, exchange, two_shots)
        return True

    def limit_waits(self, seconds: float) -> None:
        """Limits how long kernels wait for another rank from now on."""
        if self._peers is not None:
            self._peers.limit_waits(seconds)

    def check(self) -> None:
        """Raises `EngineFailed` if a rank did not come in time: results so far are meaningless. Any thread."""
        if self._peers is not None and self._peers.lost:
            raise EngineFailed(f"rank {self.rank} timed out waiting for another of {self.world_size} shards")

    def all_gather(self, tensor: Tensor) -> Tensor:
        """All-gathers `tensor` [...] to [world_size, ...]. Contiguous tensors of one shape."""
        gathered = tensor.new_empty(self.world_size * tensor.shape[0], *tensor.shape[1:])
        with self._collective():
            dist.all_gather_into_tensor(gathered, tensor)
        return gathered.unflatten(0, (self.world_size, -1))

    def gather_heads(self, x: Tensor) -> Tensor:
        """All-gathers `x` [T, heads of a rank, elements] to [T, heads of all ranks, elements], contiguous. Messages
        that one shot reduces fastest are all-reduced, each rank's beside zeros, which changes no bit.
        """
        heads = x.shape[1]
        if self._algorithms.of(_num_bytes(x) * self.world_size) is Algorithm.ONE_SHOT:
            whole = x.new_zeros(x.shape[0], self.world_size * heads, x.shape[2])
            whole[:, self.rank * heads : (self.rank + 1) * heads] = x
            self.all_reduce(whole.flatten(0, 1))
            return whole
        return self.all_gather(x.contiguous()).transpose(0, 1).flatten(1, 2)

    def all_to_all(self, tensor: Tensor) -> Tensor:
        """All-to-all of `tensor` [world_size, ...], contiguous: entry r goes to rank r, and comes from rank r."""
        received = torch.empty_like(tensor)
        with self._collective():
            dist.all_to_all_single(received, tensor)
        return received

    def min_int(self, value: int) -> int:
        """All-reduces `value` (minimum)."""
        return -self.max_ints([-value])[0]

    def max_ints(self, values: Sequence[int]) -> list[int]:
        """All-reduces `values` (maximum), of which every rank has the same number."""
        if self.world_size == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.int64, device=self._device)
        with self._collective():
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return tensor.tolist()

    def close(self) -> None:
        """Leaves the group, waiting for nobody. Safe to call twice.

        NCCL's communicator is left to the end of the process: destroying it waits for the other ranks, and for every
        CUDA graph that has captured a collective.
        """
        self.limit_waits(CLOSING_LIMIT_S)
        if self.world_size > 1 and self._device.type != "cuda" and dist.is_initialized():
            dist.destroy_process_group()

    def open_peer_memory(self, limit_s: float, hidden_size: int) -> None:
        """Sets up all-reduces over peer memory, where the ranks have it, and measures where they beat NCCL.

        All ranks call it together, once. `limit_s`: as in `limit_waits`; `hidden_size`: as in `measure`.
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
        """Self-check of all-reduces that overlap with other kernels: nothing later would show an error."""
        right = (
            self.min_int(count_wrong(self.begin_all_reduce, self.rank, self.world_size, PLACES, self._device) == 0) == 1
        )
        if not right:
            logger.warning("all-reduce/GEMM overlap is off: its self-check failed")
        return right

    def _timings(self, hidden_size: int) -> dict[int, dict[Algorithm, int]]:
        """Nanoseconds of each algorithm on the slowest rank, also logged. No algorithm of ours is chosen yet."""

        def reduce(algorithm: Algorithm, x: Tensor, residual: Tensor, weight: Tensor) -> None:
            if algorithm is Algorithm.NCCL:
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
    token, where the model is known. All-reduce algorithms are chosen by messages of such tokens, unless all-reduces are
    `deterministic`.

    Raises EngineFailed when the ranks do not come.
    """
    group = TensorParallelGroup(parallel.rank, parallel.world_size, device, parallel.local_world_size)
    if parallel.world_size == 1:
        return group
    group.expert_parallel = parallel.expert_parallel
    group.context_parallel = parallel.context_parallel
    group.deterministic = deterministic
    # NCCL would register buffers when a graph is captured. Memory of graphs is mapped in pieces, and again after warm-up,
    # and replays over such buffers hang (docs/lab/2026-11-latent-attention-over-cards.md).
    os.environ.setdefault("NCCL_GRAPH_REGISTER", "0")
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
        if reason := _nccl_only_because(parallel, deterministic):
            logger.info("all-reduce uses NCCL alone: %s", reason)
        else:
            group.open_peer_memory(timeout_s, hidden_size or USUAL_HIDDEN_SIZE)
    return group


def _nccl_only_because(parallel: ParallelConfig, deterministic: bool) -> str | None:
    """Why peer memory is not even tried; None if it is."""
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
    """`tensor` as [rows, n] for the kernels, or None where rows would be so short that they are slow."""
    if not tensor.is_contiguous():
        return None
    if tensor.numel() <= _LONGEST_ROW:
        return tensor.view(1, -1)
    length = tensor.shape[-1] if tensor.dim() > 1 else math.gcd(tensor.numel(), _LONGEST_ROW)
    return tensor.view(-1, length) if length >= _SHORTEST_ROW else None
