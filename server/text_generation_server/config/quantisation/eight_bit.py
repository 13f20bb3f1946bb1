"""Methods whose weights have 8 bits: `fp8` (DeepSeek, Qwen, vLLM), `fbgemm_fp8` (Meta), and `bitsandbytes`, which has 4
bits besides.
"""

from ..json_object import JsonObject
from .refusal import refused
from .schemes import BLOCK, MX_GROUP, MXFP8, Fp8, Packed, PackedFormat, Rule, Schemes, exceptions

SCALE = "weight_scale_name"
"""A key that files made from `params.json` have: what lies beside every matrix of 8 bits, and beside no other."""
_ACTIVATIONS = {"dynamic": "dynamic", "static": "static"}
_SKIP_KEYS = ("ignored_layers", "modules_to_not_convert")
_BNB_BLOCK = 64


def fp8(config: JsonObject) -> Schemes:
    """One scale for a matrix, for each 128 x 128 block (`weight_block_size`), or for 32 inputs of a row. What
    `scale_fmt` says of scales their type says too.
    """
    is_static = config.string("activation_scheme", default="dynamic") == "static"
    if config.string("activation_scheme", default="dynamic") not in _ACTIVATIONS:
        raise config.error("activation_scheme", "dynamic or static")
    if (kind := config.string("fmt", default="e4m3")) not in ("e4m3", "float8_e4m3fn"):
        raise refused("fmt", f"the float type {kind!r}", "e4m3 is")
    blocks = "weight_block_size" in config
    size = config.integers("weight_block_size", 2, 2**20) if blocks else (BLOCK, BLOCK)
    if size not in ((BLOCK, BLOCK), (1, MX_GROUP)):
        raise refused("weight_block_size", f"blocks of {size[0]} x {size[1]}", "128 x 128 and 1 x 32 are")
    scheme = Fp8(
        "block" if blocks else "tensor",
        "static" if is_static and not blocks else "dynamic",
        mark=config.string(SCALE, default=""),
    )
    if size == (1, MX_GROUP):
        scheme = MXFP8
    skipped = exceptions(name for key in _SKIP_KEYS for name in config.strings(key))
    # The LM head keeps 16 bits, though lists of exceptions often omit it.
    # AutoFP8 names no type of the KV cache, which has the type of the weights.
    kv_cache = "fp8_e4m3fn" if config.plain().get("kv_cache_scheme") == "static" else None
    return Schemes("fp8", (*skipped, Rule(None, "path", "lm_head"), Rule(scheme, "all")), kv_cache=kv_cache)


def fbgemm_fp8(config: JsonObject) -> Schemes:
    """Reads `fbgemm_fp8`: each row has a scale, and the scales of tokens have an upper bound."""
    scheme = Fp8("channel", "dynamic", bound=config.optional_number("activation_scale_ub"))
    skipped = exceptions(config.strings("modules_to_not_convert"))
    return Schemes("fbgemm_fp8", (*skipped, Rule(None, "path", "lm_head"), Rule(scheme, "all")))


def bitsandbytes(config: JsonObject) -> Schemes:
    """Reads `bitsandbytes`: 4-bit codes of a table of 16 values, or 8 bits with a scale for each row."""
    four = config.boolean("load_in_4bit", default=config.boolean("_load_in_4bit", default=False))
    eight = config.boolean("load_in_8bit", default=config.boolean("_load_in_8bit", default=False))
    if four == eight:
        raise refused("load_in_4bit", "a checkpoint that says neither or both of 4 and 8 bits")
    if four:
        kinds: dict[str, PackedFormat] = {"nf4": "bnb-nf4", "fp4": "bnb-fp4"}
        scheme = Packed(config.choice("bnb_4bit_quant_type", kinds, "fp4"), 4, _BNB_BLOCK)
    else:
        scheme = Packed("bnb-int8", 8, 0)
    skipped = exceptions(config.strings("llm_int8_skip_modules"))
    return Schemes("bitsandbytes", (*skipped, Rule(None, "path", "lm_head"), Rule(scheme, "all")))
