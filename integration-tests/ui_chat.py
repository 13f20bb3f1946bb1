"""What the chat at `/ui` does beside talking: Markdown, reasoning, tools, schemas, conversations. `make test-ui`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import Server
from markdown_it import MarkdownIt
from playwright.sync_api import Page, expect
from ui_page import PATHS, act, answer_with, chat_chunk, delta_chunk, done, error, messages, send, set_fields, status

pytest_plugins = ("ui_fixtures",)

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
MARKDOWN = [
    "Plain.\n\nA second paragraph\nof two lines.",
    "# One\n## Two ##\n#hash",
    "*a* **b** ***c*** __d__ _e_ ~~f~~ **a *b* c** snake_case_name 2 * 3 * 4 **open",
    "`code` ``a`b`` `<b>` \\*not\\* `open",
    "[a](https://example.org/x_(y)) [**b**](<https://example.org> 'title') <https://example.org/c>",
    "- a\n- b\n  - c\n    - d\n- e",
    "3. a\n4. b\n\n   more\n5. c",
    "- a\n* b\n\n1) c",
    "> quote\n> - in it\n>\n> > twice\n\nafter",
    "```py\nx = '*'\n\n  y\n```\nafter\n~~~\nopen",
    "- a\n\n  ```\n  code\n  ```\n- b",
    "text\n\n---\n***\nafter",
    "| a | *b* |\n|:--|:-:|\n| `1` | 2 \\| 3 |\n| only |\n\nafter",
    "<b>markup</b> & <script>alert(1)</script>",
]
SHAPE = """element => {
    const shape = node => node.nodeType === 3 ? node.data
        : [node.tagName, node.getAttribute("href") ?? node.getAttribute("start") ?? node.style.textAlign,
           [...node.childNodes].filter(child => child.className !== "code-head").map(shape)];
    return shape(element);
}"""


@pytest.fixture
def page(server: Server, visit: Callable[..., Page]) -> Page:
    return visit(server)


def ask(page: Page, *events: object, text: str = "Hello!") -> dict:
    """Sends a message that is answered by `events`; returns the request."""
    answer_with(page, "chat", *events, delta_chunk("stop"), "[DONE]")
    with page.expect_request(f"**{PATHS['chat']}") as request:
        send(page, text)
    done(page)
    return request.value.post_data_json


def normalised(shape: object) -> object:
    """A tree of elements without what differs by design: headings, frames of tables, colours of code, space."""
    if isinstance(shape, str):
        return shape
    tag, attribute, children = shape
    if re.fullmatch("H[1-6]", tag):
        tag = "H"
    merged: list[object] = []
    for child in map(normalised, children):
        if isinstance(child, str) and merged and isinstance(merged[-1], str):
            merged[-1] += child
        elif isinstance(child, list) and child[0] in ("DIV", "SPAN"):
            merged += child[2]
        else:
            merged.append(child)
    if tag == "CODE":
        merged = ["".join(merged).rstrip("\n")]
    elif tag != "PRE":
        merged = [text.strip("\n") if isinstance(text, str) else text for text in merged]
    attribute = (attribute or "").rstrip("/")
    return [tag, "" if attribute == "1" else attribute, [child for child in merged if child != ""]]


@pytest.mark.parametrize("source", MARKDOWN)
def test_markdown_is_what_another_renderer_makes_of_it_however_it_comes(page: Page, source: str) -> None:
    ask(page, delta_chunk(content=source))
    text = page.locator(".assistant .text")
    whole = text.evaluate(SHAPE)
    oracle = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"]).render(source)
    # The page itself would refuse markup.
    other = page.context.new_page()
    other.set_content(oracle)
    assert normalised(whole)[2] == normalised(other.locator("body").evaluate(SHAPE))[2]
    page.click("#new-chat")
    ask(page, *(delta_chunk(content=character) for character in source))
    assert normalised(text.evaluate(SHAPE)) == normalised(whole), "the same, one character at a time"


def test_links_lead_only_where_nothing_can_run(page: Page) -> None:
    lines = ["[a](javascript:alert(1))", "[b](data:text/html,x)", "[c](x.html)", "![d](https://example.org/d.png)"]
    ask(page, delta_chunk(content="\n\n".join([*lines, "See https://example.org/e(f)."])))
    links = page.locator(".assistant a")
    expect(links).to_have_count(2)
    assert links.evaluate_all("links => links.map(link => link.href)") == [
        "https://example.org/d.png",
        "https://example.org/e(f)",
    ]
    assert "noopener" in links.first.get_attribute("rel")
    expect(page.locator(".assistant img")).to_have_count(0)
    expect(page.locator(".assistant .text")).to_contain_text(lines[0])


def test_reasoning_and_calls_are_folded_and_results_go_on(page: Page) -> None:
    set_fields(page, tools=json.dumps([TOOL]))
    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "add", "arguments": ""}}
    arguments = '{"a":12345678901234567890,"b":["x, y"]}'
    fragments = [{"index": 0, "function": {"arguments": part}} for part in (arguments[:9], arguments[9:])]
    thoughts = [delta_chunk(reasoning_content=part) for part in ("I must ", "*add*.")]
    request = ask(page, *thoughts, *(delta_chunk(tool_calls=[part]) for part in (call, *fragments)))
    assert request["tools"] == [TOOL]
    expect(page.locator(".assistant details[open]")).to_have_count(0)
    page.click(".reasoning summary")
    expect(page.locator(".reasoning em")).to_have_text("add")
    page.click(".call summary")
    expect(page.locator(".call pre")).to_have_text('{\n  "a": 12345678901234567890,\n  "b": [\n    "x, y"\n  ]\n}')
    page.get_by_label("Result of add").fill("42")
    answer_with(page, "chat", delta_chunk(content="It is 42."), delta_chunk("stop"), "[DONE]")
    with page.expect_request(f"**{PATHS['chat']}") as second:
        page.click("text=Give result")
    function = {"name": "add", "arguments": arguments}
    made = {"role": "assistant", "content": None, "reasoning_content": "I must *add*."}
    made["tool_calls"] = [{"id": "call_1", "type": "function", "function": function}]
    result = {"role": "tool", "tool_call_id": "call_1", "name": "add", "content": "42"}
    assert second.value.post_data_json["messages"] == [{"role": "user", "content": "Hello!"}, made, result]
    expect(page.locator(".assistant .text").last).to_have_text("It is 42.")
    expect(page.get_by_label("Result of add")).to_have_count(0)
    page.reload()
    expect(page.locator("article")).to_have_count(4)
    act(messages(page, "assistant").first, "Delete")
    expect(page.locator("article")).to_have_count(2), "the result goes with its call"


def test_tokens_of_reasoning_and_calls_stand_where_they_belong(page: Page) -> None:
    thought = chat_chunk("<think>")
    thought["choices"][0]["delta"] = {"reasoning_content": "Hm"}
    call = chat_chunk("<tool>")
    call["choices"][0]["delta"] = {
        "tool_calls": [{"index": 0, "id": "1", "function": {"name": "f", "arguments": "{}"}}]
    }
    ask(page, thought, chat_chunk("Hi"), call)
    for part in (".reasoning", ".text", ".call"):
        expect(page.locator(f".assistant {part} .token")).to_have_count(1)


def test_a_schema_is_sent_and_its_errors_stand_at_the_field(page: Page) -> None:
    for wrong, problem in (("{", "This is not JSON"), ("[]", "This must be an object")):
        set_fields(page, schema=wrong)
        send(page, "Hello!")
        expect(page.locator("#schema-error")).to_contain_text(problem)
        expect(page.locator("#schema")).to_have_attribute("aria-invalid", "true")
        expect(page.locator("#schema")).to_be_focused()
        expect(page.locator(".assistant")).to_have_count(0)
        page.click("#new-chat")
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    page.fill("#schema", json.dumps(schema))
    with page.expect_request(f"**{PATHS['chat']}") as sent:
        send(page, "Hello!")
    form = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}
    assert sent.value.post_data_json["response_format"] == form
    expect(status(page)).to_have_text(re.compile("stop|length"))
    assert json.loads(page.locator(".assistant .text").text_content())["n"] in (1, 2)
    page.fill("#schema", '{"type": 7}')
    send(page, "Hello!")
    expect(error(page)).to_contain_text("not valid")
    expect(page.locator("#schema")).to_have_attribute("aria-invalid", "true")


def test_enter_sends_but_not_a_line_or_a_proposal(page: Page) -> None:
    answer_with(page, "chat", delta_chunk(content="Hi"), delta_chunk("stop"), "[DONE]")
    field = page.locator("#message")
    field.fill("one")
    field.press("Shift+Enter")
    expect(field).to_have_value("one\n")
    composing = "new KeyboardEvent('keydown', {key: 'Enter', isComposing: true, bubbles: true, cancelable: true})"
    assert field.evaluate(f"field => field.dispatchEvent({composing})"), "left to the input method"
    expect(page.locator("article")).to_have_count(0)
    field.press("Enter")
    expect(page.locator("article")).to_have_count(2)
    expect(field).to_have_value("")


def test_conversations_are_kept_switched_renamed_and_deleted(page: Page) -> None:
    set_fields(page, system="Be kind.")
    ask(page, delta_chunk(content="**Hi**"), text="First question\nwith a second line")
    page.click("#new-chat")
    expect(page.locator("article")).to_have_count(0)
    ask(page, delta_chunk(content="Ho"), text="Second question")
    page.reload()
    expect(page.locator(".assistant .text")).to_have_text("Ho")
    titles = page.locator("#conversation-list button")
    expect(titles).to_have_text(["Second question", "First question"])
    expect(titles.first).to_have_attribute("aria-current", "true")
    titles.last.click()
    expect(page.locator(".assistant strong")).to_have_text("Hi")
    expect(page.locator("#system")).to_have_value("Be kind.")
    page.once("dialog", lambda dialog: dialog.accept("Renamed"))
    page.click("#rename")
    expect(titles).to_have_text(["Renamed", "Second question"])
    page.once("dialog", lambda dialog: dialog.accept())
    page.click("#delete")
    expect(titles).to_have_text(["Second question"])
    expect(page.locator("article")).to_have_count(0)
    page.once("dialog", lambda dialog: dialog.accept())
    page.click("#delete-all")
    expect(titles).to_have_count(0)
    assert page.context.storage_state()["origins"] == [], "nothing is left in the browser"


def test_conversations_can_be_exported_and_imported(page: Page, tmp_path: Path) -> None:
    ask(page, delta_chunk(content="Hi"), text="What is 1/2?")
    with page.expect_download() as download:
        page.click("#export")
    assert download.value.suggested_filename == "What-is-1-2-.json"
    file = tmp_path / "conversation.json"
    download.value.save_as(file)
    messages = [{"role": "user", "content": "What is 1/2?"}, {"role": "assistant", "content": "Hi"}]
    assert json.loads(file.read_text()) == [{"title": "What is 1/2?", "messages": messages}]
    page.get_by_label("Import from a file").set_input_files(file)
    expect(page.locator("#conversation-list button")).to_have_text(["What is 1/2?", "What is 1/2?"])
    file.write_text('{"messages": [{"role": "wizard"}]}')
    page.get_by_label("Import from a file").set_input_files(file)
    expect(page.locator("#storage-error")).to_contain_text("holds no conversations")


def test_an_answer_that_is_being_written_survives_a_reload_and_a_switch(page: Page) -> None:
    set_fields(page, max_tokens=900)
    send(page, "Once upon a time")
    expect(status(page)).to_contain_text("tokens/s")
    page.reload()
    expect(page.locator(".assistant .text")).not_to_be_empty()
    send(page, "Go on")
    expect(status(page)).to_contain_text("tokens/s")
    page.click("#new-chat")
    expect(page.locator("article")).to_have_count(0)
    expect(page.locator("#chat .stop")).to_be_hidden()
    page.click("#conversation-list button")
    expect(page.locator("article")).to_have_count(4)


def test_a_full_storage_is_said(page: Page) -> None:
    page.evaluate("""() => {
        for (let size = 1 << 22; size >= 1; size >>= 1)
            try { for (let n = 0; ; n += 1) localStorage.setItem(`filler-${size}-${n}`, "x".repeat(size)); } catch {}
    }""")
    ask(page, delta_chunk(content="Hi"))
    expect(page.locator("#storage-error")).to_contain_text("storage is full")
    expect(page.locator(".assistant .text")).to_have_text("Hi")
    page.evaluate("localStorage.clear()")
    ask(page, delta_chunk(content="Ho"))
    expect(page.locator("#storage-error")).to_be_hidden()
