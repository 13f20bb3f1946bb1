"""Trains a drafter of the demo model: an EAGLE-3 head in the authors' layout, for `--drafter`.

Its layer reads what comes out of both layers of the model, and learns the model's own distribution of the next tokens
over the ids that it chooses most. As in the paper (Li et al., 2025) it learns on its own outputs too, as it reads them
when it drafts one token after the other. A CPU takes some ten minutes; `README.md` has what comes of it.

    python train_drafter.py
"""

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional
from train import pack
from transformers import LlamaForCausalLM

HERE = Path(__file__).parent
FOLDER = HERE / "drafter"
LENGTH = 256
"""Tokens of a row that is learned from."""
PART = 1000
"""The part of the corpus: none of those that the model has seen."""
LAYERS = (0, 1)
"""The layers of the model whose outputs are read."""
HEADS, KV_HEADS, HEAD_DIM = 8, 2, 32


class Seen(NamedTuple):
    """What the model makes of rows of tokens."""

    ids: Tensor
    """[rows, LENGTH]"""
    hidden: Tensor
    """[rows, LENGTH, layers * hidden]"""
    logits: Tensor
    """[rows, LENGTH, vocabulary]"""


class Target:
    """The model, frozen."""

    def __init__(self) -> None:
        self.model: Any = LlamaForCausalLM.from_pretrained(HERE, dtype=torch.float32)
        self.config = self.model.config
        self.embed = self.model.model.embed_tokens.weight.detach()
        self._outputs: dict[int, Tensor] = {}
        for index in LAYERS:
            self.model.model.layers[index].register_forward_hook(
                lambda _module, _inputs, output, index=index: self._outputs.update({index: output})
            )

    @torch.no_grad()
    def read(self, ids: Tensor) -> Seen:
        """Computes rows of tokens."""
        logits = self.model(input_ids=ids, use_cache=False).logits
        return Seen(ids, torch.cat([self._outputs[index] for index in LAYERS], dim=-1), logits)


class Norm(nn.Module):
    """RMS norm."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: Tensor) -> Tensor:
        """The normalised `x`."""
        return functional.rms_norm(x, x.shape[-1:], self.weight, self.eps)


class Head(nn.Module):
    """The EAGLE-3 layer; its parameters have the names of the authors."""

    def __init__(self, hidden: int, inner: int, vocabulary: int, eps: float, theta: float) -> None:
        super().__init__()
        self.fc = nn.Linear(len(LAYERS) * hidden, hidden, bias=False)
        self.midlayer = nn.ModuleDict(
            {
                "input_layernorm": Norm(hidden, eps),
                "hidden_norm": Norm(hidden, eps),
                "post_attention_layernorm": Norm(hidden, eps),
                "self_attn": nn.ModuleDict(
                    {
                        "q_proj": nn.Linear(2 * hidden, HEADS * HEAD_DIM, bias=False),
                        "k_proj": nn.Linear(2 * hidden, KV_HEADS * HEAD_DIM, bias=False),
                        "v_proj": nn.Linear(2 * hidden, KV_HEADS * HEAD_DIM, bias=False),
                        "o_proj": nn.Linear(HEADS * HEAD_DIM, hidden, bias=False),
                    }
                ),
                "mlp": nn.ModuleDict(
                    {
                        "gate_proj": nn.Linear(hidden, inner, bias=False),
                        "up_proj": nn.Linear(hidden, inner, bias=False),
                        "down_proj": nn.Linear(inner, hidden, bias=False),
                    }
                ),
            }
        )
        self.norm = Norm(hidden, eps)
        self.lm_head = nn.Linear(hidden, vocabulary, bias=False)
        self._angles = theta ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)

    def forward(self, embedded: Tensor, hidden: Tensor, seen: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """Pass number `len(seen)` over rows: pair t reads the pairs up to t of the first pass, and its own of the later
        ones. Returns hidden states and logits; keys and values are added to `seen`.
        """
        layer: Any = self.midlayer
        attention: Any = layer["self_attn"]
        x = torch.cat([layer["input_layernorm"](embedded), layer["hidden_norm"](hidden)], dim=-1)
        shape, offset = (*x.shape[:2], -1, HEAD_DIM), len(seen)
        q = self._rotated(attention["q_proj"](x).view(shape), offset)
        k = self._rotated(attention["k_proj"](x).view(shape), offset)
        v = attention["v_proj"](x).view(shape)
        k, v = (each.repeat_interleave(HEADS // KV_HEADS, dim=2) for each in (k, v))
        seen.append((k, v))
        first, first_values = seen[0]
        scores = torch.einsum("bqhd,bkhd->bhqk", q, first)
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
        own = [(q * keys).sum(-1).transpose(1, 2)[..., None] for keys, _ in seen[1:]]
        weights = torch.cat([scores, *own], dim=-1).mul(HEAD_DIM**-0.5).softmax(dim=-1)
        heads = torch.einsum("bhqk,bkhd->bqhd", weights[..., : first.shape[1]], first_values)
        for place, (_, values) in enumerate(seen[1:]):
            heads = heads + weights[..., first.shape[1] + place].transpose(1, 2)[..., None] * values
        hidden = hidden + attention["o_proj"](heads.flatten(2))
        read, mlp = layer["post_attention_layernorm"](hidden), layer["mlp"]
        hidden = hidden + mlp["down_proj"](functional.silu(mlp["gate_proj"](read)) * mlp["up_proj"](read))
        return hidden, self.lm_head(self.norm(hidden))

    def _rotated(self, x: Tensor, offset: int) -> Tensor:
        positions = torch.arange(offset, offset + x.shape[1])
        angles = positions[:, None] * self._angles
        cos, sin = (torch.cat([each, each], dim=-1)[None, :, None] for each in (angles.cos(), angles.sin()))
        first, second = x.chunk(2, dim=-1)
        return x * cos + torch.cat([-second, first], dim=-1) * sin


def losses(head: Head, target: Target, seen: Seen, ids: Tensor, passes: int) -> list[Tensor]:
    """Cross entropy with the model's own distribution over `ids`, weighed by its share of them, for each pass."""
    hidden, kept, found = head.fc(seen.hidden), list[tuple[Tensor, Tensor]](), list[Tensor]()
    length = seen.ids.shape[1] - passes - 1
    for number in range(passes):
        # Pair t of pass n has token t + 1 + n, and predicts what follows it.
        first = number + 1
        embedded = functional.embedding(seen.ids[:, first : first + length], target.embed)
        hidden, logits = head(embedded, hidden[:, :length], kept)
        wanted = seen.logits[:, first : first + length]
        share = wanted.softmax(-1)[..., ids].sum(-1)
        entropy = -(wanted[..., ids].softmax(-1) * logits.log_softmax(-1)).sum(-1)
        found.append((entropy * share).sum() / share.sum())
    return found


def train(head: Head, target: Target, rows: Tensor, ids: Tensor, options: argparse.Namespace) -> None:
    """AdamW with a short warm-up and a cosine to zero; the loss of each later pass counts less."""
    optimizer = torch.optim.AdamW(head.parameters(), lr=options.learning_rate, betas=(0.9, 0.95), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / 30, 0.5 * (1 + math.cos(math.pi * step / options.steps)))
    )
    begin = time.monotonic()
    for step in range(options.steps):
        seen = target.read(rows[step * options.batch : (step + 1) * options.batch])
        each = losses(head, target, seen, ids, options.passes)
        torch.stack([loss * 0.8**number for number, loss in enumerate(each)]).sum().backward()
        nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % 25 == 0 or step == options.steps - 1:
            shown = " ".join(f"{loss.item():.3f}" for loss in each)
            print(f"step {step} loss {shown} seconds {time.monotonic() - begin:.0f}", flush=True)


def chosen_ids(target: Target, rows: Tensor, count: int) -> Tensor:
    """The ids that the model gives most of its probability to, ascending."""
    mass = torch.zeros(target.config.vocab_size)
    for part in rows.split(8):
        mass += target.read(part).logits.softmax(-1).sum((0, 1))
    best = mass.topk(count).indices.sort().values
    print(f"{count} ids have {float(mass[best].sum() / mass.sum()):.3f} of the probability", flush=True)
    return best


def save(folder: Path, head: Head, target: Target, ids: Tensor, inner: int) -> None:
    """Writes the head as the authors do, in bfloat16."""
    folder.mkdir(parents=True, exist_ok=True)
    config = target.config
    described = {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "dtype": "bfloat16",
        "hidden_size": config.hidden_size, "intermediate_size": inner, "hidden_act": "silu", "num_hidden_layers": 1,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM,
        "max_position_embeddings": config.max_position_embeddings, "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": 10000.0, "vocab_size": config.vocab_size, "draft_vocab_size": len(ids),
        "tie_word_embeddings": False,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(LAYERS), "use_aux_hidden_state": True},
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(described, indent=2) + "\n")
    tensors = {name: value.detach().bfloat16().contiguous() for name, value in head.state_dict().items()}
    tensors["d2t"] = ids - torch.arange(len(ids))
    tensors["t2d"] = torch.zeros(config.vocab_size, dtype=torch.bool).index_fill(0, ids, True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def main() -> None:
    """Trains the drafter and saves it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=FOLDER)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=8, help=f"rows of {LENGTH} tokens in a step")
    parser.add_argument("--passes", type=int, default=3, help="tokens that it drafts one after the other")
    parser.add_argument("--inner", type=int, default=480)
    parser.add_argument("--vocabulary", type=int, default=768, help="ids that it may draft")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    target = Target()
    packed = torch.from_numpy(pack((str(HERE / "tokenizer.json"), options.seed, PART)).astype("int64"))
    rows = packed.view(-1, LENGTH)
    rows = rows[torch.randperm(len(rows))[: options.steps * options.batch + 64]]
    ids = chosen_ids(target, rows[-64:], options.vocabulary)
    config = target.config
    head = Head(config.hidden_size, options.inner, len(ids), config.rms_norm_eps, 10000.0)
    # The rows of the model's own matrix are a good beginning.
    head.lm_head.weight.data.copy_(target.embed[ids])
    train(head, target, rows, ids, options)
    save(options.output, head, target, ids, options.inner)


if __name__ == "__main__":
    main()
