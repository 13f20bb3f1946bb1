"""How the page at `/ui` lies in its window: what stays in view, drawers, themes, code, formulas. `make test-ui`."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from harness import Server, wait_for
from playwright.sync_api import Locator, Page, expect
from ui_page import (
    answer_with,
    change_body,
    delta_chunk,
    done,
    messages,
    open_settings,
    send,
    set_fields,
    show_probabilities,
    status,
)

pytest_plugins = ("ui_fixtures",)

WINDOWS = {"desktop": {"width": 1280, "height": 800}, "phone": {"width": 390, "height": 844}}
LONG = "\n\n".join(f"Paragraph {number}." for number in range(80))
THEMES = ("system", "light", "dark")


def answered(page: Page, text: str, question: str = "Hello!") -> Locator:
    """The answer of this text, as the page shows it."""
    answer_with(page, "chat", delta_chunk(content=text), delta_chunk("stop"), "[DONE]")
    send(page, question)
    done(page)
    return messages(page, "assistant").last


def left(page: Page) -> float:
    """How many pixels of the conversation are below what is shown."""
    return page.locator("#chat .scroll").evaluate(
        "element => element.scrollHeight - element.clientHeight - element.scrollTop"
    )


def scroll_to_top(page: Page) -> None:
    page.locator("#chat .scroll").evaluate("element => element.scrollTo(0, 0)")


@pytest.fixture(params=WINDOWS)
def page(request: pytest.FixtureRequest, server: Server, visit: Callable[..., Page]) -> Page:
    return visit(server, viewport=WINDOWS[request.param])


def test_the_composer_stays_in_the_window_and_the_page_follows_the_answer(page: Page) -> None:
    for number in range(3):
        answered(page, LONG, f"Question {number}")
        for part in ("#message", "#chat .send", "#model"):
            expect(page.locator(part)).to_be_in_viewport(ratio=1)
        assert left(page) < 1, "the end of the answer is shown"
        assert page.evaluate("document.documentElement.scrollHeight <= window.innerHeight"), (
            "the page has no scroll bar"
        )


def test_stop_is_in_the_window_and_an_answer_is_followed_until_one_scrolls_back(page: Page) -> None:
    change_body(page, "chat", ignore_eos=True)
    send(page, "Once upon a time")
    expect(page.locator("#chat .stop")).to_be_in_viewport(ratio=1)
    expect(page.locator("#chat .send")).to_be_hidden()
    wait_for(lambda: page.locator("#chat .scroll").evaluate("element => element.scrollTop > 100"), "text to follow")
    assert left(page) < 40
    scroll_to_top(page)
    before = messages(page, "assistant").last.inner_text()
    expect(messages(page, "assistant").last).not_to_have_text(before)
    assert page.locator("#chat .scroll").evaluate("element => element.scrollTop") == 0, "it stays where its reader is"
    page.click("#chat .to-end")
    assert left(page) < 40
    expect(page.locator("#chat .to-end")).to_be_hidden()
    page.press("#message", "Escape")
    expect(status(page)).to_have_text(re.compile("stopped here$"))


def test_the_field_grows_with_the_message_up_to_a_limit(page: Page) -> None:
    field = page.locator("#message")
    low = field.bounding_box()["height"]
    field.fill("one\ntwo\nthree")
    assert field.bounding_box()["height"] > low
    field.fill("line\n" * 100)
    assert field.bounding_box()["height"] < page.viewport_size["height"] / 2
    expect(page.locator("#chat .send")).to_be_in_viewport(ratio=1)
    answered(page, "Hi", "short")
    assert field.bounding_box()["height"] == low


def test_drawers_open_and_close(server: Server, visit: Callable[..., Page]) -> None:
    wide = visit(server, viewport=WINDOWS["desktop"])
    expect(wide.locator("#conversations")).to_be_visible()
    expect(wide.locator("#settings")).to_be_hidden()
    wide.click("#toggle-conversations")
    expect(wide.locator("#conversations")).to_be_hidden()
    phone = visit(server, viewport=WINDOWS["phone"])
    for name, other in (("conversations", "settings"), ("settings", "conversations")):
        expect(phone.locator(f"#{name}")).to_be_hidden()
        phone.click(f"#toggle-{name}")
        expect(phone.locator(f"#{name} .close")).to_be_focused()
        expect(phone.locator(f"#toggle-{name}")).to_have_attribute("aria-expanded", "true")
        expect(phone.locator(f"#{other}")).to_be_hidden()
        phone.keyboard.press("Escape")
        expect(phone.locator(f"#{name}")).to_be_hidden()
        expect(phone.locator(f"#toggle-{name}")).to_be_focused()
    phone.click("#toggle-settings")
    phone.mouse.click(5, 400)
    expect(phone.locator("#settings")).to_be_hidden()
    answered(phone, "Hi", "First")
    phone.click("#new-chat")
    phone.click("#toggle-conversations")
    phone.keyboard.press("Escape")
    phone.click("#completion-tab")
    phone.click("#toggle-conversations")
    phone.click("text=First")
    expect(phone.locator("#conversations")).to_be_hidden()
    expect(phone.locator(".assistant .text")).to_have_text("Hi")


def test_a_system_prompt_is_named_above_the_chat(page: Page) -> None:
    expect(page.locator("#system-note")).to_be_hidden()
    set_fields(page, system="Be kind.\nBe short.")
    page.locator("#system").blur()
    page.click("#settings .close")
    expect(page.locator("#system-note")).to_have_text("System prompt: Be kind.")
    page.click("#system-note")
    expect(page.locator("#system")).to_be_focused()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_theme_is_chosen_and_kept(server: Server, visit: Callable[..., Page], scheme: str) -> None:
    page = visit(server, color_scheme=scheme)
    channel = "Number(getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0])"
    open_settings(page)
    for theme in (*THEMES, "system"):
        page.select_option("#theme", theme)
        dark = (scheme if theme == "system" else theme) == "dark"
        assert (page.evaluate(channel) < 64) == dark
        page.reload()
        assert (page.evaluate(channel) < 64) == dark
        open_settings(page)
        expect(page.locator("#theme")).to_have_value(theme)
    assert page.context.storage_state()["origins"] == [], "the system's is no choice"


def test_messages_and_code_are_copied(server: Server, visit: Callable[..., Page]) -> None:
    page = visit(server, permissions=["clipboard-read", "clipboard-write"])
    source = "A *word*.\n\n```python\nif x < 1:\n    print('é')\n```"
    answer = answered(page, source, "What\nis it?")
    for button, text in (
        (answer.get_by_role("button", name="Copy code"), "if x < 1:\n    print('é')"),
        (answer.get_by_role("button", name="Copy", exact=True), source),
        (messages(page, "user").get_by_role("button", name="Copy"), "What\nis it?"),
    ):
        button.click()
        expect(button).to_have_attribute("title", "Copied")
        assert page.evaluate("navigator.clipboard.readText()") == text
    # Pages that do not come from HTTPS or this machine get no clipboard.
    page.evaluate("delete Navigator.prototype.clipboard")
    button = messages(page, "user").get_by_role("button", name="Copy")
    expect(button).to_have_attribute("title", "Copy")
    button.click()
    expect(button).to_have_attribute("title", "Copied")


def test_code_is_coloured_by_its_language(page: Page) -> None:
    answer = answered(page, "```python\ndef f():\n    return 'x'\n```\n\n```\ndef\n```\n\n```nonsense\ndef\n```")
    blocks = answer.locator(".code-block")
    expect(blocks.locator(".code-head span")).to_have_text(["python", "text", "nonsense"])
    expect(blocks.nth(0).locator(".hljs-keyword")).to_have_text(["def", "return"])
    expect(blocks.nth(1).locator("span[class]")).to_have_count(0)
    colours = (
        blocks.nth(0)
        .locator("span[class^=hljs]")
        .evaluate_all("spans => [...new Set(spans.map(span => getComputedStyle(span).color))]")
    )
    assert len(colours) > 1


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("so $x^2$ is", ["inline"]),
        (r"so \(x^2\) is", ["inline"]),
        ("so\n\n$$\nx^2\n$$\n\nis", ["block"]),
        ("so\n\\[\nx^2 \\\\ y\n\\]\nis", ["block"]),
        (r"so \[ x^2 \] is", ["block"]),
        ("- so\n\n  $$x^2$$\n- is", ["block"]),
        ("| a |\n|---|\n| $x$ |", ["inline"]),
        ("$5 and $10, $HOME/$USER, US$1 and US$2, 5$", []),
        (r"a \$x\$ and `$x$` and $ x $ and $$", []),
        ("```\n$x$\n\\[y\\]\n```", []),
        (r"open \( and \[ and $$x", []),
    ],
)
def test_latex_is_shown_as_formulas(server: Server, visit: Callable[..., Page], source: str, shown: list[str]) -> None:
    answer = answered(visit(server), source)
    kinds = "found => found.map(math => math.getAttribute('display') === 'block' ? 'block' : 'inline')"
    assert answer.locator("math").evaluate_all(kinds) == shown


def test_latex_that_is_wrong_or_steers_is_shown_as_it_is(server: Server, visit: Callable[..., Page]) -> None:
    answer = answered(visit(server), r"$\frac{1$ and $\nonsense{x}$ and $\href{javascript:alert(1)}{x}$ and $y$")
    expect(answer).to_contain_text(r"\frac{1")
    expect(answer.locator("a, [href]")).to_have_count(0)
    expect(answer.locator("math").last).to_have_text("y")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone_and_both_colour_schemes(server: Server, visit: Callable[..., Page], scheme: str) -> None:
    page = visit(server, color_scheme=scheme, viewport={"width": 360, "height": 740}, has_touch=True)
    show_probabilities(page)
    page.click("#settings .close")
    send(page, "Tell me a story")
    done(page)
    page.locator(".token").first.tap()
    expect(page.locator("#tip")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    for drawer in ("conversations", "settings"):
        page.click(f"#toggle-{drawer}")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        page.keyboard.press("Escape")
    names = "fields => fields.filter(field => !field.labels?.length).map(field => field.id)"
    assert page.locator("input, textarea, select").evaluate_all(names) == [], "every field has a label"
    unnamed = "buttons => buttons.filter(one => !(one.textContent.trim() || one.ariaLabel)).length"
    assert page.locator("button").evaluate_all(unnamed) == 0, "every button has a name"


def test_a_long_line_scrolls_in_itself(server: Server, visit: Callable[..., Page]) -> None:
    page = visit(server, viewport=WINDOWS["phone"])
    long = "x = " + "+ 1 " * 200
    answer = answered(page, f"```py\n{long}\n```\n\n$$\n{long}\n$$\n\n| {'a | ' * 30}\n|{'---|' * 30}\n\n" + "w" * 500)
    assert page.evaluate("document.documentElement.scrollWidth") <= WINDOWS["phone"]["width"]
    column = answer.bounding_box()["width"]
    for part in answer.locator(".prose > *").all():
        assert part.bounding_box()["width"] <= column


def test_what_grows_keeps_its_selection(server: Server, visit: Callable[..., Page]) -> None:
    """The elements that an answer has already are not made anew with every token."""
    page = visit(server)
    send(page, "Once upon a time")
    text = page.locator(".assistant .text p").first
    expect(text).not_to_be_empty()
    page.evaluate("window.first = document.querySelector('.assistant .text p').firstChild")
    done(page)
    assert page.evaluate("window.first.isConnected")
