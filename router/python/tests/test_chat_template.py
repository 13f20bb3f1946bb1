"""Prompts, byte for byte those of transformers: own templates for each construct, and those of real models."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from transformers.utils import chat_template_utils

import text_generation_router as router

TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
SYSTEM = {"role": "system", "content": "Be <b>brief</b> & 'kind'.\n"}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": 'The weather in a "city" — été <now>',
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "A city's name"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
ARGUMENTS: dict[str, Any] = {"city": "Zürich", "days": 3, "more": [1.5, None, True, -0.0], "empty": {}}
Message = dict[str, Any]


# Its own annotations are incomplete.
render_jinja_template: Callable[..., Any] = getattr(chat_template_utils, "render_jinja_template")  # noqa: B009


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


def tool_use(arguments: Any) -> list[Message]:
    function = {"name": "get_weather", "arguments": arguments}
    call = {"id": "abcdefghi", "type": "function", "function": function}
    answer = {"role": "tool", "name": "get_weather", "tool_call_id": "abcdefghi", "content": '{"t": 20}'}
    return [user("And now?"), {"role": "assistant", "content": "", "tool_calls": [call]}, answer]


CONVERSATIONS: dict[str, list[Message]] = {
    "user": [user("Hello <you> & 'me' \n")],
    "system": [SYSTEM, user(" Hi 🙂 你好 {{ x }} {% if %}")],
    "turns": [user("a"), assistant("b  "), user("c\n\nd")],
    "system and turns": [
        SYSTEM,
        user("a"),
        assistant("<think>\nhm\n</think>\n\nb"),
        user("c"),
        assistant("d"),
        user("e"),
    ],
    "answer last": [user("a"), assistant("The answer is")],
    "tool": tool_use(ARGUMENTS),
    "after a tool": [SYSTEM, *tool_use(ARGUMENTS), assistant("20"), user("Thanks")],
    "wrong order": [assistant("x"), assistant("y")],
    "odd role": [user("x"), {"role": "critic", "content": "z"}, user("y")],
}
ENDS = {"prompt": (True, False), "plain": (False, False), "continued": (False, True)}


def reference(source: str, messages: list[Message], tools: list[Message] | None, end: str) -> str | None:
    """What transformers renders; None where it, or the template, refuses."""
    add, go_on = ENDS[end]
    try:
        return render_jinja_template(
            conversations=[copy.deepcopy(messages)],
            tools=tools,
            chat_template=source,
            add_generation_prompt=add,
            continue_final_message=go_on,
            **TOKENS,
        )[0][0]
    except Exception:  # Jinja's, Python's and its own: whatever a template runs into.
        return None


def ours(template: router.ChatTemplate, messages: list[Message], tools: list[Message] | None, end: str) -> str | None:
    add, go_on = ENDS[end]
    try:
        return template.render(messages, tools, add, go_on)
    except ValueError:
        return None


def compare(source: str, conversations: dict[str, list[Message]], ends: Iterable[str] = ENDS) -> int:
    """Render everything both ways; return how many prompts there were."""
    template = router.ChatTemplate({"default": source}, TOKENS)
    prompts = 0
    for (name, messages), tools, end in itertools.product(conversations.items(), (None, [TOOL]), ends):
        expected = reference(source, messages, tools, end)
        assert ours(template, messages, tools, end) == expected, f"{name}, {tools is not None=}, {end}"
        prompts += expected is not None
    return prompts


# One construct each; `c` is the content of the first message.
CONSTRUCTS = sorted((Path(__file__).parent / "templates").glob("*.jinja"))
# What marks the end of a text to continue would be seen by `reverse` and its like.
COMPLETE = ("prompt", "plain")


@pytest.mark.parametrize("path", CONSTRUCTS, ids=lambda path: path.stem)
def test_constructs_render_as_in_transformers(path: Path) -> None:
    prompts = compare(path.read_text(encoding="utf-8"), CONVERSATIONS, COMPLETE)
    assert (prompts == 0) == (path.stem == "undefined_attribute")


def test_lines_of_a_template_may_end_as_on_windows() -> None:
    assert compare("a\r\n{% if true %}\r\nb\r{% endif %}\r\n", CONVERSATIONS, COMPLETE) > 0


def carried() -> list[Path]:
    """Chat templates of models that an installed package carries."""
    files = metadata.files("trl") or []
    paths = [Path(str(file.locate())) for file in files if file.match("trl/chat_templates/*.jinja")]
    return sorted(paths)


# Written for parts alone: transformers prints nothing for the text that a text is.
ONLY_PARTS = {"idefics3", "llava_next", "smolvlm"}
# Written for the JSON text of arguments: transformers fails on objects.
ARGUMENT_TEXT = {"deepseekv3"}


def in_parts(messages: list[Message]) -> list[Message]:
    return [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in messages]


@pytest.mark.parametrize("path", carried(), ids=lambda path: path.stem)
def test_real_models_render_as_in_transformers(path: Path) -> None:
    conversations = CONVERSATIONS
    family = path.stem.removesuffix("_training")
    if family in ONLY_PARTS:
        conversations = {name: in_parts(messages) for name, messages in CONVERSATIONS.items()}
    if path.stem in ARGUMENT_TEXT:
        text = json.dumps(ARGUMENTS, ensure_ascii=False)
        conversations = {**CONVERSATIONS, "tool": tool_use(text), "after a tool": [*tool_use(text), assistant("20")]}
    assert compare(path.read_text(encoding="utf-8"), conversations) > 0


def test_there_are_templates_of_many_families() -> None:
    families = {path.stem.split("_")[0].rstrip("0123456789") for path in carried()}
    assert {"cohere", "deepseek", "gemma", "glm4moe", "gptoss", "lfm", "llama", "nemotron", "phi", "qwen"} <= families


def test_a_text_reaches_a_template_for_parts() -> None:
    source = next(path for path in carried() if path.stem == "smolvlm").read_text(encoding="utf-8")
    template = router.ChatTemplate({"default": source}, TOKENS)
    assert template.render([user("hi")]) == reference(source, in_parts([user("hi")]), None, "prompt")


def test_variables_of_the_template_can_be_set() -> None:
    source = next(path for path in carried() if path.stem == "qwen3").read_text(encoding="utf-8")
    template = router.ChatTemplate({"default": source})
    expected = render_jinja_template(
        conversations=[[user("hi")]], chat_template=source, add_generation_prompt=True, enable_thinking=False
    )[0][0]
    assert template.render([user("hi")], enable_thinking=False) == expected
    with pytest.raises(ValueError, match=r"`chat_template_kwargs\.bos_token` is not a variable"):
        template.render([user("hi")], bos_token="x")


@pytest.mark.parametrize(
    ("source", "kwargs"),
    [
        ("{% set on = on if on is not undefined else true %}{{ on }}", {"on": False}),
        ("{%- set effort = effort | default('low') -%}{{ effort }}", {"effort": "high"}),
        ("{% if not day is defined %}{% set day = 'Monday' %}{% endif %}{{ day }}", {"day": "Friday"}),
        ("{% for d in documents or [] %}{{ d['title'] }}{{ d | tojson }}{% endfor %}", {"documents": [{"title": "T"}]}),
    ],
)
def test_variables_with_defaults_and_documents_can_be_set(source: str, kwargs: dict[str, Any]) -> None:
    template = router.ChatTemplate({"default": source})
    for given in ({}, kwargs):
        expected = render_jinja_template(conversations=[[user("hi")]], chat_template=source, **given)[0][0]
        assert template.render([user("hi")], **given) == expected


def test_parts_that_a_template_knows_reach_it() -> None:
    source = (
        "{% for m in messages %}{% for p in m.content %}"
        "{% if p.type == 'tool_reference' %}<ref>{{ p.name }}</ref>{% else %}{{ p.text }}{% endif %}"
        "{% endfor %}{% endfor %}"
    )
    messages = [{"role": "tool", "content": [{"type": "text", "text": "a"}, {"type": "tool_reference", "name": "f"}]}]
    assert router.ChatTemplate({"default": source}).render(messages) == reference(source, messages, None, "prompt")


def test_a_folder_is_loaded(tmp_path: Path) -> None:
    assert router.ChatTemplate.load(str(tmp_path)) is None
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}{{ messages[0].content }}")
    (tmp_path / "other.json").write_text(json.dumps({"bos_token": "<b>"}))
    template = router.ChatTemplate.load(str(tmp_path), str(tmp_path / "other.json"))
    assert template is not None
    assert template.render([user("hi")]) == "<b>hi"
    with pytest.raises(ValueError, match="cannot be compiled"):
        router.ChatTemplate({"default": "{% if %}"})
