"""Classes of texts through HTTP, on one shard and on two, are those that Transformers gives."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from harness import Server, serving
from transformers import AutoTokenizer, LlamaConfig, LlamaForSequenceClassification

LABELS = {0: "calm", 1: "stormy", 2: "dry"}
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}"


@pytest.fixture(scope="module")
def classifier(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny Llama with a head of three classes, and a chat template."""
    folder = tmp_path_factory.mktemp("classifier")
    config = LlamaConfig.from_pretrained(tiny_llama, id2label=LABELS, label2id={})
    config.architectures = None
    torch.manual_seed(1)
    model = LlamaForSequenceClassification.from_pretrained(tiny_llama, config=config, dtype=torch.float32)
    with torch.no_grad():
        model.score.weight.normal_(std=0.3)
    model.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(tiny_llama)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=["1", "2"])
def server(
    request: pytest.FixtureRequest, classifier: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    shards = ["--num-shard", request.param] if request.param != "1" else []
    chunks = ["--max-batch-prefill-tokens", "32"]
    with serving(classifier, tmp_path_factory.mktemp("server"), *chunks, *shards) as server:
        yield server


@pytest.fixture(scope="module")
def logits(classifier: Path, prompts: list[str]) -> list[list[float]]:
    """Those of each prompt."""
    tokenizer = AutoTokenizer.from_pretrained(classifier)
    model = LlamaForSequenceClassification.from_pretrained(classifier, dtype=torch.float32).eval()
    with torch.inference_mode():
        return [model(**tokenizer(prompt, return_tensors="pt")).logits[0].tolist() for prompt in prompts]


def classified(server: Server, **body: object) -> list[dict[str, object]]:
    reply = server.client.post("/v1/classify", json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()["data"]


def test_classes_of_a_list(server: Server, prompts: list[str], logits: list[list[float]]) -> None:
    data = classified(server, input=prompts, use_activation=False)
    for each, expected in zip(data, logits, strict=True):
        assert each["probs"] == pytest.approx(expected, abs=1e-4)
    data = classified(server, input=prompts)
    for each, expected in zip(data, torch.tensor(logits).softmax(dim=1).tolist(), strict=True):
        assert each["probs"] == pytest.approx(expected, abs=1e-5)
        assert each["label"] == LABELS[expected.index(max(expected))]


def test_many_clients_at_once(server: Server, prompts: list[str], logits: list[list[float]]) -> None:
    with ThreadPoolExecutor(16) as pool:
        answers = pool.map(lambda prompt: classified(server, input=prompt, use_activation=False), prompts)
        for (each,), expected in zip(answers, logits, strict=True):
            assert each["probs"] == pytest.approx(expected, abs=1e-4)
    assert server.metric("tgi_kv_slots_used") == 0


def test_a_conversation_is_its_text(server: Server) -> None:
    messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "the storm"}]
    (chat,) = classified(server, messages=messages)
    (text,) = classified(server, input="user: hello assistant: the storm ", add_special_tokens=False)
    assert chat["probs"] == pytest.approx(text["probs"], abs=1e-5)


def test_nothing_is_generated(server: Server) -> None:
    reply = server.client.post("/generate", json={"inputs": "hello"})
    assert reply.status_code == 422
    assert "/v1/classify" in reply.json()["error"]
    info = server.client.get("/info").json()
    assert info["classifier"] == {"labels": list(LABELS.values()), "activation": "softmax"}
