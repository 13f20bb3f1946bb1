"""`gptq`, `awq` and `auto-round`: weight-only methods with groups along the inputs."""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from ..json_object import JsonObject
from .refusal import refused
from .schemes import Packed, PackedFormat, Rule, Schemes

_BITS = range(2, 9)
_PLAIN_BITS = 16
_MARKS_OF_EXPRESSIONS = frozenset("*+?^$()[]{}|\\")
"""Characters that tell a regular expression of AutoRound from a name, which has none of these."""
_INSTEAD = "use the checkpoint that it was made from"


def gptq(config: JsonObject) -> Schemes:
    """Reads GPTQ (Frantar et al., 2023) as AutoGPTQ and GPTQModel write it."""
    inner = config.child("quantization_config") if "quantization_config" in config else config
    if inner.boolean("is_marlin_format", default=False):
        raise refused("is_marlin_format", "a checkpoint in Marlin's order", _INSTEAD)
    key = "checkpoint_format" if "checkpoint_format" in inner else "format"
    # AutoRound writes `int`, older tools nothing.
    form = inner.string(key, default="gptq").lower()
    formats: dict[str, PackedFormat] = {"gptq": "gptq", "gptq_v2": "gptq_v2", "int": "gptq"}
    if form not in formats:
        raise refused(key, f"the GPTQ format {form!r}", "gptq and gptq_v2 are")
    if (words := inner.string("pack_dtype", default="int32")) != "int32":
        raise refused("pack_dtype", f"a GPTQ checkpoint with words of type {words}", "int32 is")
    scheme = _scheme(inner, formats[form])
    rules = [Rule(None, "path", "lm_head")] if not inner.boolean("lm_head", default=False) else []
    rules += _overrides(inner, scheme)
    blocks = _blocks(inner)
    names = ("path" if blocks else "all"), (blocks or ("",))
    return Schemes("gptq", (*rules, *(Rule(scheme, names[0], name) for name in names[1])))


def _scheme(config: JsonObject, form: PackedFormat, usual: Packed | None = None) -> Packed:
    """Reads bits, groups and symmetry, with `usual` for absent ones. The tensors tell what `desc_act` would."""
    bits = config.integer("bits", default=None if usual is None else usual.bits)
    if bits not in _BITS:
        raise refused("bits", f"GPTQ with {bits} bits", "2 to 8 are")
    usual = usual or Packed(form, bits, 128)
    size = config.integer("group_size", default=usual.group_size or -1, minimum=-1)
    return Packed(form, bits, max(size, 0), config.boolean("sym", default=usual.symmetric))


def _overrides(config: JsonObject, scheme: Packed) -> list[Rule]:
    """Reads `dynamic`: "-:" with a regular expression skips modules, "+:" (or nothing) has other numbers for them."""
    dynamic = config.child("dynamic")
    return [
        Rule(None, "regex", key.removeprefix("-:"))
        if key.startswith("-:")
        else Rule(_scheme(dynamic.child(key), scheme.format, scheme), "regex", key.removeprefix("+:"))
        for key in dynamic
    ]


def _blocks(config: JsonObject) -> tuple[str, ...]:
    """Returns the ends of the names of all quantised modules; empty: all modules are quantised."""
    value = config.plain().get("modules_in_block_to_quantize")
    if not isinstance(value, list):
        return ()
    lists = [
        cast("Sequence[object]", each) if isinstance(each, list) else [each] for each in cast("list[object]", value)
    ]
    return tuple(name for each in lists for name in each if isinstance(name, str))


def awq(config: JsonObject) -> Schemes:
    """Reads AWQ (Lin et al., 2024) as AutoAWQ writes it, whose own file has other names for the keys."""
    # GPTQModel uses its GPTQ names.
    key = next((key for key in ("version", "checkpoint_format", "format") if key in config), "version")
    version = config.string(key, default="gemm").lower()
    if version != "gemm":
        raise refused(key, f"the AWQ layout {version!r}", "gemm is")
    bits = config.integer("w_bit" if "w_bit" in config else "bits", default=4)
    if bits != 4:
        raise refused("bits", f"AWQ with {bits} bits", "4 are")
    size = config.integer("q_group_size" if "q_group_size" in config else "group_size", default=128, minimum=-1)
    scheme = Packed("awq", 4, max(size, 0), symmetric=not config.boolean("zero_point", default=True))
    skipped = (Rule(None, "text", name) for name in config.strings("modules_to_not_convert"))
    return Schemes("awq", (*skipped, Rule(None, "path", "lm_head"), Rule(scheme, "all")))


def auto_round(config: JsonObject) -> Schemes:
    """Reads AutoRound, which writes tensors of GPTQ or AWQ; `extra_config` has other numbers for some modules."""
    packing = config.string("packing_format", default="auto_round:auto_gptq").lower()
    if (kind := config.string("data_type", default="int")) != "int":
        raise refused("data_type", f"an AutoRound checkpoint of type {kind!r}", "int is")
    if "awq" in packing:
        schemes = awq(config)
    elif "gptq" in packing:
        schemes = gptq(config)
    else:
        raise refused("packing_format", f"AutoRound's {packing!r}", "auto_gptq and auto_awq are")
    usual = schemes.usual
    extra = config.child("extra_config")
    found = {name: _extra(extra.child(name), usual) for name in extra} if isinstance(usual, Packed) else {}
    # Names have precedence over expressions, in any order.
    names = (Rule(scheme, "exact", name) for name, scheme in found.items())
    expressions = (
        Rule(scheme, "search", name) for name, scheme in found.items() if _MARKS_OF_EXPRESSIONS.intersection(name)
    )
    return replace(schemes, rules=(*names, *expressions, *schemes.rules))


def _extra(config: JsonObject, usual: Packed) -> Packed | None:
    """Returns the scheme of one module; None for 16 bits and more, which are not quantised."""
    if config.integer("bits", default=usual.bits) >= _PLAIN_BITS:
        return None
    if usual.format == "awq":
        size = config.integer("group_size", default=usual.group_size or -1, minimum=-1)
        if (bits := config.integer("bits", default=usual.bits)) != usual.bits:
            raise refused("extra_config", f"AWQ with {bits} bits", "4 are")
        return replace(usual, group_size=max(size, 0))
    return _scheme(config, usual.format, usual)


def mxfp4(_: JsonObject) -> Schemes:
    """Reads `mxfp4` of gpt-oss: the experts alone, whatever the exceptions. Experts stored with 16 bits keep them."""
    return Schemes("mxfp4", (Rule(Packed("mxfp4", 4, 32), "text", ".experts."),))
