"""Tensor names of a checkpoint: where it keeps the tensors of each part, and in which layout."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from .spec import QkvLayout

ExpertLayout = Literal["each", "stacked", "transposed", "as shaped", "rows", "interleaved"]
"""How experts are stored.

- "each": each expert has its own matrices, as a dense network does.
- "stacked": `[experts, 2 * inner, hidden]`, gate rows first, and `[experts, hidden, inner]`.
- "transposed": `[experts, hidden, 2 * inner]`, gate columns first, and `[experts, inner, hidden]`.
- "as shaped": "stacked" or "transposed", as the shapes of the tensors say.
- "rows": gate, up and the transposed down, each `[experts * inner, hidden]`.
- "interleaved": `[experts, hidden, 2 * inner]`, with gate and up columns interleaved, and `[experts, inner, hidden]`,
  with biases; or MXFP4 blocks and scales of their transposes.
"""


_WEIGHTS = ("weight", "qweight", "weight_packed")
"""What the weight of a module may be called, quantised or not."""


@dataclass(frozen=True)
class TensorNames:
    """Names without `.weight` and `.bias`; the defaults are those of Llama.

    Names of layers are relative to `layer`, in which `{}` is the layer's number. All but `head` follow the prefix.
    """

    prefixes: tuple[str, ...] = ("model.",)
    """Prefixes that a checkpoint may use; the first with an embedding counts."""
    embedding: str = "embed_tokens"
    positions: str = "embed_positions"
    embedding_norm: str = "embedding_norm"
    final_norm: str = "norm"
    head: str = "lm_head"
    heads: Mapping[str, str] = field(default_factory=dict[str, str])
    """Other names of the head, by the prefix with which they occur."""
    project_in: str = "project_in"
    """Projection from the columns of the embedding to the hidden size."""
    project_out: str = "project_out"
    """Projection from the hidden size to the columns of the head."""

    image_low_rank: tuple[str, str] = ("Plora_A", "Plora_B")
    """Ends of the names of low-rank matrices that tokens of images alone pass, behind that of the matrix."""

    layer: str = "layers.{}."
    insides: Mapping[int, str] = field(default_factory=dict[int, str])
    """What follows `layer` in layers of these numbers."""
    block: "TensorNames | None" = None
    """Names of a block that layers share, and of what each call of it has, relative to the layer that calls it."""
    sharing: tuple[tuple[int, ...], ...] = ()
    """The layers that share a block, for each block. Files hold its tensors once, under any of these layers."""
    shared_part: str = "shared_transformer."
    """With what names of a shared block begin."""
    call_qkv: tuple[str, str, str] = (
        "shared_transformer.self_attn.linear_q_adapter_list.{call}",
        "shared_transformer.self_attn.linear_k_adapter_list.{call}",
        "shared_transformer.self_attn.linear_v_adapter_list.{call}",
    )
    """Low-rank matrices of a call for queries, keys and values; `.0` and `.1` follow."""
    call_gate_up: str = "shared_transformer.feed_forward.gate_up_proj_adapter_list.{call}"
    call_out: str = "linear"
    """What projects the output of a call."""
    parts: int = 1
    """Layers here that each stored layer has; `{part}` in a name is the number of one of these."""
    attention_norm: str = "input_layernorm"
    attention_output_norm: str = "post_attention_layernorm"
    ffn_norm: str = "post_attention_layernorm"
    ffn_output_norm: str = "post_feedforward_layernorm"
    q: str = "self_attn.q_proj"
    k: str = "self_attn.k_proj"
    v: str = "self_attn.v_proj"
    qkv: str | None = None
    """The fused matrix of all three, if the checkpoint has one."""
    qkv_layout: QkvLayout = "blocks"
    qkv_shards: int = 1
    """Shards of that layout. Each is quantised by itself."""
    qkv_values_first: bool = False
    """Whether a shard of it has values before keys."""
    attention_gate: str | None = None
    """The matrix that gates what heads read, where it is not a part of that of the queries."""
    out: str = "self_attn.o_proj"
    q_norm: str = "self_attn.q_norm"
    """With `{head}`, each head has a tensor of its own."""
    k_norm: str = "self_attn.k_norm"
    q_a: str = "self_attn.q_a_proj"
    """Latent attention, as the next ones: the projection to the low-rank query vector."""
    q_a_norm: str = "self_attn.q_a_layernorm"
    q_b: str = "self_attn.q_b_proj"
    kv_a: str = "self_attn.kv_a_proj_with_mqa"
    """The projection to the latent vector, then to the rotated key that all heads share."""
    kv_a_norm: str = "self_attn.kv_a_layernorm"
    kv_b: str = "self_attn.kv_b_proj"
    """The projection from the latent vector to key and value of each head."""
    compressor: str = "self_attn.compressor"
    """What makes entries of positions; `.kv_proj`, `.gate_proj`, `.position_bias` and `.kv_norm` follow."""
    index_compressor: str = "self_attn.compressor.indexer"
    """The same for the keys of entries."""
    out_a: str = "self_attn.o_a_proj"
    """The matrices of groups of heads, one below the other, before the output projection."""
    index_q: str = "self_attn.indexer.wq_b"
    """Indexer, as the next ones: the projection to its queries, from the low-rank query vector or hidden states."""
    index_k: str = "self_attn.indexer.wk"
    index_q_norm: str = "self_attn.indexer.q_norm"
    index_k_norm: str = "self_attn.indexer.k_norm"
    index_weights: str = "self_attn.indexer.weights_proj"
    """From hidden states to the weight of each of its heads."""
    index_gate: str = "self_attn.indexer.index_kpool_compress_gate"
    """From hidden states to the weight of each element of a key within its pool; a whole name, as the next one."""
    index_offset: str = "self_attn.indexer.index_kpool_compress_ape"
    """What each place of a pool adds to these weights."""
    sinks: str = "self_attn.sinks"
    """A whole name, as it has no `.weight`."""
    delta_qkv: str = "linear_attn.in_proj_qkv"
    """Gated delta net, as the next ones: all queries, then keys, then values."""
    delta_z: str = "linear_attn.in_proj_z"
    """The gate of the result."""
    delta_b: str = "linear_attn.in_proj_b"
    """How much of the state's value for a key is corrected (beta)."""
    delta_a: str = "linear_attn.in_proj_a"
    """How fast the state decays (alpha)."""
    delta_qkvz: str | None = None
    """The fused matrix of queries, keys, values and gates, by key heads, if the checkpoint has one."""
    delta_ba: str | None = None
    """The fused matrix of beta and alpha, if the checkpoint has one."""
    delta_apart: tuple[str, str, str] | None = None
    """The matrices of queries, of keys and of values, if the checkpoint has them apart."""
    delta_conv: str = "linear_attn.conv1d"
    delta_convs: tuple[str, ...] = ()
    """The convolutions of queries, of keys and of values, which some files have instead of one."""
    delta_rate: str = "linear_attn.A_log"
    """A whole name, as the next one."""
    delta_bias: str = "linear_attn.dt_bias"
    delta_decay: tuple[str, ...] = ("self_attn.f_a_proj", "self_attn.f_b_proj")
    """Kimi delta attention: the matrix that makes decays of channels of hidden states, or two of low rank."""
    delta_gate: tuple[str, ...] = ("self_attn.g_a_proj", "self_attn.g_b_proj")
    """The same of the gates of the result."""
    delta_norm: str = "linear_attn.norm"
    delta_out: str = "linear_attn.out_proj"
    lightning_qkv: str = "self_attn.qkv_proj"
    """Lightning attention, as the next ones: queries, keys and values."""
    lightning_layout: QkvLayout = "groups"
    lightning_gate: str = "self_attn.output_gate"
    lightning_norm: str = "self_attn.norm"
    lightning_out: str = "self_attn.out_proj"
    conv_in: str = "conv.in_proj"
    """Short convolution, as the next two: both gates and the input of the convolution."""
    conv: str = "conv.conv"
    conv_out: str = "conv.out_proj"
    lru_in: tuple[str, str] = ("temporal_block.linear_x", "temporal_block.linear_y")
    """Gated linear recurrent unit, as the next ones: inputs of the convolution, and gates of the results."""
    lru_conv: str = "temporal_block.conv_1d"
    lru_gates: tuple[str, str] = ("temporal_block.rg_lru.recurrent_gate", "temporal_block.rg_lru.input_gate")
    """Gates of decays and of inputs; `_weight` and `_bias` follow."""
    lru_rate: str = "temporal_block.rg_lru.recurrent_param"
    """A whole name."""
    lru_out: str = "temporal_block.linear_out"
    mamba_in: str = "mixer.in_proj"
    """State space (Mamba 1 and 2), as the next ones: the projection of hidden states."""
    mamba_conv: str = "mixer.conv1d"
    mamba_x: str = "mixer.x_proj"
    """The projection from channels to the low-rank vector of time steps, B and C."""
    mamba_dt: str = "mixer.dt_proj"
    """The projection from that vector to the channels' time steps."""
    mamba_norms: tuple[str, str, str] = ("mixer.dt_layernorm", "mixer.b_layernorm", "mixer.c_layernorm")
    mamba_rate: str = "mixer.A_log"
    """A whole name, as the next two."""
    mamba_skip: str = "mixer.D"
    mamba_bias: str = "mixer.dt_bias"
    mamba_norm: str = "mixer.norm"
    mamba_out: str = "mixer.out_proj"
    gate: str = "mlp.gate_proj"
    up: str = "mlp.up_proj"
    """Also the first matrix of a network without a gate."""
    gate_up: str | None = None
    """The fused matrix of both, gate first, if the checkpoint has one."""
    down: str = "mlp.down_proj"
    scale: str = "layer_scalar"
    """What multiplies the residual stream; a whole name."""
    activation: str = "mlp.act"
    """The activation of a network without a gate, to which AWQ may give scales."""
    router: str = "mlp.gate"
    router_correction: str = "mlp.gate.e_score_correction_bias"
    """A whole name."""
    router_table: str = "mlp.gate.tid2eid"
    """The experts of each token id; a whole name."""
    correction_is_row: bool = False
    """Whether it is a matrix of one row."""
    experts_layout: ExpertLayout = "each"
    expert_gate: str = "mlp.experts.{expert}.gate_proj"
    """`{expert}` is the expert's number. It is also the fused tensor of gate and up, if the checkpoint has one; "rows"
    and "interleaved" have whole names.
    """
    expert_up: str = "mlp.experts.{expert}.up_proj"
    expert_down: str = "mlp.experts.{expert}.down_proj"
    experts_apart: bool = False
    """Whether one tensor has the gate matrices of all experts of a layer, one those for up and one those for down. Its
    name lacks `.{expert}`, with which those of "each" end."""
    experts_stack: tuple[str, str] | None = None
    """Names of the tensors of layout `stack_layout`, which some files have instead of matrices of each expert."""
    stack_layout: ExpertLayout = "stacked"
    shared_gate: str = "mlp.shared_expert.gate_proj"
    shared_up: str = "mlp.shared_expert.up_proj"
    shared_down: str = "mlp.shared_expert.down_proj"
    shared_gate_up: str | None = None
    """The fused matrix of both, gate first, if the checkpoint has one."""
    latent_in: str = "mixer.fc1_latent_proj"
    """From hidden states to those of experts of a latent mixture, as the next one back."""
    latent_out: str = "mixer.fc2_latent_proj"
    shared_weight: str = "mlp.shared_expert_gate"
    """The gate of the shared expert."""
    router_scale: str = "router.scale"
    """Experts beside a dense network, as the next ones: the weight of the router's norm; a whole name."""
    expert_scales: str = "router.per_expert_scale"
    """A whole name."""
    beside_norm: str = "pre_feedforward_layernorm_2"
    """The input norm of the experts."""
    dense_output_norm: str = "post_feedforward_layernorm_1"
    beside_output_norm: str = "post_feedforward_layernorm_2"
    layer_embedding: str = "embed_tokens_per_layer"
    """Inputs of each layer, as the next ones: the vectors of ids, of all layers side by side."""
    layer_projection: str = "per_layer_model_projection"
    """Makes, of embeddings, the vectors that are added to them."""
    layer_projection_norm: str = "per_layer_projection_norm"
    layer_gate: str = "per_layer_input_gate"
    layer_out: str = "per_layer_projection"
    layer_output_norm: str = "post_per_layer_input_norm"
    stream_router: str = "altup.modality_router"
    """Several residual streams, as the next ones: mixes of a token, from which coefficients are made."""
    stream_router_norm: str = "altup.router_norm"
    stream_prediction: str = "altup.prediction_coefs"
    stream_correction: str = "altup.correction_coefs"
    stream_scale: str = "altup.correct_output_scale"
    """A whole name."""
    streams_in: str = "altup_projections.{}"
    """From the embedding to each stream but the first, by its number from 0."""
    streams_out: str = "altup_unembed_projections.{}"
    """With hyper-connections whose head reads a weighted sum, its beginning; what follows is as of the next ones."""
    mixer_streams: str = "hc_attn_"
    """Hyper-connections around the mixer; `fn`, `base` and `scale` follow."""
    ffn_streams: str = "hc_ffn_"
    """The same around the network."""
    laurel_down: str = "laurel.linear_left"
    """Low-rank matrices beside attention, as the next two."""
    laurel_up: str = "laurel.linear_right"
    laurel_norm: str = "laurel.post_laurel_norm"
    instead: Mapping[str, str] = field(default_factory=dict[str, str])
    """Names of modules that other files have, by the fields here; they count where no layer has the first."""
    spellings: tuple[tuple[str, str], ...] = ()
    """Regular expressions, and what takes the place of each, one after the other: they turn whole names of tensors in
    files, in any of the spellings that there are, into those here."""
    unstored: tuple[str, ...] = ()
    """Parts of names of modules in Transformers that names of tensors lack; lists of what is quantised may have them.
    """
    transposed: bool = False
    """Whether matrices of layers are stored as [inputs, outputs]."""
    ignored: tuple[str, ...] = ("*rotary_emb.inv_freq",)
    """Patterns of whole names (as of `fnmatch`) that checkpoints hold though nothing needs them."""

    def prefix(self, has: Callable[[str], bool]) -> str:
        """Returns the first prefix with an embedding. `has` says whether a tensor exists."""
        return next((each for each in self.prefixes if has(f"{each}{self.embedding}.weight")), self.prefixes[0])

    def inside(self, layer: int, name: str) -> str:
        """Returns the name of a tensor of a layer, without the prefix."""
        stored, part = divmod(layer, self.parts)
        return f"{self.layer.format(stored)}{self.insides.get(stored, '')}{name.replace('{part}', str(part))}"

    def spelled(self, name: str) -> str:
        """Returns the name here of the tensor that files call `name`."""
        for pattern, instead in self.spellings:
            name = re.sub(pattern, instead, name)
        return name

    def others(self, name: str) -> tuple[str, ...]:
        """Returns the other names by which the tensor that files call `name` is read."""
        here = self.spelled(name)
        return self.twins(name) if here == name else (here, *self.twins(here))

    def twins(self, name: str) -> tuple[str, ...]:
        """Returns the other names of a tensor that several layers share."""
        for prefix in self.prefixes:
            for layers in self.sharing:
                starts = [f"{prefix}{self.layer.format(layer)}{self.shared_part}" for layer in layers]
                if start := next(filter(name.startswith, starts), None):
                    return tuple(f"{each}{name.removeprefix(start)}" for each in starts if each != start)
        return ()

    def is_of_several_layers(self, name: str) -> bool:
        """Whether several layers compute with the tensor of this name: those of calls are of one."""
        of_calls = (each.partition("{call}")[0] for each in (*self.call_qkv, self.call_gate_up))
        return bool(self.twins(name)) and not any(each in name for each in of_calls)

    def as_stored(self, layers: int, has: Callable[[str], bool]) -> "TensorNames":
        """Returns the same names as a model of so many layers stores norms and experts. `has` is that of `prefix`."""

        def is_stored(name: str) -> bool:
            return self.in_a_layer(name, layers, has)

        def has_module(name: str) -> bool:
            return any(is_stored(f"{name}.{each}") for each in _WEIGHTS)

        other = {key: name for key, name in self.instead.items() if not has_module(getattr(self, key))}
        if other:
            return replace(self, instead={}, **other)
        if self.experts_stack is None:
            return self
        gate_up, down = self.experts_stack
        if not is_stored(gate_up):
            return self
        return replace(self, experts_layout=self.stack_layout, expert_gate=gate_up, expert_down=down)

    def in_a_layer(self, name: str, layers: int, has: Callable[[str], bool]) -> bool:
        """Whether one of so many layers has a tensor of this name. `has` is that of `prefix`."""
        prefix = self.prefix(has)
        return any(has(f"{prefix}{self.inside(index, name)}") for index in range(layers))

    def experts(self, gated: bool) -> tuple[str, ...]:
        """Returns the names of the matrices of an expert: gate, if it is gated, up and down."""
        return (self.expert_gate, self.expert_up, self.expert_down) if gated else (self.expert_up, self.expert_down)

    def shared(self, gated: bool) -> tuple[str, ...]:
        """Returns the names of the matrices of the shared expert. A fused matrix of gate and up counts for both."""
        gate, up = self.shared_gate_up or self.shared_gate, self.shared_gate_up or self.shared_up
        return (gate, up, self.shared_down) if gated else (up, self.shared_down)

    @property
    def all_heads(self) -> tuple[str, ...]:
        """Every name that the head may have."""
        return self.head, *self.heads.values()
