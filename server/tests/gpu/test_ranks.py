"""Two ranks on two GPUs, in float32 and in graphs: what one rank says, or transformers on a CPU."""

from functools import partial
from pathlib import Path

import pytest
import torch
from support.adapters import AdapterCase, write_adapter, write_base
from support.families import model_of, write
from support.family_cases import CASES
from support.gpu_engine import OF_WINDOWS, build
from support.gpu_ranks import answers, families, on_every_rank, windows, with_adapters
from support.windows import request, run

from text_generation_server.config import ParallelConfig

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two devices"),
]
RECURRENT = ["qwen3.5", "kimi linear", "ling 2.5", "minimax text 01", "mamba", "bamba", "falcon h1", "jamba"]
RECURRENT += ["nemotron 3 latent", "lfm2 moe", "recurrent gemma", "zamba 2"]
MIXTURES = ["mixtral", "qwen3 moe", "gpt-oss mxfp4", "llama4", "laguna", "minimax m3", "longcat", "glm 5.3", "step"]
MIXTURES += ["deepseek v4"]
OTHERS = ["gemma3n", "gemma4 large", "deepseek v3.2", "bloom", "gpt neox", "cohere2"]
ADAPTERS = [
    {"target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]},
    {"target_modules": ["q_proj", "o_proj", "down_proj"], "r": 20, "use_dora": True},
]


@pytest.mark.parametrize(
    ("names", "expert_parallel"),
    [(RECURRENT, False), (MIXTURES, False), (MIXTURES, True), (OTHERS, False)],
    ids=["recurrent", "slices of experts", "whole experts", "others"],
)
def test_families(names: list[str], expert_parallel: bool, tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in names}
    for name, folder in folders.items():
        write(CASES[name], model_of(name), folder)
    on_every_rank(partial(families, folders), two(tmp_path, expert_parallel))


@pytest.mark.parametrize("name", ["llama", "qwen3.5"])
def test_windows(name: str, tmp_path: Path) -> None:
    write(CASES[name], model_of(name), tmp_path)
    prompts = [[4 + (7 * row + n) % (3 + row) for n in range(2 + 3 * row)] for row in range(8)]
    requests = [request(row, prompt, room=40) for row, prompt in enumerate(prompts)]
    expected = run(build(tmp_path, torch.float32, OF_WINDOWS), requests, 1).ids
    on_every_rank(partial(windows, tmp_path, requests, expected), two(tmp_path))


def test_adapters(tmp_path: Path) -> None:
    base = write_base("biased", tmp_path / "base")
    adapters = [tmp_path / str(number) for number in range(len(ADAPTERS))]
    for folder, options in zip(adapters, ADAPTERS, strict=True):
        write_adapter(AdapterCase("biased", options), folder)
    expected = answers(build(base, torch.float32, adapters=adapters), adapters)
    assert len({tuple(tokens) for tokens in expected}) > 15
    on_every_rank(partial(with_adapters, base, adapters, expected), two(tmp_path))


def two(folder: Path, expert_parallel: bool = False) -> ParallelConfig:
    return ParallelConfig(0, 2, folder / "rendezvous", expert_parallel=expert_parallel)
