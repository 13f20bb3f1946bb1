"""Where a checkpoint keeps the tensors of each part, and in which layout."""

from dataclasses import dataclass

from .spec import QkvLayout


@dataclass(frozen=True)
class TensorNames:
    """Names without `.weight` and `.bias`; the defaults are those of Llama.

    Names of layers are relative to `layer`, in which `{}` is the layer's number. All but `head` follow the prefix.
    """

    prefixes: tuple[str, ...] = ("model.",)
    """The one under which the embedding is found counts."""
    embedding: str = "embed_tokens"
    positions: str = "embed_positions"
    embedding_norm: str = "embedding_norm"
    final_norm: str = "norm"
    head: str = "lm_head"

    layer: str = "layers.{}."
    attention_norm: str = "input_layernorm"
    attention_output_norm: str = "post_attention_layernorm"
    ffn_norm: str = "post_attention_layernorm"
    ffn_output_norm: str = "post_feedforward_layernorm"
    q: str = "self_attn.q_proj"
    k: str = "self_attn.k_proj"
    v: str = "self_attn.v_proj"
    qkv: str | None = None
    """The one matrix of all three, where there is one."""
    qkv_layout: QkvLayout = "blocks"
    out: str = "self_attn.o_proj"
    q_norm: str = "self_attn.q_norm"
    """With `{head}`, each head has a tensor of its own."""
    k_norm: str = "self_attn.k_norm"
    sinks: str = "self_attn.sinks"
    """A whole name, as it has no `.weight`."""
    gate: str = "mlp.gate_proj"
    up: str = "mlp.up_proj"
    """Also the first matrix where nothing is gated."""
    gate_up: str | None = None
    """The one matrix of both, gate first, where there is one."""
    down: str = "mlp.down_proj"
    transposed: bool = False
    """Matrices of layers are stored as [inputs, outputs]."""
    ignored: tuple[str, ...] = ("*rotary_emb.inv_freq",)
    """Patterns of whole names (as of `fnmatch`) that checkpoints hold though nothing needs them."""
