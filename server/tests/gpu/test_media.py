"""Images on a GPU, in float32: kernels and graphs give the log-probabilities that transformers gives on a CPU."""

from pathlib import Path

import pytest
import torch
from support.families import model_of, write
from support.gpu_engine import build
from support.media import LIMITS
from support.media_cases import MEDIA_CASES
from support.media_comparing import FIRST, KINDS, SWAPPED, TEXT, TWO, assert_is_expected, generations

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("graphs", [None, ()], ids=["graphs", "no graphs"])
@pytest.mark.parametrize("name", list(KINDS))
def test_log_probabilities_are_those_of_transformers(name: str, graphs: tuple[int, ...] | None, tmp_path: Path) -> None:
    write(MEDIA_CASES[name], model_of(name), tmp_path)
    encoder = KINDS[name].encoder("cuda")
    engine = build(tmp_path, torch.float32, LIMITS, encoder=encoder, cuda_graphs=graphs)
    prompts = (TWO, SWAPPED, FIRST, TEXT)
    for options in ({"chunk": 3}, {"chunk": 64}, {"chunk": 5, "pause": 0.3, "depth": 2}):
        streams = generations(engine, *prompts, scored=False, **options)
        for prompt, stream in zip(prompts, streams, strict=True):
            assert_is_expected(name, prompt, stream)
