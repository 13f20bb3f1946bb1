"""The engine with a real tiny Llama; the oracle is transformers' `generate`."""

from pathlib import Path

import pytest
import torch
from support.engine_driver import Driver, Slots
from support.fake_model import SingleGroup
from transformers import LlamaForCausalLM

from text_generation_server.config.model import ModelConfig
from text_generation_server.config.server import WatermarkConfig
from text_generation_server.distributed import TensorParallelGroup
from text_generation_server.engine.engine import Engine
from text_generation_server.engine.options import EngineOptions, RunAhead
from text_generation_server.engine.requests import (
    CachedBatch,
    Grant,
    NextTokenChooserParameters,
    Request,
    StoppingCriteriaParameters,
    WarmupLimits,
)
from text_generation_server.models.registry import load_model

NEW_TOKENS = 24


def build(folder: Path, options: EngineOptions) -> Engine:
    device = torch.device("cpu")
    config = ModelConfig.from_folder(folder)
    group = TensorParallelGroup(0, 1, device)
    model = load_model(folder, config, group, torch.float32, device, "auto")
    engine = Engine(model, SingleGroup(), config.eos_token_ids, "torch", WatermarkConfig(), options)  # type: ignore[arg-type]
    engine.warmup(WarmupLimits(max_batch_prefill_tokens=512, max_batch_size=16, max_batch_total_tokens=1024))
    return engine


@pytest.fixture(scope="module", params=RunAhead)
def engine(llama_folder: Path, request: pytest.FixtureRequest) -> Engine:
    return build(llama_folder, EngineOptions(run_ahead=request.param))


@pytest.fixture(scope="module")
def oracle(llama_folder: Path) -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(llama_folder, dtype=torch.float32).eval()


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(11)
    lengths = [1, 2, 3, 5, 8, 13, 21, 34]
    return [torch.randint(4, 384, (length,), generator=generator).tolist() for length in lengths]


def request(request_id: int, prompt: list[int], slots: Slots, **parameters: object) -> Request:
    return Request(
        id=request_id,
        input_ids=tuple(prompt),
        parameters=NextTokenChooserParameters(**parameters),  # type: ignore[arg-type]
        stopping_parameters=StoppingCriteriaParameters(NEW_TOKENS),
        slots=slots.take(len(prompt) + 2),
        prefill_logprobs=True,
    )


def expected(oracle: LlamaForCausalLM, prompt: list[int], **parameters: object) -> list[int]:
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        output = oracle.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            pad_token_id=0,
            **parameters,
        )
    return output[0, len(prompt) :].tolist()


def run(driver: Driver, batch: CachedBatch | None, slots: Slots) -> None:
    while batch is not None:
        batch = driver.decode(batch, grants=[Grant(i, slots.take(1)) for i in batch.request_ids])


def test_greedy_ids_equal_transformers_alone_and_together(engine: Engine, oracle: LlamaForCausalLM) -> None:
    want = [expected(oracle, prompt) for prompt in prompts()]
    slots, driver = Slots(range(1024)), Driver(engine)
    run(driver, driver.prefill(1, *(request(i, prompt, slots) for i, prompt in enumerate(prompts()))), slots)
    assert [driver.transcripts[i].tokens for i in range(len(want))] == want
    for i, prompt in enumerate(prompts()):
        slots = Slots(range(1024))
        run(driver, driver.prefill(1, request(i, prompt, slots)), slots)
        assert driver.transcripts[i].tokens == want[i]


def test_requests_that_join_and_leave_do_not_change_the_others(engine: Engine, oracle: LlamaForCausalLM) -> None:
    slots, driver = Slots(range(1024)), Driver(engine)
    batch: CachedBatch | None = None
    for i, prompt in enumerate(prompts()):
        new = driver.prefill(100 + i, request(i, prompt, slots))
        parts = [part for part in (batch, new) if part is not None]
        if i == 5 and batch is not None:
            parts[0] = CachedBatch(batch.id, tuple(r for r in batch.request_ids if r != 3))
        grants = [Grant(r, slots.take(1)) for part in parts for r in part.request_ids]
        batch = driver.decode(*parts, grants=grants)
    run(driver, batch, slots)
    for i, prompt in enumerate(prompts()):
        want = expected(oracle, prompt)
        got = driver.transcripts[i].tokens
        assert got == (want[: len(got)] if i == 3 else want)
    assert engine.num_free_rows == 16


def test_repetition_penalty_equals_transformers(engine: Engine, oracle: LlamaForCausalLM) -> None:
    slots, driver = Slots(range(1024)), Driver(engine)
    requests = [request(i, prompt, slots, repetition_penalty=1.3) for i, prompt in enumerate(prompts())]
    run(driver, driver.prefill(1, *requests), slots)
    for i, prompt in enumerate(prompts()):
        assert driver.transcripts[i].tokens == expected(oracle, prompt, repetition_penalty=1.3)


def test_logprobs_of_prompt_and_output_equal_transformers(engine: Engine, oracle: LlamaForCausalLM) -> None:
    slots, driver = Slots(range(1024)), Driver(engine)
    prompt = prompts()[5]
    run(driver, driver.prefill(1, request(1, prompt, slots)), slots)
    transcript = driver.transcripts[1]
    ids = torch.tensor([[*prompt, *transcript.tokens]])
    with torch.inference_mode():
        logprobs = oracle(ids).logits[0].log_softmax(-1)
    want = logprobs[torch.arange(len(ids[0]) - 1), ids[0, 1:]].tolist()
    assert transcript.prompt is not None
    assert transcript.prompt.logprobs[1:] == pytest.approx(want[: len(prompt) - 1], abs=1e-4)
    assert transcript.logprobs == pytest.approx(want[len(prompt) - 1 :], abs=1e-4)


def test_deterministic_logprobs_are_bitwise_the_same_in_every_batch(llama_folder: Path) -> None:
    engine = build(llama_folder, EngineOptions(deterministic=True))

    def logprobs(numbers: list[int]) -> dict[int, list[float]]:
        slots = Slots(range(1024))
        driver = Driver(engine)
        asked = [request(n, prompts()[n], slots, do_sample=n % 2 == 1, seed=n) for n in numbers]
        batch = driver.prefill(1, *asked)
        while batch is not None:
            batch = driver.decode(batch, grants=[Grant(i, slots.take(1)) for i in batch.request_ids])
        return {n: driver.transcripts[n].logprobs for n in numbers}

    together = logprobs(list(range(8)))
    for number in range(8):
        assert logprobs([number])[number] == together[number]
