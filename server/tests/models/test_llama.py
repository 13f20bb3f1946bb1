"""The Llama family against transformers: logits close, greedy ids equal."""

from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpoints import tiny_llama
from support.driver import Driver, greedy_by_turns
from support.loading import load
from support.oracle import oracle, oracle_greedy

import text_generation_kernels as kernels

PROMPTS = [list(range(5, 25)), [7], [99, 3, 64, 12, 81], list(range(40, 71)), [11, 11, 11]]


def _scaled(rope_type: str, **values: Any) -> dict[str, Any]:
    return {"max_position_embeddings": 128, "rope_parameters": {"rope_type": rope_type, "rope_theta": 1e4, **values}}


VARIANTS: dict[str, dict[str, Any]] = {
    "grouped queries": {},
    "one head for each query": {"num_key_value_heads": 4},
    "one key-value head": {"num_key_value_heads": 1},
    "head_dim of its own": {"head_dim": 24},
    "attention bias": {"attention_bias": True},
    "MLP bias": {"mlp_bias": True},
    "tied embeddings": {"tie_word_embeddings": True},
    "odd vocabulary": {"vocab_size": 131},
    "gelu": {"hidden_act": "gelu"},
    "gelu tanh": {"hidden_act": "gelu_pytorch_tanh"},
    "other base": {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
    "linear": _scaled("linear", factor=2.0),
    "llama3": _scaled(
        "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32
    ),
    "yarn": _scaled("yarn", factor=4.0, original_max_position_embeddings=32),
    # Generation runs past the pre-training length of 40 here.
    "dynamic": {
        "max_position_embeddings": 40,
        "rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4},
    },
}


@pytest.fixture(scope="module", params=list(VARIANTS), ids=list(VARIANTS))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory, **VARIANTS[request.param])


def test_prefill_logits_are_those_of_transformers(folder: Path) -> None:
    reference = oracle(folder)
    with torch.inference_mode():
        expected = torch.cat([reference(torch.tensor([prompt])).logits[0] for prompt in PROMPTS])

    logits = Driver(load(folder)).prefill({str(i): prompt for i, prompt in enumerate(PROMPTS)}, all_logits=True)

    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


def test_greedy_ids_are_those_of_transformers_while_requests_join_and_leave(folder: Path) -> None:
    reference = oracle(folder)
    expected = [oracle_greedy(reference, prompt, steps=12) for prompt in PROMPTS]
    assert greedy_by_turns(Driver(load(folder)), PROMPTS, steps=12) == expected


def test_products_of_few_tokens_may_be_left_in_parts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "linear_splits", lambda x, _: 3 if 1 < len(x) < 40 else 1)
    left: list[tuple[int, ...]] = []
    in_parts = kernels.linear_split_k

    def spy(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
        left.append(tuple(weight.shape))
        in_parts(x, weight, out)

    monkeypatch.setattr(kernels, "linear_split_k", spy)
    reference = oracle(folder)
    expected = [oracle_greedy(reference, prompt, steps=6) for prompt in PROMPTS]
    assert greedy_by_turns(Driver(load(folder)), PROMPTS, steps=6) == expected
    assert left


def test_only_wanted_logits_are_returned(llama_folder: Path) -> None:
    model = load(llama_folder)
    prompts = {str(i): prompt for i, prompt in enumerate(PROMPTS)}
    every = Driver(model).prefill(prompts, all_logits=True)
    last = Driver(model).prefill(prompts)
    ends = torch.tensor([len(prompt) for prompt in PROMPTS]).cumsum(0) - 1
    torch.testing.assert_close(last, every[ends])


def test_a_prompt_in_pieces_gives_the_logits_of_the_whole(llama_folder: Path) -> None:
    model = load(llama_folder)
    whole = Driver(model).prefill({"a": PROMPTS[3]})
    driver = Driver(model)
    driver.register("a", PROMPTS[3])
    driver.extend("a", 10)
    driver.extend("a", 1)
    pieces = driver.extend("a", len(PROMPTS[3]) - 11)
    torch.testing.assert_close(pieces, whole, atol=1e-5, rtol=1e-5)


def test_a_dropped_request_and_a_reused_row_leave_no_trace(llama_folder: Path) -> None:
    model = load(llama_folder)
    driver = Driver(model, num_rows=2)
    driver.append(["a", "b"], driver.prefill({"a": PROMPTS[0], "b": PROMPTS[2]}))
    driver.drop("a")
    driver.append(["c"], driver.prefill({"c": PROMPTS[1]}))
    for _ in range(5):
        driver.append(["c", "b"], driver.decode(["c", "b"]))
    reference = oracle(llama_folder)
    assert driver.ids["b"][len(PROMPTS[2]) :] == oracle_greedy(reference, PROMPTS[2], 6)
    assert driver.ids["c"][len(PROMPTS[1]) :] == oracle_greedy(reference, PROMPTS[1], 6)


def test_long_contexts_take_the_unpadded_path_of_decode(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tiny_llama(tmp_path_factory, hidden_size=128, num_attention_heads=2, num_key_value_heads=2)
    prompts = [[(7 * i + j) % 300 + 5 for i in range(140)] for j in range(3)]
    reference = oracle(folder)
    expected = [oracle_greedy(reference, prompt, 6) for prompt in prompts]
    assert greedy_by_turns(Driver(load(folder), max_tokens=160), prompts, 6) == expected


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_as_good_as_that_of_transformers(llama_folder: Path, dtype: torch.dtype) -> None:
    ids = torch.tensor([PROMPTS[0]])
    with torch.inference_mode():
        exact = oracle(llama_folder)(ids).logits[0]
        theirs = oracle(llama_folder, dtype)(ids).logits[0].float()
    ours = Driver(load(llama_folder, dtype)).prefill({"a": PROMPTS[0]}, all_logits=True)
    assert (ours - exact).abs().max() <= 2 * (theirs - exact).abs().max() + 1e-5
