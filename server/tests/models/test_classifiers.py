"""Classifiers give the logits that their classes of Transformers give, whatever their decoder."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.engine_driver import make_engine, make_request
from support.families import PROMPTS, SIZES
from support.loading import load
from support.thread_ranks import thread_groups, together
from transformers import CONFIG_MAPPING, AutoModelForSequenceClassification, PreTrainedModel

from text_generation_server.config.implementation import read_model_config
from text_generation_server.distributed import TensorParallelGroup
from text_generation_server.engine.engine import Engine
from text_generation_server.engine.requests import Chunk, StepPlan, StepReply, WarmupLimits
from text_generation_server.errors import ConfigurationError, ModelFilesError, UnsupportedModel

LIMITS = WarmupLimits(max_batch_prefill_tokens=64, max_batch_size=8, max_batch_total_tokens=256)
_GPT2 = {"n_layer": 3, "n_head": 4, "n_embd": 32, "n_positions": 64}
CLASSES: dict[str, dict[str, Any]] = {
    "bloom": {"n_layer": 3, "n_head": 4},
    "falcon": {"new_decoder_architecture": True, "num_kv_heads": 2},
    "gemma": {"head_dim": 8},
    "gemma2": {"head_dim": 8, "final_logit_softcapping": 0.5, "sliding_window": 4},
    "gemma3_text": {"head_dim": 8, "sliding_window": 4},
    "glm": {"head_dim": 8},
    "gpt2": _GPT2,
    "gpt_neox": {},
    "gptj": {**_GPT2, "rotary_dim": 4},
    "llama": {"tie_word_embeddings": True},
    "mistral": {"sliding_window": 4},
    "mixtral": {"num_local_experts": 4},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "phi": {},
    "phi3": {"pad_token_id": 0},
    "qwen2": {"num_labels": 1},
    "qwen3": {"head_dim": 8, "num_labels": 5},
    "qwen3_moe": {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
    "stablelm": {},
    "starcoder2": {},
}
"""By the type of the model: keys of its configuration."""


def classifier(folder: Path, model_type: str, **values: Any) -> PreTrainedModel:
    """A random one in `folder`."""
    config = CONFIG_MAPPING[model_type](**{**SIZES, "num_labels": 3, **CLASSES.get(model_type, {}), **values})
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    model.save_pretrained(folder)
    return model


@torch.inference_mode()
def expected(model: PreTrainedModel, prompts: Sequence[Sequence[int]]) -> torch.Tensor:
    """What the class makes of each prompt by itself."""
    # The place of the last token would be looked for otherwise.
    model.config.get_text_config().pad_token_id = None
    return torch.cat([model(torch.tensor([prompt]), use_cache=False).logits for prompt in prompts])


def classified(engine: Engine, plan: StepPlan) -> StepReply:
    return engine.step(plan).result()


def in_one_step(engine: Engine, prompts: Sequence[Sequence[int]]) -> torch.Tensor:
    """The logits of prompts that one step computes: [prompts, classes]."""
    requests = [make_request(index, prompt) for index, prompt in enumerate(prompts)]
    chunks = [Chunk(index, 0, len(prompt)) for index, prompt in enumerate(prompts)]
    reply = classified(engine, StepPlan(0, admit=requests, chunks=chunks))
    assert list(reply.rows) == list(range(len(prompts)))
    assert list(reply.ids) == [0] * len(prompts)
    return torch.tensor(reply.class_logits).view(len(prompts), -1)


@pytest.mark.parametrize("model_type", CLASSES)
def test_logits_are_those_of_transformers(model_type: str, tmp_path: Path) -> None:
    model = classifier(tmp_path, model_type)
    engine = make_engine(load(tmp_path), LIMITS)
    assert engine.info.classes == model.config.num_labels
    assert engine.info.vocab_size == 99
    logits = in_one_step(engine, PROMPTS)
    torch.testing.assert_close(logits, expected(model, PROMPTS), atol=1e-4, rtol=1e-4)


def test_a_prompt_in_chunks_and_behind_a_cached_prefix_has_the_same_logits(tmp_path: Path) -> None:
    model = classifier(tmp_path, "llama")
    engine = make_engine(load(tmp_path), LIMITS)
    prompt, other = PROMPTS[-1], [*PROMPTS[-1][:6], 90, 91]
    first = classified(engine, StepPlan(0, admit=[make_request(0, prompt)], chunks=[Chunk(0, 0, 7)]))
    assert (list(first.rows), list(first.class_logits)) == ([], [])
    whole = classified(engine, StepPlan(1, chunks=[Chunk(0, 7, len(prompt) - 7)]))
    slots = make_request(0).slots
    again = make_request(1, other, slots=slots, cached_length=6)
    shared = classified(engine, StepPlan(2, drop=[0], admit=[again], chunks=[Chunk(1, 6, 2)]))
    logits = torch.tensor([whole.class_logits, shared.class_logits])
    torch.testing.assert_close(logits, expected(model, [prompt, other]), atol=1e-4, rtol=1e-4)


def test_two_ranks_equal_one(tmp_path: Path) -> None:
    model = classifier(tmp_path, "qwen3")

    def work(group: TensorParallelGroup) -> torch.Tensor:
        engine = make_engine(load(tmp_path, group=group), LIMITS, group=group)
        reply = classified(
            engine, StepPlan(0, admit=[make_request(0, PROMPTS[-1])], chunks=[Chunk(0, 0, len(PROMPTS[-1]))])
        )
        return torch.tensor(reply.class_logits)

    first, second = together([partial(work, group) for group in thread_groups(2)])
    torch.testing.assert_close(first, expected(model, PROMPTS[-1:])[0], atol=1e-4, rtol=1e-4)
    # The router reads those of the first rank.
    assert len(second) == 0


def test_layers_are_quantised_and_the_head_is_not(tmp_path: Path) -> None:
    model = classifier(tmp_path, "llama", hidden_size=128, intermediate_size=256)
    engine = make_engine(load(tmp_path, quantize="eetq"), LIMITS)
    logits = in_one_step(engine, PROMPTS)
    torch.testing.assert_close(logits, expected(model, PROMPTS), atol=0.5, rtol=0.1)


def test_a_request_for_logprobs_and_one_whose_logits_are_no_numbers_fail_alone(tmp_path: Path) -> None:
    classifier(tmp_path, "llama")
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    tensors["model.embed_tokens.weight"][7] = torch.nan
    save_file(tensors, path)
    engine = make_engine(load(tmp_path), LIMITS)
    requests = [make_request(0, [3, 4]), make_request(1, [3, 7]), make_request(2, [3, 4], prefill_logprobs=True)]
    chunks = [Chunk(row, 0, 2) for row in range(3)]
    reply = classified(engine, StepPlan(0, admit=requests, chunks=chunks))
    assert list(reply.rows) == [0]
    assert len(reply.class_logits) == 3
    assert {(each.row, each.reason) for each in reply.failures} == {(1, "numerical_error"), (2, "invalid_request")}


@pytest.mark.parametrize(
    ("values", "error", "says"),
    [
        ({"architectures": ["BertForSequenceClassification"]}, UnsupportedModel, "Text Embeddings Inference"),
        ({"architectures": ["XLMRobertaModel"]}, UnsupportedModel, "embeddings"),
        ({"text_config": {}}, UnsupportedModel, "images or sound"),
        ({"id2label": {str(each): "x" for each in range(70_000)}}, ConfigurationError, "id2label"),
        ({"num_labels": 0, "id2label": {}}, ConfigurationError, "num_labels"),
        ({"problem_type": "ranking"}, ConfigurationError, "problem_type.*single_label_classification"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(
    values: dict[str, Any], error: type[Exception], says: str, tmp_path: Path
) -> None:
    classifier(tmp_path, "llama")
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
    with pytest.raises(error, match=says):
        read_model_config(tmp_path)


def test_a_head_of_another_size_names_the_tensor(tmp_path: Path) -> None:
    classifier(tmp_path, "llama")
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "id2label": {"0": "no", "1": "yes"}}))
    with pytest.raises(ModelFilesError, match=r"score\.weight"):
        load(tmp_path)
