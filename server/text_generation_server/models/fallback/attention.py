"""Attention of a served class: keys and values go to our KV pool, and our kernels read it."""

from typing import Any

import torch
from torch import Tensor

import text_generation_kernels as kernels

from ...layers.infer import CacheShape, InferState
from .dry_run import AttentionCall
from .interfaces import AttentionLayer
from .rotation import RotaryCall, Rotation


class Step:
    """The step that is being computed. The model begins it before a forward pass, and its layers read it."""

    def __init__(self) -> None:
        self._state: InferState | None = None
        self._tokens: tuple[Tensor, kernels.NewTokens] | None = None

    @property
    def state(self) -> InferState:
        """The state of the step. Raises ValueError outside of a step."""
        if self._state is None:
            raise ValueError("attention is called outside of a step")
        return self._state

    def begin(self, state: InferState) -> None:
        """Begins a step, before the first layer."""
        self._state, self._tokens = state, None

    def tokens(self, rotary: RotaryCall) -> kernels.NewTokens:
        """Returns the step's tokens with the angles of `rotary`, a row for each token. Layers with the same rotary
        embedding share them.
        """
        if self._tokens is None or self._tokens[0] is not rotary.cos:
            half = rotary.cos.shape[-1] // 2
            table = torch.cat((rotary.cos[0, :, :half], rotary.sin[0, :, :half]), dim=-1).float()
            rows = torch.arange(len(table), device=table.device)
            self._tokens = rotary.cos, kernels.NewTokens(table, rows, self.state.slots)
        return self._tokens[1]

    def unrotated(self, head_dim: int) -> kernels.NewTokens:
        """Returns the step's tokens with angles of 0, for heads of this size."""
        slots = self.state.slots
        angles = torch.arange(head_dim, device=slots.device) < head_dim // 2
        return kernels.NewTokens(angles.float()[None], torch.zeros_like(slots), slots)


class ServedAttention(AttentionLayer):
    """The attention heads of this rank in layer `index`."""

    def __init__(
        self, index: int, call: AttentionCall, step: Step, rotation: Rotation, codes: torch.dtype | None = None
    ) -> None:
        """`codes` is the type of quantised keys and values, or None."""
        self._index = index
        self._scale = call.scale
        self._step = step
        self._rotation = rotation
        self._options = kernels.AttentionOptions(call.window, call.softcap)
        self.cache = CacheShape(call.kv_heads, call.head_dim, call.value_dim, codes)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: object, options: dict[str, Any]) -> Tensor:  # noqa: ARG002
        """See `AttentionLayer`."""
        state = self._step.state
        cache = state.caches[self._index]
        queries = self._prepare(q, k, v, cache, state)
        out = queries.new_empty(*queries.shape[:2], v.shape[-1])
        how = (state.deterministic, self._with_sinks(options.get("s_aux")))
        # Padding of the decodes overlaps the tokens of chunks, and decode attention writes zeros there, so it runs
        # first.
        if (d := state.decodes) is not None:
            n = len(d.rows)
            kernels.decode_attention(queries[:n], cache, d, self._scale, out[:n], *how)
        if (c := state.chunks) is not None:
            kernels.prefill_attention(queries, cache, c, self._scale, out, *how)
        return out[None]

    def _prepare(self, q: Tensor, k: Tensor, v: Tensor, cache: kernels.KvCache, state: InferState) -> Tensor:
        """Writes keys and values, and returns queries, [T, heads, head_dim]. It rotates them if the class has not."""
        rotary = self._rotation.take()
        if rotary is not None:
            qkv = _side_by_side(q, k, v)
            kernels.qkv_postprocess(qkv, kernels.NO_PROLOGUE, self._step.tokens(rotary), cache)
            return qkv[:, : q.shape[1] * q.shape[3]].unflatten(1, (-1, q.shape[3]))
        if cache.scales is not None:
            # A copy: the class may read keys and values again, whose place the operator uses up.
            qkv = torch.cat([each[0].transpose(0, 1).flatten(1) for each in (q, k, v)], dim=1)
            kernels.qkv_postprocess(qkv, kernels.NO_PROLOGUE, self._step.unrotated(q.shape[3]), cache)
            return q[0].transpose(0, 1)
        cache.k.index_copy_(0, state.slots, k[0].transpose(0, 1))
        cache.v.index_copy_(0, state.slots, v[0].transpose(0, 1))
        return q[0].transpose(0, 1)

    def _with_sinks(self, sinks: Tensor | None) -> kernels.AttentionOptions:
        if sinks is None:
            return self._options
        return kernels.AttentionOptions(self._options.window, self._options.softcap, sinks.float())


def _side_by_side(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Returns queries, keys and values as one tensor, [T, (heads + 2 * kv_heads) * head_dim]: the output of the QKV
    GEMM where one GEMM made them, else a copy.
    """
    parts = [each[0].transpose(0, 1).flatten(1) for each in (q, k, v)]
    memory, tokens, offset = q.untyped_storage().data_ptr(), q.shape[2], q.storage_offset()
    # The stride of a single token is arbitrary.
    strides = {part.stride(0) for part in parts if tokens > 1} or {0}
    for part in parts:
        if len(strides) > 1 or (part.untyped_storage().data_ptr(), part.storage_offset()) != (memory, offset):
            return torch.cat(parts, dim=1)
        offset += part.shape[1]
    return q.as_strided((tokens, offset - q.storage_offset()), (*strides, 1))
