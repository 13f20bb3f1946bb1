"""Images through the whole shard, from bytes of pixels to tokens, against transformers."""

from pathlib import Path

import pytest
import torch
from support.engine_driver import directly
from support.router import Router, Stream
from support.vision_cases import TOKEN, VISION_CASES, expected_logits, views_of
from support.vision_serving import AFTER, BEFORE, NEW_TOKENS, SERVING, encode, pixels_of, serving

from text_generation_server.engine.media_requests import MediaPut, MediaSpan

NAMES = [
    "llava",
    "llava full",
    "pixtral",
    "mistral3",
    "qwen2 vl",
    "qwen2.5 vl",
    "qwen3 vl",
    "qwen3 vl moe",
    "qwen3.5",
    "qwen3.5 moe",
    "gemma3",
    "gemma4",
    "gemma4 small",
    "glm4v",
    "glm4v moe",
    "internvl",
    "internvl chat",
    "internvl chat internlm2",
    "llama4",
    "llava next",
    "llava original",
    "llava original tiles",
    "llava onevision",
    "granite vision",
    "idefics3",
    "ovis2",
    "kimi k2.5",
    "kimi vl",
    "minimax m3",
    "step3.7",
    "aria",
    "minicpm-v 2.6",
    "minicpm-v 4",
    "minicpm-v 4.5",
    "qwen-vl",
    "xcomposer2",
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("chunk", [3, 64])
def test_answers_about_an_image_are_those_of_transformers(
    name: str, chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Greedy tokens, and log-probabilities of the prompt, in chunks and whole."""
    case = VISION_CASES[name]
    reference = case.write(tmp_path)
    engine, encoder = serving(tmp_path, monkeypatch)
    item = min(case.items, key=lambda item: sum(height * width for height, width in item.views))
    views, rows = views_of(item.views), encoder.rows(item.views, item.grid)
    # Where positions count along axes, the grid is theirs: these cases merge 2 x 2 patches of 4 x 4 pixels.
    grid = (item.views[0][0] // 8, item.views[0][1] // 8) if encoder.axes else item.grid
    number = encode(engine, encoder, MediaPut(0, tuple(item.views), grid, rows, pixels_of(views)))
    span = MediaSpan(len(BEFORE), rows, 1, *(grid if encoder.axes else (0, 0)))
    stream = Stream(0, [*BEFORE, *[TOKEN] * rows, *AFTER], NEW_TOKENS, prefill_logprobs=True, media=(span,))
    router = Router(
        directly(engine),
        SERVING,
        chunk,
        vocab_size=99,
        recurrent=engine.info.recurrent,
        whole_spans=encoder.whole_spans,
        number=number,
    )
    router.run(stream)
    assert stream.failure is None
    logits = expected_logits(case, reference, stream.ids, views, item)[:-1]
    last = len(stream.prompt) - 1
    assert stream.tokens == logits[last:].argmax(-1).tolist()
    logprobs = logits.log_softmax(-1)[torch.arange(len(logits)), torch.tensor(stream.ids[1:])]
    found = torch.tensor([*stream.prompt_logprobs, *stream.logprobs])
    torch.testing.assert_close(found, logprobs, atol=1e-3, rtol=0)
