"""DeepSeek V4, as variants that its configurations can have."""

import re
from typing import Any

import torch
from torch import nn

from support.eight_bit import FORMATS, Made, e8m0_scales
from support.families import Case, Raw, State
from support.glm_next import beyond_bounds
from support.moe_cases import FP4
from text_generation_server.config.families import FAMILIES
from text_generation_server.config.json_object import JsonObject

DEEPSEEK_V4: dict[str, Any] = {
    "bos_token_id": 1,
    "compress_rates": {"compressed_sparse_attention": 2, "heavily_compressed_attention": 3},
    "eos_token_id": 2,
    "hc_mult": 4,
    "head_dim": 16,
    "hidden_size": 32,
    "index_head_dim": 16,
    "index_n_heads": 8,
    "index_topk": 2,
    "layer_types": ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"],
    "max_position_embeddings": 64,
    "moe_intermediate_size": 20,
    "n_routed_experts": 8,
    "num_attention_heads": 4,
    "num_experts_per_tok": 2,
    "num_hash_layers": 1,
    "num_hidden_layers": 3,
    "o_groups": 4,
    "o_lora_rank": 8,
    "partial_rotary_factor": 0.5,
    "q_lora_rank": 10,
    "rms_norm_eps": 1e-3,
    "sliding_window": 4,
    "vocab_size": 99,
}
"""Prompts are longer than the window and the entries that are chosen. Few heads of an indexer would often have scores
of 0, which are equal."""
OTHER: dict[str, Any] = {
    **DEEPSEEK_V4,
    "compress_rates": ...,
    "compress_rate_csa": 3,
    "compress_rate_hca": 2,
    "compress_rope_theta": 5000.0,
    "hc_eps": 1e-3,
    "hc_mult": 3,
    "hc_sinkhorn_iters": 2,
    "index_topk": 1,
    "layer_types": ["heavily_compressed_attention", "compressed_sparse_attention", "compressed_sparse_attention"],
    "max_position_embeddings": 64,
    "mlp_layer_types": ["moe", "hash_moe", "hash_moe"],
    "num_attention_heads": 32,
    "num_hash_layers": ...,
    "partial_rotary_factor": ...,
    "qk_rope_head_dim": 6,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "type": "yarn",
    },
    "rope_theta": 3000.0,
    "routed_scaling_factor": 2.5,
}
"""RoPE that is stretched, and experts by token id in the last layer, which computes some tokens alone."""

PUBLISHED: dict[str, Any] = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "compress_ratios": [0, 0, *[4, 128] * 20, 4, 0],
    "compress_rope_theta": 160000,
    "eos_token_id": 1,
    "expert_dtype": "fp4",
    "hc_eps": 1e-06,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "head_dim": 512,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "index_head_dim": 128,
    "index_n_heads": 64,
    "index_topk": 512,
    "initializer_range": 0.02,
    "max_position_embeddings": 1048576,
    "model_type": "deepseek_v4",
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 64,
    "num_experts_per_tok": 6,
    "num_hash_layers": 3,
    "num_hidden_layers": 43,
    "num_key_value_heads": 1,
    "num_nextn_predict_layers": 1,
    "o_groups": 8,
    "o_lora_rank": 1024,
    "q_lora_rank": 1024,
    "qk_rope_head_dim": 64,
    "quantization_config": {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "quant_method": "fp8",
        "scale_fmt": "ue8m0",
        "weight_block_size": [128, 128],
    },
    "rms_norm_eps": 1e-06,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 16,
        "original_max_position_embeddings": 65536,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "routed_scaling_factor": 1.5,
    "scoring_func": "sqrtsoftplus",
    "sliding_window": 128,
    "swiglu_limit": 10.0,
    "tie_word_embeddings": False,
    "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 129280,
}
"""The file of DeepSeek V4 Flash."""


def prepared(model: nn.Module) -> None:
    """Makes bounds count, and experts of ids that differ."""
    beyond_bounds(model)
    generator = torch.Generator().manual_seed(4)
    for name, buffer in model.named_buffers():
        if name.endswith("tid2eid"):
            scores = torch.rand(len(buffer), model.config.n_routed_experts, generator=generator)
            buffer.copy_(scores.argsort(dim=1)[:, : buffer.shape[1]])


def names_of_authors(state: State) -> State:
    """Names of published files, with a layer that guesses further tokens."""
    names = ((r"^model\.embed_tokens\.", "embed."), (r"^model\.hc_head\.hc_", "hc_head_"), (r"^model\.", ""))
    spelled: State = {}
    for name, tensor in state.items():
        for pattern, instead in names:
            name = re.sub(pattern, instead, name)
        spelled[name] = tensor
    return {**spelled, "mtp.0.attn.wq_a.weight": torch.ones(4, 4), "mtp.0.hc_head_fn": torch.ones(4)}


def of_authors(state: State, raw: Raw) -> tuple[State, Raw]:
    """Names and keys of published files."""
    kinds = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128, "sliding_attention": 0}
    compress = raw.pop("rope_parameters")["compress"]
    scaling = {key: compress[key] for key in OTHER["rope_scaling"] if key != "type"} | {"type": "yarn"}
    rates = raw.pop("compress_rates")
    keys = {
        "compress_rate_csa": rates["compressed_sparse_attention"],
        "compress_rate_hca": rates["heavily_compressed_attention"],
        "compress_ratios": [*(kinds[each] for each in raw.pop("layer_types")), 0],
        "qk_rope_head_dim": 6,
        "rope_scaling": scaling,
    }
    del raw["partial_rotary_factor"]
    return names_of_authors(state), {**raw, **keys}


def of_modules(state: State, raw: Raw) -> tuple[State, Raw]:
    """The names of Transformers' modules, and the experts of a layer in two tensors."""
    names = FAMILIES["DeepseekV4ForCausalLM"].tensor_names(JsonObject({**raw, "num_nextn_predict_layers": 0}, ""))
    named = {names.spelled(name): tensor for name, tensor in state.items()}
    return stacked(named, raw["n_routed_experts"]), raw


def stacked(state: State, experts: int) -> State:
    """The experts of a layer in two tensors."""
    made = {name: tensor for name, tensor in state.items() if ".mlp.experts." not in name}
    for name in state:
        if name.endswith(".mlp.experts.0.gate_proj.weight"):
            layer = name.removesuffix("0.gate_proj.weight")
            gate, up, down = (
                torch.stack([state[f"{layer}{expert}.{part}_proj.weight"] for expert in range(experts)])
                for part in ("gate", "up", "down")
            )
            made |= {f"{layer}gate_up_proj": torch.cat((gate, up), dim=1), f"{layer}down_proj": down}
    return made


def _case(values: dict[str, Any], **others: Any) -> Case:
    return Case("DeepSeek V4", "deepseek_v4", values, prepare=prepared, sizes={}, **others)


SMALL: dict[str, Any] = {
    **{key: value for key, value in PUBLISHED.items() if key not in ("expert_dtype", "quantization_config")},
    **{key: value for key, value in DEEPSEEK_V4.items() if key in PUBLISHED},
    "compress_ratios": [0, 4, 128, 4, 0],
    "num_hidden_layers": 4,
    "qk_rope_head_dim": 8,
    "rope_scaling": {**PUBLISHED["rope_scaling"], "original_max_position_embeddings": 4},
}
"""The keys of the published file, of a small model."""


def _small(state: State, raw: Raw) -> tuple[State, Raw]:
    return names_of_authors(state), SMALL


SMALL_CASE = Case(
    "DeepSeek V4",
    "deepseek_v4",
    {key: value for key, value in SMALL.items() if key not in ("architectures", "model_type", "torch_dtype")},
    prepare=prepared,
    sizes={},
    relayout=_small,
)
DEEPSEEK_V4_CASES = {
    "deepseek v4": _case(DEEPSEEK_V4),
    "deepseek v4 other": _case(OTHER, relayout=of_authors),
    "deepseek v4 modules": _case(DEEPSEEK_V4, relayout=of_modules),
}


def published(state: State, raw: Raw) -> tuple[State, Raw, State]:
    """The files of authors as they are quantised: MXFP4 of routed experts, FP8 of blocks, and 16 bits. Returns what
    they stand for, too.
    """
    state, raw = of_authors(state, raw)
    stored, meant = dict[str, torch.Tensor](), dict(state)
    for name, tensor in state.items():
        module = name.removesuffix(".weight")
        if re.search(r"\.ffn\.experts\.\d+\.w\d$", module):
            made, meant[name] = mx_blocks(tensor)
        elif re.search(r"\.(w[qo]_[ab]|attn\.wkv|w[123])$", module):
            made, meant[name] = e8m0_scales(tensor)
            made = {"weight": made["weight"], "scale": made["weight_scale_inv"]}
        else:
            stored[name] = tensor
            continue
        stored |= {f"{module}.{kind}": each for kind, each in made.items()}
    quantisation = {**FORMATS["fp8 of blocks, e8m0"][0], "activation_scheme": "dynamic", "fmt": "e4m3"}
    return stored, {**raw, "expert_dtype": "fp4", "quantization_config": quantisation}, meant


def mx_blocks(weight: torch.Tensor) -> Made:
    """Two numbers of four bits a byte, the first one in the lower half, and an exponent for each 32 of a row."""
    groups = weight.unflatten(1, (-1, 32))
    scale = torch.exp2((groups.abs().amax(-1, keepdim=True) / 6).log2().ceil())
    codes = ((groups / scale)[..., None] - FP4).abs().argmin(-1)
    packed = (codes[..., 0::2] | codes[..., 1::2] << 4).flatten(1).to(torch.uint8).view(torch.int8)
    made = {"weight": packed, "scale": scale[..., 0].to(torch.float8_e8m0fnu)}
    return made, (FP4[codes] * scale).flatten(1)
