"""The model under test, its oracle, and servers that whole modules share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from harness import API_KEY, DEMO, Server, serving

# The shard's tests make the checkpoints; a second maker would drift.
sys.path.append(str(Path(__file__).parents[1] / "server" / "tests"))
from support.checkpoints import tiny_llama as make_tiny_llama
from transformers import AutoModelForCausalLM, AutoTokenizer

torch.set_num_threads(1)
# Tests of other environments, which `test_clients.py` runs there.
collect_ignore = ["clients"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all-clients", action="store_true", help="every client of test_clients.py, not the most used")


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory, max_position_embeddings=512)


@pytest.fixture(scope="session")
def prompts() -> list[str]:
    """Twenty prompts of different lengths."""
    text = "the dog ran to the beach and a tiny boat said hello in the storm near the small house"
    words = text.split()
    return [" ".join(words[n % 7 : n % 7 + 1 + n]) for n in range(20)]


@pytest.fixture(scope="session")
def reference(tiny_llama: Path) -> Callable[[str, int], list[int]]:
    """What `transformers.generate` answers greedily: the ids of at most so many new tokens."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_llama)
    model = AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32)

    def generate(prompt: str, max_new_tokens: int) -> list[int]:
        inputs = tokenizer(prompt, return_tensors="pt")
        with torch.inference_mode():
            ids = model.generate(**inputs, max_new_tokens=max_new_tokens, do_sample=False, pad_token_id=0)
        return ids[0, inputs["input_ids"].shape[1] :].tolist()

    return generate


@pytest.fixture(scope="session")
def server(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(
        tiny_llama, tmp_path_factory.mktemp("one"), "--enable-prefill-logprobs", "--max-best-of", "3"
    ) as server:
        yield server


@pytest.fixture(scope="session")
def two_shards(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tiny_llama, tmp_path_factory.mktemp("two"), "--num-shard", "2") as server:
        yield server


# The demo model behind a key, for few requests at once.
GUARDED = ["--api-key", API_KEY, "--max-concurrent-requests", "8", "--enable-prefill-logprobs"]


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that asks for a key, which the fixture's own client sends."""
    with serving(DEMO, tmp_path_factory.mktemp("guarded"), *GUARDED) as server:
        server.client.headers["Authorization"] = f"Bearer {API_KEY}"
        yield server


@pytest.fixture(scope="session")
def brief(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The same with short answers, whatever is asked for; a small tool fits into a prompt."""
    with serving(DEMO, tmp_path_factory.mktemp("brief"), *GUARDED, "--max-total-tokens", "80") as server:
        yield server
