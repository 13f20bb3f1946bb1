"""What follows from the machine and the model before anything is loaded."""

import os

from text_generation_server.config.json_object import JsonObject
from text_generation_server.config.model import ModelConfig, parse_model_config
from text_generation_server.engine.loading import cpu_threads


def llama(hidden_size: int, intermediate_size: int) -> ModelConfig:
    sizes = {"vocab_size": 2048, "num_hidden_layers": 2, "num_attention_heads": 8}
    sizes |= {"hidden_size": hidden_size, "intermediate_size": intermediate_size}
    return parse_model_config(JsonObject({"architectures": ["LlamaForCausalLM"], **sizes}, "config.json"), None)


SMALL = llama(256, 1280)
LARGE = llama(4096, 14336)
CORES = len(os.sched_getaffinity(0))


def test_ranks_share_the_cores_and_a_small_model_has_one() -> None:
    assert cpu_threads(LARGE, 1, None) == CORES
    assert cpu_threads(LARGE, 2 * CORES, None) == 1
    assert cpu_threads(SMALL, 1, None) == 1
    assert cpu_threads(SMALL, 1, 3) == cpu_threads(LARGE, 1, 3) == 3
