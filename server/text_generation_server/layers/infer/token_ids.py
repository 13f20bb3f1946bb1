"""The token ids of a step, for layers that read them beside hidden states."""

from typing import cast

from torch import Tensor

from .state import InferState

_IDS = "token ids"


def keep_token_ids(input_ids: Tensor, state: InferState) -> None:
    """Keeps the ids [T] int64 of a step for its layers."""
    state.made[_IDS] = input_ids


def keep_tokens(kept: Tensor, state: InferState) -> None:
    """Keeps those of the tokens that `kept` [N] int64 names alone, as the rest of the step computes no others."""
    if _IDS in state.made:
        state.made[_IDS] = token_ids(state).index_select(0, kept)


def token_ids(state: InferState) -> Tensor:
    """Returns the ids of the tokens whose hidden states a layer has."""
    return cast("Tensor", state.made[_IDS])
