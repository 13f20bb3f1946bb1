"""Classifiers on a GPU, with CUDA graphs of their chunks, give the logits that Transformers gives on a CPU."""

from pathlib import Path

import pytest
import torch
from support.engine_driver import make_request
from support.families import PROMPTS
from support.gpu_engine import build
from transformers import CONFIG_MAPPING, AutoModelForSequenceClassification

from text_generation_server.engine.requests import Chunk, StepPlan

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("classes", [1, 3, 70])
def test_logits_are_those_of_transformers(classes: int, tmp_path: Path) -> None:
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = CONFIG_MAPPING["llama"](**sizes, vocab_size=99, max_position_embeddings=256, num_labels=classes)
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_config(config, dtype=torch.float32).eval()
    model.save_pretrained(tmp_path)
    with torch.inference_mode():
        expected = torch.cat([model(torch.tensor([prompt])).logits for prompt in PROMPTS])
    engine = build(tmp_path, torch.float32)
    requests = [make_request(index, prompt) for index, prompt in enumerate(PROMPTS)]
    chunks = [Chunk(index, 0, len(prompt)) for index, prompt in enumerate(PROMPTS)]
    reply = engine.step(StepPlan(0, admit=requests, chunks=chunks)).result()
    logits = torch.tensor(reply.class_logits).view(len(PROMPTS), classes)
    assert reply.timings.kernel_compilations == 0
    torch.testing.assert_close(logits, expected, atol=2e-3, rtol=2e-3)
