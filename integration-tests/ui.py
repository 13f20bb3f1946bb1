"""The playground at `/ui` in a headless Chromium: `make test-ui`. See docs/ui.md; not a part of `make test`."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from harness import Server, wait_for
from playwright.sync_api import Page, expect
from ui_page import (
    KEY,
    MODEL,
    PATHS,
    act,
    answer_with,
    change_body,
    chat_chunk,
    error,
    messages,
    open_settings,
    send,
    set_fields,
    show_probabilities,
    status,
)

pytest_plugins = ("ui_fixtures",)
ENDED = re.compile("stop|length")


def dropped_requests(server: Server) -> float:
    """How many requests the server gave up because their client had gone."""
    found = re.search(r'^tgi_request_failure\{err="dropped"\} (\S+)$', server.client.get("/metrics").text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def test_a_chat_streams_the_servers_answer_and_keeps_its_history(server: Server, visit: Callable[..., Page]) -> None:
    page = visit(server)
    expect(page.locator("#model")).to_have_text(str(MODEL))
    expect(page.locator("#limits")).to_contain_text(str(server.client.get("/info").json()["max_total_tokens"]))
    set_fields(page, temperature=0, system="Be kind.")
    send(page, "Hello!")
    expect(status(page)).to_have_text(
        re.compile(r"^first token \d+ ms · [\d.]+ tokens/s · \d+ tokens · prompt \d+ · (stop|length)$")
    )
    said = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello!"}]
    body = {"messages": said, "temperature": 0}
    answer = server.client.post(PATHS["chat"], json=body).json()["choices"][0]["message"]["content"]
    assert page.locator(".assistant .text").text_content() == answer
    with page.expect_request(f"**{PATHS['chat']}") as second:
        send(page, "And you?")
    history = [*said, {"role": "assistant", "content": answer}, {"role": "user", "content": "And you?"}]
    assert second.value.post_data_json["messages"] == history
    expect(status(page)).to_have_text(ENDED)


def test_messages_can_be_edited_deleted_and_cleared(server: Server, visit: Callable[..., Page]) -> None:
    page = visit(server)
    send(page, "Hello!")
    expect(status(page)).to_have_text(ENDED)
    act(messages(page, "assistant"), "Edit")
    page.fill(".assistant textarea", "Changed.")
    act(messages(page, "assistant"), "Save")
    expect(page.locator(".assistant .text")).to_have_text("Changed.")
    with page.expect_request(f"**{PATHS['chat']}") as sent:
        send(page, "Really?")
    assert sent.value.post_data_json["messages"][1] == {"role": "assistant", "content": "Changed."}
    expect(status(page)).to_have_text(ENDED)
    act(messages(page, "assistant").last, "Delete")
    expect(page.locator("article")).to_have_count(3)
    page.click("#new-chat")
    expect(page.locator("article")).to_have_count(0)


def test_an_answer_is_regenerated_and_a_question_saved_and_sent(server: Server, visit: Callable[..., Page]) -> None:
    page = visit(server)
    for question in ("One?", "Two?"):
        send(page, question)
        expect(status(page)).to_have_text(ENDED)
    with page.expect_request(f"**{PATHS['chat']}") as again:
        act(messages(page, "assistant").last, "Regenerate")
    roles = [message["role"] for message in again.value.post_data_json["messages"]]
    assert roles == ["user", "assistant", "user"]
    expect(status(page)).to_have_text(ENDED)
    expect(page.locator("article")).to_have_count(4)
    act(messages(page, "user").first, "Edit")
    page.fill(".user textarea", "Uno?")
    with page.expect_request(f"**{PATHS['chat']}") as resent:
        page.get_by_role("button", name="Save and send").click()
    assert resent.value.post_data_json["messages"] == [{"role": "user", "content": "Uno?"}]
    expect(status(page)).to_have_text(ENDED)
    expect(page.locator("article")).to_have_count(2)
    act(messages(page, "user"), "Edit")
    page.fill(".user textarea", "Due?")
    act(messages(page, "user"), "Save")
    expect(messages(page, "user").locator(".text")).to_have_text("Due?")
    expect(page.locator("article")).to_have_count(2)


def test_all_parameters_are_sent_and_empty_ones_are_not(server: Server, visit: Callable[..., Page]) -> None:
    page = visit(server)
    with page.expect_request(f"**{PATHS['chat']}") as plain:
        send(page, "Hello!")
    expected = {"stream": True, "stream_options": {"include_usage": True}}
    assert plain.value.post_data_json == {"messages": [{"role": "user", "content": "Hello!"}], **expected}
    expect(status(page)).to_have_text(ENDED)
    values = {"temperature": 0.7, "top_p": 0.9, "top_k": 20, "max_tokens": 4, "seed": 9007199254740991}
    values |= {"repetition_penalty": 1.1, "frequency_penalty": 0.25, "presence_penalty": -0.5}
    set_fields(page, **values, top_logprobs=2, stop="never this\n\\n\\n")
    page.click("#completion-tab")
    with page.expect_request(f"**{PATHS['completion']}") as full:
        send(page, "Once upon a time", "completion")
    expected = {**values, "prompt": "Once upon a time", "stop": ["never this", "\n\n"], "logprobs": 2}
    assert full.value.post_data_json == {**expected, "stream": True, "stream_options": {"include_usage": True}}
    expect(status(page, "completion")).to_contain_text("4 tokens")
    page.fill("#top_logprobs", "")
    send(page, "Once upon a time", "completion")
    expect(status(page, "completion")).to_contain_text("4 tokens")
    expect(page.locator("#continuation .token")).to_have_count(0)


@pytest.mark.parametrize("tab", ["chat", "completion"])
def test_tokens_explain_themselves_by_mouse_and_keyboard(server: Server, visit: Callable[..., Page], tab: str) -> None:
    page = visit(server)
    show_probabilities(page)
    page.click(f"#{tab}-tab")
    send(page, "Once upon a time", tab)
    expect(status(page, tab)).to_have_text(ENDED)
    tip = page.locator("#tip")
    tokens = page.locator(f"#{tab} .token")
    tokens.nth(1).hover()
    rows = [row.split("\t") for row in tip.inner_text().splitlines()]
    assert rows[0] == ["token", "probability", "log-probability"]
    assert len(rows) in (6, 7), "five alternatives, and the token where it is none of them"
    assert json.loads(tip.locator(".chosen td").first.inner_text()) == tokens.nth(1).text_content()
    for _, probability, logprob in rows[1:]:
        assert re.fullmatch(r"(< 0\.1|\d+\.\d) %", probability)
        assert re.fullmatch(r"-?\d+\.\d{3}", logprob)
    page.mouse.move(1, 1)
    expect(tip).to_be_hidden()
    page.focus(f"#{tab} .text >> nth=-1")
    page.keyboard.press("ArrowRight")
    expect(tokens.first).to_have_class(re.compile("current"))
    expect(tip).to_be_visible()
    page.keyboard.press("Escape")
    expect(tip).to_be_hidden()
    colours = tokens.evaluate_all("spans => spans.map(span => getComputedStyle(span).backgroundColor)")
    assert len(set(colours)) > 1, "the colour shows the probability"


@pytest.mark.parametrize("tab", ["chat", "completion"])
def test_stop_ends_the_generation_on_the_server(server: Server, visit: Callable[..., Page], tab: str) -> None:
    page = visit(server)
    page.click(f"#{tab}-tab")
    set_fields(page, max_tokens=900)
    change_body(page, tab, ignore_eos=True)
    dropped = dropped_requests(server)
    send(page, "Once upon a time", tab)
    expect(status(page, tab)).to_contain_text("tokens/s")
    page.click(f"#{tab} .stop")
    expect(status(page, tab)).to_have_text(re.compile("stopped here$"))
    expect(error(page, tab)).to_be_hidden()
    expect(page.locator(f"#{tab} .send")).to_be_focused()
    wait_for(lambda: dropped_requests(server) == dropped + 1, "the server dropped the request")
    tokens = int(re.search(r"(\d+) tokens ", status(page, tab).inner_text())[1])
    assert 1 < tokens < 900


def test_a_continuation_can_become_the_prompt(server: Server, visit: Callable[..., Page]) -> None:
    page = visit(server)
    page.focus("#chat-tab")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#completion-tab")).to_be_focused()
    set_fields(page, temperature=0, max_tokens=8)
    send(page, "Once upon a time", "completion")
    expect(status(page, "completion")).to_have_text(ENDED)
    body = {"prompt": "Once upon a time", "temperature": 0, "max_tokens": 8}
    text = server.client.post(PATHS["completion"], json=body).json()["choices"][0]["text"]
    assert page.locator("#continuation").text_content() == text
    page.click("#append")
    expect(page.locator("#prompt")).to_have_value("Once upon a time" + text)


def test_refusals_and_failures_are_readable(server: Server, visit: Callable[..., Page]) -> None:
    page = visit(server)
    set_fields(page, temperature=-1)
    page.click("#toggle-settings")
    send(page, "Hello!")
    expect(error(page)).to_contain_text("`temperature` must be")
    expect(page.locator("#temperature")).to_have_attribute("aria-invalid", "true")
    expect(page.locator("#temperature")).to_be_visible()
    page.fill("#temperature", "")
    page.fill("#top_logprobs", "99")
    page.click("text=Try again")
    expect(error(page)).to_contain_text("`--max-logprobs`")
    expect(page.locator("#top_logprobs")).to_have_attribute("aria-invalid", "true")
    page.fill("#top_logprobs", "")
    page.click("text=Try again")
    expect(status(page)).to_have_text(ENDED)
    expect(error(page)).to_be_hidden()
    message = "Request failed during generation: Server error: out of memory"
    failure = {"error": {"message": message, "param": None}, "error_type": "generation", "request_id": "id-7"}
    answer_with(page, "chat", chat_chunk("Half"), failure, "[DONE]")
    send(page, "More")
    expect(error(page)).to_have_text(f"{message} (request id-7)")
    expect(page.locator(".assistant .text").last).to_have_text("Half")
    answer_with(page, "chat", chat_chunk("Cut"))
    send(page, "More")
    expect(error(page)).to_have_text("The connection ended before the answer did.")
    page.route(f"**{PATHS['chat']}", lambda route: route.abort())
    send(page, "More")
    expect(error(page)).to_have_text("The server cannot be reached.")


def test_markup_of_a_model_is_text(server: Server, visit: Callable[..., Page]) -> None:
    page = visit(server)
    markup = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    answer_with(page, "chat", chat_chunk(markup, "<b>bold</b>"), "[DONE]")
    send(page, markup)
    expect(page.locator(".assistant .text")).to_have_text(markup)
    page.locator(".token").hover()
    expect(page.locator("#tip")).to_contain_text("<b>bold</b>")
    assert page.locator("img, b, body script").count() == 0


def test_text_that_came_late_shows_all_of_its_tokens(server: Server, visit: Callable[..., Page]) -> None:
    page = visit(server)
    late = chat_chunk("\ufffd")
    late["choices"][0]["delta"]["content"] = "é"
    end = chat_chunk("</s>")
    for held in (first := chat_chunk("\ufffd"), end):
        held["choices"][0]["delta"]["content"] = ""
    answer_with(page, "chat", first, late, end, "[DONE]")
    send(page, "Hello!")
    expect(page.locator(".assistant .text")).to_have_text("é")
    expect(page.locator(".token")).to_have_count(2)
    page.locator(".token").first.hover()
    expect(page.locator("#tip table")).to_have_count(2)
    page.locator(".token.end").hover()
    expect(page.locator("#tip .chosen")).to_contain_text('"</s>"')


def test_the_key_is_asked_for_and_stays_in_the_tab(guarded: Server, visit: Callable[..., Page]) -> None:
    page = visit(guarded)
    expect(page.locator("#notice")).to_have_text("This server asks for an API key.")
    expect(page.locator("#key")).to_be_focused()
    send(page, "Hello!")
    expect(error(page)).to_have_text(re.compile("^This server asks for an API key"))
    page.fill("#key", "wrong")
    page.click("text=Use key")
    expect(page.locator("#notice")).to_have_text("The server does not know this API key.")
    page.fill("#key", KEY)
    page.click("text=Use key")
    expect(page.locator("#model")).to_have_text(str(MODEL))
    expect(page.locator("#notice")).to_be_hidden()
    expect(page.locator("#access")).to_be_hidden()
    page.click("text=Try again")
    expect(status(page)).to_have_text(ENDED)
    page.reload()
    expect(page.locator("#model")).to_have_text(str(MODEL))
    expect(page.locator("article")).to_have_count(2)
    open_settings(page)
    page.click("#change-key")
    expect(page.locator("#key")).to_have_value(KEY)
    state = page.context.storage_state()
    assert state["cookies"] == []
    assert KEY not in json.dumps(state["origins"], ensure_ascii=False), "the key ends with the tab"


def test_a_busy_server_says_so(guarded: Server, visit: Callable[..., Page]) -> None:
    page = visit(guarded)
    page.fill("#key", KEY)
    page.click("text=Use key")
    expect(page.locator("#notice")).to_be_hidden()
    body = {"prompt": "Once", "max_tokens": 900, "ignore_eos": True, "stream": True}
    headers = [(b"authorization", b"Bearer " + KEY.encode())]
    with httpx.stream("POST", guarded.url + PATHS["completion"], json=body, headers=headers) as running:
        lines = running.iter_lines()
        assert next(lines).startswith("data:")
        send(page, "Hello!")
        expect(error(page)).to_have_text(re.compile(r"^The server is busy: .* Try again in 1 s\."))


def test_a_picture_for_the_documentation(server: Server, visit: Callable[..., Page], tmp_path: Path) -> None:
    page = visit(server, viewport={"width": 1200, "height": 820})
    set_fields(page, seed=1)
    send(page, "What is 12 + 30?")
    expect(status(page)).to_have_text(ENDED)
    show_probabilities(page)
    send(page, "Tell me a story about a dog.")
    expect(status(page)).to_have_text(ENDED)
    tokens = page.locator(".token")
    least = tokens.evaluate_all(
        "spans => spans.map(span => Number(span.style.getPropertyValue('--probability')))"
        ".reduce((least, value, index, all) => (value < all[least] ? index : least), 0)"
    )
    tokens.nth(least).hover()
    picture = Path(os.environ.get("UI_SCREENSHOT", tmp_path / "ui.png"))
    page.screenshot(path=picture)
    assert 10_000 < picture.stat().st_size < 200_000
