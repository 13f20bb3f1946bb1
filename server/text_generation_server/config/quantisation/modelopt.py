"""`modelopt`, NVIDIA's Model Optimizer: one algorithm for all modules, or one for each (`MIXED_PRECISION`)."""

from ..json_object import JsonObject
from .compressed_tensors import kv_cache_scheme
from .refusal import refused
from .schemes import MX_GROUP, MXFP8, NVFP4, NVFP4_GROUP, Fp8, KvCacheType, Rule, Scheme, Schemes, exceptions

_MIXED = "MIXED_PRECISION"
_ALGORITHMS: dict[str, tuple[Scheme, int]] = {
    "FP8": (Fp8("tensor", "static"), 0),
    "FP8_PER_CHANNEL_PER_TOKEN": (Fp8("channel", "dynamic"), 0),
    "MXFP8": (MXFP8, MX_GROUP),
    "NVFP4": (NVFP4, NVFP4_GROUP),
    "W4A16_NVFP4": (NVFP4, NVFP4_GROUP),
}
"""What each stores, and the size of its groups, where it has any. Inputs of the last three keep 16 bits."""


def modelopt(config: JsonObject) -> Schemes:
    """`hf_quant_config.json` nests everything under `quantization`; `config.json` has other names for some of it."""
    inner = config.child("quantization") if "quantization" in config else config
    skipped = exceptions((*inner.strings("exclude_modules"), *inner.strings("ignore")))
    if inner.string("quant_algo", default="FP8").upper() == _MIXED:
        rules = _layers(inner.child("quantized_layers"))
    else:
        rules = (*skipped, Rule(None, "path", "lm_head"), Rule(_scheme(inner), "all"))
    return Schemes("modelopt", rules, kv_cache=_kv_cache(inner))


def _layers(layers: JsonObject) -> tuple[Rule, ...]:
    """What is not named is not quantised."""
    rules = tuple(Rule(_scheme(layers.child(name)), "exact", name) for name in layers)
    if not rules:
        raise refused("quantized_layers", "a mixed checkpoint that names no layer", "it must map names to algorithms")
    return (*rules, Rule(None, "all"))


def _scheme(config: JsonObject) -> Scheme:
    algorithm = config.string("quant_algo", default="FP8").upper()
    if algorithm not in _ALGORITHMS:
        raise refused("quant_algo", f"modelopt's {algorithm!r}", f"{', '.join(_ALGORITHMS)} and {_MIXED} are")
    scheme, size = _ALGORITHMS[algorithm]
    if size and (found := config.integer("group_size", default=size)) != size:
        raise refused("group_size", f"{algorithm} with groups of {found}", f"{size} is")
    return scheme


def _kv_cache(config: JsonObject) -> KvCacheType | None:
    if "kv_cache_quant_algo" not in config:
        return kv_cache_scheme(config)
    kinds: dict[str, KvCacheType | None] = {"FP8": "fp8_e4m3fn", "INT8": "int8", "NONE": None}
    return config.choice("kv_cache_quant_algo", kinds)
