"""Meaning of `--quantize` for a 16-bit checkpoint, and for one that is quantised already."""

from ...errors import ConfigurationError, UnsupportedModel
from .schemes import Fp8, Int8, Packed, Rule, Scheme, Schemes

_ONLINE: dict[str, Scheme] = {
    "fp8": Fp8(online=True),
    "w8a8": Int8(),
    "eetq": Packed("online-int8", 8, 0),
    "bitsandbytes": Packed("online-int8", 8, 0),
    "bitsandbytes-nf4": Packed("online-nf4", 4, 64),
    "bitsandbytes-fp4": Packed("online-fp4", 4, 64),
    # LightLLM's names of modes.
    **dict.fromkeys(("triton_w8a8", "ppl_w8a8", "ao-w8a8", "vllm-w8a8"), Int8()),
    "triton_w8a16": Packed("online-int8", 8, 0),
    "triton_int8weight": Packed("online-int8", 8, 0),
    "triton_w4a16": Packed("online-int4", 4, 128),
    "triton_int4weight": Packed("online-int4", 4, 128),
    "lmdeploy_w4a16": Packed("online-int4", 4, 128),
    "ppl_w4a16": Packed("online-int4", 4, 128),
    "ao-w8a16": Packed("online-int8", 8, 0),
    **{f"ao-w4a16-{size}": Packed("online-int4", 4, size) for size in (32, 64, 128, 256)},
    "vllm-fp8w8a8": Fp8(online=True),
    "vllm-fp8w8a8-b128": Fp8("block", online=True),
    "deepgemm-fp8w8a8-b128": Fp8("block", online=True),
    "triton-fp8w8a8-block128": Fp8("block", online=True),
}
"""Names of online quantisation, with which 16-bit weights are quantised while they are read."""

_STORED: dict[str, tuple[str, ...]] = {
    "awq": ("awq",),
    "compressed-tensors": ("compressed-tensors",),
    # TGI can serve AWQ checkpoints with the kernels of GPTQ.
    "gptq": ("gptq", "awq", "auto-round"),
    "marlin": ("gptq", "awq", "auto-round", "compressed-tensors"),
    "fp8": ("fp8", "fbgemm_fp8", "modelopt", "compressed-tensors"),
    "bitsandbytes": ("bitsandbytes",),
    "bitsandbytes-nf4": ("bitsandbytes",),
    "bitsandbytes-fp4": ("bitsandbytes",),
}
"""Names of stored formats, with the `quant_method`s that they accept."""

_REFUSED = {
    "exl2": "ExLlamaV2 checkpoints are not read; use a GPTQ or AWQ checkpoint of the model",
    "ao-fp8w8a16": "fp8 weights have fp8 inputs where the card can; use fp8",
    "ao-fp6w6a16": "there are no 6-bit weights; use fp8, eetq or bitsandbytes-nf4",
    "flash_llm_w6a16": "there are no 6-bit weights; use fp8, eetq or bitsandbytes-nf4",
}

QUANTIZE_NAMES = tuple(dict.fromkeys((*_STORED, *_ONLINE)))
"""Values of `--quantize` that work with some checkpoint."""


def online_schemes(asked: str | None, stored: Schemes) -> Schemes:
    """Returns the schemes of a model whose checkpoint has `stored`, served with `--quantize asked`.

    Raises ConfigurationError for values that are unknown or contradict the checkpoint, and UnsupportedModel for formats
    that are not supported at all.
    """
    if not asked:
        return stored
    if asked in _REFUSED:
        raise UnsupportedModel(f"--quantize {asked} is not supported: {_REFUSED[asked]}")
    if asked not in QUANTIZE_NAMES:
        raise ConfigurationError(f"--quantize must be one of {', '.join(QUANTIZE_NAMES)}, not {asked!r}")
    if stored.method:
        if stored.method not in _STORED.get(asked, ()):
            raise ConfigurationError(
                f"--quantize {asked} contradicts the checkpoint, which is quantised by {stored.method!r} already: "
                "leave --quantize out"
            )
        return stored
    if asked not in _ONLINE:
        raise ConfigurationError(
            f"--quantize {asked} needs a checkpoint that is quantised so, and config.json has no "
            "`quantization_config`: leave it out, or quantise while loading with fp8, eetq or bitsandbytes-nf4"
        )
    return _online(asked, _ONLINE[asked])


def _online(name: str, scheme: Scheme) -> Schemes:
    """Returns schemes in which every matrix of the layers has `scheme`, and the LM head keeps 16 bits."""
    rules = (Rule(None, "exact", "lm_head"), Rule(None, "path", "lm_head"), Rule(scheme, "all"))
    return Schemes(name, rules, online=True)
