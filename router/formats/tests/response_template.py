"""Reads answers with transformers' own parser and the `response_template`s that TRL has for models.

Takes `[{"template", "prefix", "text", "tools"}]` as JSON from standard input; prints `{"templates", "messages"}`, a
message for each answer.
"""

from __future__ import annotations

import ast
import json
import sys
from importlib import metadata
from typing import Any

from transformers.utils.chat_parsing import parse_response

# The module that has the templates. It cannot be imported: TRL is installed without what it depends on.
MODULE = "trl/chat_template_utils.py"


def templates() -> dict[str, Any]:
    """The templates by the names of their variables."""
    files = metadata.files("trl") or []
    source = next(file for file in files if str(file) == MODULE).read_text()
    names: dict[str, Any] = {"_SUPPORTS_PARSE_RESPONSE_TOOLS": True}
    for node in ast.parse(source).body:
        if is_template(node):
            exec(compile(ast.Module([node], []), MODULE, "exec"), names)
    return {name: value for name, value in names.items() if isinstance(value, dict) and "start_anchor" in str(value)}


def is_template(node: ast.stmt) -> bool:
    """Whether a statement assigns a template, or a part of a pattern in one."""
    if isinstance(node, ast.For):
        return "_LFM2" in ast.dump(node)
    if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
        return False
    name = node.targets[0].id
    is_part = name.startswith(("_XML_INLINE", "_LFM2"))
    return is_part or (name.endswith("_template") and isinstance(node.value, ast.Dict))


def read(case: dict[str, Any], template: dict[str, Any]) -> dict[str, Any]:
    """The message that an answer is, or why it is none."""
    try:
        return parse_response(case["text"], template, prefix=case["prefix"], tools=case["tools"])
    except ValueError as error:
        return {"error": str(error)}


def main() -> None:
    known = templates()
    messages = [read(case, known[case["template"]]) for case in json.load(sys.stdin)]
    json.dump({"templates": known, "messages": messages}, sys.stdout)


main()
