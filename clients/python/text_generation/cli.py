"""The command `text-generation`."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import sys
from collections.abc import Sequence

from text_generation import __version__
from text_generation.chat import Chat
from text_generation.client import Client
from text_generation.endpoints import ChatOptions
from text_generation.errors import ValidationError

API_KEY = "TEXT_GENERATION_API_KEY"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    options = _parser().parse_args(arguments)
    key = os.environ.get(API_KEY)
    headers = {"Authorization": f"Bearer {key}"} if key else None
    try:
        client = Client(options.url, headers=headers, timeout=options.timeout)
    except ValidationError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    chat_options = ChatOptions(
        max_tokens=options.max_tokens,
        temperature=options.temperature,
        top_p=options.top_p,
        seed=options.seed,
        stream_options={"include_usage": True},
    )
    with client:
        return Chat(client, options.system, chat_options, sys.stdout, sys.stderr).run(_read_line)


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
    chat.add_argument("--url", default="http://127.0.0.1:3000", help="address of the server (default: %(default)s)")
    chat.add_argument("--system", help="system prompt")
    chat.add_argument("--max-tokens", type=int, help="largest number of tokens of an answer")
    chat.add_argument("--temperature", type=float, help="0 takes the most likely token, higher values vary more")
    chat.add_argument("--top-p", type=float, help="sample from the most likely tokens with this total probability")
    chat.add_argument("--seed", type=int, help="seed of the random numbers")
    chat.add_argument("--timeout", type=float, default=60, help="longest silence in seconds (default: %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
