"""The demo model for images, shown pictures that are drawn here: its answers name what is in them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from harness import DEMO, Server, serving
from test_images import png
from torch import Tensor

SIDE = 200
RED, BLUE = (215, 35, 40), (35, 75, 205)


def picture(inside: Tensor, colour: tuple[int, int, int]) -> str:
    """A data URL of an area on white."""
    white = torch.full((SIDE, SIDE, 3), 255, dtype=torch.uint8)
    return png(torch.where(inside[..., None], torch.tensor(colour, dtype=torch.uint8), white))


def circle() -> Tensor:
    at = torch.arange(SIDE) - SIDE / 2
    return at[:, None] ** 2 + at**2 < 60**2


def square() -> Tensor:
    """At the left."""
    down, across = torch.arange(SIDE)[:, None], torch.arange(SIDE)
    return ((down - 100).abs() < 26) & ((across - 44).abs() < 26)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(DEMO.parent / "demo-vision", tmp_path_factory.mktemp("server")) as ready:
        yield ready


def ask(server: Server, question: str, url: str | None = None) -> str:
    shown = [] if url is None else [{"type": "image_url", "image_url": {"url": url}}]
    content = [*shown, {"type": "text", "text": question}]
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 40, "temperature": 0}
    reply = server.client.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    return str(reply.json()["choices"][0]["message"]["content"])


def test_answers_name_the_shape_its_colour_and_its_place(server: Server) -> None:
    assert ask(server, "What is in the picture?", picture(circle(), RED)) == "A red circle in the middle."
    assert ask(server, "What is in the picture?", picture(square(), BLUE)) == "A blue square on the left."
    assert ask(server, "What shape is it?", picture(square(), BLUE)) == "A square."
    assert ask(server, "What is in the picture?") == "I see no picture."


def test_a_prompt_of_tgi_is_described(server: Server) -> None:
    body = {"inputs": f"![]({picture(circle(), BLUE)})", "parameters": {"max_new_tokens": 40}}
    reply = server.client.post("/generate", json=body)
    assert reply.status_code == 200, reply.text
    assert "blue circle" in reply.json()["generated_text"]
