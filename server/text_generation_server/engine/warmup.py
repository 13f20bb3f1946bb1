"""Limits and pool size: what the operator asked for, checked against the model and the memory that is left."""

from dataclasses import dataclass

import torch

from ..distributed.group import TensorParallelGroup
from ..errors import EngineFailed, InvalidRequest, OutOfMemory
from ..models.base import CausalLM
from .kv_pool import KVPool, allocate_pool, bytes_per_slot
from .memory import available_host_memory, is_out_of_memory, release_memory
from .probe import run_largest_steps
from .requests import ServingLimits, WarmupLimits
from .rows import RowTable

CPU_POOL_FRACTION = 0.5
"""Part of the host's available memory that the pools of all ranks together take by themselves."""
CUDA_RESERVE_FRACTION = 0.02
"""Part of a device kept for fragmentation and for buffers of libraries that the probe cannot see."""


@dataclass(frozen=True)
class Capacity:
    """The outcome of Warmup."""

    limits: ServingLimits
    table: RowTable
    pool: KVPool


def plan_capacity(model: CausalLM, group: TensorParallelGroup, asked: WarmupLimits, memory_fraction: float) -> Capacity:
    """Derives the limits that are unset, allocates pool and rows. All ranks reach the same numbers, or the same error.

    `memory_fraction`: part of a CUDA device that this process may use. Raises `InvalidRequest` for limits that
    contradict each other or the model, `OutOfMemory` for limits that do not fit.
    """
    max_positions = model.config.max_context_length
    check_limits(asked, max_positions)
    longest = asked.max_total_tokens or max_positions
    try:
        fitting = _fitting_slots(model, group.world_size, asked, longest, memory_fraction)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        release_memory(model.device)
        message = (
            f"not enough memory for a batch of --max-batch-prefill-tokens {asked.max_batch_prefill_tokens} and "
            f"--max-batch-size {asked.max_batch_size}; lower them"
        )
        raise (OutOfMemory(message) if group.world_size == 1 else EngineFailed(message)) from error
    limits = derive_limits(asked, max_positions, group.min_int(fitting))
    table = RowTable(limits.max_batch_size, limits.max_total_tokens, model.device)
    return Capacity(limits, table, allocate_pool(model, limits.max_batch_total_tokens))


def check_limits(asked: WarmupLimits, max_positions: int) -> None:
    """Raises `InvalidRequest` for limits that cannot hold whatever the memory."""
    if asked.max_batch_size < 1:
        raise InvalidRequest("--max-batch-size must be at least 1")
    if asked.max_batch_prefill_tokens < 1:
        raise InvalidRequest("--max-batch-prefill-tokens must be at least 1")
    for flag, value, least in (
        ("--max-input-tokens", asked.max_input_tokens, 1),
        ("--max-total-tokens", asked.max_total_tokens, 2),
        ("--max-batch-total-tokens", asked.max_batch_total_tokens, 2),
    ):
        if value is not None and value < least:
            raise InvalidRequest(f"{flag} must be at least {least}")
    if asked.max_total_tokens is not None and asked.max_total_tokens > max_positions:
        raise InvalidRequest(
            f"--max-total-tokens {asked.max_total_tokens} is more than the {max_positions} positions of the model; "
            f"lower it to at most {max_positions}, or set --rope-scaling and --rope-factor"
        )
    if asked.max_input_tokens is not None and asked.max_input_tokens > asked.max_batch_prefill_tokens:
        raise InvalidRequest(
            f"--max-batch-prefill-tokens {asked.max_batch_prefill_tokens} must be at least --max-input-tokens "
            f"{asked.max_input_tokens}: a prompt is computed in one batch"
        )


def derive_limits(asked: WarmupLimits, max_positions: int, fitting_slots: int) -> ServingLimits:
    """Fills in what was not asked for. `fitting_slots`: the most that fit on every rank.

    Raises `OutOfMemory` naming the flag and the number that would fit.
    """
    pool = asked.max_batch_total_tokens or fitting_slots
    if pool > fitting_slots:
        raise OutOfMemory(f"not enough memory for --max-batch-total-tokens {pool}; lower it to at most {fitting_slots}")
    if pool < 2:
        raise OutOfMemory(
            f"the memory left holds {pool} KV slots, and a request needs at least 2; "
            "lower --max-batch-prefill-tokens or --max-batch-size, or use more shards"
        )
    max_total = asked.max_total_tokens or min(max_positions, pool)
    if max_total > pool:
        if asked.max_batch_total_tokens is not None:
            raise InvalidRequest(f"--max-batch-total-tokens {pool} must be at least --max-total-tokens {max_total}")
        raise OutOfMemory(f"not enough memory for --max-total-tokens {max_total}; lower it to at most {pool}")
    max_input = asked.max_input_tokens or min(max_total - 1, asked.max_batch_prefill_tokens)
    if max_input >= max_total:
        raise InvalidRequest(f"--max-input-tokens {max_input} must be below --max-total-tokens {max_total}")
    return ServingLimits(pool, max_input, max_total, asked.max_batch_size)


def _fitting_slots(model: CausalLM, world_size: int, asked: WarmupLimits, longest: int, memory_fraction: float) -> int:
    """Slots that fit on this rank beside everything else, or that it takes by itself if nothing is asked."""
    row_bytes = asked.max_batch_size * RowTable.bytes_per_row(longest)
    if model.device.type == "cuda":
        room = _cuda_room(model, asked, longest, memory_fraction)
        return max(0, room - row_bytes) // bytes_per_slot(model)
    available = available_host_memory() // world_size
    if asked.max_batch_total_tokens is not None:
        return max(0, available - row_bytes) // bytes_per_slot(model)
    fitting = max(0, int(available * CPU_POOL_FRACTION) - row_bytes) // bytes_per_slot(model)
    return min(fitting, asked.max_batch_size * longest)


def _cuda_room(model: CausalLM, asked: WarmupLimits, longest: int, memory_fraction: float) -> int:
    """Bytes left for pool and rows once the largest steps have run, measured by running them."""
    device = model.device
    release_memory(device)
    torch.cuda.reset_peak_memory_stats(device)
    probe_bytes = run_largest_steps(model, asked, longest)
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device) - probe_bytes
    release_memory(device)
    free, total = torch.cuda.mem_get_info(device)
    # What others hold on the device: other processes, the CUDA context, buffers of NCCL and cuBLAS.
    foreign = total - free - torch.cuda.memory_reserved(device)
    return int(total * (memory_fraction - CUDA_RESERVE_FRACTION)) - foreign - peak
