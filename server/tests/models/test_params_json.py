"""Models in Mistral's own files: `params.json` beside `consolidated.safetensors`."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.comparing import assert_logits_are_equal
from support.driver import Driver
from support.families import PROMPTS, Raw, State, model_of, write
from support.family_cases import CASES
from support.loading import load
from support.thread_ranks import thread_groups, together

from text_generation_server.config.json_object import JsonObject
from text_generation_server.config.params import config_of_params
from text_generation_server.errors import ConfigurationError, UnsupportedModel
from text_generation_server.models import CausalLM

NAMES = (
    (r"^model\.", ""),
    (r"embed_tokens", "tok_embeddings"),
    (r"lm_head", "output"),
    (r"input_layernorm", "attention_norm"),
    (r"post_attention_layernorm", "ffn_norm"),
    (r"self_attn\.(q|k|v|o)_proj", r"attention.w\1"),
    (r"self_attn\.(q_a|q_b|kv_b)_proj", r"attention.w\1"),
    (r"self_attn\.kv_a_proj_with_mqa", "attention.wkv_a_with_mqa"),
    (r"self_attn\.(q_a|kv_a)_layernorm", r"attention.\1_norm"),
    (r"mlp\.gate\.", "gate."),
    (r"mlp\.(shared_experts|experts)", r"\1"),
    (r"mlp\.", "feed_forward."),
    (r"gate_proj", "w1"),
    (r"up_proj", "w3"),
    (r"down_proj", "w2"),
)


def params_of(raw: Raw) -> Raw:
    """The keys that Mistral has for these."""
    rope = raw["rope_parameters"]
    params: Raw = {
        "dim": raw["hidden_size"],
        "n_layers": raw["num_hidden_layers"],
        "n_heads": raw["num_attention_heads"],
        "n_kv_heads": raw["num_key_value_heads"],
        "hidden_dim": raw["intermediate_size"],
        "norm_eps": raw["rms_norm_eps"],
        "vocab_size": raw["vocab_size"],
        "rope_theta": rope["rope_theta"],
        "max_position_embeddings": raw["max_position_embeddings"],
        "tied_embeddings": False,
        "yarn": {
            "original_max_position_embeddings": rope["original_max_position_embeddings"],
            "factor": rope["factor"],
            "apply_scale": False,
            "beta": rope["beta_fast"],
            "alpha": rope["beta_slow"],
        },
        "llama_4_scaling": {
            "original_max_position_embeddings": rope["original_max_position_embeddings"],
            "beta": 0.5,
        },
    }
    if "n_routed_experts" not in raw:
        return params | {"head_dim": raw["head_dim"]}
    for key in ("q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "kv_lora_rank", "v_head_dim"):
        params[key] = raw[key]
    params["moe"] = {
        "expert_hidden_dim": raw["moe_intermediate_size"],
        "first_k_dense_replace": raw["first_k_dense_replace"],
        "num_expert_groups": raw["n_group"],
        "num_expert_groups_per_tok": raw["topk_group"],
        "num_experts": raw["n_routed_experts"],
        "num_experts_per_tok": raw["num_experts_per_tok"],
        "num_shared_experts": raw["n_shared_experts"],
        "route_every_n": 1,
        "routed_scale": raw["routed_scaling_factor"],
    }
    return params


def pairs(name: str, weight: torch.Tensor) -> torch.Tensor:
    """Rows of queries and keys of dense models, with those that turn together beside each other."""
    if not re.search(r"attention\.w[qk]\.", name):
        return weight
    return weight.view(-1, 2, 4, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def write_params(case: str, folder: Path, **values: Any) -> State:
    """Returns the tensors."""
    write(CASES[case], model_of(case), folder)
    state, raw = load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())
    (folder / "model.safetensors").unlink()
    (folder / "config.json").unlink()
    for pattern, target in NAMES:
        state = {re.sub(pattern, target, name): tensor for name, tensor in state.items()}
    if case == "ministral 3":
        state = {name: pairs(name, tensor).contiguous() for name, tensor in state.items()}
    state["vision_encoder.patch_conv.weight"] = torch.ones(4, 3)
    save_file(state, folder / "consolidated.safetensors")
    (folder / "params.json").write_text(json.dumps({**params_of(raw), **values}))
    return state


def logits(model: CausalLM, group: Any = None) -> torch.Tensor:
    prompts = {str(index): prompt for index, prompt in enumerate(PROMPTS)}
    return Driver(model, max_tokens=32, group=group).prefill(prompts, all_logits=True)


@pytest.mark.parametrize("case", ["ministral 3", "mistral 4 each"])
def test_they_mean_what_files_of_transformers_mean(case: str, tmp_path: Path) -> None:
    write_params(case, tmp_path)
    model = load(tmp_path)
    assert_logits_are_equal(CASES[case], model_of(case), model)
    for each in together([lambda g=group: logits(load(tmp_path, group=g), g) for group in thread_groups(2)]):
        torch.testing.assert_close(each, logits(model), atol=2e-4, rtol=2e-4)


def test_scales_of_fp8_have_names_of_their_own(tmp_path: Path) -> None:
    state = write_params("mistral 4 each", tmp_path / "plain")
    said = {"qformat_weight": "fp8_e4m3", "qscheme_act": "TENSOR"}
    write_params("mistral 4 each", tmp_path / "made", quantization=said)
    for name in [name for name in state if re.search(r"\.(w\d|wo|wq_a|wq_b)\.", name)]:
        scale = state[name].abs().max() / 448
        codes = (state[name] / scale).to(torch.float8_e4m3fn)
        module = name.removesuffix("weight")
        state |= {name: codes, f"{module}qscale_weight": scale, f"{module}qscale_act": torch.tensor(0.02)}
    save_file(state, tmp_path / "made" / "consolidated.safetensors")
    expected, found = logits(load(tmp_path / "plain")), logits(load(tmp_path / "made"))
    assert 0 < (found - expected).norm() < 0.4 * (expected - expected.mean()).norm()


DENSE = {"dim": 32, "n_layers": 2, "n_heads": 4, "vocab_size": 99, "hidden_dim": 48}


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"moe": {"num_experts": 8}}, UnsupportedModel, "mixtures with it are read"),
        ({"sliding_window": [4, None]}, UnsupportedModel, "`sliding_window` in params.json"),
        ({"quantization": {"qformat_weight": "nvfp4"}}, UnsupportedModel, "`qformat_weight` in params.json"),
        ({"yarn": {"factor": 2}}, ConfigurationError, "params.json, `yarn`: `original_max_position_embeddings`"),
        ({"yarn": {"factor": -1}}, ConfigurationError, "params.json, `yarn`: `factor`"),
    ],
    ids=str,
)
def test_what_is_not_read_is_named(values: Raw, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        config_of_params(JsonObject({**DENSE, **values}, "params.json"))
