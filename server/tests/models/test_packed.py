"""Models of few bits in every format, with one rank and two, beside transformers with the weights they stand for."""

from pathlib import Path

import pytest
import torch
from support.checkpoints import tiny_llama
from support.driver import Driver
from support.loading import load
from support.oracle import oracle
from support.packed_files import CASES, write_packed
from support.thread_ranks import thread_groups, together

from text_generation_server.models import CausalLM

# Parts of two ranks begin and end inside groups and words.
SIZES = {"hidden_size": 192, "intermediate_size": 320, "num_attention_heads": 6, "num_key_value_heads": 2}
PROMPTS = [[5, 9, 17, 23, 42, 77, 101], [4], list(range(30, 60))]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory, **SIZES, initializer_range=0.1)


def log_probabilities(model: CausalLM) -> torch.Tensor:
    driver = Driver(model, max_tokens=64)
    return driver.prefill({str(i): ids for i, ids in enumerate(PROMPTS)}, all_logits=True).log_softmax(-1)


@pytest.mark.parametrize("name", CASES)
def test_a_checkpoint_computes_what_its_weights_stand_for(plain: Path, tmp_path: Path, name: str) -> None:
    meant = write_packed(plain, tmp_path / "packed", CASES[name])
    model = oracle(plain)
    model.load_state_dict(meant)
    with torch.inference_mode():
        expected = torch.cat([model(torch.tensor([ids])).logits[0] for ids in PROMPTS]).log_softmax(-1)
    torch.testing.assert_close(log_probabilities(load(tmp_path / "packed")), expected, atol=1e-4, rtol=1e-4)
    works = [
        lambda group=group: log_probabilities(load(tmp_path / "packed", group=group)) for group in thread_groups(2)
    ]
    first, second = together(works)
    assert torch.equal(first, second)
    torch.testing.assert_close(first, expected, atol=1e-4, rtol=1e-4)
