"""What follows from the machine and the model before anything is loaded."""

import os

from text_generation_server.config.model import ModelConfig
from text_generation_server.engine.loading import cpu_threads

SMALL = ModelConfig("LlamaForCausalLM", 2048, 256, 1280, 2, 8, 4, 32, 1024)
LARGE = ModelConfig("LlamaForCausalLM", 128256, 4096, 14336, 32, 32, 8, 128, 8192)
CORES = len(os.sched_getaffinity(0))


def test_ranks_share_the_cores_and_a_small_model_has_one() -> None:
    assert cpu_threads(LARGE, 1, None) == CORES
    assert cpu_threads(LARGE, 2 * CORES, None) == 1
    assert cpu_threads(SMALL, 1, None) == 1
    assert cpu_threads(SMALL, 1, 3) == cpu_threads(LARGE, 1, 3) == 3
