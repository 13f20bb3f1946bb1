"""Requests and answers of the OpenAI API (`/v1/completions`, `/v1/chat/completions`)."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from text_generation import structured
from text_generation.errors import UnknownError
from text_generation.types.generate import EarlyStopping, Grammar

if TYPE_CHECKING:
    from text_generation.structured import Model


@dataclass
class CompletionRequest:
    """Body of `POST /v1/completions`; see `Client.completion`."""

    model: str
    prompt: str | list[str]
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    max_tokens: int | None = None
    stream: bool = False
    seed: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: list[str] | None = None
    token_healing: bool | None = None
    n: int | None = None
    best_of: int | None = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    early_stopping: EarlyStopping | None = None


@dataclass
class ScoreRequest:
    """Body of `POST /v1/score`; see `Client.score`."""

    model: str
    prompt: str | list[int]
    choices: list[str] | list[list[int]]


@dataclass
class Score:
    """How likely one choice is: the natural logarithm of its probability, and its mean over `tokens`."""

    index: int
    score: float
    mean_logprob: float
    tokens: int


@dataclass
class Scores:
    """Answer of `score`; `data` is in the order of the choices."""

    id: str
    created: int
    model: str
    data: list[Score] = field(default_factory=list[Score])
    usage: dict[str, Any] | None = None


@dataclass
class ClassifyRequest:
    """Body of `POST /v1/classify`; see `Client.classify`."""

    model: str
    input: str | list[str] | None = None
    messages: list[Message | dict[str, Any]] | None = None
    use_activation: bool | None = None
    truncate_prompt_tokens: int | None = None


@dataclass
class Classified:
    """The classes of one text: `label` names the likeliest, `probs` are in the order of the classes."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


@dataclass
class Classes:
    """Answer of `classify`; `data` is in the order of the texts."""

    id: str
    created: int
    model: str
    data: list[Classified] = field(default_factory=list[Classified])
    usage: dict[str, Any] | None = None


@dataclass
class CompletionComplete:
    """A completion, or the next piece of one in a stream; only the last piece has a `finish_reason`.

    `beam_score` is set where the text was searched for (`use_beam_search`), and not in streams.
    """

    index: int
    text: str
    logprobs: Any = None
    finish_reason: str | None = None
    beam_score: float | None = None


@dataclass
class Completion:
    """Answer of `completion`; one choice for each prompt.

    `usage` has the keys `prompt_tokens`, `completion_tokens`, `total_tokens` and `prompt_tokens_details`, of which
    `cached_tokens` were computed for an earlier request. Of a chat with a `prediction`, a server that drafts from it
    adds `completion_tokens_details` with `accepted_prediction_tokens` and `rejected_prediction_tokens`.
    """

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str = ""
    choices: list[CompletionComplete] = field(default_factory=list[CompletionComplete])
    usage: dict[str, Any] | None = None


@dataclass
class ImageUrl:
    """Where an image is.

    Attributes:
        url: A data URL, or a link that the server may follow.
        detail: "low" lets the model see it as if it fitted into 512 x 512; "auto", "high" and "original" leave the
            size to the model.
    """

    url: str
    detail: str | None = None


@dataclass
class Chunk:
    """A part of a message: `type` is "text" or "image_url". `images.Image` makes the latter of files."""

    type: str
    text: str | None = None
    image_url: ImageUrl | dict[str, Any] | None = None


@dataclass
class ToolCall:
    """A call of a tool by the model; `function` has the keys `name` and `arguments` (JSON text)."""

    id: str
    type: str
    function: dict[str, Any]

    @property
    def name(self) -> str:
        """Name of the tool."""
        return str(self.function.get("name") or "")

    @property
    def arguments(self) -> str:
        """JSON text of the arguments; not whole if the answer reached its largest number of tokens."""
        arguments = self.function.get("arguments")
        # TGI 2 has an object here.
        return arguments if isinstance(arguments, str) else json.dumps({} if arguments is None else arguments)


@dataclass
class Message:
    """A message of a chat; `role` is "system", "user", "assistant" or "tool".

    Attributes:
        role: Who says it.
        content: What is said, or its parts; None where the model calls tools and says nothing.
        name: Name of the author, or of the tool whose result this is.
        tool_calls: Calls that the model makes.
        tool_call_id: The call whose result this is.
        reasoning_content: What the model thought, where the server tells it apart.
    """

    role: str
    content: str | list[Chunk] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


@dataclass
class Tool:
    """A tool the model may call.

    `function` has the keys `name`, `description` and `parameters` (JSON schema); with `strict` the arguments follow
    the schema for certain.
    """

    type: str
    function: dict[str, Any]


@dataclass
class ChatRequest:
    """Body of `POST /v1/chat/completions`; see `Client.chat`."""

    model: str
    messages: list[Message | dict[str, Any]]
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: list[float] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    max_tokens: int | None = None
    n: int | None = None
    presence_penalty: float | None = None
    stream: bool = False
    seed: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    tools: list[Tool | dict[str, Any]] | None = None
    tool_prompt: str | None = None
    tool_choice: str | dict[str, Any] | None = None
    stop: list[str] | None = None
    response_format: Grammar | dict[str, Any] | None = None
    stream_options: dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    prediction: dict[str, Any] | None = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    early_stopping: EarlyStopping | None = None


@dataclass
class ChatCompletionComplete:
    """One answer of the model; `finish_reason` is "stop", "length" or "tool_calls".

    `beam_score` is set where the answer was searched for (`use_beam_search`).
    """

    index: int
    message: Message
    logprobs: Any = None
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None
    beam_score: float | None = None


@dataclass
class ChatComplete:
    """Answer of `chat`; `usage` as in `Completion`."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str = ""
    choices: list[ChatCompletionComplete] = field(default_factory=list[ChatCompletionComplete])
    usage: dict[str, Any] | None = None

    @property
    def choice(self) -> ChatCompletionComplete:
        """The first answer; raises `UnknownError` if there is none."""
        if not self.choices:
            raise UnknownError("unexpected answer: `choices` is empty")
        return self.choices[0]

    @property
    def message(self) -> Message:
        """The message of the first answer."""
        return self.choice.message

    def parse(self, model: type[Model]) -> Model:
        """The first answer as an instance of a pydantic model, best the one that was the `response_format`.

        Raises:
            InvalidAnswerError: The answer is not what the model describes, or only calls tools.
        """
        content = self.message.content
        text = content if isinstance(content, str) else None
        return structured.parse(model, text, cut=self.choice.finish_reason == "length")


@dataclass
class Function:
    """A piece of a tool call: the name comes once, the JSON text of the arguments in pieces."""

    name: str | None = None
    arguments: str = ""


@dataclass
class ChoiceDeltaToolCall:
    """A piece of the tool call number `index`; `id` and `type` come with the first piece."""

    index: int
    id: str | None = None
    type: str | None = None
    function: Function = field(default_factory=Function)


@dataclass
class ChoiceDelta:
    """What a chunk adds to the message."""

    role: str | None = None
    content: str | None = None
    tool_calls: list[ChoiceDeltaToolCall] | None = None
    reasoning_content: str | None = None


@dataclass
class Choice:
    """An answer of the model as far as a chunk carries it; only the last one has a `finish_reason`."""

    index: int
    delta: ChoiceDelta
    logprobs: Any = None
    finish_reason: str | None = None


@dataclass
class ChatCompletionChunk:
    """A chunk of `chat(stream=True)`. With `include_usage` the last one has `usage` and no choices."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str = ""
    choices: list[Choice] = field(default_factory=list[Choice])
    usage: dict[str, Any] | None = None


@dataclass
class ServedModel:
    """A model that the server has; requests name it by its `id`."""

    id: str


@dataclass
class ModelList:
    """Answer of `/v1/models`."""

    data: list[ServedModel] = field(default_factory=list[ServedModel])
