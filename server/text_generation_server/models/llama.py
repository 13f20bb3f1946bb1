"""Llama 1 to 3.x: names of its tensors, and how they become layers."""

import torch

from ..config.model import ModelConfig
from ..distributed import TensorParallelGroup
from ..layers.infer import LayerSettings, PostLayer, PreLayer, TransformerLayer
from ..layers.rope import RopeTable
from ..layers.weights import (
    HeadSplit,
    Linear,
    PostLayerWeights,
    PreLayerWeights,
    RowBlock,
    TransformerLayerWeights,
    column_parallel,
    even_span,
    padded_rows,
    row_parallel,
    vocabulary_shard,
)
from ..weights import Slice, WeightSource
from .base import CausalLM


def load_llama(
    config: ModelConfig,
    group: TensorParallelGroup,
    source: WeightSource,
    dtype: torch.dtype,
    device: torch.device,
) -> CausalLM:
    """Reads this rank's part from `source`. Raises ConfigurationError or ModelFilesError."""
    heads = HeadSplit.of(config, group)
    rope = RopeTable(config, device)
    settings = LayerSettings(config.head_dim, config.rms_norm_eps, config.hidden_act, rope)
    pre = PreLayerWeights(source.read("model.embed_tokens.weight", (config.vocab_size, config.hidden_size)))
    layers = [
        TransformerLayer(index, _layer_weights(config, group, heads, source, index), settings, group)
        for index in range(config.num_layers)
    ]
    post = _post_weights(config, group, source, pre)
    return CausalLM(
        config,
        dtype,
        device,
        heads.num_kv_heads,
        PreLayer(pre),
        layers,
        PostLayer(post, config.rms_norm_eps, config.vocab_size, group),
        rope,
    )


def _layer_weights(
    config: ModelConfig, group: TensorParallelGroup, heads: HeadSplit, source: WeightSource, index: int
) -> TransformerLayerWeights:
    prefix = f"model.layers.{index}"
    hidden, inner = config.hidden_size, config.intermediate_size
    inner_span = even_span(inner, group.rank, group.world_size)
    # The ranks' outputs are summed: one of them adds the bias.
    first = group.rank == 0

    def head_block(name: str, num_heads: int, start: int, stop: int) -> RowBlock:
        size = config.head_dim
        return RowBlock(f"{prefix}.self_attn.{name}", num_heads * size, start * size, stop * size)

    qkv_blocks = [
        head_block("q_proj", config.num_heads, heads.q_start, heads.q_stop),
        head_block("k_proj", config.num_kv_heads, heads.kv_start, heads.kv_stop),
        head_block("v_proj", config.num_kv_heads, heads.kv_start, heads.kv_stop),
    ]
    gate_up_blocks = [RowBlock(f"{prefix}.mlp.{name}", inner, *inner_span) for name in ("gate_proj", "up_proj")]
    q_size = config.num_heads * config.head_dim
    q_span = (heads.q_start * config.head_dim, heads.q_stop * config.head_dim)
    return TransformerLayerWeights(
        input_norm=source.read(f"{prefix}.input_layernorm.weight", (hidden,)),
        qkv=column_parallel(source, qkv_blocks, hidden, config.attention_bias),
        out=row_parallel(
            source, f"{prefix}.self_attn.o_proj", (hidden, q_size), q_span, config.attention_bias and first
        ),
        post_attention_norm=source.read(f"{prefix}.post_attention_layernorm.weight", (hidden,)),
        gate_up=column_parallel(source, gate_up_blocks, hidden, config.mlp_bias),
        down=row_parallel(source, f"{prefix}.mlp.down_proj", (hidden, inner), inner_span, config.mlp_bias and first),
    )


def _post_weights(
    config: ModelConfig, group: TensorParallelGroup, source: WeightSource, pre: PreLayerWeights
) -> PostLayerWeights:
    start, stop, padding = vocabulary_shard(config.vocab_size, group.rank, group.world_size)
    if config.tie_word_embeddings:
        lm_head = pre.embedding[start:stop]
    else:
        lm_head = source.read("lm_head.weight", (config.vocab_size, config.hidden_size), Slice(0, start, stop))
    norm = source.read("model.norm.weight", (config.hidden_size,))
    return PostLayerWeights(norm, Linear(padded_rows(lm_head, padding)))
