"""Launch of the kernel of one token's small experts (`_token_experts_hopper_kernel.py`).

`mixture_ladder.py` says which mixtures it takes. Lab: docs/lab/2026-11-single-token-decode.md.
"""

from collections.abc import Mapping
from functools import cache

import torch
from torch import Tensor

from ..runtime.device import num_sms
from ..runtime.launch import Launcher
from ._token_experts_hopper_kernel import token_experts_kernel
from .expert_mlps import ExpertMlps
from .experts_gemv import FusedRouter

_HALF, _STAGES, _WARPS = 4, 4, 8
"""Gate rows of a tile, tiles in shared memory, warps."""
_EARLY = 2
"""Tiles that are prefetched before the top-k is complete."""
_LARGEST = 2048
"""The most inputs of a GEMV, which all threads of a thread block have in registers."""
_SLOTS = (4, 16)
"""The fewest and the most experts of a token: fewer leave most warps without work in down."""

_launch = Launcher(token_experts_kernel, writes=("out", "activated", "arrived"), dependents="after the wait")


@cache
def _arrived(device: torch.device) -> Tensor:
    """How many thread blocks of all launches have stored their activated values."""
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("run the operator once before it is captured")
    return torch.zeros(1, dtype=torch.int64, device=device)


def _padded(size: int) -> int:
    """To a power of two."""
    return 1 << (size - 1).bit_length()


def token_blocks(hidden: int, inner: int, slots: int, programs: int) -> dict[str, int] | None:
    """Launch settings of `token_experts`, None for shapes that no tiles fit."""
    if not (_SLOTS[0] <= slots <= _SLOTS[1] and max(hidden, inner) <= _LARGEST and min(hidden, inner) >= _LARGEST // 8):
        return None
    block_s, block_k, block_i = (_padded(size) for size in (max(slots, _WARPS), hidden, inner))
    rows = 2 * _HALF * block_k // (block_s * block_i)
    if not rows or hidden % max(8, rows) or inner % 8:
        return None
    ups = -(-slots * (inner // _HALF) // programs)
    downs = -(-hidden // (rows * programs))
    blocks = {
        "BLOCK_S": block_s,
        "BLOCK_K": block_k,
        "BLOCK_I": block_i,
        "BLOCK_U": _padded(ups),
        "BLOCK_T": _padded(downs),
    }
    blocks |= early_tiles(inner // _HALF, slots, programs)
    return {**blocks, "HALF": _HALF, "ROWS": rows, "STAGES": _STAGES, "num_warps": _WARPS}


def early_tiles(tiles: int, slots: int, programs: int) -> dict[str, int]:
    """How many tiles are prefetched before the top-k is complete (EARLY), one with each slot from LEAD on. There are
    none where a thread block may have fewer tiles or where the last slots are needed for them.
    """
    # The last thread block has the last of these tiles, by when the slot of that must be chosen.
    lead = max(((step + 1) * programs - 1) // tiles - step for step in range(_EARLY))
    is_early = slots * tiles >= _EARLY * programs and lead + _EARLY <= slots
    return {"LEAD": lead, "EARLY": _EARLY} if is_early else {"LEAD": 0, "EARLY": 0}


def token_experts(
    x: Tensor,
    router: FusedRouter,
    experts: ExpertMlps,
    activated: Tensor,
    out: Tensor,
    adds: bool,
    config: Mapping[str, int],
) -> None:
    """Launches the kernel: `x`, `out` [1, hidden], `activated` [slots, inner] for the activated values. Settings as of
    `token_blocks`.

    It runs on one stream at a time, as thread blocks of all calls count their arrivals in one place, and once before a
    capture.
    """
    gate_up, down = experts.gate_up.weight, experts.down.weight
    count, hidden, inner = down.shape
    options = router.options
    _launch(
        (num_sms(x.device),),
        (x, router.logits, gate_up, down, activated, out, _arrived(x.device)),
        (hidden, inner),
        (float(options.scale),),
        EXPERTS=count,
        SLOTS=options.top_k,
        NORM=options.norm,
        BLOCK_E=max(32, _padded(count)),
        ADDS=adds,
        ACTIVATION=experts.activation,
        **config,
    )
