"""What the tests of the page at `/ui` do with it; `tab` is "chat" or "completion"."""

from __future__ import annotations

import json
import os
from pathlib import Path

from playwright.sync_api import Locator, Page, Route, expect

PATHS = {"chat": "/v1/chat/completions", "completion": "/v1/completions"}
# As short as the page shows it.
MODEL = Path(os.path.relpath(Path(__file__).parents[1] / "models" / "demo"))
KEY = "Schlüssel 1"
# A whole answer, on a machine that has other work too.
expect.set_options(timeout=30_000)


def send(page: Page, text: str, tab: str = "chat") -> None:
    field = page.locator("#message" if tab == "chat" else "#prompt")
    field.fill(text)
    field.press("Control+Enter")


def status(page: Page, tab: str = "chat") -> Locator:
    return page.locator(f"#{tab} .status")


def error(page: Page, tab: str = "chat") -> Locator:
    return page.locator(f"#{tab} .error")


def open_settings(page: Page) -> None:
    if page.locator("#settings").is_hidden():
        page.click("#toggle-settings")


def set_fields(page: Page, **values: object) -> None:
    """Fills fields of the settings, by their names; an empty text leaves one to the server."""
    open_settings(page)
    for name, value in values.items():
        page.fill(f"#{name}", str(value))


def show_probabilities(page: Page) -> None:
    set_fields(page, top_logprobs=5)


def messages(page: Page, role: str) -> Locator:
    return page.locator(f"article.{role}")


def act(message: Locator, name: str) -> None:
    """Presses a button of a message."""
    message.get_by_role("button", name=name, exact=True).click()


def done(page: Page, tab: str = "chat") -> None:
    """Waits for the end of an answer."""
    expect(page.locator(f"#{tab} .send")).to_be_visible()


def change_body(page: Page, tab: str, **fields: object) -> None:
    """Adds fields that the page cannot send."""

    def change(route: Route) -> None:
        route.continue_(post_data=json.dumps({**route.request.post_data_json, **fields}))

    page.route(f"**{PATHS[tab]}", change)


def answer_with(page: Page, tab: str, *events: object) -> None:
    """Answers the page in place of the server, with what a small model does not do when it is asked to."""
    body = "".join(f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n" for event in events)
    page.route(f"**{PATHS[tab]}", lambda route: route.fulfill(content_type="text/event-stream", body=body))


def delta_chunk(finish_reason: str | None = None, **delta: object) -> dict:
    """A part of an answer, as it comes without probabilities."""
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    return {"choices": [choice], "usage": None}


def chat_chunk(text: str, *top: str) -> dict:
    """A token with its probability and what else it could have been."""
    tokens = [{"token": token, "logprob": -1.5, "bytes": []} for token in (text, *top)]
    logprobs = {"content": [{**tokens[0], "top_logprobs": tokens}]}
    choice = {"index": 0, "delta": {"content": text}, "logprobs": logprobs, "finish_reason": None}
    return {"choices": [choice], "usage": None}
