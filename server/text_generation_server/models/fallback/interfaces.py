"""Functions that Transformers calls in place of its own attention, masks and experts.

Its registries hold one function for a whole process, so the function asks the module that it is called for: a module
that is served, or in a dry run, has an object of ours in the attribute `served_by`.
"""

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor, nn
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

SERVING = "text_generation"
"""This name has no entry in the registry of masks, so Transformers makes none."""
DRY_RUN = "text_generation_dry_run"


class AttentionLayer(Protocol):
    """Computes attention of one layer."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: object, options: dict[str, Any]) -> Tensor:
        """Turns `q` [1, heads, T, head_dim], `k` and `v` [1, kv_heads, T, ...] into [1, T, heads, value_dim]."""
        ...


class ExpertsLayer(Protocol):
    """Computes the experts of one layer."""

    def compute(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        """Turns `x` [T, hidden], `ids` and `weights` [T, k] into [T, hidden]."""
        ...


class Mask:
    """Stands for a mask that a class asked for."""

    def __init__(self, allows: Callable[..., Tensor]) -> None:
        self.allows = allows
        """Says, for batch, head, and the positions of query and key, whether the query attends to the key."""

    def __getitem__(self, _: object) -> "Mask":
        return self


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: object = None, **options: Any
) -> tuple[Tensor, None]:
    layer: AttentionLayer = module.served_by  # pyright: ignore[reportAssignmentType]
    return layer.attend(query, key, value, attention_mask, options), None


def _compute(module: nn.Module, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    layer: ExpertsLayer = module.served_by  # pyright: ignore[reportAssignmentType]
    return layer.compute(hidden_states, top_k_index, top_k_weights)


def _mask(*_: object, mask_function: Callable[..., Tensor], **__: object) -> Mask:
    return Mask(mask_function)


def register_interfaces() -> None:
    """Registers the names above with Transformers. It may be called again."""
    for name in (SERVING, DRY_RUN):
        ALL_ATTENTION_FUNCTIONS.register(name, _attend)
        ALL_EXPERTS_FUNCTIONS.register(name, _compute)
    ALL_MASK_ATTENTION_FUNCTIONS.register(DRY_RUN, _mask)
