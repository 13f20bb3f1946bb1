"""From tensors and configurations of transformers to those of a family: what several families need."""

import re
from typing import Any

import torch

from support.families import Raw, Relayout, State


def renamed(architecture: str, *rules: tuple[str, str], **keys: Any) -> Relayout:
    """Re-layout by regular expressions over names, and other keys of the configuration; `...` removes one."""

    def relayout(state: State, raw: Raw) -> tuple[State, Raw]:
        for pattern, target in rules:
            state = {re.sub(pattern, target, name): tensor for name, tensor in state.items()}
        raw = {**raw, "architectures": [architecture], **keys}
        return state, {key: value for key, value in raw.items() if value is not ...}

    return relayout


def fused_blocks(state: State, parts: tuple[str, ...], target: str) -> State:
    """Stacks matrices of each layer, whose names end with `parts`, into one."""
    fused = dict(state)
    for name in state:
        if parts[0] in name:
            fused[name.replace(parts[0], target)] = torch.cat(
                [fused.pop(name.replace(parts[0], part)) for part in parts]
            )
    return fused


def fused_groups(state: State, target: str, heads: int = 4, kv_heads: int = 2) -> State:
    """Q, K and V in the layout `[kv_heads, heads / kv_heads + 2, head_dim]`."""
    fused = dict(state)
    for name in state:
        if "q_proj" in name:
            q, k, v = (fused.pop(name.replace("q_proj", part)) for part in ("q_proj", "k_proj", "v_proj"))
            size = q.shape[0] // heads
            grouped = [part.view(kv_heads, -1, size, *q.shape[1:]) for part in (q, k, v)]
            fused[name.replace("self_attn.q_proj", target)] = torch.cat(grouped, dim=1).view(-1, *q.shape[1:])
    return fused


def without_prefix(prefix: str) -> Relayout:
    """Checkpoints that were saved without their head have names without the prefix."""

    def relayout(state: State, raw: Raw) -> tuple[State, Raw]:
        return {name.removeprefix(prefix): tensor for name, tensor in state.items()}, raw

    return relayout
