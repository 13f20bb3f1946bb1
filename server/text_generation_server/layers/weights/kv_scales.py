"""Scales of a quantised KV cache that a checkpoint was calibrated with."""

import torch
from torch import Tensor

from ...errors import ModelFilesError
from .checkpoint import Checkpoint
from .split import HeadSplit


def load_kv_scales(checkpoint: Checkpoint, layer: int, num_kv_heads: int, heads: HeadSplit) -> Tensor | None:
    """Reads [kv_heads of this rank, 2] bfloat16, the scales of keys and of values; None where either is missing.

    It knows vLLM's names and older ones, with one number for all heads or one for each. A number that is not above 0
    counts as missing, as -1 does in vLLM, and so does a number that bfloat16 rounds to 0 or to infinity. Raises
    ModelFilesError.
    """
    k, v = (_load(checkpoint, layer, kind, num_kv_heads, heads) for kind in ("k", "v"))
    return None if k is None or v is None else torch.stack((k, v), dim=-1)


def _load(checkpoint: Checkpoint, layer: int, kind: str, num_kv_heads: int, heads: HeadSplit) -> Tensor | None:
    names, source = checkpoint.names, checkpoint.source
    matrix = names.qkv or {"k": names.k, "v": names.v}[kind]
    attention = matrix.rpartition(".")[0]
    places = (f"{attention}.{kind}_scale", f"{matrix}.{kind}_scale", f"{matrix}.output_scale", f"{attention}.kv_scale")
    name = next((name for place in places if source.has(name := checkpoint.inside(layer, place))), None)
    if name is None:
        return None
    scale = source.raw(name).bfloat16().flatten()
    if len(scale) not in (1, num_kv_heads):
        raise ModelFilesError(
            f"tensor `{name}` must hold one scale or one for each of {num_kv_heads} heads, not {len(scale)}"
        )
    if not bool((scale.isfinite() & (scale > 0)).all()):
        return None
    return scale.expand(num_kv_heads)[list(heads.kv_heads)]
