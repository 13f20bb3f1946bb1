"""The blocking client: sending, retrying, streaming. What is sent and how it is read is in `endpoints`."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, overload

import httpx

from text_generation import endpoints
from text_generation.endpoints import Call, ChatOptions, CompletionOptions, Messages, Prompts, RunOptions
from text_generation.sse import EventReader, parse_json
from text_generation.tool_loop import MAX_TURNS, ToolLoop, ToolRun
from text_generation.tools import ToolBox
from text_generation.transport import Settings, message
from text_generation.types import ChatComplete, ChatCompletionChunk, Completion, CompletionComplete

if TYPE_CHECKING:
    from typing_extensions import Unpack

P = ParamSpec("P")
T = TypeVar("T")


def _method(
    endpoint: Callable[Concatenate[Any, P], Call[T, Any]], run: Callable[[Client, Call[Any, Any]], Any]
) -> Callable[Concatenate[Client, P], T]:
    """The method of `Client` that runs the call of an endpoint."""

    @functools.wraps(endpoint)
    def method(self: Client, *args: P.args, **kwargs: P.kwargs) -> T:
        return run(self, endpoint(self, *args, **kwargs))

    return method


class Client:
    """Client of a text-generation server. Threads may share it.

    It keeps connections open until `close`, or the end of its `with` block.

    >>> with Client("http://127.0.0.1:3000") as client:
    ...     print(client.generate("The capital of France is", max_new_tokens=2).generated_text)
     Paris.
    """

    def __init__(
        self,
        base_url: str,
        headers: Mapping[str, str] | None = None,
        cookies: Mapping[str, str] | None = None,
        timeout: float | None = 10,
        *,
        max_retries: int = 2,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """Set up the client; nothing is sent.

        Args:
            base_url: Address of the server, such as `http://127.0.0.1:3000`.
            headers: Sent with every request; `{"Authorization": "Bearer <key>"}` if the server has an API key.
            cookies: Sent with every request.
            timeout: Longest silence of the server in seconds, None for no limit. A whole generation is silence
                unless it is streamed.
            max_retries: How often a request is sent again if the connection was refused, or if the server was busy
                and said when to come back. Nothing that may have begun is sent again.
            transport: Replaces the network, for tests and proxies; see the documentation of httpx.

        Raises:
            ValidationError: An argument makes no sense.
        """
        self._settings = Settings(base_url, headers, cookies, timeout, max_retries)
        self._http = self._settings.connections(httpx.Client, transport)

    def close(self) -> None:
        """Close the connections; streams that still run end with an error."""
        self._http.close()

    def __enter__(self) -> Client:
        """Return the client itself."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close the connections."""
        self.close()

    def _send(self, call: Call[Any, Any]) -> httpx.Response:
        """Send until the server accepts, or it is not safe to try again. The caller closes the response."""
        method, content = message(call.body)
        attempt = 0
        while True:
            request = self._http.build_request(method, self._settings.url(call.path), **content)
            try:
                response = self._http.send(request, stream=True)
                if response.is_success:
                    return response
                response.read()
                wait = self._settings.wait_after_refusal(response, attempt)
            except httpx.RequestError as error:
                wait = self._settings.wait_after_failure(error, attempt)
            time.sleep(wait)
            attempt += 1

    def _run(self, call: Call[Any, Any]) -> Any:
        return self._events(call) if call.stream else self._answer(call)

    def _answer(self, call: Call[Any, Any]) -> Any:
        response = self._send(call)
        try:
            body = response.read()
        except httpx.RequestError as error:
            self._settings.fail(error, reading=True)
        return call.parse(parse_json(body))

    def _events(self, call: Call[Any, Any]) -> Generator[Any, None, None]:
        response = self._send(call)
        reader = EventReader(call.parse)
        try:
            for chunk in response.iter_bytes():
                yield from reader.feed(chunk)
        except httpx.RequestError as error:
            if not reader.complete:
                self._settings.fail(error, reading=True)
        finally:
            response.close()
        reader.end()

    generate = _method(endpoints.generate, _run)
    generate_stream = _method(endpoints.generate_stream, _run)
    models = _method(endpoints.models, _run)
    classify = _method(endpoints.classify, _run)
    score = _method(endpoints.score, _run)
    image_limits = _method(endpoints.image_limits, _run)

    @overload
    def completion(
        self, prompt: Prompts, *, stream: Literal[False] = False, **options: Unpack[CompletionOptions]
    ) -> Completion: ...

    @overload
    def completion(
        self, prompt: Prompts, *, stream: Literal[True], **options: Unpack[CompletionOptions]
    ) -> Generator[CompletionComplete, None, None]: ...

    @functools.wraps(endpoints.completion)
    def completion(self, *args: Any, **kwargs: Any) -> Any:
        """Complete one prompt or several; see `endpoints.completion`."""
        return self._run(endpoints.completion(self, *args, **kwargs))

    @overload
    def chat(
        self, messages: Messages, *, stream: Literal[False] = False, **options: Unpack[ChatOptions]
    ) -> ChatComplete: ...

    @overload
    def chat(
        self, messages: Messages, *, stream: Literal[True], **options: Unpack[ChatOptions]
    ) -> Generator[ChatCompletionChunk, None, None]: ...

    @functools.wraps(endpoints.chat)
    def chat(self, *args: Any, **kwargs: Any) -> Any:
        """Let the model answer a chat; see `endpoints.chat`."""
        return self._run(endpoints.chat(self, *args, **kwargs))

    def run_tools(
        self,
        messages: Messages,
        tools: Sequence[Callable[..., Any]],
        *,
        max_turns: int = MAX_TURNS,
        **options: Unpack[RunOptions],
    ) -> ToolRun:
        """Chat, and carry out the model's calls of Python functions, until it answers.

        What goes wrong in a call (no such tool, wrong arguments, an exception of the function) is its result, as
        text: the model may try again. A `tool_choice` that forces a call holds for the first turn.

        >>> def weather(city: str) -> str:
        ...     "The weather in a city."
        ...     return "sunny"
        >>> messages = [{"role": "user", "content": "What is the weather in Paris?"}]
        >>> client.run_tools(messages, [weather]).answer.message.content
        ' Paris.'

        Args:
            messages: The conversation up to the question.
            tools: Functions with annotations and docstrings; see `tools.FunctionTool`.
            max_turns: Largest number of requests.
            options: Arguments of `chat`.

        Raises:
            TurnLimitError: The model still calls tools in the last turn.
            ValidationError: A function cannot be a tool.
            MissingDependencyError: pydantic is not installed.
            TextGenerationError: As `chat`.
        """
        toolbox = ToolBox(tools)
        toolbox.check_blocking()
        loop = ToolLoop(messages, toolbox, {**options}, max_turns)
        while True:
            answer = self.chat(loop.messages, **loop.options)
            calls = loop.take(answer)
            if not calls:
                return ToolRun(answer, [*loop.messages, answer.message])
            loop.give([toolbox.run(call) for call in calls])
