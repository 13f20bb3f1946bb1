"""Readings of `config.json` that many mixtures of experts share."""

from collections.abc import Callable
from typing import Any

from ..json_object import JsonObject
from ..names import TensorNames
from ..spec import LayerSpec, MoeSpec, RouteSpec
from .common import MOST_LAYERS, activation

MOST_EXPERTS = 4096
"""Kernels look at all of them at once: a hostile number must not reach them."""


def mixture(
    config: JsonObject, experts_key: str, inner_key: str, top_k_key: str = "num_experts_per_tok", **route: Any
) -> MoeSpec:
    """Experts with the usual activation; `route`: what `RouteSpec` has besides the number of experts for a token."""
    experts = config.integer(experts_key, maximum=MOST_EXPERTS)
    top_k = config.integer(top_k_key, maximum=experts)
    return MoeSpec(experts, config.integer(inner_key), activation(config), RouteSpec(top_k, **route))


def divided(config: JsonObject, default: bool) -> int:
    """The norm by which weights are divided."""
    return 1 if config.boolean("norm_topk_prob", default=default) else 0


def groups(config: JsonObject, experts: int, top_k: int) -> dict[str, int]:
    """Groups of experts, as `RouteSpec` has them."""
    count = config.integer("n_group", default=1, maximum=experts)
    if experts % count:
        raise config.error("n_group", f"a divisor of the {experts} experts")
    best = config.integer("topk_group", default=1, maximum=count)
    if best * (experts // count) < top_k:
        raise config.error("topk_group", f"such that the groups have {top_k} experts")
    return {"groups": count, "top_groups": best}


def by_number(
    config: JsonObject, dense: LayerSpec, mixed: LayerSpec, is_mixed: Callable[[int], bool]
) -> tuple[LayerSpec, ...]:
    """Layers with and without experts, as `is_mixed` says of each number."""
    count = config.integer("num_hidden_layers", maximum=MOST_LAYERS)
    return tuple(mixed if is_mixed(index) else dense for index in range(count))


def mixed_by_type(config: JsonObject) -> Callable[[int], bool]:
    """Whether layers have experts: as `mlp_layer_types` lists them, else all behind the first one, or behind as many
    as `first_k_dense_replace` says.
    """
    count = config.integer("num_hidden_layers", maximum=MOST_LAYERS)
    first = config.integer("first_k_dense_replace", default=1, minimum=0)
    kinds = config.strings("mlp_layer_types")
    if not kinds:
        return lambda index: index >= first
    if len(kinds) != count or set(kinds) - {"dense", "sparse"}:
        raise config.error("mlp_layer_types", f"a list of {count} times 'dense' or 'sparse'")
    return lambda index: kinds[index] == "sparse"


def shared_expert_names(extra_layers: int) -> Callable[[JsonObject], TensorNames]:
    """DeepSeek's names of the network that every token passes. Behind the last layer, checkpoints have some that guess
    further tokens: so many, where `num_nextn_predict_layers` is absent.
    """

    def names(config: JsonObject) -> TensorNames:
        shared, first = "mlp.shared_experts", config.integer("num_hidden_layers")
        extra = config.integer("num_nextn_predict_layers", default=extra_layers, minimum=0, maximum=16)
        return TensorNames(
            shared_gate=f"{shared}.gate_proj",
            shared_up=f"{shared}.up_proj",
            shared_down=f"{shared}.down_proj",
            ignored=tuple(f"model.layers.{first + index}.*" for index in range(extra)),
        )

    return names
