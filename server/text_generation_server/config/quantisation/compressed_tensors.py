"""`compressed-tensors`, the format of llm-compressor: groups of modules, each with its own scheme of weights and
inputs.

A module belongs to the group that names it; else to the first with a regular expression for it; else to the one that
names its class (compressed_tensors.utils.match).
"""

from collections.abc import Sequence

from ..json_object import JsonObject
from .refusal import refused
from .schemes import (
    BLOCK,
    MX_GROUP,
    MXFP8,
    NVFP4,
    NVFP4_GROUP,
    ActivationScale,
    Fp8,
    Int8,
    KvCacheType,
    Packed,
    Rule,
    Scheme,
    Schemes,
    WeightScale,
)

_MX: dict[str, tuple[Scheme, int, int]] = {
    "mxfp4-pack-quantized": (Packed("mxfp4", 4, MX_GROUP), 4, MX_GROUP),
    "nvfp4-pack-quantized": (NVFP4, 4, NVFP4_GROUP),
    "mxfp8-quantized": (MXFP8, 8, MX_GROUP),
}
"""Floats of so many bits with a narrow scale for each group of so many inputs. What they are multiplied by keeps 16
bits, which loses nothing.
"""
_PLAIN = ("float-quantized", "int-quantized", "naive-quantized", "pack-quantized")
_FORMATS = (*_PLAIN, *_MX, "mixed-precision", "dense")
_CLASSES = ("Linear", "torch.nn.Linear", "torch.nn.modules.linear.Linear")
_BITS = range(2, 9)
_FP8_SCALES: dict[str, WeightScale] = {"tensor": "tensor", "channel": "channel", "block": "block"}


def compressed_tensors(config: JsonObject) -> Schemes:
    """Reads the schemes. Raises UnsupportedModel or ConfigurationError."""
    _check_whole(config)
    exact: list[Rule] = []
    regex: list[Rule] = []
    classes: list[Rule] = []
    groups = config.child("config_groups")
    for name in groups:
        group = groups.child(name)
        scheme = _scheme(config, group)
        for target in group.strings("targets"):
            if target.startswith("re:"):
                regex.append(Rule(scheme, "regex", target.removeprefix("re:")))
            elif target in _CLASSES:
                classes.append(Rule(scheme, "all"))
            else:
                exact.append(Rule(scheme, "exact", target))
    rules = (*_ignored(config.strings("ignore")), *exact, *regex, *classes)
    return Schemes("compressed-tensors", rules, kv_cache=kv_cache_scheme(config))


def _check_whole(config: JsonObject) -> None:
    """Refuses what is not supported for any group."""
    if list(config.child("transform_config").child("config_groups")):
        raise refused("transform_config", "a checkpoint with rotations")
    sparsity = config.child("sparsity_config")
    if sparsity.string("format", default="dense") != "dense":
        raise refused("sparsity_config", f"the sparse format {sparsity.string('format')!r}")
    status = config.string("quantization_status", default="compressed")
    if status not in ("compressed", "frozen"):
        raise refused("quantization_status", f"a checkpoint that is {status!r}, not compressed")
    _check_format(config.string("format", default="dense"))


def _check_format(name: str) -> None:
    if name not in _FORMATS:
        raise refused("format", f"the format {name!r}", f"read are {', '.join((*_PLAIN, *_MX))}")


def _ignored(names: Sequence[str]) -> list[Rule]:
    return [
        Rule(None, "regex", name.removeprefix("re:")) if name.startswith("re:") else Rule(None, "exact", name)
        for name in names
    ]


def _scheme(config: JsonObject, group: JsonObject) -> Scheme | None:
    if "weights" not in group:
        return None
    form = group.string("format", default=config.string("format", default="dense"))
    _check_format(form)
    weights = group.child("weights")
    bits, kind = weights.integer("num_bits", default=8), weights.string("type", default="int")
    strategy = weights.string("strategy", default=_usual_strategy(weights))
    if "input_activations" in group and form == "pack-quantized":
        inputs = group.child("input_activations").integer("num_bits", default=8)
        raise refused("input_activations", f"the format {form!r} with quantised inputs (W{bits}A{inputs})")
    if "output_activations" in group:
        raise refused("output_activations", "a checkpoint with quantised outputs")
    if form in _MX:
        scheme, *sizes = _MX[form]
        if [bits, found := weights.integer("group_size", default=sizes[1])] != sizes or kind != "float":
            asked = f"{kind}s of {bits} bits in groups of {found}"
            raise refused("weights", f"the format {form!r} with {asked}", f"floats of {sizes[0]} in {sizes[1]} are")
        return scheme
    if kind == "float":
        if bits != 8:
            raise refused("weights", f"a float type of {bits} bits")
        return _fp8(group, weights, strategy)
    if kind != "int" or bits not in _BITS:
        raise refused("weights", f"the type {kind!r} of {bits} bits")
    whole_bytes = bits == 8 and strategy != "group" and weights.boolean("symmetric", default=True)
    if form == "pack-quantized" or not (whole_bytes or "input_activations" in group):
        return _packed(weights, bits, strategy)
    return _int8(group, weights, bits, strategy)


def _usual_strategy(weights: JsonObject) -> str:
    """Returns the library's default strategy, for weights that name none."""
    size = weights.integer("group_size", default=0, minimum=-1)
    return "channel" if size < 0 else "group" if size else "tensor"


def _fp8(group: JsonObject, weights: JsonObject, strategy: str) -> Fp8:
    if strategy not in _FP8_SCALES:
        raise refused("weights", f"float8 weights with the strategy {strategy!r}")
    if strategy == "block" and (structure := weights.integers("block_structure", 2, 2**20)) != (BLOCK, BLOCK):
        raise refused("block_structure", f"blocks of {structure[0]} x {structure[1]}", "128 x 128 is")
    return Fp8(_FP8_SCALES[strategy], _activations(group, "float"))


def _int8(group: JsonObject, weights: JsonObject, bits: int, strategy: str) -> Int8:
    if bits != 8 or strategy not in ("tensor", "channel"):
        raise refused("weights", f"int weights of {bits} bits with the strategy {strategy!r}, not packed")
    if not weights.boolean("symmetric", default=True):
        raise refused("weights", "int8 weights with zero points")
    return Int8("tensor" if strategy == "tensor" else "channel", _activations(group, "int"))


def _packed(weights: JsonObject, bits: int, strategy: str) -> Packed:
    if strategy not in ("group", "channel", "tensor"):
        raise refused("weights", f"packed weights with the strategy {strategy!r}")
    size = weights.integer("group_size", default=0, minimum=-1) if strategy == "group" else 0
    symmetric = weights.boolean("symmetric", default=True)
    return Packed("compressed-tensors", bits, max(size, 0), symmetric)


def _activations(group: JsonObject, kind: str) -> ActivationScale:
    if "input_activations" not in group:
        return "none"
    inputs = group.child("input_activations")
    found, bits = inputs.string("type", default="int"), inputs.integer("num_bits", default=8)
    if found != kind or bits != 8:
        raise refused("input_activations", f"inputs of type {found!r} with {bits} bits beside {kind} weights")
    if not inputs.boolean("symmetric", default=True):
        raise refused("input_activations", "quantised inputs with zero points")
    # `dynamic` may be "local", for formats that are refused above.
    return "dynamic" if inputs.boolean("dynamic", default=False) else "static"


def kv_cache_scheme(config: JsonObject) -> KvCacheType | None:
    """Returns the type of the KV cache for which the checkpoint is calibrated. Raises UnsupportedModel or
    ConfigurationError.
    """
    if "kv_cache_scheme" not in config:
        return None
    scheme = config.child("kv_cache_scheme")
    kind, bits = scheme.string("type", default="float"), scheme.integer("num_bits", default=8)
    if bits != 8 or kind not in ("float", "int"):
        raise refused("kv_cache_scheme", f"a KV cache of type {kind!r} with {bits} bits")
    if not scheme.boolean("symmetric", default=True):
        raise refused("kv_cache_scheme", "a KV cache whose zero is not 0")
    return "fp8_e4m3fn" if kind == "float" else "int8"
