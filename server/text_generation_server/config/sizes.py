"""Memory that weights take, from the configuration."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from .fallback import FallbackConfig
from .files import stored_bytes, tensor_files
from .implementation import AnyModelConfig
from .model import ModelConfig
from .names import TensorNames
from .recurrent import GatedDeltaSpec, GatedLruSpec, KimiDeltaSpec, LightningSpec, Mamba2Spec, MambaSpec, ShortConvSpec
from .spec import (
    AttentionSpec,
    CompressedAttentionSpec,
    DecoderSpec,
    DenseSpec,
    LatentAttentionSpec,
    MixerSpec,
    SharedBlockSpec,
)
from .streams import AltUpSpec, HyperConnectionsSpec

ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
"""Bytes of a number, by its type."""
LEAST_CUT_BYTES = 1 << 30
"""Bytes of the smallest embedding that ranks shard by vocabulary. Sharding saves memory for KV slots and costs one more
all-reduce: a model of 80 layers has 160 others, one of 32 layers has 64.
"""


def weight_bytes(config: ModelConfig, itemsize: int, tensors: Iterable[str] = ()) -> int:
    """Returns the bytes of the weights of all ranks together, where a number that is not quantised takes `itemsize`
    bytes. `tensors` are the names of the stored tensors, if known; they tell better than rules which matrices are
    quantised.
    """
    spec, names, schemes = config.decoder, config.names, config.schemes
    rows = spec.head.classes or spec.vocab_size
    head = 0 if spec.head.tied and not spec.embedding.width else rows * spec.hidden_size
    total = float((spec.vocab_size * spec.hidden_size + head + _per_layer(spec)) * itemsize + _streams(spec, itemsize))
    tensors = {names.spelled(each) for each in tensors}
    prefix = names.prefix(tensors.__contains__)

    def has(name: str) -> bool:
        return any(each in tensors for each in (name, *names.twins(name)))

    for index in range(len(spec.layers)):
        for name, elements in matrices(config, index):
            whole = f"{prefix}{name}"
            scheme = schemes.among(whole, has) if tensors else schemes.of(whole)
            # A matrix without a name is kept with 16 bits.
            total += elements * (itemsize if scheme is None or not name else scheme.bytes_per_weight)
    return int(total) + _vision_bytes(config, itemsize) + _image_low_rank(config) * itemsize


def _vision_bytes(config: ModelConfig, itemsize: int) -> int:
    """Returns the bytes of the vision tower, which is never quantised, and whole on every rank."""
    return 0 if config.vision is None else config.vision.matrix_elements * itemsize


def _image_low_rank(config: ModelConfig) -> int:
    """Returns the elements of the low-rank matrices that tokens of images pass."""
    spec = config.decoder
    if not spec.image_rank or config.vision is None:
        return 0
    total = 0
    for layer in spec.layers:
        if isinstance(mixer := layer.mixer, AttentionSpec):
            heads = mixer.num_heads + 2 * mixer.num_kv_heads
            total += 2 * spec.hidden_size + (heads + mixer.num_heads) * mixer.head_dim
        if isinstance(ffn := layer.ffn, DenseSpec):
            total += 3 * (spec.hidden_size + ffn.inner)
    return total * spec.image_rank


def _per_layer(spec: DecoderSpec) -> int:
    """The elements of the table of vectors of each layer, and of the matrix beside it."""
    if (per_layer := spec.per_layer) is None:
        return 0
    return (per_layer.vocab_size + spec.hidden_size) * len(spec.layers) * per_layer.width


def _streams(spec: DecoderSpec, itemsize: int) -> int:
    """The bytes of the matrices that several residual streams have: those of AltUp before and after all layers, and
    those of hyper-connections, which are in float32 whatever `itemsize` is.
    """
    if (streams := spec.streams) is None:
        return 0
    if isinstance(streams, HyperConnectionsSpec):
        of_end = streams.count**2 if streams.weighted_end else 0
        return (len(spec.layers) * 2 * (streams.count + 2) * streams.count**2 + of_end) * spec.hidden_size * 4
    return 2 * (streams.count - 1) * spec.hidden_size**2 * itemsize


def _whole_of_calls(spec: DecoderSpec) -> int:
    """The elements of the matrices of calls of shared blocks that every rank has whole."""
    calls = (layer.shared for layer in spec.layers if layer.shared is not None)
    return sum(spec.hidden_size * (spec.hidden_size + 6 * call.attention_rank + call.ffn_rank) for call in calls)


def dense_macs(config: ModelConfig) -> int:
    """Returns the multiply-accumulates of each token in the matrices of layers, on all ranks together. Layers with
    experts do not count.
    """
    layers = [(index, layer) for index, layer in enumerate(config.decoder.layers) if layer.moe is None]
    own = sum(elements for index, _ in layers for _, elements in matrices(config, index))
    again = (layer.shared for index, layer in layers if layer.shared is not None and layer.shared.home != index)
    return own + sum(elements for shared in again for _, elements in _block(config, shared))


def served_bytes(folder: Path, config: AnyModelConfig, itemsize: int) -> int | None:
    """Returns the bytes of the weights in `folder` on all ranks together, where a number that is not quantised takes
    `itemsize` bytes. None: `folder` does not tell how much is stored. Raises ModelFilesError or ConfigurationError for
    an unreadable index.
    """
    if (stored := stored_bytes(folder)) is None:
        return None
    if isinstance(config, ModelConfig) and config.is_less_than_files:
        return weight_bytes(config, itemsize, tensor_files(folder))
    if isinstance(config, FallbackConfig) and config.schemes.method and not config.schemes.online:
        # Most of it are codes, which take as much room on the device.
        return stored
    numbers = stored // (itemsize if config.dtype is None else ITEM_BYTES[config.dtype])
    return class_bytes(numbers, config, itemsize) if isinstance(config, FallbackConfig) else numbers * itemsize


def class_bytes(numbers: int, config: FallbackConfig, itemsize: int) -> int:
    """About what so many weights of a class of Transformers take, as though all of them were in matrices of layers."""
    usual = config.schemes.usual
    return int(numbers * (itemsize if usual is None else usual.bytes_per_weight))


def cuts_embedding(spec: DecoderSpec, itemsize: int, ranks: int) -> bool:
    """Whether each of `ranks` holds a vocabulary shard of the embedding, whose numbers have `itemsize` bytes."""
    return not spec.embedding.width and cuts_table(spec.vocab_size * spec.hidden_size * itemsize, ranks)


def cuts_table(size: int, ranks: int) -> bool:
    """The same of a table of `size` bytes, with vectors by token id."""
    return ranks > 1 and size >= LEAST_CUT_BYTES


def bytes_of_rank(whole: int, config: AnyModelConfig, itemsize: int, ranks: int) -> int:
    """Returns the bytes that one of `ranks` holds of weights of `whole` bytes in all, where a number that is not
    quantised takes `itemsize`: its shard of everything, and what is not sharded, a vision tower and most embeddings,
    whole.
    """
    if isinstance(config, FallbackConfig):
        return whole // ranks
    spec = config.decoder
    tables = 0 if cuts_embedding(spec, itemsize, ranks) else spec.vocab_size * spec.hidden_size * itemsize
    tables += 0 if cuts_table(_per_layer(spec) * itemsize, ranks) else _per_layer(spec) * itemsize
    tables += _vision_bytes(config, itemsize) + _streams(spec, itemsize) + _whole_of_calls(spec) * itemsize
    tables = min(whole, tables)
    return (whole - tables) // ranks + tables


def matrices(config: ModelConfig, index: int, experts: bool = True) -> Iterator[tuple[str, int]]:
    """Yields names, without the prefix, and elements of the matrices of a layer; those without a name keep 16 bits. The
    first expert's names stand for all experts. Without `experts` it leaves out shared experts as well, most of which
    are computed as further experts. Those of a block that several layers share count in the first of these.
    """
    names = config.names
    for name, elements in _own_matrices(config, index, experts):
        yield names.inside(index, name) if name else "", elements
    if (shared := config.decoder.layers[index].shared) is None or (block := names.block) is None:
        return
    yield from ((block.inside(index, name), elements) for name, elements in _call(config, shared))
    if shared.home == index:
        yield from ((block.inside(index, name), elements) for name, elements in _block(config, shared))


def _own_matrices(config: ModelConfig, index: int, experts: bool) -> Iterator[tuple[str, int]]:
    """Yields names inside the layer, and elements."""
    spec, names = config.decoder, config.names
    layer, hidden = spec.layers[index], spec.hidden_size
    for mixer in (layer.mixer, layer.state_space):
        if mixer is not None:
            yield from _mixer(mixer, names, hidden)
    if (per_layer := spec.per_layer) is not None:
        yield names.layer_gate, hidden * per_layer.width
        yield names.layer_out, hidden * per_layer.width
    if isinstance(streams := spec.streams, AltUpSpec):
        yield names.laurel_down, hidden * streams.rank
        yield names.laurel_up, hidden * streams.rank
    if (moe := layer.moe) is not None and experts:
        if moe.latent:
            yield names.latent_in, hidden * moe.latent
            yield names.latent_out, hidden * moe.latent
        yield from (
            (name.format(expert=0), each * (moe.latent or hidden) * moe.inner * moe.experts)
            for name, each in _experts(names, moe.gated)
        )
        for name in names.shared(moe.gated):
            yield name, hidden * moe.shared_inner
    if isinstance(layer.ffn, DenseSpec):
        yield from _dense(layer.ffn, names, hidden)


def _dense(ffn: DenseSpec, names: TensorNames, hidden: int) -> Iterator[tuple[str, int]]:
    if ffn.gated:
        yield names.gate_up or names.gate, hidden * ffn.inner
    yield names.gate_up or names.up, hidden * ffn.inner
    yield names.down, hidden * ffn.inner


def _block(config: ModelConfig, shared: SharedBlockSpec) -> Iterator[tuple[str, int]]:
    """The matrices of a block that layers share."""
    names, hidden = config.names.block or config.names, config.decoder.hidden_size
    for name, elements in _attention(shared.attention, names, hidden):
        # It reads two hidden states side by side.
        yield name, elements if name == names.out else 2 * elements
    yield from _dense(shared.ffn, names, hidden)


def _call(config: ModelConfig, shared: SharedBlockSpec) -> Iterator[tuple[str, int]]:
    """The matrices that one call of it has for itself."""
    names, hidden = config.names.block or config.names, config.decoder.hidden_size
    yield names.call_out, hidden**2
    attention, rank = shared.attention, shared.attention_rank
    heads = attention.num_heads, attention.num_kv_heads, attention.num_kv_heads
    pairs = [
        (name, rank, 2 * hidden, count * attention.head_dim) for name, count in zip(names.call_qkv, heads, strict=True)
    ]
    for name, size, inputs, outputs in (*pairs, (names.call_gate_up, shared.ffn_rank, hidden, 2 * shared.ffn.inner)):
        if size:
            yield f"{name.format(call=shared.call)}.0", size * inputs
            yield f"{name.format(call=shared.call)}.1", size * outputs


def _experts(names: TensorNames, gated: bool) -> tuple[tuple[str, int], ...]:
    """Returns the names of the tensors of experts, and how many matrices of one expert each holds."""
    if names.experts_layout in ("stacked", "transposed", "as shaped", "interleaved"):
        return (names.expert_gate, 2), (names.expert_down, 1)
    return tuple((name, 1) for name in names.experts(gated))


def _mixer(spec: MixerSpec, names: TensorNames, hidden: int) -> Iterator[tuple[str, int]]:
    if isinstance(spec, LatentAttentionSpec):
        return _latent_attention(spec, names, hidden)
    if isinstance(spec, CompressedAttentionSpec):
        return _compressed_attention(spec, names, hidden)
    if isinstance(spec, GatedDeltaSpec):
        return _gated_delta(spec, names, hidden)
    if isinstance(spec, KimiDeltaSpec):
        return _kimi_delta(spec, names, hidden)
    if isinstance(spec, LightningSpec):
        stored = ((names.lightning_qkv, 3), (names.lightning_gate, 1), (names.lightning_out, 1))
        return ((name, each * hidden * spec.num_heads * spec.head_dim) for name, each in stored)
    if isinstance(spec, MambaSpec | Mamba2Spec):
        return _mamba(spec, names, hidden)
    if isinstance(spec, GatedLruSpec):
        stored = (*names.lru_in, names.lru_out)
        return iter((*((name, hidden * spec.channels) for name in stored), ("", 2 * spec.channels * spec.width)))
    if isinstance(spec, ShortConvSpec):
        return iter(((names.conv_in, 3 * hidden * spec.channels), (names.conv_out, hidden * spec.channels)))
    return _attention(spec, names, hidden)


def _attention(spec: AttentionSpec, names: TensorNames, hidden: int) -> Iterator[tuple[str, int]]:
    stored = [(names.q, spec.num_heads)]
    if spec.reads_layer is None:
        stored += [(names.k, spec.num_kv_heads), (names.k if spec.keys_are_values else names.v, spec.num_kv_heads)]
    for name, heads in stored:
        size = spec.value_size if name == names.v else spec.head_dim
        yield names.qkv or name, hidden * heads * size
    if spec.output_gate:
        yield names.attention_gate or names.q, hidden * spec.num_heads * spec.gate_size
    if (indexer := spec.indexer) is not None:
        yield names.index_q, hidden * spec.num_kv_heads * indexer.head_dim
        yield names.index_k, hidden * indexer.head_dim
    yield names.out, hidden * spec.num_heads * spec.value_size


def _latent_attention(spec: LatentAttentionSpec, names: TensorNames, hidden: int) -> Iterator[tuple[str, int]]:
    queries = spec.num_heads * (spec.key_dim + spec.rope_dim)
    if spec.query_dim:
        yield names.q_a, hidden * spec.query_dim
        yield names.q_b, spec.query_dim * queries
    else:
        yield names.q, hidden * queries
    yield names.kv_a, hidden * (spec.latent_dim + spec.rope_dim)
    if (indexer := spec.indexer) is not None:
        yield names.index_q, spec.query_dim * indexer.num_heads * indexer.head_dim
        yield names.index_k, hidden * indexer.head_dim
        yield "", hidden * indexer.num_heads
        if spec.pool:
            yield "", (hidden + spec.pool) * indexer.head_dim
    # It is dequantised when it is loaded.
    yield "", spec.latent_dim * spec.num_heads * (spec.key_dim + spec.value_dim)
    if spec.gates is not None:
        yield names.attention_gate or "", hidden * spec.num_heads * spec.gate_size
    yield names.out, hidden * spec.num_heads * spec.value_dim


def _compressed_attention(spec: CompressedAttentionSpec, names: TensorNames, hidden: int) -> Iterator[tuple[str, int]]:
    yield names.q_a, hidden * spec.query_dim
    yield names.q_b, spec.query_dim * spec.num_heads * spec.head_dim
    yield names.kv_a, hidden * spec.head_dim
    size = spec.head_dim
    if (indexer := spec.indexer) is not None:
        yield names.index_q, spec.query_dim * indexer.num_heads * indexer.head_dim
        yield "", hidden * indexer.num_heads
        size += indexer.head_dim
    # What makes entries keeps 16 bits in published files.
    yield "", hidden * 2 * spec.series * size
    # It is dequantised when it is loaded.
    yield "", spec.num_heads * spec.head_dim * spec.out_rank
    yield names.out, spec.out_groups * spec.out_rank * hidden


def _gated_delta(spec: GatedDeltaSpec, names: TensorNames, hidden: int) -> Iterator[tuple[str, int]]:
    values = spec.num_heads * spec.value_dim
    keys = spec.num_key_heads * spec.key_dim
    if names.delta_apart is None:
        yield names.delta_qkvz or names.delta_qkv, hidden * (2 * keys + values)
    else:
        for name, outputs in zip(names.delta_apart, (keys, keys, values), strict=True):
            yield name, hidden * outputs
    yield names.delta_qkvz or names.delta_z, hidden * values
    for name in (names.delta_b, names.delta_a):
        yield names.delta_ba or name, hidden * spec.num_heads
    yield names.delta_out, hidden * values


def _kimi_delta(spec: KimiDeltaSpec, names: TensorNames, hidden: int) -> Iterator[tuple[str, int]]:
    keys, values = spec.num_heads * spec.key_dim, spec.num_heads * spec.value_dim
    if names.delta_apart is not None:
        for name, outputs in zip(names.delta_apart, (keys, keys, values), strict=True):
            yield name, hidden * outputs
    for stored, outputs in ((names.delta_decay, keys), (names.delta_gate, values)):
        if spec.rank:
            yield stored[0], hidden * spec.rank
        yield stored[-1], (spec.rank or hidden) * outputs
    yield names.delta_b, hidden * spec.num_heads
    yield names.delta_out, hidden * values


def _mamba(spec: MambaSpec | Mamba2Spec, names: TensorNames, hidden: int) -> Iterator[tuple[str, int]]:
    if isinstance(spec, Mamba2Spec):
        channels = spec.num_heads * spec.head_dim
        yield names.mamba_in, hidden * (2 * channels + 2 * spec.groups * spec.state_size + spec.num_heads)
    else:
        channels = spec.channels
        yield names.mamba_in, hidden * 2 * channels
        yield names.mamba_x, channels * (spec.rank + 2 * spec.state_size)
        yield names.mamba_dt, spec.rank * channels
    yield names.mamba_out, hidden * channels
