"""Every family that is implemented, as variants that its configurations can have."""

import re
from typing import Any

import torch

from support import qwen_vl, xcomposer
from support.author_layouts import internlm2, qwen1
from support.families import SIZES, Case, Raw, State
from support.gemma_cases import GEMMA_CASES
from support.latent_cases import GROWING, LATENT_CASES
from support.media_cases import MEDIA_CASES
from support.moe_cases import MOE_CASES
from support.recurrent_cases import RECURRENT_CASES
from support.relayouts import fused_blocks, renamed, without_prefix

W = {"sliding_window": 4}
LONGROPE = {"short_factor": [1.0, 1.5, 2.0, 2.5], "long_factor": [2.0, 4.0, 6.0, 8.0], "rope_type": "longrope"}


def _baichuan(state: State, raw: Raw) -> tuple[State, Raw]:
    state = fused_blocks(state, ("q_proj", "k_proj", "v_proj"), "W_pack")
    return renamed("BaichuanForCausalLM")(state, raw)


def _baichuan_alibi(state: State, raw: Raw) -> tuple[State, Raw]:
    state, raw = _baichuan(state, raw)
    del raw["max_position_embeddings"], raw["rope_parameters"]
    return state, {**raw, "model_max_length": 64}


def alibi_inputs(length: int) -> dict[str, Any]:
    """No rotation, and a bias of 6 heads with the slopes of the paper."""
    slopes = torch.tensor([2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3])
    distances = torch.arange(length) - torch.arange(length)[:, None]
    bias = torch.where(distances > 0, float("-inf"), slopes[:, None, None] * distances)
    return {"attention_mask": bias[None], "position_ids": torch.zeros(1, length, dtype=torch.int64)}


EXAONE3 = (
    (r"model\.embed_tokens", "transformer.wte"),
    (r"model\.norm", "transformer.ln_f"),
    (r"model\.layers", "transformer.h"),
    (r"input_layernorm", "ln_1"),
    (r"post_attention_layernorm", "ln_2"),
    (r"self_attn\.o_proj", "attn.attention.out_proj"),
    (r"self_attn", "attn.attention"),
    (r"mlp\.gate_proj", "mlp.c_fc_0"),
    (r"mlp\.up_proj", "mlp.c_fc_1"),
    (r"mlp\.down_proj", "mlp.c_proj"),
)
EXAONE3_KEYS = {
    "num_layers": 3,
    "num_hidden_layers": ...,
    "activation_function": "silu",
    "hidden_act": ...,
    "layer_norm_epsilon": 1e-6,
    "rms_norm_eps": ...,
}
MINICPM_KEYS = {
    "scale_emb": 6.0,
    "dim_model_base": 8,
    "scale_depth": 1.4,
    **dict.fromkeys(("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling"), ...),
}
MINICPM = {"embedding_multiplier": 6.0, "residual_multiplier": 1.4 / 3**0.5, "logits_scaling": 4.0}


def _chatglm(state: State, raw: Raw) -> tuple[State, Raw]:
    """From Glm, whose attention, rotation and network are those of ChatGLM."""
    state = fused_blocks(
        state, ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), "self_attn.query_key_value"
    )
    names = (
        (r"model\.embed_tokens", "transformer.embedding.word_embeddings"),
        (r"model\.norm", "transformer.encoder.final_layernorm"),
        (r"model\.layers", "transformer.encoder.layers"),
        (r"^lm_head", "transformer.output_layer"),
        (r"self_attn\.o_proj", "self_attention.dense"),
        (r"self_attn", "self_attention"),
        (r"mlp\.gate_up_proj", "mlp.dense_h_to_4h"),
        (r"mlp\.down_proj", "mlp.dense_4h_to_h"),
    )
    keys = {
        "padded_vocab_size": raw["vocab_size"],
        "ffn_hidden_size": raw["intermediate_size"],
        "num_layers": raw["num_hidden_layers"],
        "kv_channels": raw["head_dim"],
        "multi_query_attention": True,
        "multi_query_group_num": raw["num_key_value_heads"],
        "layernorm_epsilon": raw["rms_norm_eps"],
        "seq_length": raw["max_position_embeddings"],
        "rope_ratio": 50,
        "add_qkv_bias": True,
        "rmsnorm": True,
    }
    replaced = ("vocab_size", "intermediate_size", "num_hidden_layers", "head_dim", "num_key_value_heads")
    gone = dict.fromkeys((*replaced, "rms_norm_eps", "max_position_embeddings", "rope_parameters"), ...)
    state, raw = renamed("ChatGLMModel", *names, **keys, **gone)(state, raw)
    return {**state, "transformer.rotary_pos_emb.inv_freq": torch.zeros(2)}, raw


def _mpt_with_positions(state: State, raw: Raw) -> tuple[State, Raw]:
    """From GPT-2, whose matrices are transposed: MPT without ALiBi and with biases is the same but for names."""
    state = {name: tensor.t() if re.search(r"(c_\w+)\.weight", name) else tensor for name, tensor in state.items()}
    names = (
        (r"\.ln_f\.", ".norm_f."),
        (r"\.h\.", ".blocks."),
        (r"\.ln_", ".norm_"),
        (r"attn\.c_attn", "attn.Wqkv"),
        (r"attn\.c_proj", "attn.out_proj"),
        (r"mlp\.c_fc", "ffn.up_proj"),
        (r"mlp\.c_proj", "ffn.down_proj"),
    )
    keys = {"d_model": 32, "n_heads": 4, "n_layers": 3, "max_seq_len": 64}
    gone = dict.fromkeys((*GPT, "n_inner", "activation_function"), ...)
    options = {"no_bias": False, "learned_pos_emb": True, "attn_config": {"alibi": False}}
    return renamed("MPTForCausalLM", *names, **keys, **options, **gone)(state, raw)


SKIPS: dict[str, Any] = {
    "bskcn_1": [1, 3],
    "bskcn_2": [2],
    "bskcn_3": [2, 4],
    "bskcn_4": [3, 4],
    "bskcn_tv": [0.9, 0.6],
}


def _skipping(model: torch.nn.Module) -> None:
    """Makes layers of Llama read mixes, as those of Solar Pro do."""
    kept: dict[int, torch.Tensor] = {}

    def read(index: int, x: torch.Tensor) -> torch.Tensor:
        kept.update({place: x.clone() for place in (1, 2) if index in SKIPS[f"bskcn_{place}"]})
        for place in (1, 2):
            if index in SKIPS[f"bskcn_{place + 2}"]:
                x = kept[place] * 0.6 + x * 0.4
        return x

    for index, layer in enumerate(model.model.layers):  # type: ignore[arg-type, union-attr]
        layer.register_forward_pre_hook(lambda _, given, index=index: (read(index, given[0]), *given[1:]))


def _mimo(state: State, raw: Raw) -> tuple[State, Raw]:
    """With a layer that guesses further tokens."""
    state, raw = renamed("MiMoForCausalLM", num_nextn_predict_layers=1)(state, raw)
    return {**state, "model.mtp_layers.0.input_proj.weight": torch.ones(32, 64)}, raw


BLOCKS: list[Raw] = [
    {"attention": {"n_heads_in_group": 2, "no_op": False}, "ffn": {"ffn_mult": 13.0, "no_op": False}},
    {"attention": {"no_op": True}, "ffn": {"intermediate_size": 24, "no_op": False}},
    {"attention": {"n_heads_in_group": 4}, "ffn": {"no_op": True}},
    {"attention": {"no_op": True, "n_heads_in_group": None}, "ffn": {"no_op": True, "ffn_mult": None}},
    {"attention": {"n_heads_in_group": 1, "num_sink_tokens": None}, "ffn": {"ffn_mult": 20.0}},
]
INNERS = (512, 24, 0, 0, 512)
"""Sizes of networks: 13 and 20 times 32 times two thirds, up to the next multiple of 256."""


def of_blocks(model: torch.nn.Module) -> None:
    """Makes Llama of 4 key and value heads and inner size 512 compute what `BLOCKS` say."""
    with torch.no_grad():
        for layer, block, inner in zip(model.get_submodule("model.layers").children(), BLOCKS, INNERS, strict=True):
            layer.get_submodule("mlp.down_proj").weight[:, inner:] = 0
            if block["attention"].get("no_op"):
                layer.get_submodule("self_attn.o_proj").weight.zero_()
                continue
            for name in ("k_proj", "v_proj"):
                heads = layer.get_submodule(f"self_attn.{name}").weight.view(
                    -1, block["attention"]["n_heads_in_group"], 8, 32
                )
                heads.copy_(heads[:, :1].clone().expand_as(heads))


def _decilm(state: State, raw: Raw) -> tuple[State, Raw]:
    """Leaves out what layers do not have."""
    kept: State = {}
    for name, tensor in state.items():
        if (found := re.search(r"layers\.(\d)\.(.*)", name)) is None:
            kept[name] = tensor
            continue
        index, end = int(found[1]), found[2]
        block, inner = BLOCKS[index], INNERS[index]
        is_attention = end.startswith(("self_attn", "input_layernorm"))
        if block["attention" if is_attention else "ffn"].get("no_op"):
            continue
        if "k_proj" in end or "v_proj" in end:
            tensor = tensor.view(-1, block["attention"]["n_heads_in_group"], 8, 32)[:, 0].reshape(-1, 32)
        if "gate_proj" in end or "up_proj" in end:
            tensor = tensor[:inner]
        kept[name] = tensor[:, :inner] if "down_proj" in end else tensor
    gone = {"intermediate_size": None, "num_key_value_heads": None}
    return renamed("DeciLMForCausalLM", block_configs=BLOCKS, model_type="nemotron-nas", **gone)(kept, raw)


GPT = {"n_embd": 32, "n_head": 4, "n_layer": 3, "n_positions": 64}
NO_SIZES = dict.fromkeys(
    (
        "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
        "max_position_embeddings",
    ),
    ...,
)  # fmt: skip
BLOOM = {**NO_SIZES, "hidden_size": 32, "n_head": 4, "n_layer": 3}
FALCON = {"num_key_value_heads": ..., "intermediate_size": ..., "ffn_hidden_size": 48}
MPT = {**NO_SIZES, "d_model": 48, "n_heads": 6, "n_layers": 3, "max_seq_len": 64}
GPT_NEO = {
    **NO_SIZES,
    "hidden_size": 32,
    "num_heads": 4,
    "num_layers": 3,
    "max_position_embeddings": 64,
    "window_size": 4,
    "attention_types": [[["local", "global"], 1], [["local"], 1]],
}
XGLM = {
    **NO_SIZES,
    "d_model": 32,
    "attention_heads": 4,
    "num_layers": 3,
    "ffn_dim": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 1,
}
GEMMA_TYPES = ["sliding_attention", "full_attention", "sliding_attention"]

CASES: dict[str, Case] = {
    **MOE_CASES,
    **LATENT_CASES,
    **RECURRENT_CASES,
    **GEMMA_CASES,
    **MEDIA_CASES,
    "llama": Case("Llama 1 to 3, Yi", "llama"),
    "yi": Case("Llama 1 to 3, Yi", "llama", relayout=renamed("YiForCausalLM"), architecture="YiForCausalLM"),
    "solar": Case(
        "Solar Pro 22B",
        "llama",
        {"num_hidden_layers": 5},
        renamed("SolarForCausalLM", **SKIPS, sliding_window=2047),
        prepare=_skipping,
        architecture="SolarForCausalLM",
    ),
    "telechat3": Case(
        "TeleChat 3", "llama", relayout=renamed("TeleChat3ForCausalLM"), architecture="TeleChat3ForCausalLM"
    ),
    "iquest coder": Case(
        "IQuest-Coder",
        "llama",
        {"head_dim": 12, "rms_norm_eps": 1e-5},
        renamed("IQuestCoderForCausalLM", clip_qkv=None, use_sliding_window=False, rms_norm_eps=...),
        architecture="IQuestCoderForCausalLM",
    ),
    "decilm": Case(
        "DeciLM (Nemotron Super 49B, Ultra 253B)",
        "llama",
        {"num_hidden_layers": 5, "num_key_value_heads": 4, "intermediate_size": 512},
        _decilm,
        prepare=of_blocks,
        architecture="DeciLMForCausalLM",
    ),
    "mistral": Case("Mistral", "mistral", W),
    "mistral nemo": Case("Mistral", "mistral", {"sliding_window": None, "head_dim": 12}),
    "ministral": Case(
        "Ministral 8B",
        "ministral",
        {**W, "head_dim": 8, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    ),
    "ministral 3": Case("Ministral 3, Mistral Medium 3.5", "ministral3", {"head_dim": 8, "rope_parameters": GROWING}),
    "mistral with growing queries": Case(
        "Mistral",
        "ministral3",
        {"head_dim": 8, "rope_parameters": GROWING},
        renamed("MistralForCausalLM", model_type="mistral"),
        architecture="MistralForCausalLM",
    ),
    "qwen2": Case("Qwen 2 and 2.5", "qwen2"),
    "mimo": Case("MiMo 7B", "qwen2", relayout=_mimo, architecture="MiMoForCausalLM"),
    "qwen2 window": Case(
        "Qwen 2 and 2.5",
        "qwen2",
        {**W, "use_sliding_window": True, "max_window_layers": 1, "tie_word_embeddings": True},
    ),
    "qwen3": Case("Qwen 3", "qwen3", {"head_dim": 16}),
    "phi3": Case("Phi 3, 3.5 and 4", "phi3", W),
    "phi4 mini": Case(
        "Phi 3, 3.5 and 4", "phi3", {"rope_parameters": {"partial_rotary_factor": 0.5, "rope_theta": 1e4}}
    ),
    "phi3 longrope": Case(
        "Phi 3, 3.5 and 4",
        "phi3",
        {"original_max_position_embeddings": 32, "rope_parameters": {**LONGROPE, "rope_theta": 1e4}},
    ),
    "granite": Case(
        "Granite 3",
        "granite",
        {"embedding_multiplier": 3.0, "residual_multiplier": 0.3, "attention_multiplier": 0.2, "logits_scaling": 4.0},
    ),
    "minicpm": Case(
        "MiniCPM",
        "granite",
        {**MINICPM, "attention_multiplier": 8**-0.5, "tie_word_embeddings": True},
        renamed("MiniCPMForCausalLM", **MINICPM_KEYS),
        architecture="MiniCPMForCausalLM",
    ),
    "smollm3": Case("SmolLM 3", "smollm3", {"num_hidden_layers": 4}),
    "smollm3 window": Case("SmolLM 3", "smollm3", {**W, "no_rope_layers": [1, 0, 1], "use_sliding_window": True}),
    "seed_oss": Case("Seed-OSS", "seed_oss", {"head_dim": 8}),
    "internlm": Case(
        "InternLM 1, 2, 2.5 and 3",
        "llama",
        {"attention_bias": True},
        renamed("InternLMForCausalLM", bias=True),
        architecture="InternLMForCausalLM",
    ),
    "internlm2": Case("InternLM 1, 2, 2.5 and 3", "llama", relayout=internlm2, architecture="InternLM2ForCausalLM"),
    "internlm3": Case(
        "InternLM 1, 2, 2.5 and 3",
        "llama",
        {"head_dim": 12},
        renamed("InternLM3ForCausalLM", qkv_bias=False, bias=False),
        architecture="InternLM3ForCausalLM",
    ),
    "baichuan": Case(
        "Baichuan 1 and 2", "llama", {"num_key_value_heads": 4}, _baichuan, architecture="BaichuanForCausalLM"
    ),
    "baichuan alibi": Case(
        "Baichuan 1 and 2",
        "llama",
        {"num_attention_heads": 6, "num_key_value_heads": 6, "hidden_size": 48},
        _baichuan_alibi,
        alibi_inputs,
        architecture="BaichuanForCausalLM",
    ),
    "ernie": Case("ERNIE 4.5", "ernie4_5", {"head_dim": 8, "use_bias": True}),
    "exaone3": Case(
        "EXAONE 3 and 3.5",
        "llama",
        relayout=renamed("ExaoneForCausalLM", *EXAONE3, **EXAONE3_KEYS),
        architecture="ExaoneForCausalLM",
    ),
    "exaone4": Case("EXAONE 4", "exaone4", {**W, "sliding_window_pattern": 2}),
    "exaone4 global": Case("EXAONE 4", "exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 3}),
    "nemotron": Case("Nemotron-4 and Minitron", "nemotron"),
    "nemotron with biases": Case(
        "Nemotron-4 and Minitron", "nemotron", {"attention_bias": True, "head_dim": 12, "mlp_bias": True}
    ),
    "olmo2": Case("OLMo 2", "olmo2"),
    "olmo2 one kv head": Case("OLMo 2", "olmo2", {"num_key_value_heads": 1}),
    "olmo3": Case(
        "OLMo 3",
        "olmo3",
        {
            **W,
            "num_hidden_layers": 4,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                "full_attention": {
                    "rope_type": "yarn",
                    "rope_theta": 1e4,
                    "factor": 2.0,
                    "original_max_position_embeddings": 32,
                },
            },
        },
    ),
    "hunyuan": Case(
        "Hunyuan (dense)",
        "hunyuan_v1_dense",
        {"head_dim": 8, "rope_parameters": {"rope_type": "dynamic", "alpha": 50.0, "rope_theta": 1e4, "factor": 1.0}},
    ),
    "gemma": Case("Gemma 1", "gemma", {"head_dim": 16, "num_key_value_heads": 1}),
    "gemma2": Case("Gemma 2", "gemma2", {**W, "head_dim": 16, "query_pre_attn_scalar": 12}),
    "gemma3": Case(
        "Gemma 3 (text)",
        "gemma3_text",
        {
            **W,
            "head_dim": 16,
            "query_pre_attn_scalar": 12,
            "layer_types": GEMMA_TYPES,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            },
        },
    ),
    "cohere": Case("Cohere Command R and R+", "cohere"),
    "cohere plus": Case("Cohere Command R and R+", "cohere", {"use_qk_norm": True}),
    "cohere2": Case("Cohere Command R7B and A", "cohere2", {**W, "head_dim": 8, "layer_types": GEMMA_TYPES}),
    "glm": Case("GLM-4 (9B)", "glm", {"head_dim": 8}),
    "glm4": Case("GLM-4 (0414)", "glm4", {"head_dim": 8}),
    "chatglm": Case(
        "ChatGLM 2 and 3, GLM-4 (9B, remote code)",
        "glm",
        {"head_dim": 8, "rope_parameters": {"rope_theta": 5e5, "partial_rotary_factor": 0.5}},
        _chatglm,
        architecture="ChatGLMModel",
    ),
    "bloom": Case("BLOOM", "bloom", BLOOM, without_prefix("transformer.")),
    "bloom of 6 heads": Case("BLOOM", "bloom", {**BLOOM, "hidden_size": 48, "n_head": 6}),
    "bloom of sums after norms": Case("BLOOM", "bloom", {**BLOOM, "apply_residual_connection_post_layernorm": True}),
    "starcoder": Case("StarCoder (GPTBigCode)", "gpt_bigcode", {**NO_SIZES, **GPT}),
    "starcoder heads": Case("StarCoder (GPTBigCode)", "gpt_bigcode", {**NO_SIZES, **GPT, "multi_query": False}),
    "starcoder2": Case("StarCoder 2", "starcoder2", W),
    "stablelm": Case("StableLM", "stablelm", {"use_qkv_bias": True}),
    "stablelm 12b": Case(
        "StableLM", "stablelm", {"qk_layernorm": True, "use_parallel_residual": True, "hidden_size": 64}
    ),
    "falcon 7b": Case("Falcon 7B, 40B, 180B and RW", "falcon", FALCON),
    "falcon 40b": Case(
        "Falcon 7B, 40B, 180B and RW", "falcon", {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2}
    ),
    "falcon 11b": Case(
        "Falcon 7B, 40B, 180B and RW",
        "falcon",
        {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1},
    ),
    "falcon rw": Case(
        "Falcon 7B, 40B, 180B and RW",
        "falcon",
        {**FALCON, "alibi": True, "bias": True, "multi_query": False, "parallel_attn": False},
        # Its eager form adds the distances twice.
        attention="sdpa",
    ),
    "mpt": Case("MPT", "mpt", {**MPT, "attn_config": {"clip_qkv": 2.0}}),
    "mpt with positions": Case(
        "MPT",
        "gpt2",
        {**NO_SIZES, **GPT, "activation_function": "gelu"},
        _mpt_with_positions,
        architecture="MPTForCausalLM",
    ),
    "gpt neox": Case("GPT-NeoX and Pythia", "gpt_neox", {"num_key_value_heads": ...}),
    "gpt neox in turn": Case(
        "GPT-NeoX and Pythia", "gpt_neox", {"num_key_value_heads": ..., "use_parallel_residual": False}
    ),
    "gptj": Case("GPT-J", "gptj", {**NO_SIZES, **GPT, "rotary_dim": 4}),
    "codegen": Case("CodeGen", "codegen", {**NO_SIZES, **GPT, "rotary_dim": 4}),
    "codegen of 8 heads": Case("CodeGen", "codegen", {**NO_SIZES, **GPT, "n_head": 8, "rotary_dim": 2}),
    "gpt neo": Case("GPT-Neo", "gpt_neo", GPT_NEO),
    "gpt neo global": Case(
        "GPT-Neo", "gpt_neo", {**GPT_NEO, "attention_types": [[["global"], 3]]}, without_prefix("transformer.")
    ),
    "xglm": Case("XGLM", "xglm", XGLM),
    "xglm unscaled": Case("XGLM", "xglm", {**XGLM, "scale_embedding": False, "activation_function": "relu"}),
    "gpt2": Case("GPT-2", "gpt2", {**NO_SIZES, **GPT}),
    "gpt2 without prefix": Case(
        "GPT-2", "gpt2", {**NO_SIZES, **GPT, "scale_attn_by_inverse_layer_idx": True}, without_prefix("transformer.")
    ),
    "opt": Case(
        "OPT", "opt", {"num_key_value_heads": ..., "intermediate_size": ..., "ffn_dim": 48, "word_embed_proj_dim": 32}
    ),
    "opt 350m": Case(
        "OPT",
        "opt",
        {
            "num_key_value_heads": ...,
            "intermediate_size": ...,
            "ffn_dim": 48,
            "word_embed_proj_dim": 16,
            "do_layer_norm_before": False,
        },
    ),
    "opt galactica": Case(
        "OPT",
        "opt",
        {
            "num_key_value_heads": ...,
            "intermediate_size": ...,
            "ffn_dim": 48,
            "word_embed_proj_dim": 32,
            "activation_function": "gelu",
            "enable_bias": False,
            "layer_norm_elementwise_affine": False,
        },
    ),
    "phi": Case(
        "Phi 1, 1.5 and 2",
        "phi",
        {"hidden_size": 40, "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.4}},
    ),
    "xcomposer2": Case("InternLM-XComposer 2", "llama", relayout=xcomposer.beside_images, architecture=xcomposer.CLASS),
    "qwen1": Case("Qwen 1", "qwen2", {"num_key_value_heads": 4}, qwen1, architecture="QWenLMHeadModel"),
    "qwen-vl": Case(
        "Qwen-VL", "qwen2", {"num_key_value_heads": 4}, qwen_vl.beside_images, architecture="QWenLMHeadModel"
    ),
}
__all__ = ["CASES", "SIZES"]
