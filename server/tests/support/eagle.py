"""EAGLE-3 heads with random weights, in all containers, and what they draft by plain torch alone."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional
from transformers import LlamaForCausalLM

Container = Literal["authors", "speculators"]
HEADS, KV_HEADS, HEAD_DIM, INNER = 4, 2, 16, 48
SPREAD = 0.3
"""Of the weights: large enough that drafts do not hang on last bits."""


def write_head(
    folder: Path,
    target: Path,
    layers: Sequence[int],
    container: Container = "authors",
    drafted: int = 200,
    bias: bool = False,
    own_embedding: bool = False,
    qk_norm: bool = False,
    head_dim: int = HEAD_DIM,
    **says: Any,
) -> Path:
    """Writes a head that reads the hidden states before `layers` of the model in `target`. `says` goes into its
    config.json: `norm_before_residual` and others.
    """
    of_target = json.loads((target / "config.json").read_text())
    hidden, vocabulary = of_target["hidden_size"], of_target["vocab_size"]
    layer = {
        "model_type": "qwen3" if qk_norm else "llama", "hidden_size": hidden, "intermediate_size": INNER,
        "num_hidden_layers": 1, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": head_dim,
        "rms_norm_eps": 1e-5, "rope_theta": 5000.0, "max_position_embeddings": 256, "vocab_size": vocabulary,
        "attention_bias": bias, "hidden_act": "silu",
    }  # fmt: skip
    ids = "eagle_aux_hidden_state_layer_ids"
    if container == "authors":
        # It names the layers by what comes out of them.
        own = {"eagle_config": {ids: [each - 1 for each in layers], "use_aux_hidden_state": True}}
        config = {**layer, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": drafted, **own, **says}
    else:
        own = {ids: list(layers), "speculators_model_type": "eagle3"}
        config = {"transformer_layer_config": layer, "draft_vocab_size": drafted, **own, **says}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    chance = torch.Generator().manual_seed(5)

    def random(*shape: int) -> Tensor:
        spread = torch.randn(shape, generator=chance) * SPREAD
        return spread + 1.0 if len(shape) == 1 else spread

    name = "midlayer." if container == "authors" else "layers.0."
    attention, queries, keys = f"{name}self_attn.", HEADS * head_dim, KV_HEADS * head_dim
    tensors = {
        "fc.weight": random(hidden, len(layers) * hidden),
        "norm.weight": random(hidden),
        "lm_head.weight": random(drafted, hidden),
        f"{name}input_layernorm.weight": random(hidden),
        f"{name}hidden_norm.weight": random(hidden),
        f"{name}post_attention_layernorm.weight": random(hidden),
        f"{attention}q_proj.weight": random(queries, 2 * hidden),
        f"{attention}k_proj.weight": random(keys, 2 * hidden),
        f"{attention}v_proj.weight": random(keys, 2 * hidden),
        f"{attention}o_proj.weight": random(hidden, queries),
        f"{name}mlp.gate_proj.weight": random(INNER, hidden),
        f"{name}mlp.up_proj.weight": random(INNER, hidden),
        f"{name}mlp.down_proj.weight": random(hidden, INNER),
    }
    if bias:
        for each, rows in (("q", queries), ("k", keys), ("v", keys), ("o", hidden)):
            tensors[f"{attention}{each}_proj.bias"] = random(rows) - 1.0
    if qk_norm:
        for each in ("q", "k"):
            tensors[f"{attention}{each}_norm.weight"] = random(head_dim)
    if says.get("norm_before_fc"):
        tensors["input_norm.weight"] = random(len(layers) * hidden)
    if says.get("fc_norm"):
        tensors.update({f"fc_norm.{place}.weight": random(hidden) for place in range(len(layers))})
    if own_embedding:
        tensors["embed_tokens.weight"] = random(vocabulary, hidden)
    if drafted < vocabulary:
        chosen = torch.randperm(vocabulary, generator=chance)[:drafted].sort().values
        tensors["d2t"] = chosen - torch.arange(drafted)
        tensors["t2d"] = torch.zeros(vocabulary, dtype=torch.bool).index_fill(0, chosen, True)
    save_file(tensors, folder / "model.safetensors")
    return folder


class PlainHead:
    """A head of `write_head` in plain torch, over whole texts and without a cache."""

    def __init__(self, folder: Path, target: Path, layers: Sequence[int]) -> None:
        self._tensors = {
            name.replace("layers.0.", "midlayer."): each
            for name, each in load_file(folder / "model.safetensors").items()
        }
        config = json.loads((folder / "config.json").read_text())
        self._says = config
        self._layer = config.get("transformer_layer_config", config)
        self._before = config.get("norm_before_residual", "transformer_layer_config" in config)
        self._model = LlamaForCausalLM.from_pretrained(target, dtype=torch.float32)
        self._layers, self._streams = tuple(layers), dict[int, Tensor]()
        for index, module in enumerate(self._model.model.layers):
            module.register_forward_pre_hook(lambda _m, args, index=index: self._streams.update({index: args[0]}))
        count = len(self._model.model.layers)
        self._model.model.norm.register_forward_pre_hook(lambda _m, args: self._streams.update({count: args[0]}))

    @torch.no_grad()
    def drafts(self, text: Sequence[int], count: int) -> list[int]:
        """Greedy drafts of what follows the text."""
        self._model(input_ids=torch.tensor([list(text)]))
        streams = [self._streams[each][0] for each in self._layers]
        hidden = self._joined(streams)[:-1]
        tokens, found = list(text[1:]), list[int]()
        for _ in range(count):
            made = self._pairs(torch.tensor(tokens), hidden)
            normed = self._norm(made[-1:], "norm")
            logits = normed @ self._tensors["lm_head.weight"].T
            best = int(logits.argmax())
            token = best + int(self._tensors["d2t"][best]) if "d2t" in self._tensors else best
            found.append(token)
            tokens.append(token)
            hidden = torch.cat([hidden, normed if self._says.get("norm_output") else made[-1:]])
        return found

    def _joined(self, streams: list[Tensor]) -> Tensor:
        if self._says.get("fc_norm"):
            streams = [self._norm(each, f"fc_norm.{place}") for place, each in enumerate(streams)]
        joined = torch.cat(streams, dim=1)
        if self._says.get("norm_before_fc"):
            joined = self._norm(joined, "input_norm")
        return joined @ self._tensors["fc.weight"].T

    def _pairs(self, tokens: Tensor, hidden: Tensor) -> Tensor:
        """[N, hidden] of N successive pairs from the first on."""
        table = self._tensors.get("embed_tokens.weight", self._model.model.embed_tokens.weight)
        normed = self._norm(hidden, "midlayer.hidden_norm")
        x = torch.cat([self._norm(table[tokens], "midlayer.input_layernorm"), normed], dim=1)
        stream = (normed if self._before else hidden) + self._attention(x)
        read = self._norm(stream, "midlayer.post_attention_layernorm")
        gate, up, down = (self._tensors[f"midlayer.mlp.{each}_proj.weight"] for each in ("gate", "up", "down"))
        return stream + (functional.silu(read @ gate.T) * (read @ up.T)) @ down.T

    def _attention(self, x: Tensor) -> Tensor:
        q, k, v = (self._projected(x, each).unflatten(1, (-1, HEAD_DIM)).transpose(0, 1) for each in ("q", "k", "v"))
        if "midlayer.self_attn.q_norm.weight" in self._tensors:
            q, k = self._norm(q, "midlayer.self_attn.q_norm"), self._norm(k, "midlayer.self_attn.k_norm")
        q, k = self._rotated(q), self._rotated(k)
        out = functional.scaled_dot_product_attention(
            *(each[None] for each in (q, k, v)), is_causal=True, enable_gqa=True
        )[0]
        return self._projected(out.transpose(0, 1).flatten(1), "o")

    def _projected(self, x: Tensor, name: str) -> Tensor:
        weight = self._tensors[f"midlayer.self_attn.{name}_proj.weight"]
        return functional.linear(x, weight, self._tensors.get(f"midlayer.self_attn.{name}_proj.bias"))

    def _rotated(self, x: Tensor) -> Tensor:
        frequencies = self._layer["rope_theta"] ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
        angles = torch.arange(x.shape[1])[:, None] * torch.cat([frequencies, frequencies])
        first, second = x.chunk(2, dim=-1)
        return x * angles.cos() + torch.cat([-second, first], dim=-1) * angles.sin()

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return functional.rms_norm(x, x.shape[-1:], self._tensors[f"{name}.weight"], 1e-5)
