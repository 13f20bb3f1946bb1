"""Quantisation schemes of a model's matrices, from the configuration of its checkpoint or from `--quantize`."""

from .online import QUANTIZE_NAMES, online_schemes
from .reading import read_schemes
from .schemes import (
    BESIDE,
    BLOCK,
    NVFP4_GROUP,
    UNQUANTISED,
    Fp8,
    Int8,
    Packed,
    PackedFormat,
    Rule,
    Scheme,
    Schemes,
)

__all__ = [
    "BESIDE",
    "BLOCK",
    "NVFP4_GROUP",
    "QUANTIZE_NAMES",
    "UNQUANTISED",
    "Fp8",
    "Int8",
    "Packed",
    "PackedFormat",
    "Rule",
    "Scheme",
    "Schemes",
    "online_schemes",
    "read_schemes",
]
