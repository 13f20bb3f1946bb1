"""Images in messages, prompts and the terminal chat."""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stub import TEXT, WAIT, Stub

from text_generation import AsyncClient, Client, Image
from text_generation.chat import Chat
from text_generation.endpoints import ChatOptions
from text_generation.errors import ConnectionFailedError, ValidationError
from text_generation.types import Chunk, ImageUrl, Message

FILES = {
    "jpeg": b"\xff\xd8\xff\xe0rest",
    "png": b"\x89PNG\r\n\x1a\nrest",
    "gif": b"GIF89arest",
    "webp": b"RIFF\0\0\0\0WEBPrest",
}
PNG = FILES["png"]
TEXT_PART = {"type": "text", "text": "What is it?"}


def data_url(data: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def part(data: bytes = PNG, kind: str = "png") -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_url(data, kind)}}


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "a picture's.dat"
    path.write_bytes(PNG)
    return path


def test_the_bytes_of_a_file_tell_its_type(tmp_path: Path) -> None:
    for kind, data in FILES.items():
        path = tmp_path / "no ending"
        path.write_bytes(data)
        for image in (Image.from_path(path), Image.from_path(str(path)), Image.from_bytes(data)):
            assert image.url == data_url(data, kind)
            assert image.markdown == f"![]({image.url})"


def test_a_chat_with_images(stub: Stub, picture: Path) -> None:
    parts: list[Chunk] = [Image.from_path(picture), Chunk("text", text="What is it?")]
    parts.append(Image.from_url("https://example.org/a.png", detail="low"))
    link = {"type": "image_url", "image_url": {"url": "https://example.org/a.png", "detail": "low"}}
    message = {"role": "user", "content": [part(), TEXT_PART, link]}

    async def ask() -> None:
        async with AsyncClient(stub.url) as client:
            await client.chat([Message("user", parts)])

    with Client(stub.url) as client:
        assert client.chat([Message("user", parts)]).message.content == TEXT
        client.chat([{"role": "user", "content": parts}])
    asyncio.run(ask())
    assert [request["messages"] for request in stub.requests] == [[message]] * 3


def test_a_prompt_with_an_image(stub: Stub) -> None:
    with Client(stub.url) as client:
        client.generate(f"{Image.from_bytes(PNG).markdown}What is it?")
    assert stub.requests[0]["inputs"] == f"![]({data_url(PNG, 'png')})What is it?"


def test_parts_of_others_have_a_url_too() -> None:
    assert Image(image_url={"url": "data:,x"}).url == "data:,x"
    assert Image(image_url=ImageUrl("data:,y")).url == "data:,y"


def test_what_is_no_image_is_refused_by_name(tmp_path: Path) -> None:
    text = tmp_path / "text.png"
    text.write_text("<svg/>")
    for path, problem in (
        (text, f"{text} is no JPEG, PNG, WebP or GIF"),
        (tmp_path / "none.png", "none.png: No such file"),
        (tmp_path, "it is no file"),
        ("a\0b", "cannot read the image"),
    ):
        with pytest.raises(ValidationError, match=problem):
            Image.from_path(path)
    with pytest.raises(ValidationError, match=r"text\.png has 6 bytes; the server takes up to 5"):
        Image.from_path(text, max_bytes=5)
    with pytest.raises(ValidationError, match="the data is no JPEG"):
        Image.from_bytes(b"")
    with pytest.raises(ValidationError, match="begins with data:"):
        Image.from_url("file:///etc/passwd")


def test_a_server_tells_its_limits(stub: Stub) -> None:
    async def ask() -> int | None:
        async with AsyncClient(stub.url) as client:
            limits = await client.image_limits()
            return limits and limits.max_images_per_request

    assert asyncio.run(ask()) == 2
    with Client(stub.url) as client:
        limits = client.image_limits()
        assert limits is not None
        assert (limits.max_image_bytes, limits.allowed_image_domains) == (20_000_000, [])
        stub.info = {"model_id": "m", "images": None}
        assert client.image_limits() is None


class Typing:
    """Types lines into a chat."""

    def __init__(self, client: Client) -> None:
        self.notes = io.StringIO()
        self.chat = Chat(client, None, ChatOptions(), io.StringIO(), self.notes)

    def __call__(self, *lines: str) -> tuple[int, list[str]]:
        """Exit status, and the notes but for speeds."""
        script = iter(lines)
        self.notes.truncate(self.notes.seek(0))

        def read_line() -> str:
            for line in script:
                return line
            raise EOFError

        status = self.chat.run(read_line)
        return status, [
            line for line in self.notes.getvalue().splitlines() if line and not line.startswith("[2 tokens")
        ]


@pytest.fixture
def typing(stub: Stub) -> Iterator[Typing]:
    with Client(stub.url, timeout=WAIT) as client:
        yield Typing(client)


def test_a_chat_in_the_terminal_takes_images(stub: Stub, typing: Typing, picture: Path) -> None:
    status, notes = typing(f"/image {picture}", "What is it?", "Sure?")
    assert (status, notes) == (0, [f"[{picture.name} goes with the next message]"])
    first = {"role": "user", "content": [part(), TEXT_PART]}
    assert stub.requests[0]["messages"] == [first]
    answer = {"role": "assistant", "content": TEXT}
    assert stub.requests[1]["messages"] == [first, answer, {"role": "user", "content": "Sure?"}]


def test_a_file_that_is_dragged_to_the_terminal_is_an_image(stub: Stub, typing: Typing, picture: Path) -> None:
    escaped = str(picture).replace(" ", r"\ ").replace("'", r"\'")
    for line in (str(picture), escaped, f'"{picture}" ', picture.as_uri()):
        _, notes = typing(line, "What is it?", "/reset")
        assert notes == [f"[{picture.name} goes with the next message]"], line
        assert stub.requests[-1]["messages"][0]["content"] == [part(), TEXT_PART]


@pytest.mark.parametrize("line", ["it's", "~nobody", "file://[", "pyproject.toml", "/etc is a folder", "a\0b"])
def test_what_is_no_path_is_a_message(stub: Stub, typing: Typing, line: str) -> None:
    typing(line)
    assert [request["messages"][0]["content"] for request in stub.requests] == ([] if line[0] == "/" else [line])


def test_images_that_cannot_go_are_told_and_the_chat_goes_on(
    stub: Stub, typing: Typing, picture: Path, tmp_path: Path
) -> None:
    text = tmp_path / "text.png"
    text.write_text("text")
    for path, problem in ((text, "is no JPEG, PNG, WebP or GIF"), (tmp_path / "none", "No such file")):
        _, notes = typing(f"/image {path}", "What is it?", "/reset")
        assert notes[0].startswith("error: ")
        assert problem in notes[0]
        assert stub.requests[-1]["messages"][0]["content"] == "What is it?"
    assert "/image PATH" in typing("/image")[1][0]
    stub.info = {"images": {"max_image_bytes": 5}}
    assert "the server takes up to 5" in typing(f"/image {picture}")[1][0]
    stub.info = None
    assert typing(f"/image {picture}")[1] == [f"[{picture.name} goes with the next message]"]


def test_the_limit_counts_the_images_of_the_conversation(stub: Stub, typing: Typing, picture: Path) -> None:
    image = f"/image {picture}"
    _, notes = typing(image, "One?", image, image, "/reset", image)
    assert [note.startswith("[") for note in notes] == [True, True, False, True]
    assert notes[2] == "error: the server takes 2 images in a conversation, which has 2"
    assert len(stub.requests) == 1


def test_a_question_without_an_answer_takes_its_images_along(stub: Stub, typing: Typing, picture: Path) -> None:
    error = {"error": "`messages[0].content[0]`: truncated", "error_type": "validation"}
    stub.script = [(422, error)]
    _, notes = typing(f"/image {picture}", "What is it?", "And now?")
    assert notes[1] == "error: `messages[0].content[0]`: truncated"
    assert stub.requests[1]["messages"] == [{"role": "user", "content": "And now?"}]


def test_a_server_that_is_gone_is_told(picture: Path) -> None:
    with Client("http://127.0.0.1:1") as client:
        with pytest.raises(ConnectionFailedError):
            client.image_limits()
        assert Typing(client)(f"/image {picture}")[1][0].startswith("error: no answer from")
