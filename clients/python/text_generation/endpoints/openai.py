"""The OpenAI API: completions and chats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

from text_generation import structured
from text_generation.codec import decode, encode
from text_generation.endpoints.call import Answer, Call, Stream, texts
from text_generation.tools import FunctionTool
from text_generation.types import (
    ChatComplete,
    ChatCompletionChunk,
    ChatRequest,
    Classes,
    ClassifyRequest,
    Completion,
    CompletionComplete,
    CompletionRequest,
    EarlyStopping,
    Grammar,
    Message,
    ModelList,
    ScoreRequest,
    Scores,
    Tool,
)

if TYPE_CHECKING:
    from pydantic import BaseModel

MODEL = "tgi"
"""The name that stands for the model the server runs, whatever it is."""


Prompts: TypeAlias = str | Sequence[str]
Messages: TypeAlias = Sequence[Message | dict[str, Any]]
Tools: TypeAlias = Sequence[Tool | dict[str, Any] | Callable[..., Any]]
ResponseFormat: TypeAlias = "Grammar | dict[str, Any] | type[BaseModel]"


class CompletionOptions(TypedDict, total=False):
    """Keyword arguments of `completion`, for type checkers."""

    frequency_penalty: float | None
    max_tokens: int | None
    repetition_penalty: float | None
    seed: int | None
    temperature: float | None
    top_p: float | None
    stop: str | Sequence[str] | None
    token_healing: bool
    n: int | None
    best_of: int | None
    use_beam_search: bool
    length_penalty: float | None
    early_stopping: EarlyStopping | None


class RunOptions(TypedDict, total=False):
    """Keyword arguments that `chat` and `run_tools` share, for type checkers."""

    repetition_penalty: float | None
    frequency_penalty: float | None
    logit_bias: list[float] | None
    logprobs: bool | None
    top_logprobs: int | None
    max_tokens: int | None
    presence_penalty: float | None
    seed: int | None
    temperature: float | None
    top_p: float | None
    tool_prompt: str | None
    tool_choice: str | dict[str, Any] | None
    parallel_tool_calls: bool | None
    stop: str | Sequence[str] | None
    response_format: ResponseFormat | None


class ChatOptions(RunOptions, total=False):
    """Keyword arguments of `chat`, for type checkers."""

    n: int | None
    tools: Tools | None
    stream_options: dict[str, Any] | None
    prediction: str | None
    use_beam_search: bool
    length_penalty: float | None
    early_stopping: EarlyStopping | None


def completion(
    _client: object,
    prompt: Prompts,
    frequency_penalty: float | None = None,
    max_tokens: int | None = None,
    repetition_penalty: float | None = None,
    seed: int | None = None,
    stream: bool = False,
    temperature: float | None = None,
    top_p: float | None = None,
    stop: str | Sequence[str] | None = None,
    token_healing: bool = False,
    n: int | None = None,
    best_of: int | None = None,
    use_beam_search: bool = False,
    length_penalty: float | None = None,
    early_stopping: EarlyStopping | None = None,
) -> Answer[Completion] | Stream[CompletionComplete]:
    """Complete one prompt or several, by the OpenAI API.

    With `stream` it returns an iterator of pieces; the `index` of a piece tells its prompt. With
    `token_healing` the end of a prompt need not be the end of a token. With `use_beam_search` the `n` most probable
    texts come back, found with `best_of` beams, or `n`, in the order of their `beam_score`. `AsyncClient` has the same
    method as a coroutine, which with `stream` gives an asynchronous iterator.

    >>> client.completion("The capital of France is", max_tokens=2).choices[0].text
    ' Paris.'

    Raises:
        TextGenerationError: The server refused or failed, or cannot be reached; see `errors`.
    """
    request = CompletionRequest(
        model=MODEL,
        prompt=prompt if isinstance(prompt, str) else list(prompt),
        repetition_penalty=repetition_penalty,
        frequency_penalty=frequency_penalty,
        max_tokens=max_tokens,
        stream=stream,
        seed=seed,
        temperature=temperature,
        top_p=top_p,
        stop=texts(stop),
        token_healing=token_healing or None,
        n=n,
        best_of=best_of,
        use_beam_search=use_beam_search or None,
        length_penalty=length_penalty,
        early_stopping=early_stopping,
    )
    return Call("/v1/completions", encode(request), stream, _pieces if stream else _completion)


def chat(
    _client: object,
    messages: Messages,
    repetition_penalty: float | None = None,
    frequency_penalty: float | None = None,
    logit_bias: list[float] | None = None,
    logprobs: bool | None = None,
    top_logprobs: int | None = None,
    max_tokens: int | None = None,
    n: int | None = None,
    presence_penalty: float | None = None,
    stream: bool = False,
    seed: int | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    tools: Tools | None = None,
    tool_prompt: str | None = None,
    tool_choice: str | dict[str, Any] | None = None,
    stop: str | Sequence[str] | None = None,
    *,
    response_format: ResponseFormat | None = None,
    stream_options: dict[str, Any] | None = None,
    parallel_tool_calls: bool | None = None,
    prediction: str | None = None,
    use_beam_search: bool = False,
    length_penalty: float | None = None,
    early_stopping: EarlyStopping | None = None,
) -> Answer[ChatComplete] | Stream[ChatCompletionChunk]:
    """Let the model answer a chat, by the OpenAI API.

    With `stream` it returns an iterator of chunks; closing it cancels the generation, and
    `stream_options={"include_usage": True}` asks for the token counts in a last chunk. `joining.ChunkJoiner` makes the
    whole answer of the chunks. `AsyncClient` has the same method as a coroutine, which with `stream` gives an
    asynchronous iterator.

    A pydantic model as `response_format` stands for its strict JSON schema; `ChatComplete.parse` reads the answer into
    it. A Python function among `tools` stands for its definition (`tools.FunctionTool`); `run_tools` calls functions.
    `images.Image` makes a part of a message of an image. A `prediction` is a text that the answer may resemble, such as
    the file that it edits: the answer is the same, and comes sooner from a server that drafts. With `use_beam_search`
    the choices are the `n` most probable answers, found with as many beams, in the order of their `beam_score`.

    >>> messages = [{"role": "user", "content": "What is the capital of France?"}]
    >>> client.chat(messages, max_tokens=2).choices[0].message.content
    ' Paris.'

    Raises:
        ValidationError: A function cannot be a tool, or `response_format` is a class that is no pydantic model.
        TextGenerationError: The server refused or failed, or cannot be reached; see `errors`.
    """
    request = ChatRequest(
        model=MODEL,
        messages=list(messages),
        repetition_penalty=repetition_penalty,
        frequency_penalty=frequency_penalty,
        logit_bias=logit_bias,
        logprobs=logprobs,
        top_logprobs=top_logprobs,
        max_tokens=max_tokens,
        n=n,
        presence_penalty=presence_penalty,
        stream=stream,
        seed=seed,
        temperature=temperature,
        top_p=top_p,
        tools=_definitions(tools),
        tool_prompt=tool_prompt,
        tool_choice=tool_choice,
        stop=texts(stop),
        response_format=structured.response_format_of(response_format),
        stream_options=stream_options,
        parallel_tool_calls=parallel_tool_calls,
        prediction=None if prediction is None else {"type": "content", "content": prediction},
        use_beam_search=use_beam_search or None,
        length_penalty=length_penalty,
        early_stopping=early_stopping,
    )
    return Call("/v1/chat/completions", encode(request), stream, _chunks if stream else _chat)


def score(
    _client: object,
    prompt: str | Sequence[int],
    choices: Sequence[str] | Sequence[Sequence[int]],
) -> Answer[Scores]:
    """How likely each of `choices` is to follow `prompt`: texts, or token ids, as the prompt is.

    >>> [score.score for score in client.score("Water is", [" wet", " dry"]).data]
    [-0.5, -1.5]

    Raises:
        TextGenerationError: The server refused or failed, or cannot be reached; see `errors`.
    """
    sent: list[Any] = [choice if isinstance(choice, str) else list(choice) for choice in choices]
    request = ScoreRequest(model=MODEL, prompt=prompt if isinstance(prompt, str) else list(prompt), choices=sent)
    return Call("/v1/score", encode(request), False, _scores)


def classify(
    _client: object,
    texts: Prompts | None = None,
    *,
    messages: Messages | None = None,
    use_activation: bool | None = None,
    truncate_prompt_tokens: int | None = None,
) -> Answer[Classes]:
    """The classes of `texts`, one or several, or of a conversation, of a server whose model is a classifier or a reward
    model.

    Args:
        texts: What is classified; leave it out where `messages` is given.
        messages: A conversation, of which the model's chat template makes the text.
        use_activation: With False, `probs` are the logits.
        truncate_prompt_tokens: Keeps so many tokens at the end of each text; -1 as many as the model can read.

    >>> [each.label for each in client.classify(["What a day!", "Never again."]).data]
    ['positive', 'negative']

    Raises:
        TextGenerationError: The server refused or failed, or cannot be reached; see `errors`.
    """
    request = ClassifyRequest(
        model=MODEL,
        input=texts if texts is None or isinstance(texts, str) else list(texts),
        messages=None if messages is None else list(messages),
        use_activation=use_activation,
        truncate_prompt_tokens=truncate_prompt_tokens,
    )
    return Call("/v1/classify", encode(request), False, _classes)


def models(_client: object) -> Answer[list[str]]:
    """The names of the models that the server has, by the OpenAI API; a server of this project has one.

    Raises:
        TextGenerationError: The server refused or failed, or cannot be reached; see `errors`.
    """
    return Call("/v1/models", None, False, _names)


def _definitions(tools: Tools | None) -> list[Tool | dict[str, Any]] | None:
    return None if tools is None else [tool if isinstance(tool, (Tool, dict)) else _definition(tool) for tool in tools]


def _definition(function: Callable[..., Any]) -> Tool:
    return FunctionTool(function).definition


def _completion(payload: Any) -> Completion:
    return decode(Completion, payload)


def _classes(payload: Any) -> Classes:
    return decode(Classes, payload)


def _scores(payload: Any) -> Scores:
    return decode(Scores, payload)


def _pieces(payload: Any) -> list[CompletionComplete]:
    return decode(Completion, payload).choices


def _chat(payload: Any) -> ChatComplete:
    return decode(ChatComplete, payload)


def _names(payload: Any) -> list[str]:
    return [model.id for model in decode(ModelList, payload).data]


def _chunks(payload: Any) -> list[ChatCompletionChunk]:
    return [decode(ChatCompletionChunk, payload)]
