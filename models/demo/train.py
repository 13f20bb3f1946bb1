"""Trains the demo model: tokenizer, weights and the files beside them, all from the corpus composed here.

The whole run takes minutes on one H200. A CPU does the same at its own pace; fewer steps of fewer rows suffice to try.
`README.md` has the command of the weights in this folder:

    python train.py --output <folder> --steps <number>
"""

import argparse
import json
import math
import multiprocessing
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from corpus import END_OF_TEXT, documents
from evaluate import evaluate
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

HERE = Path(__file__).parent
VOCAB_SIZE = 2048
CONTEXT = 1024
IM_START, IM_END = "<|im_start|>", "<|im_end|>"
# Tokens of one piece that are text to a reader: a client sees the tool call that it must parse.
VISIBLE = ["<tools>", "</tools>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
DOCUMENTS_PER_PART = 20_000


@dataclass(frozen=True)
class Options:
    """The command line."""

    output: Path
    seed: int
    parts: int
    steps: int
    batch: int
    layers: int
    hidden: int
    intermediate: int
    learning_rate: float
    processes: int


def train_tokenizer(seed: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE whose alphabet has all 256 bytes; every digit is a token of its own."""
    tokenizer = Tokenizer(models.BPE())
    splits = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits)
    tokenizer.decoder = decoders.ByteLevel()
    tokens = [AddedToken(text, special=True, normalized=False) for text in (END_OF_TEXT, IM_START, IM_END)]
    tokens += [AddedToken(text, special=False, normalized=False) for text in VISIBLE]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=tokens,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents(seed, -1, DOCUMENTS_PER_PART), trainer)
    # The trainer marks all of them special; what must stay visible is told again.
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in VISIBLE])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        chat_template=(HERE / "chat_template.jinja").read_text(),
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )


def pack(task: tuple[str, int, int]) -> NDArray[np.uint16]:
    """Rows of one part of the corpus, [rows, CONTEXT] uint16: whole documents, the rest filled with the end of text."""
    path, seed, part = task
    tokenizer = Tokenizer.from_file(path)
    end = tokenizer.token_to_id(END_OF_TEXT)
    rows: list[list[int]] = [[]]
    for encoding in tokenizer.encode_batch(documents(seed, part, DOCUMENTS_PER_PART)):
        if len(rows[-1]) + len(encoding.ids) > CONTEXT:
            rows.append([])
        rows[-1] += encoding.ids[:CONTEXT]
    packed = np.full((len(rows), CONTEXT), end, dtype=np.uint16)
    for row, ids in zip(packed, rows, strict=True):
        row[: len(ids)] = ids
    return packed


def build_rows(tokenizer_file: Path, options: Options) -> torch.Tensor:
    """The whole corpus, [rows, CONTEXT] int16."""
    tasks = [(str(tokenizer_file), options.seed, part) for part in range(options.parts)]
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        packed = np.concatenate(pool.map(pack, tasks, chunksize=1))
    return torch.from_numpy(packed.astype(np.int16))


class Labels:
    """Says which tokens are learned: plain text and what the assistant says, not what others say to it."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, device: torch.device) -> None:
        self.end, self.start = (tokenizer.encode(text)[0] for text in (END_OF_TEXT, IM_START))
        self.assistant = tokenizer.encode("assistant")[0]
        self.positions = torch.arange(CONTEXT, device=device)

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        """[batch, CONTEXT] ids to labels of the same shape; -100 is not learned."""
        is_start, is_end = ids.eq(self.start), ids.eq(self.end)
        marker = torch.where(is_start | is_end, self.positions, -1).cummax(dim=1).values
        role = torch.gather(ids, 1, (marker + 1).clamp(0, CONTEXT - 1))
        other = (marker >= 0) & torch.gather(is_start, 1, marker.clamp(0)) & role.ne(self.assistant)
        filling = is_end & torch.roll(is_end, 1, dims=1)
        return ids.masked_fill(other | filling, -100)


def make_model(tokenizer: PreTrainedTokenizerFast, options: Options) -> LlamaForCausalLM:
    """A Llama with random weights."""
    end, im_end = (tokenizer.encode(text)[0] for text in (END_OF_TEXT, IM_END))
    torch.manual_seed(options.seed)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=options.hidden,
        intermediate_size=options.intermediate,
        num_hidden_layers=options.layers,
        num_attention_heads=options.hidden // 32,
        num_key_value_heads=options.hidden // 64,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=end,
    )
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=[end, im_end], pad_token_id=end, do_sample=False)
    return model


def train(model: LlamaForCausalLM, rows: torch.Tensor, labels: Labels, options: Options) -> None:
    """AdamW with a warm-up and a cosine to zero; rows in a new random order every epoch."""
    device = next(model.parameters()).device
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=options.learning_rate, betas=(0.9, 0.95), fused=device.type == "cuda")
    warmup = min(300, options.steps // 10 + 1)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / warmup, 0.5 * (1 + math.cos(math.pi * step / options.steps))),
    )
    forward = torch.compile(model) if device.type == "cuda" else model
    generator = torch.Generator().manual_seed(options.seed)
    rows, order = rows.to(device), torch.empty(0, dtype=torch.long)
    begin = time.monotonic()
    for step in range(options.steps):
        if len(order) < options.batch:
            order = torch.randperm(len(rows), generator=generator)
        chosen, order = order[: options.batch], order[options.batch :]
        ids = rows[chosen.to(device)].long()
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            logits = forward(input_ids=ids, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels(ids)[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % 250 == 0 or step == options.steps - 1:
            seconds = time.monotonic() - begin
            rate = (step + 1) * ids.numel() / seconds
            print(f"step {step} loss {loss.item():.4f} seconds {seconds:.0f} tokens/s {rate:.0f}", flush=True)


def parse() -> Options:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--parts", type=int, default=32, help=f"parts of the corpus, {DOCUMENTS_PER_PART} documents each"
    )
    parser.add_argument("--steps", type=int, default=8_000)
    parser.add_argument("--batch", type=int, default=128, help=f"rows of {CONTEXT} tokens in a step")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--intermediate", type=int, default=1280)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--processes", type=int, default=multiprocessing.cpu_count())
    return Options(**vars(parser.parse_args()))


def main() -> None:
    """Trains, saves and measures."""
    options = parse()
    options.output.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    tokenizer = train_tokenizer(options.seed)
    tokenizer.save_pretrained(options.output)
    rows = build_rows(options.output / "tokenizer.json", options)
    print(f"corpus: {rows.numel()} tokens in {time.monotonic() - begin:.0f} s", flush=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with device:
        model = make_model(tokenizer, options)
    print(f"{model.num_parameters()} parameters", flush=True)
    train(model, rows, Labels(tokenizer, device), options)
    model.bfloat16().save_pretrained(options.output)
    results = evaluate(options.output, device)
    (options.output / "measured.json").write_text(json.dumps(results, indent=2) + "\n")
    print(json.dumps(results, indent=2), f"\n{time.monotonic() - begin:.0f} s in all")


if __name__ == "__main__":
    main()
