"""A rank that decodes for ever, until its engine is not healthy any more."""

import os
import threading
import time
from pathlib import Path

import numpy as np
import torch

from text_generation_server.config import ParallelConfig
from text_generation_server.config.model import ModelConfig
from text_generation_server.config.server import WatermarkConfig
from text_generation_server.distributed import init_group
from text_generation_server.engine.engine import Engine
from text_generation_server.engine.options import EngineOptions
from text_generation_server.engine.requests import (
    Chunk,
    NextTokenChooserParameters,
    Request,
    SlotRange,
    StepPlan,
    WarmupLimits,
)
from text_generation_server.engine.worker import EngineWorker
from text_generation_server.errors import EngineError
from text_generation_server.models.registry import load_model

LIMIT_S = 2
"""Of a step; the router gives each plan such a limit."""


def decode_until_unhealthy(rank: int, folder: Path, meeting: Path, peer_memory: bool) -> None:
    """Ends the process as a shard does that is told to stop."""

    def build() -> Engine:
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
        config = ModelConfig.from_folder(folder)
        parallel = ParallelConfig(rank, 2, meeting / "rendezvous", peer_memory)
        group = init_group(parallel, device, timeout_s=60)
        with torch.inference_mode():
            model = load_model(folder, config, group, torch.bfloat16, device, "dummy")
        return Engine(model, group, config.eos_token_ids, "triton", WatermarkConfig(), EngineOptions())

    worker = EngineWorker(build)
    worker.start()
    worker.ready.result(90)
    limits = WarmupLimits(64, 2, max_batch_total_tokens=8192, max_total_tokens=256, prefill_chunking=True)
    worker.warmup(limits).result(120)
    unhealthy = threading.Event()

    def decode() -> None:
        number = 0
        while not unhealthy.is_set():
            request = Request(0, 0, np.arange(3), NextTokenChooserParameters(), (SlotRange(0, 250),))
            plans = [{"admit": [request], "chunks": [Chunk(0, 0, 3)]}, *[{"decode": [0]}] * 200, {"drop": [0]}]
            for plan in plans:
                step = worker.step(StepPlan(number, limit_ms=LIMIT_S * 1000, **plan))
                number += 1
                try:
                    step.result(60)
                except EngineError:
                    return
            if rank == 0:
                (meeting / "decoding").touch()

    threading.Thread(target=decode, daemon=True).start()
    while True:
        try:
            worker.check_health()
        except EngineError:
            break
        time.sleep(0.02)
    unhealthy.set()
    if rank == 0:
        (meeting / "unhealthy").touch()
    worker.stop(3.0)
    os._exit(1)
