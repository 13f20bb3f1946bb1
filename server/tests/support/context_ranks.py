"""A rank of an engine whose ranks have some positions of latent attention each, on GPUs."""

import gc
import os
from pathlib import Path

import torch

from text_generation_server.config import ParallelConfig
from text_generation_server.config.implementation import read_model_config
from text_generation_server.config.server import WatermarkConfig
from text_generation_server.distributed import init_group
from text_generation_server.engine.engine import Engine
from text_generation_server.engine.options import EngineOptions
from text_generation_server.models.registry import load_model

from .gpu_engine import LIMITS, MEMORY_FRACTION, check, schedule


def run_schedules(
    rank: int, world_size: int, folder: Path, meeting: Path, expected: list[list[int]], peer_memory: bool
) -> None:
    """Runs schedules by chance. Every rank makes the same plans, because all get the same tokens."""
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    config = read_model_config(folder)
    parallel = ParallelConfig(rank, world_size, meeting / "rendezvous", peer_memory, context_parallel=True)
    group = init_group(parallel, device, timeout_s=60)
    with torch.inference_mode():
        model = load_model(folder, config, group, torch.float32, device)
    gc.collect()
    options = EngineOptions(memory_fraction=MEMORY_FRACTION)
    engine = Engine(model, group, config.eos_token_ids, "triton", WatermarkConfig(), options)
    engine.warmup(LIMITS)
    whole = 0
    for seed in range(6):
        whole += check(schedule(engine, seed, numbers=len(expected), count=15, pause=0.02), expected, seed)
    (meeting / f"whole-{rank}").write_text(str(whole))
    # NCCL's own end waits for graphs.
    os._exit(0)
