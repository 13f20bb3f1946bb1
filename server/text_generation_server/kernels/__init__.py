"""Operators of the forward pass, one a file: formula, layouts, bytes floor, torch implementation, Triton kernel.

Operators write into tensors that the caller passes, so that a captured graph replays them in place.
"""

from ._register import use_triton
from .act_and_mul import act_and_mul
from .add_rms_norm import add_rms_norm
from .decode_attention import decode_attention
from .prefill_attention import prefill_attention
from .qkv_postprocess import qkv_postprocess
from .rms_norm import rms_norm

__all__ = [
    "act_and_mul",
    "add_rms_norm",
    "decode_attention",
    "prefill_attention",
    "qkv_postprocess",
    "rms_norm",
    "use_triton",
]
