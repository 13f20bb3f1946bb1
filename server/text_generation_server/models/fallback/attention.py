"""Attention of a served class: keys and values go to our pool, and our kernels read it."""

from typing import Any

from torch import Tensor

from ... import kernels
from ...layers.infer import CacheShape, InferState
from .interfaces import AttentionLayer
from .rehearsal import AttentionCall


class Step:
    """What is being computed: set before a forward pass, read by its layers."""

    def __init__(self) -> None:
        self.state: InferState | None = None


class ServedAttention(AttentionLayer):
    """Heads of this rank in layer `index`."""

    def __init__(self, index: int, call: AttentionCall, step: Step) -> None:
        self._index = index
        self._scale = call.scale
        self._step = step
        self._options = kernels.AttentionOptions(call.window, call.softcap)
        self.cache = CacheShape(call.kv_heads, call.head_dim, call.value_dim)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: object, options: dict[str, Any]) -> Tensor:  # noqa: ARG002
        """See `AttentionLayer`."""
        state = self._step.state
        if state is None:
            raise ValueError("attention is called outside of a step")
        cache = state.caches[self._index]
        cache.k.index_copy_(0, state.slots, k[0].transpose(0, 1))
        cache.v.index_copy_(0, state.slots, v[0].transpose(0, 1))
        queries = q[0].transpose(0, 1)
        out = queries.new_empty(*queries.shape[:2], v.shape[-1])
        how = (state.deterministic, self._with_sinks(options.get("s_aux")))
        read, scale = (cache.k, cache.v, state.slot_table), self._scale
        # Padded decodes reach into the tokens of chunks and write zeros there: chunks come second.
        if (d := state.decodes) is not None:
            n = len(d.rows)
            kernels.decode_attention(queries[:n], *read, d.rows, d.kv_lens, d.max_kv_len, scale, out[:n], *how)
        if (c := state.chunks) is not None:
            kernels.prefill_attention(queries, *read, c.rows, c.starts, c.kv_lens, c.max_len, scale, out, *how)
        return out[None]

    def _with_sinks(self, sinks: Tensor | None) -> kernels.AttentionOptions:
        if sinks is None:
            return self._options
        return kernels.AttentionOptions(self._options.window, self._options.softcap, sinks.float())
