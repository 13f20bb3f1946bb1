"""Images in the chat at `/ui`: picked, pasted, dropped, checked, shown, sent, kept. `make test-ui`."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import Server
from PIL import Image
from playwright.sync_api import Page, Route, expect
from ui_page import PATHS, act, answer_with, delta_chunk, done, error, messages, send

pytest_plugins = ("ui_fixtures",)

LIMITS = {"max_image_bytes": 5_000, "max_image_pixels": 40_000, "max_images_per_request": 3}
RED = (220, 30, 30)
DROP = """(panel, [type, name, mime, base64]) => {
    const transfer = new DataTransfer();
    const bytes = Uint8Array.from(atob(base64), byte => byte.charCodeAt(0));
    transfer.items.add(new File([bytes], name, {type: mime}));
    const options = {bubbles: true, cancelable: true};
    const event = type === "paste" ? new ClipboardEvent(type, {...options, clipboardData: transfer})
        : new DragEvent(type, {...options, dataTransfer: transfer});
    return panel.dispatchEvent(event);
}"""


def file(name: str = "red.png", size: tuple[int, int] = (40, 20), kind: str = "PNG") -> dict:
    """A file of one colour, as a browser's field takes it."""
    written = io.BytesIO()
    Image.new("RGB", size, RED).save(written, kind)
    return {"name": name, "mimeType": f"image/{kind.lower()}", "buffer": written.getvalue()}


def url(given: dict) -> str:
    return f"data:{given['mimeType']};base64,{base64.b64encode(given['buffer']).decode()}"


def part(given: dict) -> dict:
    return {"type": "image_url", "image_url": {"url": url(given)}}


@pytest.fixture
def page(server: Server, visit: Callable[..., Page]) -> Page:
    """The page of a server whose model is said to see; requests are answered in its place."""
    page = visit(server)

    def seeing(route: Route) -> None:
        route.fulfill(json={**server.client.get("/info").json(), "images": LIMITS})

    page.route("**/info", seeing)
    page.reload()
    expect(page.locator("#attach")).to_be_visible()
    answer_with(page, "chat", delta_chunk(content="Red."), delta_chunk("stop"), "[DONE]")
    return page


def pick(page: Page, *files: dict) -> None:
    with page.expect_file_chooser() as chooser:
        page.click("#attach")
    chooser.value.set_files(list(files))


def give(page: Page, way: str, given: dict) -> None:
    """Pastes or drops a file."""
    target = "#message" if way == "paste" else "#chat"
    data = base64.b64encode(given["buffer"]).decode()
    page.locator(target).evaluate(DROP, [way, given["name"], given["mimeType"], data])


def sent(page: Page, text: str) -> list[dict]:
    """The messages of the request that this text makes."""
    with page.expect_request(f"**{PATHS['chat']}") as request:
        send(page, text)
    done(page)
    return request.value.post_data_json["messages"]


def colour(page: Page, canvas: str) -> list[int]:
    expect(page.locator(canvas)).not_to_have_attribute("width", "0")
    return page.locator(canvas).evaluate("canvas => [...canvas.getContext('2d').getImageData(1, 1, 1, 1).data]")


def test_a_model_of_text_is_offered_no_images(server: Server, visit: Callable[..., Page]) -> None:
    page = visit(server)
    expect(page.locator("#limits")).to_contain_text("prompt up to")
    expect(page.locator("#attach")).to_be_hidden()
    give(page, "paste", file())
    expect(page.locator("#attached")).to_be_hidden()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF"])
def test_an_image_is_shown_and_sent_before_the_text(page: Page, kind: str) -> None:
    image = file(f"red.{kind.lower()}", kind=kind)
    pick(page, image)
    expect(page.get_by_role("img", name=image["name"])).to_be_visible()
    assert colour(page, "#attached canvas")[0] > 180, "the thumbnail shows the image"
    assert sent(page, "What is it?") == [
        {"role": "user", "content": [part(image), {"type": "text", "text": "What is it?"}]}
    ]
    expect(page.locator("#attached")).to_be_hidden()
    assert colour(page, ".user canvas")[0] > 180
    expect(messages(page, "user").locator(".text")).to_have_text("What is it?")
    history = sent(page, "Sure?")
    assert history[0]["content"][0] == part(image), "the next request has it again"
    assert history[2] == {"role": "user", "content": "Sure?"}


@pytest.mark.parametrize("way", ["paste", "drop"])
def test_images_are_pasted_and_dropped_and_need_no_text(page: Page, way: str) -> None:
    give(page, way, file())
    expect(page.locator("#attached li")).to_have_count(1)
    assert sent(page, "") == [{"role": "user", "content": [part(file())]}]


def test_images_are_removed_by_keyboard(page: Page) -> None:
    pick(page, file("a.png"), file("b.png"))
    expect(page.locator("#attached li")).to_have_count(2)
    page.get_by_role("button", name="Remove a.png").press("Enter")
    expect(page.get_by_role("button", name="Remove b.png")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#attached")).to_be_hidden()
    expect(page.locator("#message")).to_be_focused()
    assert sent(page, "Hello!") == [{"role": "user", "content": "Hello!"}]


@pytest.mark.parametrize(
    ("files", "problems"),
    [
        ([file(size=(201, 200))], ["red.png: it is 201 x 200; this server takes up to 40,000 pixels."]),
        ([{**file(), "buffer": bytes(5_001)}], ["it has 5,001 bytes; this server takes up to 5,000."]),
        ([{**file("a.pdf"), "mimeType": "application/pdf"}], ["a.pdf: images are JPEG, PNG, WebP or GIF."]),
        ([{**file(), "buffer": b"no image"}], ["red.png: this browser cannot read it as an image."]),
        ([file()] * 4, ["this server takes 3 images in a request, and the conversation has 3."]),
        ([{**file("a.png"), "buffer": b""}, {**file("b.png"), "buffer": b""}], ["a.png:", "b.png:"]),
    ],
)
def test_what_the_server_would_refuse_is_said_at_once(page: Page, files: list[dict], problems: list[str]) -> None:
    pick(page, *files)
    for problem in problems:
        expect(page.locator("#image-error")).to_contain_text(problem)
    expect(page.locator("#attached li")).to_have_count(len(files) - len(problems))
    pick(page)
    send(page, "Hello!")
    done(page)
    expect(page.locator("#image-error")).to_be_hidden()


def test_images_of_the_conversation_count(page: Page) -> None:
    pick(page, file(), file())
    expect(page.locator("#attached li")).to_have_count(2)
    sent(page, "Look!")
    pick(page, file(), file())
    expect(page.locator("#image-error")).to_contain_text("the conversation has 3")
    expect(page.locator("#attached li")).to_have_count(1)


def test_a_refusal_is_shown_as_the_server_says_it(page: Page) -> None:
    page.unroute(f"**{PATHS['chat']}")
    pick(page, file())
    expect(page.locator("#attached li")).to_have_count(1)
    send(page, "What is it?")
    expect(error(page)).to_contain_text("messages[0].content[0]")


def test_an_edited_question_keeps_its_images_and_copies_its_text(page: Page) -> None:
    pick(page, file())
    expect(page.locator("#attached li")).to_have_count(1)
    sent(page, "What is it?")
    act(messages(page, "user"), "Edit")
    expect(page.locator(".user textarea")).to_have_value("What is it?")
    page.fill(".user textarea", "Which colour?")
    with page.expect_request(f"**{PATHS['chat']}") as again:
        page.get_by_role("button", name="Save and send").click()
    changed = [part(file()), {"type": "text", "text": "Which colour?"}]
    assert again.value.post_data_json["messages"] == [{"role": "user", "content": changed}]


def test_conversations_with_images_are_kept_exported_and_imported(page: Page, tmp_path: Path) -> None:
    pick(page, file())
    expect(page.locator("#attached li")).to_have_count(1)
    sent(page, "What is it?")
    page.reload()
    assert colour(page, ".user canvas")[0] > 180
    expect(page.locator("#conversation-list button")).to_have_text(["What is it?"])
    with page.expect_download() as download:
        page.click("#export")
    kept = tmp_path / "kept.json"
    download.value.save_as(kept)
    content = json.loads(kept.read_text())[0]["messages"][0]["content"]
    assert content == [part(file()), {"type": "text", "text": "What is it?"}]
    page.get_by_label("Import from a file").set_input_files(kept)
    expect(page.locator("#conversation-list button")).to_have_count(2)
    elsewhere = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
    kept.write_text(json.dumps({"messages": [{"role": "user", "content": [elsewhere]}]}))
    page.get_by_label("Import from a file").set_input_files(kept)
    expect(page.locator("#storage-error")).to_contain_text("neither text nor an image in base64")


def test_a_full_storage_keeps_the_text(page: Page) -> None:
    page.evaluate("""() => {
        for (let size = 1 << 22; size >= 1 << 10; size >>= 1)
            try { for (let n = 0; ; n += 1) localStorage.setItem(`filler-${size}-${n}`, "x".repeat(size)); } catch {}
        localStorage.removeItem("filler-1024-0");
    }""")
    noise = io.BytesIO()
    Image.effect_noise((64, 64), 90).save(noise, "PNG")
    pick(page, {**file(), "buffer": noise.getvalue()})
    expect(page.locator("#attached li")).to_have_count(1)
    sent(page, "What is it?")
    expect(page.locator("#storage-error")).to_contain_text("no room for the images")
    page.reload()
    expect(messages(page, "user").locator(".text")).to_have_text(
        "[an image that the browser did not keep]\nWhat is it?"
    )
