"""`gptq`, `awq` and `auto-round`: codes of a few bits in groups along the inputs."""

from collections.abc import Sequence
from typing import cast

from ..json_object import JsonObject
from .refusal import refused
from .schemes import Packed, PackedFormat, Rule, Schemes

_BITS = range(2, 9)
_INSTEAD = "use the checkpoint that it was made from"


def gptq(config: JsonObject) -> Schemes:
    """GPTQ (Frantar et al., 2023) as AutoGPTQ and GPTQModel write it."""
    inner = config.child("quantization_config") if "quantization_config" in config else config
    if inner.boolean("is_marlin_format", default=False):
        raise refused("is_marlin_format", "a checkpoint in Marlin's order", _INSTEAD)
    key = "checkpoint_format" if "checkpoint_format" in inner else "format"
    # AutoRound writes `int`, older tools nothing.
    form = inner.string(key, default="gptq").lower()
    formats: dict[str, PackedFormat] = {"gptq": "gptq", "gptq_v2": "gptq_v2", "int": "gptq"}
    if form not in formats:
        raise refused(key, f"the GPTQ format {form!r}", "gptq and gptq_v2 are")
    scheme = _scheme(inner, formats[form])
    rules = [Rule(None, "path", "lm_head")] if not inner.boolean("lm_head", default=False) else []
    rules += _overrides(inner, scheme)
    blocks = _blocks(inner)
    names = ("path" if blocks else "all"), (blocks or ("",))
    return Schemes("gptq", (*rules, *(Rule(scheme, names[0], name) for name in names[1])))


def _scheme(config: JsonObject, form: PackedFormat) -> Packed:
    bits = config.integer("bits")
    if bits not in _BITS:
        raise refused("bits", f"GPTQ with {bits} bits", "2 to 8 are")
    size = config.integer("group_size", default=128, minimum=-1)
    symmetric, act_order = config.boolean("sym", default=True), config.boolean("desc_act", default=False)
    return Packed(form, bits, max(size, 0), symmetric, act_order)


def _overrides(config: JsonObject, scheme: Packed) -> list[Rule]:
    """`dynamic`: "-:" and a regular expression skips modules, "+:" (or nothing) has other numbers for them."""
    rules: list[Rule] = []
    dynamic = config.child("dynamic")
    for key in dynamic:
        if key.startswith("-:"):
            rules.append(Rule(None, "regex", key.removeprefix("-:")))
            continue
        other = dynamic.child(key)
        size = other.integer("group_size", default=scheme.group_size or -1, minimum=-1)
        changed = Packed(
            scheme.format,
            other.integer("bits", default=scheme.bits, maximum=8),
            max(size, 0),
            other.boolean("sym", default=scheme.symmetric),
            other.boolean("desc_act", default=scheme.act_order),
        )
        rules.append(Rule(changed, "regex", key.removeprefix("+:")))
    return rules


def _blocks(config: JsonObject) -> tuple[str, ...]:
    """Ends of the names of all modules that are quantised; none: all are."""
    value = config.plain().get("modules_in_block_to_quantize")
    if not isinstance(value, list):
        return ()
    lists = [
        cast("Sequence[object]", each) if isinstance(each, list) else [each] for each in cast("list[object]", value)
    ]
    return tuple(name for each in lists for name in each if isinstance(name, str))


def awq(config: JsonObject) -> Schemes:
    """AWQ (Lin et al., 2024) as AutoAWQ writes it. Its own file has other names for the keys."""
    version = config.string("version", default="gemm").lower()
    if version != "gemm":
        raise refused("version", f"the AWQ layout {version!r}", "gemm is")
    bits = config.integer("w_bit" if "w_bit" in config else "bits", default=4)
    if bits != 4:
        raise refused("bits", f"AWQ with {bits} bits", "4 are")
    size = config.integer("q_group_size" if "q_group_size" in config else "group_size", default=128, minimum=-1)
    scheme = Packed("awq", 4, max(size, 0), symmetric=not config.boolean("zero_point", default=True))
    skipped = (Rule(None, "text", name) for name in config.strings("modules_to_not_convert"))
    return Schemes("awq", (*skipped, Rule(None, "path", "lm_head"), Rule(scheme, "all")))


def auto_round(config: JsonObject) -> Schemes:
    """AutoRound writes the tensors of GPTQ or of AWQ."""
    packing = config.string("packing_format", default="auto_round:auto_gptq").lower()
    if list(config.child("extra_config")):
        raise refused("extra_config", "an AutoRound checkpoint with other numbers for some modules")
    if "awq" in packing:
        return awq(config)
    if "gptq" in packing:
        return gptq(config)
    raise refused("packing_format", f"AutoRound's {packing!r}", "auto_gptq and auto_awq are")


def mxfp4(_: JsonObject) -> Schemes:
    """gpt-oss: the experts alone, whatever the list of exceptions says. Those with 16 bits in the files keep them."""
    return Schemes("mxfp4", (Rule(Packed("mxfp4", 4, 32), "text", ".experts."),))
