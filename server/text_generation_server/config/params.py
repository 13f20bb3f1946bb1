"""`params.json`, with which Mistral publishes models instead of `config.json`: the same under Transformers' keys.

Tensors have names of their own then (`families/mistral_names.py`), in files called `consolidated` (`files.py`).
"""

from collections.abc import Mapping

from ..errors import UnsupportedModel
from .json_object import JsonObject
from .quantisation.eight_bit import SCALE

MARK = "mistral_params"
"""A key that tells families where the file came from."""
_KEYS = {
    "dim": "hidden_size",
    "hidden_dim": "intermediate_size",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "n_layers": "num_hidden_layers",
    "norm_eps": "rms_norm_eps",
    "tied_embeddings": "tie_word_embeddings",
}
_MOE = {
    "expert_hidden_dim": "moe_intermediate_size",
    "first_k_dense_replace": "first_k_dense_replace",
    "num_expert_groups": "n_group",
    "num_expert_groups_per_tok": "topk_group",
    "num_experts": "n_routed_experts",
    "num_experts_per_tok": "num_experts_per_tok",
    "num_shared_experts": "n_shared_experts",
    "route_every_n": "moe_layer_freq",
    "routed_scale": "routed_scaling_factor",
}
_YARN = {"factor": "factor", "beta": "beta_fast", "alpha": "beta_slow"}
_LENGTH = "original_max_position_embeddings"
_OBJECTS = ("moe", "multimodal", "quantization", "vision_encoder", "yarn")
_DEFAULTS: Mapping[str, object] = {
    "max_position_embeddings": 128_000,
    "sliding_window": None,
    "tie_word_embeddings": False,
}


def config_of_params(params: JsonObject) -> JsonObject:
    """Raises UnsupportedModel for models that are not read from such files, and ConfigurationError for wrong values."""
    plain = params.plain()
    values = {_KEYS.get(key, key): value for key, value in plain.items() if key not in _OBJECTS}
    values = {**_DEFAULTS, **values, **_experts(params), **_rope(params), **_quantisation(params)}
    return JsonObject({**values, "architectures": [_architecture(params)], MARK: True}, params.source)


def _architecture(params: JsonObject) -> str:
    if isinstance(params.plain().get("sliding_window"), list):
        raise UnsupportedModel("`sliding_window` in params.json must be one number: lists are not implemented")
    is_latent, is_mixture = "qk_nope_head_dim" in params, "moe" in params
    if is_latent != is_mixture:
        raise UnsupportedModel(
            "of params.json, dense models without latent attention and mixtures with it are read; others need a "
            "config.json and Transformers' names of tensors"
        )
    return "MistralLarge3ForCausalLM" if is_latent else "MistralForCausalLM"


def _experts(params: JsonObject) -> dict[str, object]:
    moe = params.child("moe").plain()
    return {new: moe[old] for old, new in _MOE.items() if old in moe}


def _rope(params: JsonObject) -> dict[str, object]:
    """Without `apply_scale`, cosines and sines are not scaled."""
    if "yarn" not in params:
        return {}
    yarn = params.child("yarn")
    rope: dict[str, object] = {new: yarn.number(old) for old, new in _YARN.items() if old in yarn}
    rope |= {"rope_type": "yarn", "mscale_all_dim": 1.0, _LENGTH: yarn.integer(_LENGTH)}
    if not yarn.boolean("apply_scale", default=True):
        rope["attention_factor"] = 1.0
    return {"rope_scaling": rope}


def _quantisation(params: JsonObject) -> dict[str, object]:
    if "quantization" not in params:
        return {}
    said = params.child("quantization")
    if "quant_method" in said:
        return {"quantization_config": said.plain()}
    if (kind := said.string("qformat_weight", default="")) != "fp8_e4m3":
        raise UnsupportedModel(f"`qformat_weight` in params.json must be 'fp8_e4m3', not {kind!r}")
    schemes = {"NO_SCALES": "dynamic", "TENSOR": "static"}
    scheme = said.choice("qscheme_act", schemes, default="TENSOR")
    return {"quantization_config": {"quant_method": "fp8", "activation_scheme": scheme, SCALE: "qscale_weight"}}
