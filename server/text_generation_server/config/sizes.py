"""Memory that weights take, as far as the configuration tells."""

from collections.abc import Container, Iterator
from pathlib import Path

from .fallback import FallbackConfig
from .files import stored_bytes, tensor_files
from .implementation import AnyModelConfig
from .model import ModelConfig
from .names import TensorNames
from .recurrent import GatedDeltaSpec, Mamba2Spec, MambaSpec, ShortConvSpec
from .spec import AttentionSpec, DecoderSpec, LatentAttentionSpec, MixerSpec, MoeSpec

ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
"""Of a number, by its type."""
LEAST_CUT_BYTES = 1 << 30
"""Of an embedding that ranks share. What they save is room for more KV slots, which large models lack; what it costs,
one more sum of the step's tokens, is a part in 160 of what sums take in 80 layers and a part in 64 in 32.
"""


def weight_bytes(config: ModelConfig, itemsize: int, tensors: Container[str] = ()) -> int:
    """Of all ranks together, where a number that is not quantised takes `itemsize` bytes. `tensors`: names of those
    that are stored, where they are known; they tell better than rules which matrices are quantised.
    """
    spec, names, schemes = config.decoder, config.names, config.schemes
    head = 0 if spec.head.tied and not spec.embedding.width else spec.vocab_size * spec.hidden_size
    total = float((spec.vocab_size * spec.hidden_size + head) * itemsize)
    prefix = names.prefix(tensors.__contains__)
    for index in range(len(spec.layers)):
        for name, elements in matrices(config, index):
            whole = f"{prefix}{names.layer.format(index)}{name}"
            scheme = schemes.among(whole, tensors.__contains__)
            # What has no name is kept with 16 bits alone.
            total += elements * (itemsize if scheme is None or not name else scheme.bytes_per_weight)
    return int(total)


def dense_products(config: ModelConfig) -> int:
    """Elements of the matrices of layers by which every token is multiplied, on all ranks together. Experts do not
    count, of which a token meets a few, and neither does the layer that has them.
    """
    layers = (index for index, layer in enumerate(config.decoder.layers) if not isinstance(layer.ffn, MoeSpec))
    return sum(elements for index in layers for _, elements in matrices(config, index))


def served_bytes(folder: Path, config: AnyModelConfig, itemsize: int) -> int | None:
    """Of all ranks together, where a number that is not quantised takes `itemsize` bytes. None where `folder` does not
    tell how much is stored. Raises ModelFilesError or ConfigurationError for an index that cannot be read.
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
    """Whether each of `ranks` holds a part of the embedding's rows, of numbers of `itemsize` bytes, not the whole."""
    size = spec.vocab_size * spec.hidden_size * itemsize
    return ranks > 1 and not spec.embedding.width and size >= LEAST_CUT_BYTES


def bytes_of_rank(whole: int, config: AnyModelConfig, itemsize: int, ranks: int) -> int:
    """What one of `ranks` holds of weights that take `whole` bytes in all, where a number that is not quantised takes
    `itemsize`: the embedding whole where it is not cut, and its part of everything else.
    """
    if isinstance(config, FallbackConfig) or cuts_embedding(config.decoder, itemsize, ranks):
        return whole // ranks
    embedding = min(whole, config.decoder.vocab_size * config.decoder.hidden_size * itemsize)
    return (whole - embedding) // ranks + embedding


def matrices(config: ModelConfig, index: int, experts: bool = True) -> Iterator[tuple[str, int]]:
    """Names and elements of the matrices of a layer; of experts, those of the first stand for all. Without `experts`,
    networks that every token passes besides are left out as well: most are computed as further ones.
    """
    spec, names = config.decoder, config.names
    layer, hidden = spec.layers[index], spec.hidden_size
    if layer.mixer is not None:
        yield from _mixer(layer.mixer, names, hidden)
    if (ffn := layer.ffn) is None:
        return
    if isinstance(ffn, MoeSpec):
        if not experts:
            return
        yield from (
            (name.format(expert=0), each * hidden * ffn.inner * ffn.experts)
            for name, each in _experts(names, ffn.gated)
        )
        for name in names.shared(ffn.gated):
            yield name, hidden * ffn.shared_inner
        return
    if ffn.gated:
        yield names.gate_up or names.gate, hidden * ffn.inner
    yield names.gate_up or names.up, hidden * ffn.inner
    yield names.down, hidden * ffn.inner


def _experts(names: TensorNames, gated: bool) -> tuple[tuple[str, int], ...]:
    """Names, and how many matrices of one expert each has."""
    if names.experts_layout in ("stacked", "interleaved"):
        return (names.expert_gate, 2), (names.expert_down, 1)
    return tuple((name, 1) for name in names.experts(gated))


def _mixer(spec: MixerSpec, names: TensorNames, hidden: int) -> Iterator[tuple[str, int]]:
    if isinstance(spec, LatentAttentionSpec):
        return _latent_attention(spec, names, hidden)
    if isinstance(spec, GatedDeltaSpec):
        return _gated_delta(spec, names, hidden)
    if isinstance(spec, MambaSpec | Mamba2Spec):
        return _mamba(spec, names, hidden)
    if isinstance(spec, ShortConvSpec):
        return iter(((names.conv_in, 3 * hidden * spec.channels), (names.conv_out, hidden * spec.channels)))
    return _attention(spec, names, hidden)


def _attention(spec: AttentionSpec, names: TensorNames, hidden: int) -> Iterator[tuple[str, int]]:
    queries = spec.num_heads * (2 if spec.output_gate else 1)
    for name, heads in ((names.q, queries), (names.k, spec.num_kv_heads), (names.v, spec.num_kv_heads)):
        yield names.qkv or name, hidden * heads * spec.head_dim
    yield names.out, hidden * spec.num_heads * spec.head_dim


def _latent_attention(spec: LatentAttentionSpec, names: TensorNames, hidden: int) -> Iterator[tuple[str, int]]:
    queries = spec.num_heads * (spec.key_dim + spec.rope_dim)
    if spec.query_dim:
        yield names.q_a, hidden * spec.query_dim
        yield names.q_b, spec.query_dim * queries
    else:
        yield names.q, hidden * queries
    yield names.kv_a, hidden * (spec.latent_dim + spec.rope_dim)
    # It is dequantised when it is loaded.
    yield "", spec.latent_dim * spec.num_heads * (spec.key_dim + spec.value_dim)
    yield names.out, hidden * spec.num_heads * spec.value_dim


def _gated_delta(spec: GatedDeltaSpec, names: TensorNames, hidden: int) -> Iterator[tuple[str, int]]:
    values = spec.num_heads * spec.value_dim
    yield names.delta_qkvz or names.delta_qkv, hidden * (2 * spec.num_key_heads * spec.key_dim + values)
    yield names.delta_qkvz or names.delta_z, hidden * values
    for name in (names.delta_b, names.delta_a):
        yield names.delta_ba or name, hidden * spec.num_heads
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
