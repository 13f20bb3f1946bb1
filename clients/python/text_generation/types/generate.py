"""Requests and answers of the text-generation API (`POST /`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from text_generation import structured
from text_generation.errors import ValidationError

if TYPE_CHECKING:
    from text_generation.structured import Model


EarlyStopping: TypeAlias = bool | Literal["never"]
"""When a beam search ends: True once as many texts have ended as there are beams; False when no other is likely to
score higher; "never" when none can."""


class GrammarType(str, Enum):
    """What the value of a grammar is."""

    Json = "json"
    """A JSON schema, as an object or as text."""
    JsonSchema = "json_schema"
    """A JSON schema with a name: `{"name": ..., "schema": ...}`."""
    Regex = "regex"
    """A regular expression for the whole text."""

    @classmethod
    def _missing_(cls, value: object) -> GrammarType | None:
        """TGI has a second name for `json`."""
        return cls.Json if value == "json_object" else None


class FinishReason(str, Enum):
    """Why a generation ended."""

    Length = "length"
    """`max_new_tokens` were generated."""
    EndOfSequenceToken = "eos_token"
    """The model ended the text."""
    StopSequence = "stop_sequence"
    """One of the stop sequences appeared."""


@dataclass
class Grammar:
    """A constraint on the generated text.

    Attributes:
        type: What `value` is.
        value: The schema or the expression.
    """

    type: GrammarType
    value: str | dict[str, Any]

    def __post_init__(self) -> None:
        """Check it; raises `ValidationError`."""
        if not self.value:
            raise ValidationError("the `value` of a grammar cannot be empty")
        if self.type == GrammarType.Regex and not isinstance(self.value, str):
            raise ValidationError("the `value` of a regex grammar must be a string")
        if self.type == GrammarType.JsonSchema and not (isinstance(self.value, dict) and "schema" in self.value):
            raise ValidationError("the `value` of a json_schema grammar must be an object with the key `schema`")


@dataclass
class Parameters:
    """How to generate. None leaves a parameter to the server.

    Attributes:
        do_sample: Sample instead of taking the most likely token.
        max_new_tokens: Largest number of tokens to generate.
        repetition_penalty: Penalty on tokens that occurred; 1 is off, at least above 0.
        frequency_penalty: Penalty that grows with the number of occurrences, -2 to 2; 0 is off.
        return_full_text: Put the prompt before the generated text.
        stop: Generation ends when one of these strings appears.
        seed: Seed of the random numbers.
        temperature: Divides the logits; above 0.
        top_k: Keep the k most likely tokens.
        top_p: Keep the smallest set of tokens whose probabilities add up to p, between 0 and 1.
        truncate: Keep only this many tokens at the end of the prompt.
        typical_p: Typical decoding mass, between 0 and 1.
        best_of: Generate so many times, return the most likely one. Needs sampling, and no seed.
        watermark: Watermark the text.
        details: Return tokens and how the generation ended.
        decoder_input_details: Return the tokens of the prompt with their log-probabilities.
        top_n_tokens: Return the n most likely tokens of each step.
        grammar: Constrain the text.
        token_healing: Generate the end of the prompt again, so that it need not be the end of a token.
        beam_width: Search for the most probable text with so many beams.
        length_penalty: The score of a beam is divided by its length to this power; 1 unless set.
        early_stopping: When a search ends: True, False or "never", as in transformers.
    """

    do_sample: bool = False
    max_new_tokens: int | None = 20
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    return_full_text: bool = False
    stop: list[str] = field(default_factory=list[str])
    seed: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    truncate: int | None = None
    typical_p: float | None = None
    best_of: int | None = None
    watermark: bool = False
    details: bool = False
    decoder_input_details: bool = False
    top_n_tokens: int | None = None
    grammar: Grammar | None = None
    token_healing: bool | None = None
    beam_width: int | None = None
    length_penalty: float | None = None
    early_stopping: EarlyStopping | None = None

    def __post_init__(self) -> None:
        """Check what needs no knowledge of the server's limits; raises `ValidationError`."""
        for name in (
            "best_of",
            "repetition_penalty",
            "temperature",
            "top_k",
            "truncate",
            "top_n_tokens",
            "beam_width",
        ):
            _check(name, getattr(self, name), 0, float("inf"), "must be strictly positive")
        for name in ("top_p", "typical_p"):
            _check(name, getattr(self, name), 0, 1, "must be > 0.0 and < 1.0")
        if self.frequency_penalty is not None and not -2 <= self.frequency_penalty <= 2:
            raise ValidationError(f"`frequency_penalty` must be >= -2.0 and <= 2.0. Given: {self.frequency_penalty}")
        if self.seed is not None and self.seed < 0:
            raise ValidationError(f"`seed` must not be negative. Given: {self.seed}")
        if self.best_of is not None and self.best_of > 1:
            self._check_best_of()

    def _check_best_of(self) -> None:
        if self.seed is not None:
            raise ValidationError("`seed` must not be set when `best_of` is > 1")
        samplers = (self.temperature, self.top_k, self.top_p, self.typical_p)
        if not self.do_sample and all(value is None for value in samplers):
            raise ValidationError("you must use sampling when `best_of` is > 1: set `do_sample` or `temperature`")


def _check(name: str, value: float | None, low: float, high: float, rule: str) -> None:
    """Refuse a value outside the open interval; a NaN is outside."""
    if value is not None and not low < value < high:
        raise ValidationError(f"`{name}` {rule}. Given: {value}")


@dataclass
class Request:
    """Body of `POST /`."""

    inputs: str
    parameters: Parameters | None = None
    stream: bool = False

    def __post_init__(self) -> None:
        """Check it; raises `ValidationError`."""
        if not self.inputs:
            raise ValidationError("`inputs` cannot be empty")
        if self.stream and self.parameters is not None and (self.parameters.best_of or 1) > 1:
            raise ValidationError("`best_of` > 1 is not supported when streaming tokens")


@dataclass
class InputToken:
    """A token of the prompt; `logprob` is None for the first one."""

    id: int
    text: str
    logprob: float | None = None


@dataclass
class Token:
    """A generated token. The text of a special one is not part of the generated text."""

    id: int
    text: str
    logprob: float | None = None
    special: bool = False


@dataclass
class BestOfSequence:
    """One of the other generations of a `best_of` request, or another beam; see `Details`."""

    generated_text: str
    finish_reason: FinishReason
    generated_tokens: int
    seed: int | None = None
    prefill: list[InputToken] = field(default_factory=list[InputToken])
    tokens: list[Token] = field(default_factory=list[Token])
    top_tokens: list[list[Token]] | None = None
    beam_score: float | None = None


@dataclass
class Details:
    """How a generation went.

    Attributes:
        finish_reason: Why it ended.
        generated_tokens: Number of generated tokens.
        seed: Seed of the random numbers, if the request sampled.
        prefill: Tokens of the prompt; empty unless `decoder_input_details` was set and the server allows it.
        tokens: Generated tokens.
        top_tokens: Most likely tokens, a list for each generated token; needs `top_n_tokens`.
        best_of_sequences: The other generations; needs `best_of`, or `beam_width` for the other beams.
        beam_score: Score of the text; needs `beam_width`.
    """

    finish_reason: FinishReason
    generated_tokens: int
    seed: int | None = None
    prefill: list[InputToken] = field(default_factory=list[InputToken])
    tokens: list[Token] = field(default_factory=list[Token])
    top_tokens: list[list[Token]] | None = None
    best_of_sequences: list[BestOfSequence] | None = None
    beam_score: float | None = None


@dataclass
class Response:
    """Answer of `generate`."""

    generated_text: str
    details: Details

    def parse(self, model: type[Model]) -> Model:
        """The text as an instance of a pydantic model, best the one that was the `grammar`.

        Raises:
            InvalidAnswerError: The text is not what the model describes.
        """
        cut = self.details.finish_reason == FinishReason.Length
        return structured.parse(model, self.generated_text, cut=cut)


@dataclass
class StreamDetails:
    """How a streamed generation went; `input_length` is the number of tokens of the prompt."""

    finish_reason: FinishReason
    generated_tokens: int
    seed: int | None = None
    input_length: int | None = None
    beam_score: float | None = None


@dataclass
class StreamResponse:
    """One token of `generate_stream`; the last one has `generated_text` and `details` too."""

    token: Token
    top_tokens: list[Token] | None = None
    generated_text: str | None = None
    details: StreamDetails | None = None
    index: int | None = None


@dataclass
class DeployedModel:
    """A model of Hugging Face's Inference API, which this client does not list; kept for code that names the type."""

    model_id: str
    sha: str
