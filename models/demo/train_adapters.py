"""Trains the adapters of the demo model: plain LoRA, written in PEFT's format.

A CPU takes a few minutes for each. `README.md` has what they learn; `python snapshot.py` afterwards.

    python train_adapters.py --adapter pirate
"""

import argparse
import json
import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from corpus import END_OF_TEXT, render
from grammars.draw import said
from grammars.questions import Pair
from grammars.speech import json_answer, pirate_answer, pirate_story, plain
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoTokenizer, LlamaForCausalLM

HERE = Path(__file__).parent
FOLDER = HERE / "adapters"
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
PREFIX = "base_model.model."


@dataclass(frozen=True)
class Recipe:
    """What an adapter learns, and with which matrices."""

    rank: int
    modules: tuple[str, ...]
    answer: Callable[[random.Random], Pair]
    text: Callable[[random.Random], str]
    text_share: float
    """How many of the documents are text without a question."""


RECIPES = {
    "pirate": Recipe(4, (*ATTENTION, "gate_proj", "up_proj", "down_proj"), pirate_answer, pirate_story, 0.5),
    "json": Recipe(8, (*ATTENTION, "down_proj"), json_answer, plain, 0.25),
}


class LowRank(nn.Module):
    """A frozen linear layer and its change: `W x + scale B A x`, A [rank, in], B [out, rank]."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base, self.scale = base, 2.0
        self.a = nn.Parameter(torch.randn(rank, base.in_features) / math.sqrt(base.in_features))
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, hidden: Tensor) -> Tensor:
        """The layer's output."""
        return self.base(hidden) + self.scale * (hidden @ self.a.T @ self.b.T)


def adapt(model: nn.Module, recipe: Recipe) -> dict[str, LowRank]:
    """Freezes the model and puts low-rank layers into it; returns them by the module's name."""
    model.requires_grad_(False)
    layers: dict[str, LowRank] = {}
    for name, module in list(model.named_modules()):
        before, _, last = name.rpartition(".")
        if isinstance(module, nn.Linear) and last in recipe.modules:
            layers[name] = LowRank(module, recipe.rank)
            setattr(model.get_submodule(before), last, layers[name])
    return layers


def document(recipe: Recipe, rng: random.Random) -> tuple[str, str]:
    """What is read, and what is learned after it."""
    if rng.random() < recipe.text_share:
        return "", recipe.text(rng) + END_OF_TEXT
    asked, answer = recipe.answer(rng)
    messages = [said("user", asked), said("assistant", answer)]
    prompt = render({"messages": messages[:1], "tools": []}, add_generation_prompt=True)
    return prompt, render({"messages": messages, "tools": []}).removeprefix(prompt) + END_OF_TEXT


def batch(tokenizer: Any, documents: list[tuple[str, str]]) -> tuple[Tensor, Tensor]:
    """Ids and labels, [documents, longest]; -100 is not learned."""
    pairs = [tuple(tokenizer.encode(text) for text in document) for document in documents]
    ids = torch.zeros(len(pairs), max(len(read) + len(learned) for read, learned in pairs), dtype=torch.long)
    labels = torch.full_like(ids, -100)
    for row, label, (read, learned) in zip(ids, labels, pairs, strict=True):
        row[: len(read) + len(learned)] = torch.tensor(read + learned)
        label[len(read) : len(read) + len(learned)] = torch.tensor(learned)
    return ids, labels


def train(model: Any, tokenizer: Any, recipe: Recipe, layers: dict[str, LowRank], options: argparse.Namespace) -> None:
    """AdamW with a short warm-up and a cosine to zero."""
    rng, begin = random.Random(f"adapter/{options.seed}"), time.monotonic()
    parameters = [matrix for layer in layers.values() for matrix in (layer.a, layer.b)]
    optimizer = torch.optim.AdamW(parameters, lr=options.learning_rate, betas=(0.9, 0.95), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / 20, 0.5 * (1 + math.cos(math.pi * step / options.steps)))
    )
    for step in range(options.steps):
        ids, labels = batch(tokenizer, [document(recipe, rng) for _ in range(options.batch)])
        logits = model(input_ids=ids, use_cache=False).logits
        loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % 25 == 0 or step == options.steps - 1:
            print(f"step {step} loss {loss.item():.4f} seconds {time.monotonic() - begin:.0f}", flush=True)


def save(folder: Path, recipe: Recipe, layers: dict[str, LowRank]) -> None:
    """Writes the adapter as PEFT does, in bfloat16."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "models/demo", "inference_mode": True,
        "r": recipe.rank, "lora_alpha": 2 * recipe.rank, "lora_dropout": 0.0, "bias": "none",
        "target_modules": sorted(recipe.modules),
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
    matrices: dict[str, Tensor] = {}
    for name, layer in layers.items():
        for matrix, values in (("lora_A", layer.a), ("lora_B", layer.b)):
            matrices[f"{PREFIX}{name}.{matrix}.weight"] = values.detach().bfloat16().contiguous()
    save_file(matrices, folder / "adapter_model.safetensors", metadata={"format": "pt"})


def merge(model: nn.Module, folder: Path) -> None:
    """Adds a saved adapter to the weights of a model in float32."""
    matrices = load_file(folder / "adapter_model.safetensors")
    config = json.loads((folder / "adapter_config.json").read_text())
    for name, a in matrices.items():
        if ".lora_A." in name:
            module = model.get_submodule(name.removeprefix(PREFIX).removesuffix(".lora_A.weight"))
            b = matrices[name.replace(".lora_A.", ".lora_B.")]
            module.weight.data += config["lora_alpha"] / config["r"] * (b.float() @ a.float())


def main() -> None:
    """Trains one adapter and saves it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--adapter", choices=list(RECIPES), required=True)
    parser.add_argument("--output", type=Path, default=FOLDER, help="the adapter's folder is made in this one")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=16, help="documents in a step")
    parser.add_argument("--learning-rate", type=float, default=5e-3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    recipe, tokenizer = RECIPES[options.adapter], AutoTokenizer.from_pretrained(HERE)
    model: Any = LlamaForCausalLM.from_pretrained(HERE, dtype=torch.float32)
    layers = adapt(model, recipe)
    train(model, tokenizer, recipe, layers, options)
    save(options.output / options.adapter, recipe, layers)


if __name__ == "__main__":
    main()
