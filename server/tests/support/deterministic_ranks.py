"""A rank of a server that is deterministic, and sums as its layers need them."""

import json
from pathlib import Path

import torch
from torch import Tensor

from text_generation_server.engine.loading import build_engine

from .server_config import server_config

WORLD = 4
TOKENS = (1, 2, 17, 64)
HIDDEN = 4096
DTYPES = (torch.float32, torch.bfloat16)
_SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": WORLD}


def part(rank: int, dtype: torch.dtype) -> Tensor:
    """[the most tokens, HIDDEN]: what a rank brings."""
    return torch.randn(max(TOKENS), HIDDEN, generator=torch.Generator().manual_seed(rank)).to(dtype)


def write_model(folder: Path) -> None:
    """A configuration, for weights that are random."""
    config = {"architectures": ["LlamaForCausalLM"], "vocab_size": 64, **_SIZES}
    (folder / "config.json").write_text(json.dumps(config))


def save_sums(rank: int, folder: Path) -> None:
    """Over all ranks, [tokens, HIDDEN] of each type and number of tokens, in `<rank>.pt`."""
    torch.set_num_threads(1)
    environment = {"RANK": str(rank), "WORLD_SIZE": str(WORLD), "OMP_NUM_THREADS": "1"}
    config = server_config(folder, environment, sharded=True, deterministic=True)
    engine = build_engine(config, folder)
    sums = {(dtype, tokens): part(rank, dtype)[:tokens] for dtype in DTYPES for tokens in TOKENS}
    for each in sums.values():
        engine._group.all_reduce(each)
    torch.save(sums, folder / f"{rank}.pt")
    engine.close()
