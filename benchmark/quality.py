"""Measures what quantisation costs the demo model: perplexity of documents that it was not trained on.

    PYTHONPATH=server:models/demo python benchmark/quality.py --output-json benchmark/results/quality-demo.json

Runs on a CPU, in the arithmetic that the kernels have on a device.
"""

import argparse
import json
import math
import sys
from pathlib import Path
from typing import get_args

import torch
from corpus import documents
from tokenizers import Tokenizer

from text_generation_server.config.implementation import read_model_config
from text_generation_server.config.kv_cache import QuantisedKvCache
from text_generation_server.config.parallel import ParallelConfig
from text_generation_server.distributed.group import init_group
from text_generation_server.layers.infer import Chunks, InferState
from text_generation_server.models import CausalLM, load_model

FOLDER = Path(__file__).parent.parent / "models" / "demo"
NAMES = (None, "fp8", "vllm-fp8w8a8-b128", "eetq", "triton_w4a16", "bitsandbytes-nf4", "bitsandbytes-fp4")
KV_NAMES = get_args(QuantisedKvCache)
UNSEEN_PART = 999
LONGEST = 1024


@torch.inference_mode()
def log_likelihood(model: CausalLM, ids: list[int]) -> float:
    """Of all tokens but the first, in nats."""
    count = len(ids)
    caches = [cache.allocate(count, model.dtype, model.device) for cache in model.caches]
    rows, lens = torch.zeros(1, dtype=torch.int64), torch.tensor([count], dtype=torch.int32)
    chunks = Chunks(rows, torch.tensor([0, count], dtype=torch.int32), lens, count)
    places = torch.arange(count)
    state = InferState(False, places, places, None, chunks, places.int()[None], caches, None)
    logits = model.logits(model.forward(torch.tensor(ids), state))
    return logits.log_softmax(-1)[:-1].gather(1, torch.tensor(ids[1:])[:, None]).sum().item()


def main() -> None:
    """Measures every name and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=400)
    parser.add_argument("--output-json", type=Path)
    arguments = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    # Of conversations the model learned the answers alone.
    texts = [text for text in documents(1, UNSEEN_PART, arguments.documents) if "<|im_start|>" not in text]
    encoded = [tokenizer.encode(text, add_special_tokens=False).ids[:LONGEST] for text in texts]
    encoded = [ids for ids in encoded if len(ids) > 1]
    tokens = sum(len(ids) - 1 for ids in encoded)
    result: dict[str, object] = {"command": " ".join(sys.argv), "documents": len(encoded), "tokens": tokens}
    device = torch.device("cpu")
    group = init_group(ParallelConfig(), device, 1.0)
    runs = [(name or "16 bits", name, None) for name in NAMES]
    for title, name, kv_cache in (*runs, *((f"keys and values {kind}", None, kind) for kind in KV_NAMES)):
        config = read_model_config(FOLDER, quantize=name)
        model = load_model(FOLDER, config, group, torch.float32, device, "safetensors", kv_cache)
        model.reserve_positions(LONGEST)
        perplexity = math.exp(-sum(log_likelihood(model, ids) for ids in encoded) / tokens)
        result[title] = round(perplexity, 5)
        print(title, result[title], flush=True)
    if arguments.output_json:
        arguments.output_json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
