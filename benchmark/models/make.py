"""Write a model folder for benchmarks: config.json and a synthetic tokenizer of the right size, no weights.

    python benchmark/models/make.py Llama-3.1-8B /tmp/llama-8b
    text-generation-launcher --model-id /tmp/llama-8b --load-format dummy

Shapes are those of the published models, so speed is theirs; texts mean nothing. Every token of the vocabulary is a
word of its own, so a prompt of n words has n tokens.
"""

import argparse
import itertools
import json
import string
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from newer import NEWER_SHAPES
from seeing import CHAT_TEMPLATE as CHAT_TEMPLATE_OF_IMAGES
from seeing import PREPROCESSORS, SEEING_SHAPES, marks
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

LLAMA_31: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "attention_bias": False,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "vocab_size": 128256,
}
QWEN_25: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "bos_token_id": 151643,
    "eos_token_id": 151643,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "use_sliding_window": False,
}
QWEN_3: dict[str, Any] = {
    "model_type": "qwen3",
    "attention_bias": False,
    "bos_token_id": 151643,
    "eos_token_id": 151643,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "num_attention_heads": 32,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
QWEN_35: dict[str, Any] = {
    "attention_bias": False,
    "bos_token_id": 248044,
    "eos_token_id": 248044,
    "full_attention_interval": 4,
    "head_dim": 256,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "max_position_embeddings": 262144,
    "num_attention_heads": 16,
    "partial_rotary_factor": 0.25,
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000000.0,
    "tie_word_embeddings": False,
    "vocab_size": 248320,
}
GEMMA: dict[str, Any] = {
    "bos_token_id": 2,
    "eos_token_id": 1,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-06,
    "tie_word_embeddings": True,
}
MISTRAL: dict[str, Any] = {
    "bos_token_id": 1,
    "eos_token_id": 2,
    "head_dim": 128,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
}
GPT_OSS: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "attention_bias": True,
    "bos_token_id": 199998,
    "eos_token_id": 200002,
    "head_dim": 64,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "max_position_embeddings": 131072,
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "rope_type": "yarn",
        "truncate": False,
    },
    "rope_theta": 150000.0,
    "sliding_window": 128,
    "tie_word_embeddings": False,
    "vocab_size": 201088,
}
SHAPES: dict[str, dict[str, Any]] = {
    "Llama-3.1-8B": LLAMA_31
    | {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_hidden_layers": 32},
    "Llama-3.1-70B": LLAMA_31
    | {"hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64, "num_hidden_layers": 80},
    "Qwen2.5-0.5B": QWEN_25
    | {
        "hidden_size": 896,
        "intermediate_size": 4864,
        "max_position_embeddings": 32768,
        "num_attention_heads": 14,
        "num_hidden_layers": 24,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
        "vocab_size": 151936,
    },
    "Qwen2.5-7B": QWEN_25
    | {
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "max_position_embeddings": 131072,
        "num_attention_heads": 28,
        "num_hidden_layers": 28,
        "num_key_value_heads": 4,
        "tie_word_embeddings": False,
        "vocab_size": 152064,
    },
    "Qwen2.5-72B": QWEN_25
    | {
        "hidden_size": 8192,
        "intermediate_size": 29568,
        "max_position_embeddings": 131072,
        "num_attention_heads": 64,
        "num_hidden_layers": 80,
        "num_key_value_heads": 8,
        "tie_word_embeddings": False,
        "vocab_size": 152064,
    },
    "Qwen3-8B": QWEN_3
    | {
        "architectures": ["Qwen3ForCausalLM"],
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_key_value_heads": 8,
    },
    "Qwen3-30B-A3B": QWEN_3
    | {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "decoder_sparse_step": 1,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "mlp_only_layers": [],
        "moe_intermediate_size": 768,
        "norm_topk_prob": True,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 48,
        "num_key_value_heads": 4,
    },
    "Qwen3-Next-80B-A3B": QWEN_35
    | {
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "bos_token_id": 151643,
        "eos_token_id": 151645,
        "decoder_sparse_step": 1,
        "hidden_size": 2048,
        "intermediate_size": 5120,
        "mlp_only_layers": [],
        "moe_intermediate_size": 512,
        "norm_topk_prob": True,
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "num_hidden_layers": 48,
        "num_key_value_heads": 2,
        "shared_expert_intermediate_size": 512,
        "vocab_size": 151936,
    },
    "Qwen3.5-9B": QWEN_35
    | {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 32,
        "num_key_value_heads": 4,
    },
    "Qwen3.5-35B-A3B": QWEN_35
    | {
        "architectures": ["Qwen3_5MoeForCausalLM"],
        "model_type": "qwen3_5_moe_text",
        "hidden_size": 2048,
        "moe_intermediate_size": 512,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 40,
        "num_key_value_heads": 2,
        "shared_expert_intermediate_size": 512,
    },
    "Mamba-2.8B": {
        "architectures": ["MambaForCausalLM"],
        "model_type": "mamba",
        "bos_token_id": 0,
        "conv_kernel": 4,
        "eos_token_id": 0,
        "expand": 2,
        "hidden_act": "silu",
        "hidden_size": 2560,
        "intermediate_size": 5120,
        "layer_norm_epsilon": 1e-05,
        "num_hidden_layers": 64,
        "state_size": 16,
        "time_step_rank": 160,
        "use_bias": False,
        "use_conv_bias": True,
        "vocab_size": 50280,
    },
    "Nemotron-3-Nano-30B-A3B": {
        "architectures": ["NemotronHForCausalLM"],
        "model_type": "nemotron_h",
        "bos_token_id": 1,
        "conv_kernel": 4,
        "eos_token_id": 2,
        "head_dim": 128,
        "hidden_size": 2688,
        "hybrid_override_pattern": "MEMEM*E" * 5 + "MEMEMEM*E" + "MEMEMEME",
        "intermediate_size": 1856,
        "layer_norm_epsilon": 1e-05,
        "mamba_head_dim": 64,
        "mamba_num_heads": 64,
        "max_position_embeddings": 262144,
        "mlp_hidden_act": "relu2",
        "moe_intermediate_size": 1856,
        "moe_shared_expert_intermediate_size": 3712,
        "n_group": 1,
        "n_groups": 8,
        "n_routed_experts": 128,
        "norm_topk_prob": True,
        "num_attention_heads": 32,
        "num_experts_per_tok": 6,
        "num_key_value_heads": 2,
        "routed_scaling_factor": 2.5,
        "ssm_state_size": 128,
        "tie_word_embeddings": False,
        "topk_group": 1,
        "vocab_size": 131072,
    },
    "Granite-4.0-H-Tiny": {
        "architectures": ["GraniteMoeHybridForCausalLM"],
        "model_type": "granitemoehybrid",
        "attention_multiplier": 0.0078125,
        "bos_token_id": 100257,
        "embedding_multiplier": 12,
        "eos_token_id": 100257,
        "hidden_size": 1536,
        "intermediate_size": 512,
        "layer_types": (["mamba"] * 5 + ["attention"] + ["mamba"] * 4) * 4,
        "logits_scaling": 6,
        "mamba_d_conv": 4,
        "mamba_d_head": 64,
        "mamba_d_state": 128,
        "mamba_expand": 2,
        "mamba_n_groups": 1,
        "mamba_n_heads": 48,
        "max_position_embeddings": 131072,
        "num_attention_heads": 12,
        "num_experts_per_tok": 6,
        "num_hidden_layers": 40,
        "num_key_value_heads": 4,
        "num_local_experts": 64,
        "position_embedding_type": "nope",
        "residual_multiplier": 0.22,
        "rms_norm_eps": 1e-05,
        "shared_intermediate_size": 1024,
        "tie_word_embeddings": True,
        "vocab_size": 100352,
    },
    "LFM2-1.2B": {
        "architectures": ["Lfm2ForCausalLM"],
        "model_type": "lfm2",
        "block_auto_adjust_ff_dim": True,
        "block_ff_dim": 12288,
        "block_ffn_dim_multiplier": 1.0,
        "block_multiple_of": 256,
        "bos_token_id": 1,
        "conv_L_cache": 3,
        "conv_bias": False,
        "eos_token_id": 7,
        "full_attn_idxs": [2, 5, 8, 10, 12, 14],
        "hidden_size": 2048,
        "max_position_embeddings": 128000,
        "norm_eps": 1e-05,
        "num_attention_heads": 32,
        "num_hidden_layers": 16,
        "num_key_value_heads": 8,
        "rope_theta": 1000000.0,
        "vocab_size": 65536,
    },
    "Gemma-2-9B": GEMMA
    | {
        "architectures": ["Gemma2ForCausalLM"],
        "model_type": "gemma2",
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "head_dim": 256,
        "hidden_size": 3584,
        "intermediate_size": 14336,
        "max_position_embeddings": 8192,
        "num_attention_heads": 16,
        "num_hidden_layers": 42,
        "num_key_value_heads": 8,
        "query_pre_attn_scalar": 256,
        "rope_theta": 10000.0,
        "sliding_window": 4096,
        "vocab_size": 256000,
    },
    "Gemma-3-27B": GEMMA
    | {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "head_dim": 128,
        "hidden_size": 5376,
        "intermediate_size": 21504,
        "max_position_embeddings": 131072,
        "num_attention_heads": 32,
        "num_hidden_layers": 62,
        "num_key_value_heads": 16,
        "query_pre_attn_scalar": 168,
        "rope_local_base_freq": 10000.0,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "rope_theta": 1000000.0,
        "sliding_window": 1024,
        "sliding_window_pattern": 6,
        "vocab_size": 262208,
    },
    "Phi-3-mini-4k": {
        "architectures": ["Phi3ForCausalLM"],
        "model_type": "phi3",
        "bos_token_id": 1,
        "eos_token_id": 32000,
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "max_position_embeddings": 4096,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 32,
        "original_max_position_embeddings": 4096,
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000.0,
        "sliding_window": 2047,
        "tie_word_embeddings": False,
        "vocab_size": 32064,
    },
    "Command-R-Plus": {
        "architectures": ["CohereForCausalLM"],
        "model_type": "cohere",
        "bos_token_id": 5,
        "eos_token_id": 255001,
        "hidden_size": 12288,
        "intermediate_size": 33792,
        "layer_norm_eps": 1e-05,
        "logit_scale": 0.8333333333333334,
        "max_position_embeddings": 131072,
        "num_attention_heads": 96,
        "num_hidden_layers": 64,
        "num_key_value_heads": 8,
        "rope_theta": 75000000.0,
        "tie_word_embeddings": True,
        "use_qk_norm": True,
        "vocab_size": 256000,
    },
    "Mistral-7B": MISTRAL | {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "vocab_size": 32768},
    "Mixtral-8x7B": MISTRAL
    | {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "num_experts_per_tok": 2,
        "num_local_experts": 8,
        "vocab_size": 32000,
    },
    "gpt-oss-20b": GPT_OSS | {"num_hidden_layers": 24, "num_local_experts": 32},
    "gpt-oss-120b": GPT_OSS | {"num_hidden_layers": 36, "num_local_experts": 128},
    "DeepSeek-V2-Lite": {
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "attention_bias": False,
        "bos_token_id": 100000,
        "eos_token_id": 100001,
        "first_k_dense_replace": 1,
        "hidden_size": 2048,
        "intermediate_size": 10944,
        "kv_lora_rank": 512,
        "max_position_embeddings": 163840,
        "moe_intermediate_size": 1408,
        "moe_layer_freq": 1,
        "n_group": 1,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "norm_topk_prob": False,
        "num_attention_heads": 16,
        "num_experts_per_tok": 6,
        "num_hidden_layers": 27,
        "num_key_value_heads": 16,
        "q_lora_rank": None,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "rms_norm_eps": 1e-06,
        "rope_scaling": {
            "beta_fast": 32,
            "beta_slow": 1,
            "factor": 40,
            "mscale": 0.707,
            "mscale_all_dim": 0.707,
            "original_max_position_embeddings": 4096,
            "type": "yarn",
        },
        "rope_theta": 10000.0,
        "routed_scaling_factor": 1.0,
        "scoring_func": "softmax",
        "tie_word_embeddings": False,
        "topk_group": 1,
        "topk_method": "greedy",
        "v_head_dim": 128,
        "vocab_size": 102400,
    },
    **NEWER_SHAPES,
    **SEEING_SHAPES,
}


def eight_bits(form: str, kind: str) -> dict[str, Any]:
    """What compressed-tensors writes for weights with a scale for each row and inputs with one for each token."""
    number = {"num_bits": 8, "type": kind, "symmetric": True}
    group = {
        "targets": ["Linear"],
        "weights": {**number, "strategy": "channel", "dynamic": False},
        "input_activations": {**number, "strategy": "token", "dynamic": True},
    }
    config = {"quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed"}
    return {**config, "config_groups": {"group_0": group}, "ignore": ["lm_head"]}


GPTQ_INT4: dict[str, Any] = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False}
AWQ_INT4: dict[str, Any] = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
INT4_EXPERTS: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "quantization_status": "compressed",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32},
            "input_activations": None,
        }
    },
    "ignore": [
        "lm_head",
        "re:.*self_attn.*",
        "re:.*shared_experts.*",
        "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
    ],
}
NVFP4: dict[str, Any] = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}
NVFP4_EXPERTS: dict[str, Any] = {
    **NVFP4,
    "ignore": [
        "lm_head",
        "*self_attn*",
        "*.mixer.?_proj",
        "*.in_proj",
        "*.out_proj",
        "*_latent_proj",
        "*shared_experts*",
    ],
}
QUANTISED: dict[str, dict[str, Any]] = {
    "FP8-dynamic": eight_bits("float-quantized", "float"),
    "FP8-block": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
    "INT8": eight_bits("int-quantized", "int"),
    "GPTQ-INT4": GPTQ_INT4,
    "AWQ-INT4": AWQ_INT4,
    "MXFP4": {"quant_method": "mxfp4"},
    "FP4": {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "expert_dtype": "fp4",
        "scale_fmt": "ue8m0",
        "weight_block_size": [128, 128],
    },
    "INT4": INT4_EXPERTS,
    "NVFP4": NVFP4,
    "NVFP4-EXPERTS": NVFP4_EXPERTS,
}
"""Endings of names, as the hub has them, and the `quantization_config` that they add."""
QUANTISED_NAMES = {
    **{
        f"{shape}-{ending}": (shape, ending)
        for shape in ("Llama-3.1-8B", "Llama-3.1-70B")
        for ending in QUANTISED
        if ending not in ("FP4", "MXFP4", "INT4", "NVFP4-EXPERTS")
    },
    "Qwen3-30B-A3B-FP8": ("Qwen3-30B-A3B", "FP8-block"),
    "gpt-oss-20b-MXFP4": ("gpt-oss-20b", "MXFP4"),
    "gpt-oss-120b-MXFP4": ("gpt-oss-120b", "MXFP4"),
    "DeepSeek-V4-Flash-FP4": ("DeepSeek-V4-Flash", "FP4"),
    "Kimi-K2.5-INT4": ("Kimi-K2.5", "INT4"),
    "Qwen3-30B-A3B-NVFP4": ("Qwen3-30B-A3B", "NVFP4-EXPERTS"),
    "Nemotron-3-Super-120B-A12B-NVFP4": ("Nemotron-3-Super-120B-A12B", "NVFP4-EXPERTS"),
}
"""Names of quantised models: of which shape they are, and how they are quantised."""
COMMON: dict[str, Any] = {"hidden_act": "silu", "torch_dtype": "bfloat16", "use_cache": True}
BOS, EOS = "<|begin|>", "<|end|>"
CHAT_TEMPLATE = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}assistant:"


def words() -> Iterator[str]:
    """All words of two letters, then of three, and so on."""
    for length in itertools.count(2):
        yield from map("".join, itertools.product(string.ascii_lowercase, repeat=length))


def make_tokenizer(
    vocab_size: int, bos_id: int, eos_id: int, *, adds_bos: bool, others: Mapping[int, str] = MappingProxyType({})
) -> Tokenizer:
    """Byte-level: the bytes, which any other text is made of, then words with a space before them.

    `ignore_merges` finds a word without the merges that would build it; ids of special tokens are left as configured,
    `others` among them.
    """
    special = {bos_id: BOS, eos_id: EOS, **others}
    # GPT-2's printable names of the bytes; a space is U+0120.
    texts = itertools.chain(sorted(pre_tokenizers.ByteLevel.alphabet()), ("\u0120" + word for word in words()))
    vocabulary = {special.get(token_id) or next(texts): token_id for token_id in range(vocab_size)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in special.values()])
    if adds_bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, bos_id)]
        )
    return tokenizer


def config_of(name: str) -> dict[str, Any]:
    """Contents of `config.json`."""
    shape, ending = QUANTISED_NAMES.get(name, (name, None))
    quantisation = {} if ending is None else {"quantization_config": QUANTISED[ending]}
    return COMMON | SHAPES[shape] | quantisation


def make_folder(shape: str, folder: Path) -> None:
    """Write the folder of one shape; files of the same names are replaced."""
    config = config_of(shape)
    text = config.get("text_config", config) if shape in SEEING_SHAPES else config
    bos_id, eos_id = text["bos_token_id"], text["eos_token_id"]
    # Qwen has one token for both ends and puts none before a text.
    adds_bos = bos_id != eos_id
    tokenizer = make_tokenizer(text["vocab_size"], bos_id, eos_id, adds_bos=adds_bos, others=marks(config))
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS if adds_bos else None,
        "eos_token": EOS,
        "model_max_length": text.get("max_position_embeddings", 131072),
        "chat_template": CHAT_TEMPLATE_OF_IMAGES if shape in SEEING_SHAPES else CHAT_TEMPLATE,
    }
    generation_config = {"bos_token_id": bos_id, "eos_token_id": eos_id}
    for name, content in [
        ("config.json", config),
        ("generation_config.json", generation_config),
        ("tokenizer_config.json", tokenizer_config),
        *([("preprocessor_config.json", PREPROCESSORS[config["model_type"]])] if shape in SEEING_SHAPES else []),
    ]:
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")


def main() -> None:
    """Parse the command line and write the folder."""
    parser = argparse.ArgumentParser(description="Write a model folder for benchmarks, without weights.")
    parser.add_argument("shape", choices=[*SHAPES, *QUANTISED_NAMES])
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    make_folder(arguments.shape, arguments.folder)


if __name__ == "__main__":
    main()
