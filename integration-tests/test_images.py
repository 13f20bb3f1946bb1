"""Images through HTTP, from files to tokens, against transformers: one model of each kind of geometry."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from harness import Server, serving
from support.vision_cases import PROCESSOR, TOKEN, VISION_CASES, Item, expected_logits, views_of
from support.vision_inputs import MEAN, STD
from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedModel

NEW_TOKENS = 6


@dataclass(frozen=True)
class Kind:
    """How a family's files say what becomes of an image."""

    placeholder: str
    marker: str
    preprocessor: dict[str, Any]
    view: tuple[int, int] = (16, 16)
    others: tuple[str, ...] = ()
    """Further tokens, the first ids behind that of the placeholder."""


SMART = {"min_pixels": 64, "max_pixels": 10_000, "patch_size": 4, "merge_size": 2}
BREAKS = ("[IMG_BREAK]", "[IMG_END]")
KINDS = {
    "llava": Kind("<image>", "<image>", {"size": {"shortest_edge": 16}, "crop_size": {"height": 16, "width": 16}}),
    "pixtral": Kind("[IMG]", "[IMG]", {"size": {"longest_edge": 40}, "patch_size": 4}, (16, 24), BREAKS),
    "mistral3": Kind("[IMG]", "[IMG]", {"size": {"longest_edge": 40}, "patch_size": 4}, (16, 24), BREAKS),
    "qwen2 vl": Kind("<|image_pad|>", "<|image_pad|>", SMART, (16, 24)),
    "qwen2.5 vl": Kind("<|image_pad|>", "<|image_pad|>", SMART, (40, 56)),
    "qwen3 vl": Kind("<|image_pad|>", "<|image_pad|>", SMART, (16, 24)),
    "qwen3.5": Kind("<|image_pad|>", "<|image_pad|>", SMART, (16, 24)),
    "gemma3": Kind(
        "<image_soft_token>",
        "<start_of_image>",
        {"size": {"height": 16, "width": 16}, "resample": 2},
        others=("<start_of_image>", "<end_of_image>"),
    ),
    "gemma4": Kind(
        "<|image|>",
        "<|image|>",
        {"patch_size": 4, "pooling_kernel_size": 2, "max_soft_tokens": 6},
        (16, 24),
        ("<|image>", "<image|>"),
    ),
    "llama4": Kind(
        "<|patch|>",
        "<|image|>",
        {"size": {"height": 16, "width": 16}, "max_patches": 4},
        others=("<|image|>", "<|image_start|>", "<|image_end|>", "<|tile_x_separator|>", "<|tile_y_separator|>"),
    ),
    "minicpm-v 2.6": Kind(
        "<unk>",
        "(<image>./</image>)",
        {
            "scale_resolution": 16,
            "max_slice_nums": 3,
            "patch_size": 4,
            "image_feature_size": 6,
            "use_image_id": True,
            "norm_mean": MEAN,
            "norm_std": STD,
        },
        others=("<image>", "</image>", "<slice>", "</slice>", "<image_id>", "</image_id>"),
    ),
    "llava original": Kind("<unk>", "<image>", {}),
}


def write_tokenizer(folder: Path, kind: Kind) -> None:
    """A token for each character, and those of the family; its chat template writes parts one after the other."""
    letters = "\nabcdefghijklmnopqrstuvwxyz ?!.,"
    vocabulary = {letter: index + 1 for index, letter in enumerate(letters)}
    vocabulary |= {f"<{index}>": index for index in range(99) if index not in vocabulary.values()}
    for index, name in enumerate((kind.placeholder, *kind.others)):
        del vocabulary[f"<{TOKEN + index}>"]
        vocabulary[name] = TOKEN + index
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<0>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    special = [AddedToken(name, special=True) for name in (kind.placeholder, *kind.others)]
    tokenizer.add_special_tokens(special)
    tokenizer.save(str(folder / "tokenizer.json"))
    template = (
        "{% for message in messages %}{% for part in message.content %}"
        "{% if part.type == 'image' %}MARKER{% else %}{{ part.text }}{% endif %}{% endfor %}{% endfor %}"
    )
    (folder / "chat_template.jinja").write_text(template.replace("MARKER", kind.marker))
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "preprocessor_config.json").write_text(json.dumps({**PROCESSOR, **kind.preprocessor}))


def png(view: Tensor) -> str:
    """A data URL of pixels, uint8 [height, width, 3]."""
    height, width, _ = view.shape
    lines = b"".join(b"\0" + bytes(line.flatten().tolist()) for line in view)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    file = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(file).decode()


@dataclass(frozen=True)
class Serving:
    """A server, and the model that it must answer as."""

    server: Server
    name: str
    reference: PreTrainedModel

    def ask(self, view: Tensor, question: str, **fields: object) -> tuple[list[int], list[int]]:
        """The ids of the prompt, and of the greedy answer."""
        content = [{"type": "image_url", "image_url": {"url": png(view)}}, {"type": "text", "text": question}]
        body = {
            "messages": [{"role": "user", "content": content}],
            "max_tokens": NEW_TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
            **fields,
        }
        reply = self.server.client.post("/v1/chat/completions", json=body)
        assert reply.status_code == 200, reply.text
        answer = reply.json()
        return answer["prompt_token_ids"], answer["choices"][0]["token_ids"]

    def expected(self, view: Tensor, prompt: list[int]) -> list[int]:
        """The answer, up to a placeholder: a model may say one, which transformers takes for a row of an image."""
        case, ids = VISION_CASES[self.name], list(prompt)
        for _ in range(NEW_TOKENS):
            item = Item([(view.shape[0], view.shape[1])])
            ids.append(int(expected_logits(case, self.reference, ids, [view], item)[-1].argmax()))
            if ids[-1] == TOKEN:
                break
        return ids[len(prompt) :]


@pytest.fixture(scope="module", params=list(KINDS))
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("model")
    reference = VISION_CASES[request.param].write(folder)
    write_tokenizer(folder, KINDS[request.param])
    with serving(folder, tmp_path_factory.mktemp("server"), "--max-batch-prefill-tokens", "64") as server:
        yield Serving(server, request.param, reference)


def test_answers_are_those_of_transformers(served: Serving) -> None:
    size = KINDS[served.name].view
    first, second = views_of([size], seed=1)[0], views_of([size], seed=2)[0]
    asked = [(first, "what?"), (first, "is it a dog?"), (second, "what?"), (first, "what?")]
    with ThreadPoolExecutor(len(asked)) as pool:
        answers = list(pool.map(lambda each: served.ask(*each), asked))
    for (view, _), (prompt, answer) in zip(asked, answers, strict=True):
        expected = served.expected(view, prompt)
        assert answer[: len(expected)] == expected
    # Again, where everything was seen before.
    prompt, answer = served.ask(first, "is it a dog?")
    assert (prompt, answer) == answers[1]


def test_prompts_name_each_row_and_counters_count_them(served: Serving) -> None:
    kind = KINDS[served.name]
    view = views_of([kind.view], seed=3)[0]
    prompt, _ = served.ask(view, "what?")
    url = png(view)
    source = {"type": "base64", "media_type": "image/png", "data": url.partition(",")[2]}
    content = [{"type": "image", "source": source}, {"type": "text", "text": "what?"}]
    body = {"model": "m", "messages": [{"role": "user", "content": content}]}
    counted = served.server.client.post("/v1/messages/count_tokens", json=body).json()
    assert counted["input_tokens"] == len(prompt)
    assert prompt.count(TOKEN) > 1
    assert served.server.metric("tgi_media_failed") == 0
