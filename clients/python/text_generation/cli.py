"""The command `text-generation`."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from text_generation import __version__, terminal
from text_generation.chat import Chat
from text_generation.client import Client
from text_generation.endpoints import ChatOptions
from text_generation.errors import TextGenerationError, ValidationError
from text_generation.structured import json_schema_format
from text_generation.tools import ToolBox
from text_generation.transport import is_http

API_KEY = "TEXT_GENERATION_API_KEY"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    with terminal.prepared():
        return _chat(_parser().parse_args(arguments))


def _chat(options: argparse.Namespace) -> int:
    key = os.environ.get(API_KEY, "").strip()
    headers = {"Authorization": f"Bearer {key}"} if key else None
    try:
        client = Client(_address(options.url), headers=headers, timeout=options.timeout)
        tools = _tools(options.tools)
        response_format = _response_format(options.schema)
    except TextGenerationError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    chat_options = ChatOptions(
        max_tokens=options.max_tokens,
        temperature=options.temperature,
        top_p=options.top_p,
        seed=options.seed,
        response_format=response_format,
        stream_options={"include_usage": True},
    )
    with client:
        chat = Chat(client, options.system, chat_options, sys.stdout, sys.stderr, tools)
        return chat.run(_read_line) if chat.greet() else 1


def _address(url: str) -> str:
    """The address of the server: `http://` may be left out, and `/v1` be there, as other clients need it.

    Raises:
        ValidationError: It is none.
    """
    whole = url if "://" in url else f"http://{url}"
    if not is_http(whole):
        raise ValidationError(f"`--url` must be like http://host:port. Given: {url!r}")
    return re.sub(r"(/v1(/chat/completions)?)?/*$", "", whole.rstrip("/"))


def _tools(names: str | None) -> ToolBox:
    """The functions named `module:function,...`; modules of the working directory are found too.

    Raises:
        ValidationError: There is no such function, or it cannot be a tool.
    """
    if names is None:
        return ToolBox([])
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    toolbox = ToolBox([_function(name.strip()) for name in names.split(",")])
    toolbox.check_blocking()
    return toolbox


def _function(name: str) -> Callable[..., Any]:
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise ValidationError(f"`--tools` takes names like module:function. Given: {name!r}")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValidationError(f"`--tools` cannot load {name}: {error}") from error


def _response_format(path: str | None) -> dict[str, Any] | None:
    """The format that holds answers to the JSON schema in a file; raises `ValidationError`."""
    if path is None:
        return None
    try:
        schema: Any = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValidationError(f"`--schema` cannot read {path}: {error}") from error
    if not isinstance(schema, dict):
        raise ValidationError(f"`--schema` needs a JSON object in {path}")
    return json_schema_format(Path(path).stem, cast("dict[str, Any]", schema))


def _read_line() -> str:
    """The next line of standard input, with a prompt and line editing if a person types it."""
    if not sys.stdin.isatty():
        return input()
    with contextlib.suppress(ImportError):
        importlib.import_module("readline")  # Gives `input` history and editing; not every platform has it.
    return input("> ")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="text-generation", description="Client of a text-generation server.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    chat = commands.add_parser(
        "chat",
        help="talk to the model",
        description="Talk to the model. Each line of input is a message; /help lists the commands.",
        epilog=f"An API key is read from the environment variable {API_KEY}.",
    )
    chat.add_argument(
        "--url",
        default="http://127.0.0.1:3000",
        help="address of the server; also as host:port (default: %(default)s)",
    )
    chat.add_argument("--system", help="system prompt")
    chat.add_argument("--max-tokens", type=int, help="largest number of tokens of an answer")
    chat.add_argument("--temperature", type=float, help="0 takes the most likely token, higher values vary more")
    chat.add_argument("--top-p", type=float, help="sample from the most likely tokens with this total probability")
    chat.add_argument("--seed", type=int, help="seed of the random numbers")
    chat.add_argument(
        "--tools",
        metavar="MODULE:FUNCTION,...",
        help="Python functions that the model may call; they run here, with your rights",
    )
    chat.add_argument("--schema", metavar="FILE", help="hold answers to the JSON schema in this file")
    chat.add_argument("--timeout", type=float, default=60, help="longest silence in seconds (default: %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
