"""A chat in the terminal: answers stream in, and each is followed by a line with its speed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TextIO

from text_generation.client import Client
from text_generation.endpoints import ChatOptions
from text_generation.errors import ConnectionFailedError, TextGenerationError, UnauthorizedError, ValidationError
from text_generation.images import Image
from text_generation.joining import ChunkJoiner
from text_generation.screen import Screen, Speed
from text_generation.terminal import dragged_file, typed_path
from text_generation.tool_loop import ToolLoop
from text_generation.tools import ToolBox
from text_generation.types import Chunk, ImageLimits, Message

HELP = """/image PATH   add an image to the next message; a file that is dragged here is one too
/system TEXT  replace the system prompt (without TEXT: remove it)
/reset        forget the conversation, and images that were added
/exit         leave, as /quit and Ctrl-D do
Ctrl-C stops an answer; what came of it stays in the conversation."""


class Chat:
    """A conversation: the messages so far and where they are read from and written to."""

    def __init__(
        self,
        client: Client,
        system: str | None,
        options: ChatOptions,
        out: TextIO,
        notes: TextIO,
        tools: ToolBox | None = None,
    ) -> None:
        """Begin a conversation.

        Args:
            client: Sends the messages. Whoever made it closes it.
            system: System prompt, if any.
            options: Arguments of `Client.chat` for every answer.
            out: Gets the answers.
            notes: Gets what the model thinks, calls of tools, speeds, errors and help.
            tools: Functions that the model may call.
        """
        self._client = client
        self._system = system
        self._options = options
        self._screen = Screen(out, notes)
        self._tools = tools or ToolBox([])
        self._turns: list[Message] = []
        self._images: list[Image] = []

    @property
    def messages(self) -> list[Message]:
        """What the next request sends."""
        return [Message("system", self._system), *self._turns] if self._system else list(self._turns)

    def greet(self) -> bool:
        """Show which model answers, and how to get help; False, with the reason shown, if nobody would answer."""
        try:
            name = ", ".join(self._client.models())
        except (ConnectionFailedError, UnauthorizedError) as error:
            self._screen.note(f"error: {error}")
            return False
        except TextGenerationError:
            # Not every server lists its models.
            name = ""
        self._screen.note(f"{name or 'a model without a name'} answers; /help lists the commands")
        return True

    def run(self, read_line: Callable[[], str]) -> int:
        """Answer every line until the input ends.

        Args:
            read_line: Returns the next line; raises `EOFError` at the end.

        Returns:
            Exit status: 1 if the last question got no answer.
        """
        status = 0
        while True:
            try:
                line = read_line().strip()
            except (EOFError, KeyboardInterrupt):
                self._screen.note("")
                return status
            if line in ("/exit", "/quit"):
                return status
            if path := dragged_file(line):
                self._attach(path)
            elif line.startswith("/"):
                self._command(line)
            elif line:
                status = 0 if self._ask(line) else 1

    def _command(self, line: str) -> None:
        name, _, argument = line.partition(" ")
        if name == "/reset":
            self._turns.clear()
            self._images.clear()
        elif name == "/image" and argument.strip():
            self._attach(typed_path(argument.strip()))
        elif name == "/system":
            self._system = argument.strip() or None
        else:
            self._screen.note(HELP)

    def _attach(self, path: Path) -> None:
        """Let the image go with the next message, if the server would take it."""
        try:
            limits = self._limits()
            most, there = limits.max_images_per_request, self._count()
            if most is not None and there >= most:
                raise ValidationError(f"the server takes {most} images in a conversation, which has {there}")
            self._images.append(Image.from_path(path, max_bytes=limits.max_image_bytes))
        except TextGenerationError as error:
            self._screen.note(f"error: {error}")
        else:
            self._screen.note(f"[{path.name} goes with the next message]")

    def _count(self) -> int:
        """How many images the next request has so far."""
        parts = [part for turn in self._turns if isinstance(turn.content, list) for part in turn.content]
        return len(self._images) + sum(part.type == "image_url" for part in parts)

    def _limits(self) -> ImageLimits:
        """What the server takes; nothing is known of one that does not say."""
        try:
            return self._client.image_limits() or ImageLimits()
        except (ConnectionFailedError, UnauthorizedError):
            raise
        except TextGenerationError:
            return ImageLimits()

    def _ask(self, question: str) -> bool:
        """Stream the answer; a question without one does not stay in the conversation, nor do its images."""
        parts = [*self._images, Chunk("text", text=question)]
        said = Message("user", parts if self._images else question)
        self._images.clear()
        answer = _Answer(self._client, [*self.messages, said], self._tools, self._options)
        error: TextGenerationError | None = None
        try:
            answer.stream(self._screen)
        except TextGenerationError as caught:
            error = caught
        except KeyboardInterrupt:
            self._screen.note("\nstopped")
        self._screen.end()
        if turns := answer.turns():
            self._turns += [said, *turns]
        self._screen.note(f"error: {error}" if error else f"[{answer.speed}]")
        return error is None


class _Answer:
    """The answer to one question, with the calls of tools on the way to it."""

    def __init__(self, client: Client, messages: list[Message], tools: ToolBox, options: ChatOptions) -> None:
        self._client = client
        self._tools = tools
        self._loop = ToolLoop(messages, tools, options)
        self._asked = len(messages)
        self._joiner = ChunkJoiner()
        self.speed = Speed()

    def stream(self, screen: Screen) -> None:
        """Show the answer as it comes, until the model calls no more tools."""
        while True:
            self._turn(screen)
            calls = self._loop.take(self._joiner.answer())
            if not calls:
                return
            results: list[Message] = []
            for call in calls:
                results.append(self._tools.run(call))
                screen.call(call, results[-1])
            self._loop.give(results)

    def _turn(self, screen: Screen) -> None:
        self.speed, self._joiner = Speed(), ChunkJoiner()
        chunks = self._client.chat(self._loop.messages, stream=True, **self._loop.options)
        # Closed whatever happens: that is what stops the generation in the server.
        with closing(chunks):
            for chunk in chunks:
                self.speed.add(chunk)
                self._joiner.add(chunk)
                for choice in chunk.choices:
                    screen.delta(choice.delta)

    def turns(self) -> list[Message]:
        """What stays in the conversation: calls, their results, and the text that came; nothing without a text."""
        choices = self._joiner.answer().choices
        if not choices or not choices[0].message.content:
            return []
        said = Message("assistant", choices[0].message.content)
        before = self._loop.messages[self._asked :]
        return [message for message in before if isinstance(message, Message)] + [said]
