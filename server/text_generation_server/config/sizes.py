"""How much memory weights take, as far as the configuration tells."""

from collections.abc import Iterator

from .model import ModelConfig
from .names import TensorNames
from .spec import AttentionSpec, MoeSpec


def weight_bytes(config: ModelConfig, itemsize: int) -> int:
    """Of all ranks together, where a number that is not quantised takes `itemsize` bytes."""
    spec, names = config.decoder, config.names
    head = 0 if spec.head.tied else spec.vocab_size * spec.hidden_size
    total = float((spec.vocab_size * spec.hidden_size + head) * itemsize)
    for index in range(len(spec.layers)):
        for name, elements in _matrices(config, index):
            whole = f"{names.prefixes[0]}{names.layer.format(index)}{name}"
            scheme = config.schemes.of(whole)
            total += elements * (itemsize if scheme is None else scheme.bytes_per_weight)
    return int(total)


def _matrices(config: ModelConfig, index: int) -> Iterator[tuple[str, int]]:
    """Names and elements of the matrices of a layer; of experts, those of the first stand for all."""
    spec, names = config.decoder, config.names
    layer, hidden = spec.layers[index], spec.hidden_size
    yield from _attention(layer.attention, names, hidden)
    ffn = layer.ffn
    if isinstance(ffn, MoeSpec):
        yield from ((name.format(expert=0), each * hidden * ffn.inner * ffn.experts) for name, each in _experts(names))
        for name in (names.shared_gate, names.shared_up, names.shared_down):
            yield name, hidden * ffn.shared_inner
        return
    if ffn.gated:
        yield names.gate_up or names.gate, hidden * ffn.inner
    yield names.gate_up or names.up, hidden * ffn.inner
    yield names.down, hidden * ffn.inner


def _experts(names: TensorNames) -> tuple[tuple[str, int], ...]:
    """Names, and how many matrices of one expert each has."""
    if names.experts_layout in ("stacked", "interleaved"):
        return (names.expert_gate, 2), (names.expert_down, 1)
    return (names.expert_gate, 1), (names.expert_up, 1), (names.expert_down, 1)


def _attention(spec: AttentionSpec, names: TensorNames, hidden: int) -> Iterator[tuple[str, int]]:
    for name, heads in ((names.q, spec.num_heads), (names.k, spec.num_kv_heads), (names.v, spec.num_kv_heads)):
        yield names.qkv or name, hidden * heads * spec.head_dim
    yield names.out, hidden * spec.num_heads * spec.head_dim
