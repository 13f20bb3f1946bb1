"""The drafter of the demo model drafts what the model says next, greedy and sampled, and changes no text."""

from pathlib import Path

import pytest
from support.engine_driver import make_engine
from support.loading import load
from support.windows import request, run
from transformers import AutoTokenizer

from text_generation_server.engine.options import EngineOptions
from text_generation_server.engine.requests import Request, WarmupLimits

DEMO = Path(__file__).parents[3] / "models" / "demo"
DRAFTER = DEMO / "drafter"
LIMITS = WarmupLimits(max_batch_prefill_tokens=256, max_batch_size=4, max_batch_total_tokens=1000)
NEW_TOKENS, DRAFTS = 48, 3
MOST_BYTES = 2_000_000
TEXTS = (
    "Once upon a time there was a little",
    "<|im_start|>user\nTell me a story about a dog.<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nCount from 1 to 12.<|im_end|>\n<|im_start|>assistant\n",
    "One day, a fox and a",
)


@pytest.mark.parametrize(("temperature", "least"), [(0.0, 1.9), (1.0, 1.7)])
def test_it_drafts_what_follows(temperature: float, least: float) -> None:
    tokenizer = AutoTokenizer.from_pretrained(DEMO)

    def asked() -> list[Request]:
        found: list[Request] = []
        for row, text in enumerate(TEXTS):
            settings = {"do_sample": True, "seed": row, "temperature": temperature} if temperature else {}
            found.append(request(row, tokenizer.encode(text), NEW_TOKENS, room=200, **settings))
        return found

    expected = run(make_engine(load(DEMO), LIMITS), asked(), 1)
    engine = make_engine(load(DEMO, drafter=DRAFTER), LIMITS, options=EngineOptions(speculate=DRAFTS))
    steps = 0
    for each in asked():
        found = run(engine, [each], DRAFTS + 1)
        assert found.ids[each.row] == expected.ids[each.row]
        steps += found.steps - 1
    accepted = len(TEXTS) * (NEW_TOKENS - 1) / steps
    assert accepted > least


def test_it_is_small() -> None:
    assert (DRAFTER / "model.safetensors").stat().st_size < MOST_BYTES
