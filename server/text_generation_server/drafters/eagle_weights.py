"""Weights of an EAGLE-3 head, whole on every rank."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..config.drafter import EagleConfig
from ..errors import ModelFilesError
from ..layers.rope import rotary_order
from ..layers.weights import AttentionWeights, Dense, DenseWeights, NormWeights
from .tensors import DrafterTensors

_LAYER = "midlayer."


@dataclass(frozen=True)
class EagleWeights:
    """The weights of one head."""

    fc: Dense
    """[hidden, layers * hidden of the model]"""
    feature_norms: tuple[NormWeights, ...]
    """None, one of all hidden states that are read, or one of each."""
    embedded_norm: NormWeights
    hidden_norm: NormWeights
    attention: AttentionWeights
    """`qkv` reads embeddings and hidden states side by side: [outputs, 2 * hidden]."""
    ffn_norm: NormWeights
    ffn: DenseWeights
    norm: NormWeights
    head: Dense
    """[ids that it may draft, hidden]"""
    ids: Tensor
    """[ids that it may draft] int64, their numbers in the vocabulary of the model."""
    embedding: Tensor | None
    """[vocabulary, hidden]; None: it reads that of the model."""


def load_eagle(config: EagleConfig, tensors: DrafterTensors) -> EagleWeights:
    """Takes all tensors of a head. Raises ModelFilesError for one that is missing, wrong or left."""
    for prefix, other in (("model.", ""), ("layers.0.", _LAYER)):
        tensors.renamed(prefix, other)
    hidden, read = config.hidden_size, len(config.layers) * config.target_hidden_size

    def norm(name: str, size: int = hidden) -> NormWeights:
        return NormWeights(tensors.weight(f"{name}.weight", size), None)

    feature_norms: tuple[NormWeights, ...] = ()
    if config.feature_norm == "whole":
        feature_norms = (norm("input_norm", read),)
    elif config.feature_norm == "each":
        places = range(len(config.layers))
        feature_norms = tuple(norm(f"fc_norm.{place}", config.target_hidden_size) for place in places)
    embedding = None
    if tensors.has("embed_tokens.weight"):
        embedding = tensors.weight("embed_tokens.weight", config.vocab_size, hidden)
    weights = EagleWeights(
        Dense(tensors.weight("fc.weight", hidden, read)),
        feature_norms,
        norm(f"{_LAYER}input_layernorm"),
        norm(f"{_LAYER}hidden_norm"),
        _attention(config, tensors),
        norm(f"{_LAYER}post_attention_layernorm"),
        _ffn(config, tensors),
        norm("norm"),
        Dense(tensors.weight("lm_head.weight", config.draft_vocab_size, hidden)),
        _ids(config, tensors),
        embedding,
    )
    tensors.check_all_taken()
    return weights


def _attention(config: EagleConfig, tensors: DrafterTensors) -> AttentionWeights:
    spec, inputs, name = config.attention, 2 * config.hidden_size, f"{_LAYER}self_attn."
    if spec.rope is None:
        raise ValueError("an EAGLE-3 head has a rotary embedding")
    order = torch.tensor(rotary_order(spec.rope, spec.head_dim))

    def rotated(tensor: Tensor) -> Tensor:
        """Rows of heads in the order in which they are rotated."""
        heads = tensor.unflatten(0, (-1, spec.head_dim))
        return heads[:, order.to(tensor.device)].flatten(0, 1)

    sizes = {"q": spec.num_heads, "k": spec.num_kv_heads, "v": spec.num_kv_heads}
    rows = {each: count * spec.head_dim for each, count in sizes.items()}
    parts = {each: tensors.weight(f"{name}{each}_proj.weight", rows[each], inputs) for each in rows}
    bias = out_bias = None
    if spec.qkv_bias:
        biases = {each: tensors.weight(f"{name}{each}_proj.bias", rows[each]) for each in rows}
        bias = torch.cat([rotated(biases["q"]), rotated(biases["k"]), biases["v"]])
        out_bias = tensors.weight(f"{name}o_proj.bias", config.hidden_size)
    qkv = torch.cat([rotated(parts["q"]), rotated(parts["k"]), parts["v"]])
    out = tensors.weight(f"{name}o_proj.weight", config.hidden_size, rows["q"])
    norms = [None, None]
    if spec.qk_norm is not None:
        norms = [rotated(tensors.weight(f"{name}{each}_norm.weight", spec.head_dim)) for each in ("q", "k")]
    return AttentionWeights(Dense(qkv, bias), Dense(out, out_bias), *norms)


def _ffn(config: EagleConfig, tensors: DrafterTensors) -> DenseWeights:
    hidden, inner, name, biased = config.hidden_size, config.ffn.inner, f"{_LAYER}mlp.", config.ffn.in_bias
    first = [tensors.weight(f"{name}{each}_proj.weight", inner, hidden) for each in ("gate", "up")]
    down = tensors.weight(f"{name}down_proj.weight", hidden, inner)
    bias = down_bias = None
    if biased:
        bias = torch.cat([tensors.weight(f"{name}{each}_proj.bias", inner) for each in ("gate", "up")])
        down_bias = tensors.weight(f"{name}down_proj.bias", hidden)
    return DenseWeights(Dense(torch.cat(first), bias), Dense(down, down_bias))


def _ids(config: EagleConfig, tensors: DrafterTensors) -> Tensor:
    """Reads which id of the model each id of the head is: `d2t` has their differences."""
    number, all_ids = config.draft_vocab_size, config.vocab_size
    if not tensors.has("d2t"):
        if number != all_ids:
            raise ModelFilesError(
                f"{config.source}: `draft_vocab_size` is {number} of {all_ids}, and the files have no tensor `d2t`, "
                "which says which ids these are"
            )
        tensors.drop("t2d")
        return torch.arange(number, device=tensors.device)
    ids = tensors.integers("d2t", number)
    ids += torch.arange(number, device=ids.device)
    if int(ids.min()) < 0 or int(ids.max()) >= all_ids:
        raise ModelFilesError(f"{config.source}: tensor `d2t` names ids beyond the {all_ids} of `vocab_size`")
    if tensors.has("t2d"):
        drafted = tensors.integers("t2d", all_ids) != 0
        if int(drafted.sum()) != number or not bool(drafted[ids].all()):
            raise ModelFilesError(f"{config.source}: the tensors `d2t` and `t2d` name different ids")
    return ids
