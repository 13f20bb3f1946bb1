"""The client for asyncio; the counterpart of `client`, statement by statement."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
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


def _coroutine_method(
    endpoint: Callable[Concatenate[Any, P], Call[Any, T]],
    run: Callable[[AsyncClient, Call[Any, Any]], Coroutine[Any, Any, Any]],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    """The method of `AsyncClient` that runs the call of an endpoint and is awaited."""

    @functools.wraps(endpoint)
    async def method(self: AsyncClient, *args: P.args, **kwargs: P.kwargs) -> T:
        return await run(self, endpoint(self, *args, **kwargs))

    return method


def _generator_method(
    endpoint: Callable[Concatenate[Any, P], Call[Any, T]], run: Callable[[AsyncClient, Call[Any, Any]], Any]
) -> Callable[Concatenate[AsyncClient, P], T]:
    """The method of `AsyncClient` that runs the call of an endpoint and returns an asynchronous generator at once."""

    @functools.wraps(endpoint)
    def method(self: AsyncClient, *args: P.args, **kwargs: P.kwargs) -> T:
        return run(self, endpoint(self, *args, **kwargs))

    return method


class AsyncClient:
    """Client of a text-generation server for asyncio. See `Client`; the methods are coroutines.

    Connections belong to the event loop that opened them; a new loop gets new ones.

    >>> import asyncio
    >>> async def main():
    ...     async with AsyncClient("http://127.0.0.1:3000") as client:
    ...         async for answer in client.generate_stream("The capital of France is", max_new_tokens=2):
    ...             print(answer.token.text)
    >>> asyncio.run(main())
     Paris
    .
    """

    def __init__(
        self,
        base_url: str,
        headers: Mapping[str, str] | None = None,
        cookies: Mapping[str, str] | None = None,
        timeout: float | None = 10,
        *,
        max_retries: int = 2,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Set up the client, with the arguments of `Client`; nothing is sent.

        Raises:
            ValidationError: An argument makes no sense.
        """
        self._settings = Settings(base_url, headers, cookies, timeout, max_retries)
        self._transport = transport
        self._http: httpx.AsyncClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def close(self) -> None:
        """Close the connections; streams that still run end with an error."""
        if self._http is not None and self._loop is asyncio.get_running_loop():
            await self._http.aclose()
        self._http = None

    async def __aenter__(self) -> AsyncClient:
        """Return the client itself."""
        return self

    async def __aexit__(self, *exception: object) -> None:
        """Close the connections."""
        await self.close()

    def _connections(self) -> httpx.AsyncClient:
        """The connections of the running event loop."""
        loop = asyncio.get_running_loop()
        if self._http is None or self._loop is not loop:
            self._http = self._settings.connections(httpx.AsyncClient, self._transport)
            self._loop = loop
        return self._http

    async def _send(self, call: Call[Any, Any]) -> httpx.Response:
        """Send until the server accepts, or it is not safe to try again. The caller closes the response."""
        http = self._connections()
        method, content = message(call.body)
        attempt = 0
        while True:
            request = http.build_request(method, self._settings.url(call.path), **content)
            try:
                response = await http.send(request, stream=True)
                if response.is_success:
                    return response
                await response.aread()
                wait = self._settings.wait_after_refusal(response, attempt)
            except httpx.RequestError as error:
                wait = self._settings.wait_after_failure(error, attempt)
            await asyncio.sleep(wait)
            attempt += 1

    async def _run(self, call: Call[Any, Any]) -> Any:
        return self._events(call) if call.stream else await self._answer(call)

    async def _answer(self, call: Call[Any, Any]) -> Any:
        response = await self._send(call)
        try:
            body = await response.aread()
        except httpx.RequestError as error:
            self._settings.fail(error, reading=True)
        return call.parse(parse_json(body))

    async def _events(self, call: Call[Any, Any]) -> AsyncGenerator[Any, None]:
        response = await self._send(call)
        reader = EventReader(call.parse)
        try:
            async for chunk in response.aiter_bytes():
                for item in reader.feed(chunk):
                    yield item
        except httpx.RequestError as error:
            if not reader.complete:
                self._settings.fail(error, reading=True)
        finally:
            await response.aclose()
        reader.end()

    generate = _coroutine_method(endpoints.generate, _run)
    generate_stream = _generator_method(endpoints.generate_stream, _events)
    models = _coroutine_method(endpoints.models, _run)
    classify = _coroutine_method(endpoints.classify, _run)
    score = _coroutine_method(endpoints.score, _run)
    image_limits = _coroutine_method(endpoints.image_limits, _run)

    @overload
    async def completion(
        self, prompt: Prompts, *, stream: Literal[False] = False, **options: Unpack[CompletionOptions]
    ) -> Completion: ...

    @overload
    async def completion(
        self, prompt: Prompts, *, stream: Literal[True], **options: Unpack[CompletionOptions]
    ) -> AsyncGenerator[CompletionComplete, None]: ...

    @functools.wraps(endpoints.completion)
    async def completion(self, *args: Any, **kwargs: Any) -> Any:
        """Complete one prompt or several; see `endpoints.completion`."""
        return await self._run(endpoints.completion(self, *args, **kwargs))

    @overload
    async def chat(
        self, messages: Messages, *, stream: Literal[False] = False, **options: Unpack[ChatOptions]
    ) -> ChatComplete: ...

    @overload
    async def chat(
        self, messages: Messages, *, stream: Literal[True], **options: Unpack[ChatOptions]
    ) -> AsyncGenerator[ChatCompletionChunk, None]: ...

    @functools.wraps(endpoints.chat)
    async def chat(self, *args: Any, **kwargs: Any) -> Any:
        """Let the model answer a chat; see `endpoints.chat`."""
        return await self._run(endpoints.chat(self, *args, **kwargs))

    async def run_tools(
        self,
        messages: Messages,
        tools: Sequence[Callable[..., Any]],
        *,
        max_turns: int = MAX_TURNS,
        **options: Unpack[RunOptions],
    ) -> ToolRun:
        """Chat, and carry out the model's calls of Python functions, until it answers; see `Client.run_tools`.

        Functions may be asynchronous; others run in threads. The calls of one answer run at the same time.
        """
        toolbox = ToolBox(tools)
        loop = ToolLoop(messages, toolbox, {**options}, max_turns)
        while True:
            answer = await self.chat(loop.messages, **loop.options)
            calls = loop.take(answer)
            if not calls:
                return ToolRun(answer, [*loop.messages, answer.message])
            loop.give(await asyncio.gather(*(toolbox.run_async(call) for call in calls)))
