"""Configurations of quantisation as published checkpoints have them, key by key, and tensors such as lie beside them.

The names are those of checkpoints, or of families of them, on the hub; sizes are those of a tiny model.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from support.compressed import STATIC_SCALE
from support.eight_bit import row_scales, tensor_scale
from support.packed_files import (
    Pack,
    PackedCase,
    awq_pack,
    compressed_pack,
    four_bits_pack,
    gptq_pack,
    int8_pack,
    without_head,
)
from support.published_packs import (
    bfloat16_blocks,
    half_scales,
    int8_rows,
    inverse_named,
    with_numbers,
    zero_biases,
)

Raw = dict[str, Any]
SIZES = {"hidden_size": 256, "intermediate_size": 384, "num_attention_heads": 4, "num_key_value_heads": 2}
"""Groups and blocks of 128 fit, and two ranks have different parts."""
HEAD = "lm_head"
NORMS = [f"model.layers.{layer}.{kind}_layernorm" for layer in (0, 1) for kind in ("input", "post_attention")]


@dataclass(frozen=True)
class Published:
    """One kind of checkpoint."""

    config: Raw
    """`quantization_config` of config.json, or of the file."""
    pack: Pack
    inputs: str = ""
    """How the library calls the rounding of inputs (`compressed.preset`); empty: they stay as they are."""
    file: str = ""
    """Beside config.json, where the configuration is in one of its own."""
    kv_cache: str | None = None
    """Type that the checkpoint wants keys and values to have."""
    beside: dict[str, Tensor] = field(default_factory=dict)
    """Other tensors, by the ends of names in each layer."""

    @property
    def case(self) -> PackedCase:
        """For `write_packed`."""
        return PackedCase({} if self.file else self.config, self.pack)


def _args(bits: int, kind: str, strategy: str, *, dynamic: bool = False, observer: str | None = "minmax") -> Raw:
    """As llm-compressor writes them, with all that is not set."""
    unset = {"actorder": None, "block_structure": None, "group_size": None, "observer_kwargs": {}}
    given = {"num_bits": bits, "type": kind, "strategy": strategy, "dynamic": dynamic, "observer": observer}
    return {**unset, **given, "symmetric": True}


def _compressed(form: str, weights: Raw, inputs: Raw | None, **more: Any) -> Raw:
    group = {"input_activations": inputs, "output_activations": None, "targets": ["Linear"], "weights": weights}
    return {
        "config_groups": {"group_0": group},
        "format": form,
        "global_compression_ratio": 1.463543865167781,
        "ignore": [HEAD],
        "kv_cache_scheme": None,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        **more,
    }


_TRANSFORMERS_GPTQ: Raw = {
    "batch_size": 1,
    "block_name_to_quantize": None,
    "cache_block_outputs": True,
    "dataset": None,
    "exllama_config": {"version": 1},
    "max_input_length": None,
    "model_seqlen": None,
    "module_name_preceding_first_block": None,
    "modules_in_block_to_quantize": None,
    "pad_token_id": None,
    "quant_method": "gptq",
    "sym": True,
    "tokenizer": None,
    "true_sequential": True,
    "use_cuda_fp16": False,
    "use_exllama": True,
}
_BNB: Raw = {
    "bnb_4bit_compute_dtype": "bfloat16",
    "bnb_4bit_quant_storage": "uint8",
    "bnb_4bit_quant_type": "nf4",
    "bnb_4bit_use_double_quant": True,
    "llm_int8_enable_fp32_cpu_offload": False,
    "llm_int8_has_fp16_weight": False,
    "llm_int8_skip_modules": None,
    "llm_int8_threshold": 6.0,
    "quant_method": "bitsandbytes",
}
_FLOAT_TOKENS = _args(8, "float", "token", dynamic=True, observer=None)
_KV_SCALES = {"self_attn.k_proj.k_scale": torch.tensor(0.02), "self_attn.v_proj.v_scale": torch.tensor(0.01)}

PUBLISHED: dict[str, Published] = {
    "RedHatAI FP8-dynamic": Published(
        _compressed("float-quantized", _args(8, "float", "channel"), _FLOAT_TOKENS, quantization_status="frozen"),
        without_head(half_scales(row_scales)),
        inputs="FP8_DYNAMIC",
    ),
    "RedHatAI FP8": Published(
        _compressed("naive-quantized", _args(8, "float", "tensor"), _args(8, "float", "tensor")),
        without_head(half_scales(tensor_scale, input_scale=STATIC_SCALE)),
        inputs="FP8",
    ),
    "RedHatAI quantized.w8a8": Published(
        _compressed(
            "int-quantized",
            _args(8, "int", "channel", observer="mse"),
            _args(8, "int", "token", dynamic=True, observer="memoryless"),
        ),
        without_head(lambda _, weight: int8_rows(weight)),
        inputs="W8A8",
    ),
    "RedHatAI quantized.w4a16": Published(
        _compressed(
            "pack-quantized",
            {**_args(4, "int", "group", observer="mse"), "group_size": 128, "actorder": "weight"},
            None,
            sparsity_config={},
            transform_config={},
            version="0.12.2",
        ),
        without_head(compressed_pack(4, 128, True)),
    ),
    "llm-compressor AWQ, asymmetric": Published(
        _compressed(
            "pack-quantized",
            {**_args(4, "int", "group"), "group_size": 128, "symmetric": False, "zp_dtype": "torch.int8"},
            None,
            ignore=[HEAD, "re:.*mlp.gate$", "re:visual.*"],
        ),
        without_head(compressed_pack(4, 128, False)),
    ),
    "neuralmagic FP8-KV of AutoFP8": Published(
        {
            "activation_scheme": "static",
            "ignored_layers": [HEAD],
            "kv_cache_scheme": "static",
            "quant_method": "fp8",
        },
        without_head(with_numbers(tensor_scale, input_scale=STATIC_SCALE)),
        inputs="FP8",
        kv_cache="fp8_e4m3fn",
        beside={"self_attn.kv_scale": torch.tensor([0.02])},
    ),
    "meta-llama 405B-FP8": Published(
        {
            "activation_scale_ub": 1200.0,
            "modules_to_not_convert": ["model.layers.1.mlp.down_proj", "model.layers.0.self_attn.q_proj", HEAD],
            "quant_method": "fbgemm_fp8",
        },
        without_head(
            with_numbers(row_scales, input_scale_ub=1200.0), "layers.1.mlp.down_proj", "layers.0.self_attn.q_proj"
        ),
        inputs="FP8_DYNAMIC",
    ),
    "Qwen3-FP8": Published(
        {
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "modules_to_not_convert": [HEAD, *NORMS, "model.layers.0.mlp.gate"],
            "quant_method": "fp8",
            "weight_block_size": [128, 128],
        },
        without_head(lambda _, weight: bfloat16_blocks(weight)),
        inputs="FP8_BLOCK",
    ),
    "mistralai FP8 of Transformers": Published(
        {
            "activation_scheme": "static",
            "dequantize": False,
            "modules_to_not_convert": ["model.vision_tower", "model.multi_modal_projector", HEAD],
            "quant_method": "fp8",
            "weight_block_size": None,
        },
        without_head(inverse_named(tensor_scale, activation_scale=STATIC_SCALE)),
        inputs="FP8",
    ),
    "nvidia FP8": Published(
        {
            "producer": {"name": "modelopt", "version": "0.23.0"},
            "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": [HEAD]},
        },
        without_head(with_numbers(tensor_scale, input_scale=STATIC_SCALE)),
        inputs="FP8",
        file="hf_quant_config.json",
        kv_cache="fp8_e4m3fn",
        beside=_KV_SCALES,
    ),
    "nvidia FP8 in config.json": Published(
        {
            "config_groups": {
                "group_0": {
                    "input_activations": {"dynamic": False, "num_bits": 8, "type": "float"},
                    "weights": {"dynamic": False, "num_bits": 8, "type": "float"},
                    "targets": ["Linear"],
                }
            },
            "ignore": [HEAD, "model.layers.0.self_attn*"],
            "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
            "producer": {"name": "modelopt", "version": "0.37.0"},
            "quant_algo": "FP8",
            "quant_method": "modelopt",
        },
        without_head(
            with_numbers(tensor_scale, input_scale=STATIC_SCALE),
            *(f"layers.0.self_attn.{name}_proj" for name in ("q", "k", "v", "o")),
        ),
        inputs="FP8",
        kv_cache="fp8_e4m3fn",
        beside=_KV_SCALES,
    ),
    "TheBloke GPTQ": Published(
        {
            "bits": 4,
            "damp_percent": 0.01,
            "desc_act": False,
            "group_size": 128,
            "model_file_base_name": "model",
            "model_name_or_path": None,
            "quant_method": "gptq",
            "sym": True,
            "true_sequential": True,
        },
        without_head(zero_biases(gptq_pack(4, 128))),
        beside={"self_attn.rotary_emb.inv_freq": torch.ones(32)},
    ),
    "neuralmagic w4a16 of AutoGPTQ": Published(
        {**_TRANSFORMERS_GPTQ, "bits": 4, "group_size": 128, "damp_percent": 0.1, "desc_act": True},
        without_head(gptq_pack(4, 128, order="each")),
    ),
    "Qwen2.5 GPTQ-Int8": Published(
        {**_TRANSFORMERS_GPTQ, "bits": 8, "group_size": 128, "damp_percent": 0.01, "desc_act": False},
        without_head(gptq_pack(8, 128)),
    ),
    "GPTQModel": Published(
        {
            "bits": 4,
            "checkpoint_format": "gptq",
            "desc_act": True,
            "dynamic": None,
            "group_size": 128,
            "lm_head": False,
            "meta": {"damp_percent": 0.005, "mse": 0.0, "quantizer": ["gptqmodel:1.4.0"], "static_groups": True},
            "pack_dtype": "int32",
            "quant_method": "gptq",
            "sym": False,
        },
        without_head(gptq_pack(4, 128, order="shared", symmetric=False)),
    ),
    "hugging-quants AWQ-INT4": Published(
        {
            "backend": "autoawq",
            "bits": 4,
            "do_fuse": False,
            "exllama_config": None,
            "fuse_max_seq_len": None,
            "group_size": 128,
            "modules_to_fuse": None,
            "modules_to_not_convert": None,
            "quant_method": "awq",
            "version": "gemm",
            "zero_point": True,
        },
        without_head(awq_pack(128)),
    ),
    "AWQ with its own file": Published(
        {"zero_point": True, "q_group_size": 128, "w_bit": 4, "version": "GEMM"},
        without_head(awq_pack(128)),
        file="quantize_config.json",
    ),
    "AWQ whose exceptions name too much": Published(
        {
            "bits": 4,
            "group_size": 128,
            "modules_to_not_convert": ["gate"],
            "quant_method": "awq",
            "version": "gemm",
            "zero_point": True,
        },
        without_head(awq_pack(128)),
    ),
    "Intel int4 AutoRound": Published(
        {
            "autoround_version": "0.5.1",
            "batch_size": 8,
            "bits": 4,
            "data_type": "int",
            "extra_config": {
                "model.layers.0.mlp.down_proj": {"bits": 16, "data_type": "float"},
                "model.layers.1.mlp.up_proj": {"bits": 8, "group_size": 64, "sym": False},
            },
            "group_size": 128,
            "packing_format": "auto_round:auto_gptq",
            "quant_method": "auto-round",
            "sym": True,
        },
        without_head(
            lambda module, weight: (
                gptq_pack(8, 64, symmetric=False)(module, weight)
                if module == "model.layers.1.mlp.up_proj"
                else gptq_pack(4, 128)(module, weight)
            ),
            "layers.0.mlp.down_proj",
        ),
    ),
    "unsloth bnb-4bit": Published(
        {**_BNB, "_load_in_4bit": True, "_load_in_8bit": False, "load_in_4bit": True, "load_in_8bit": False},
        without_head(four_bits_pack("nf4")),
    ),
    "unsloth dynamic bnb-4bit": Published(
        {
            **_BNB,
            "_load_in_4bit": True,
            "_load_in_8bit": False,
            "llm_int8_skip_modules": [HEAD, "multi_modal_projector", "merger", "model.layers.1.mlp", "router"],
            "load_in_4bit": True,
            "load_in_8bit": False,
        },
        without_head(four_bits_pack("nf4"), *(f"layers.1.mlp.{name}_proj" for name in ("gate", "up", "down"))),
    ),
    "bnb-8bit": Published(
        {**_BNB, "_load_in_4bit": False, "_load_in_8bit": True, "load_in_4bit": False, "load_in_8bit": True},
        without_head(int8_pack),
    ),
}
