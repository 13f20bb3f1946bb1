"""Measures what quantisation costs the demo model: perplexity of documents that it was not trained on.

    PYTHONPATH=server:kernels:server/tests:models/demo python benchmark/quality.py \
        --output-json benchmark/results/quality-demo.json

Weights are quantised while they are read, or by writers of checkpoints, which the tests have too; all round to the
nearest, and none is calibrated. Runs on a CPU, in the arithmetic that the kernels have on a device.
"""

import argparse
import math
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import get_args

import compact
import torch
from corpus import documents
from support.compressed import compress_folder, preset
from support.eight_bit import quantise_folder
from support.packed_files import PackedCase, awq_pack, compressed_case, gptq_pack, write_packed
from tokenizers import Tokenizer

from text_generation_kernels import Chunks
from text_generation_server.config.implementation import read_model_config
from text_generation_server.config.kv_cache import QuantisedKvCache
from text_generation_server.config.parallel import ParallelConfig
from text_generation_server.distributed.group import init_group
from text_generation_server.layers.infer import InferState
from text_generation_server.models import CausalLM, load_model

FOLDER = Path(__file__).parent.parent / "models" / "demo"
NAMES = (None, "fp8", "w8a8", "vllm-fp8w8a8-b128", "eetq", "triton_w4a16", "bitsandbytes-nf4", "bitsandbytes-fp4")
KV_NAMES = get_args(QuantisedKvCache)
GROUP = 128
"""Inputs with one scale, where a checkpoint has codes in groups."""


def packed(case: PackedCase) -> Callable[[Path, Path], object]:
    """What writes a checkpoint of that kind, but for the embedding, which is the demo model's head too."""
    exact = PackedCase(case.config, lambda module, weight: case.pack(module, weight.float()))
    return partial(write_packed, case=exact)


def gptq(bits: int) -> Callable[[Path, Path], object]:
    """Symmetric, and inputs in their order."""
    config = {"quant_method": "gptq", "bits": bits, "group_size": GROUP, "sym": True}
    return packed(PackedCase(config, gptq_pack(bits, GROUP)))


AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}
CHECKPOINTS: dict[str, Callable[[Path, Path], object]] = {
    "fp8 checkpoint, one scale a matrix": partial(quantise_folder, name="fp8 of matrices"),
    "int8 checkpoint (W8A8)": partial(compress_folder, schemes={"": preset("W8A8")}),
    "w8a16 checkpoint": packed(compressed_case(8, 0, True)),
    "GPTQ checkpoint, 8 bits": gptq(8),
    "GPTQ checkpoint, 4 bits": gptq(4),
    "GPTQ checkpoint, 3 bits": gptq(3),
    "AWQ checkpoint": packed(PackedCase(AWQ, awq_pack(GROUP))),
    "MXFP4 checkpoint": packed(compressed_case(4, 32, True, "mxfp4-pack-quantized")),
}
"""From a name to what writes such a checkpoint of the first folder into the second."""
UNSEEN_PART = 999
LONGEST = 1024


@torch.inference_mode()
def log_likelihood(model: CausalLM, ids: list[int]) -> float:
    """Of all tokens but the first, in nats."""
    count = len(ids)
    caches = [cache.allocate(count, model.dtype, model.device) for cache in model.caches]
    states = [state.allocate(1, model.dtype, model.device) for state in model.states]
    rows, lens = torch.zeros(1, dtype=torch.int64), torch.tensor([count], dtype=torch.int32)
    places = torch.arange(count)
    chunks = Chunks(places.int()[None], rows, torch.tensor([0, count], dtype=torch.int32), lens, count)
    state = InferState(False, places, places, None, chunks, caches, states, None)
    logits = model.logits(model.forward(torch.tensor(ids), state))
    return logits.log_softmax(-1)[:-1].gather(1, torch.tensor(ids[1:])[:, None]).sum().item()


def perplexity(folder: Path, encoded: list[list[int]], name: str | None, kv_cache: QuantisedKvCache | None) -> float:
    """Of the model in `folder` over texts, with weights quantised as `name` says and 8-bit keys and values."""
    config = read_model_config(folder, quantize=name)
    device = torch.device("cpu")
    group = init_group(ParallelConfig(), device, 1.0)
    model = load_model(folder, config, group, torch.float32, device, "safetensors", kv_cache)
    model.reserve_positions(LONGEST)
    return math.exp(-sum(log_likelihood(model, ids) for ids in encoded) / sum(len(ids) - 1 for ids in encoded))


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

    def measure(title: str, folder: Path, name: str | None = None, kv_cache: QuantisedKvCache | None = None) -> None:
        result[title] = round(perplexity(folder, encoded, name, kv_cache), 5)
        print(title, result[title], flush=True)

    for name in NAMES:
        measure(name or "16 bits", FOLDER, name)
    for title, write in CHECKPOINTS.items():
        with tempfile.TemporaryDirectory() as folder:
            write(FOLDER, Path(folder) / "made")
            measure(title, Path(folder) / "made")
    for kind in KV_NAMES:
        measure(f"keys and values {kind}", FOLDER, kv_cache=kind)
    if arguments.output_json:
        arguments.output_json.write_text(compact.dumps(result))


if __name__ == "__main__":
    main()
