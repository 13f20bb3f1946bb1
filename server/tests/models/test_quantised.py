"""Quantised checkpoints of 8 bits, with one rank and two, beside what compressed-tensors says that they compute."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from compressed_tensors.quantization import QuantizationScheme
from support.checkpoints import tiny_llama
from support.compressed import compress_folder, preset, reference
from support.driver import Driver
from support.loading import load
from support.oracle import oracle
from support.thread_ranks import thread_groups, together

from text_generation_server.models import CausalLM

SIZES = {"hidden_size": 192, "intermediate_size": 320, "num_attention_heads": 6, "num_key_value_heads": 2}
PROMPTS = [[5, 9, 17, 23, 42, 77, 101], [4], list(range(30, 60))]
SCHEMES: dict[str, Mapping[str, QuantizationScheme]] = {
    "fp8 dynamic": {"": preset("FP8_DYNAMIC")},
    "fp8 static": {"": preset("FP8")},
    "fp8 blocks": {"": preset("FP8_BLOCK")},
    "int8": {"": preset("W8A8")},
    "mixed": {
        "q_proj": preset("W8A8", ("re:.*q_proj",)),
        "k_proj": preset("FP8", ("re:.*k_proj",)),
        "mlp": preset("FP8_DYNAMIC", ("re:.*mlp.*",)),
    },
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory, **SIZES, initializer_range=0.1)


def log_probabilities(model: CausalLM) -> torch.Tensor:
    driver = Driver(model, max_tokens=64)
    return driver.prefill({str(i): ids for i, ids in enumerate(PROMPTS)}, all_logits=True).log_softmax(-1)


@pytest.mark.parametrize("name", SCHEMES)
def test_a_checkpoint_of_compressed_tensors_computes_what_the_library_says(
    plain: Path, tmp_path: Path, name: str
) -> None:
    folder = compress_folder(plain, tmp_path / "made", SCHEMES[name])
    said = reference(oracle(plain), folder, SCHEMES[name])
    with torch.inference_mode():
        expected = torch.cat([said(torch.tensor([ids])).logits[0] for ids in PROMPTS]).log_softmax(-1)
    torch.testing.assert_close(log_probabilities(load(folder)), expected, atol=1e-4, rtol=1e-4)
    works = [lambda group=group: log_probabilities(load(folder, group=group)) for group in thread_groups(2)]
    first, second = together(works)
    assert torch.equal(first, second)
    # Each rank measures the scales of its own part of the inputs, and what is rounded otherwise is a little apart.
    assert (first - expected).abs().mean() < (1e-4 if name == "fp8 static" else 0.12)
