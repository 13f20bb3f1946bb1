"""Trains the demo model for images: a LLaVA of random weights, with the tokenizer of the demo model, on drawn pictures.

First the tower alone learns to name what each patch of a picture shows, which says far more a picture than answers do;
then all of it learns to answer. One core takes half an hour. `README.md` has the commands of the weights here:

    python train.py --output <folder>
"""

import argparse
import json
import math
import random
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from conversations import END_OF_TEXT, IM_END, IMAGE, Document, Documents
from evaluate import evaluate
from pictures import COLOURS, KINDS, SIDE, draw, make_picture
from tokenizers import AddedToken, Tokenizer
from torch import Tensor, nn
from torch.nn import functional
from transformers import CLIPVisionConfig, GenerationConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

HERE = Path(__file__).parent
DEMO = HERE.parent / "demo"
PATCH = 14
CONTEXT = 512
COPIED = ("tokenizer_config.json", "preprocessor_config.json", "chat_template.jinja")
SHOWN = 0.06
"""Which share of a patch must be covered for it to show a thing."""
SAVE_SECONDS = 120


@dataclass(frozen=True)
class Options:
    """The command line."""

    output: Path
    begin: Path | None
    seed: int
    tower_steps: int
    steps: int
    batch: int
    hidden: int
    layers: int
    blocks: int
    learning_rate: float


def write_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of the demo model, with a token for images."""
    tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken(IMAGE, special=True, normalized=False)])
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer


def make_model(tokenizer: Tokenizer, options: Options) -> LlavaForConditionalGeneration:
    """A LLaVA with random weights."""
    ids = tokenizer.get_vocab()
    end, im_end, image = (ids[text] for text in (END_OF_TEXT, IM_END, IMAGE))
    torch.manual_seed(options.seed)
    hidden = options.hidden
    text = LlamaConfig(
        vocab_size=8 * math.ceil(tokenizer.get_vocab_size() / 8),
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=options.layers,
        num_attention_heads=hidden // 32,
        num_key_value_heads=hidden // 64,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=end,
    )
    vision = CLIPVisionConfig(
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=options.blocks,
        num_attention_heads=hidden // 32,
        image_size=SIDE,
        patch_size=PATCH,
        projection_dim=hidden,
    )
    config = LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=image,
        image_seq_length=(SIDE // PATCH) ** 2,
        vision_feature_layer=-1,
        tie_word_embeddings=True,
    )
    model = LlavaForConditionalGeneration(config)
    model.generation_config = GenerationConfig(eos_token_id=[end, im_end], pad_token_id=end, do_sample=False)
    return model


def loss_of(model: Any, documents: list[Document]) -> Tensor:
    """Cross entropy of the tokens that are learned. Only their logits are computed."""
    longest = max(len(document.ids) for document in documents)
    ids = torch.zeros(len(documents), longest, dtype=torch.long)
    learned = torch.zeros(len(documents), longest, dtype=torch.bool)
    mask = torch.zeros(len(documents), longest, dtype=torch.long)
    for row, document in enumerate(documents):
        length = len(document.ids)
        ids[row, :length] = torch.tensor(document.ids)
        learned[row, :length] = torch.tensor(document.learned)
        mask[row, :length] = 1
    pictures = [document.pixels for document in documents if document.pixels is not None]
    pixels = normalised(torch.stack(pictures))
    hidden = model.model(input_ids=ids, pixel_values=pixels, attention_mask=mask, use_cache=False).last_hidden_state
    logits = model.lm_head(hidden[:, :-1][learned[:, 1:]])
    return functional.cross_entropy(logits, ids[:, 1:][learned[:, 1:]])


class PatchNames(nn.Module):
    """A tower, and two linear layers that name the kind and the colour of what each of its patches shows."""

    def __init__(self, tower: Any, hidden: int, seed: int) -> None:
        super().__init__()
        self.tower = tower
        self.kind, self.colour = nn.Linear(hidden, len(KINDS) + 1), nn.Linear(hidden, len(COLOURS) + 1)
        self._rng = random.Random(f"patches {seed}")

    def loss(self, count: int) -> Tensor:
        """Cross entropy over the patches of new pictures."""
        pixels, labels = zip(*(self._labelled() for _ in range(count)), strict=True)
        wanted = torch.from_numpy(np.stack(labels)).flatten(1, 2)
        states = self.tower(pixel_values=normalised(torch.from_numpy(np.stack(pixels)))).last_hidden_state[:, 1:]
        kind, colour = self.kind(states).flatten(0, 1), self.colour(states).flatten(0, 1)
        of_kind, of_colour = wanted.flatten(0, 1).unbind(1)
        return functional.cross_entropy(kind, of_kind) + functional.cross_entropy(colour, of_colour)

    def _labelled(self) -> tuple[Any, Any]:
        """Pixels of a picture, and numbers of kind and colour of each patch, [rows, columns, 2]; 0 is the ground."""
        picture = make_picture(self._rng)
        drawn = draw(picture, self._rng)
        side = SIDE // PATCH
        labels = np.zeros((side, side, 2), np.int64)
        for thing, cover in zip(picture, drawn.covers, strict=True):
            shows = cover.reshape(side, PATCH, side, PATCH).mean((1, 3)) > SHOWN
            labels[shows] = KINDS.index(thing.kind) + 1, list(COLOURS).index(thing.colour) + 1
        return drawn.pixels, labels


def normalised(pixels: Tensor) -> Tensor:
    """From [pictures, side, side, 3] uint8 to what the tower reads."""
    return pixels.permute(0, 3, 1, 2).float() / 127.5 - 1


def train(
    module: nn.Module, loss_of_step: Callable[[], Tensor], steps: int, rate: float, save: Callable[[], None]
) -> None:
    """AdamW with a warm-up and a cosine to zero. Every picture is drawn once, and never seen again."""
    matrices = [parameter for parameter in module.parameters() if parameter.dim() > 1]
    vectors = [parameter for parameter in module.parameters() if parameter.dim() == 1]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.98))
    warmup = min(200, steps // 10 + 1)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / warmup, 0.5 * (1 + math.cos(math.pi * step / steps))),
    )
    begin = saved = time.monotonic()
    for step in range(steps):
        loss = loss_of_step()
        loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step} loss {loss.item():.4f} seconds {time.monotonic() - begin:.0f}", flush=True)
        if time.monotonic() - saved > SAVE_SECONDS:
            save()
            saved = time.monotonic()


def parse() -> Options:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--begin", type=Path, help="a folder whose weights are trained on; else they are random")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tower-steps", type=int, default=1_800, help="in which the tower learns alone")
    parser.add_argument("--steps", type=int, default=1_500)
    parser.add_argument("--batch", type=int, default=32, help="pictures in a step")
    parser.add_argument("--hidden", type=int, default=128, help="width of the tower and of the decoder")
    parser.add_argument("--layers", type=int, default=2, help="of the decoder")
    parser.add_argument("--blocks", type=int, default=3, help="of the tower")
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    return Options(**vars(parser.parse_args()))


def main() -> None:
    """Trains, saves and measures."""
    options = parse()
    options.output.mkdir(parents=True, exist_ok=True)
    for name in COPIED if options.output.resolve() != HERE else ():
        shutil.copy(HERE / name, options.output)
    tokenizer = write_tokenizer(options.output)
    model = make_model(tokenizer, options)
    if options.begin is not None:
        model.load_state_dict(LlavaForConditionalGeneration.from_pretrained(options.begin).float().state_dict())
    print(f"{model.num_parameters()} parameters", flush=True)
    names = PatchNames(model.model.vision_tower, options.hidden, options.seed)
    documents, rng = Documents(tokenizer, (SIDE // PATCH) ** 2), random.Random(options.seed)

    def save() -> None:
        model.save_pretrained(options.output)

    rate = options.learning_rate
    if options.tower_steps:
        train(names, lambda: names.loss(options.batch), options.tower_steps, rate, save)
    train(model, lambda: loss_of(model, [documents.make(rng) for _ in range(options.batch)]), options.steps, rate, save)
    model.bfloat16().save_pretrained(options.output)
    results = evaluate(options.output)
    (options.output / "measured.json").write_text(json.dumps(results, indent=2) + "\n")
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
