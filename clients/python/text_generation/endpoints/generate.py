"""The text-generation API: `POST /`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from text_generation import structured
from text_generation.codec import decode, encode
from text_generation.endpoints.call import Answer, Call, Stream, texts
from text_generation.errors import UnknownError, ValidationError
from text_generation.types import EarlyStopping, Grammar, GrammarType, Parameters, Request, Response, StreamResponse

if TYPE_CHECKING:
    from pydantic import BaseModel

GrammarLike: TypeAlias = "Grammar | dict[str, Any] | type[BaseModel]"
"""What `grammar` takes: a dictionary has the keys `type` and `value`, a pydantic model stands for its JSON schema."""


def generate(
    _client: object,
    prompt: str,
    do_sample: bool = False,
    max_new_tokens: int | None = 20,
    best_of: int | None = None,
    repetition_penalty: float | None = None,
    frequency_penalty: float | None = None,
    return_full_text: bool = False,
    seed: int | None = None,
    stop_sequences: str | Sequence[str] | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    truncate: int | None = None,
    typical_p: float | None = None,
    watermark: bool = False,
    decoder_input_details: bool = False,
    top_n_tokens: int | None = None,
    grammar: GrammarLike | None = None,
    token_healing: bool = False,
    beam_width: int | None = None,
    length_penalty: float | None = None,
    early_stopping: EarlyStopping | None = None,
) -> Answer[Response]:
    """Generate the text that follows `prompt`.

    Images of a prompt are in TGI's Markdown, `f"{image.markdown}What is it?"` with an `images.Image`.

    The parameters are those of `types.Parameters`; `stop_sequences` is its `stop`, and `grammar` may also be a
    dictionary with `type` and `value`, or a pydantic model, into which `Response.parse` reads the text. `AsyncClient`
    has the same method as a coroutine.

    >>> client.generate("The capital of France is", max_new_tokens=2).generated_text
    ' Paris.'

    Raises:
        ValidationError: A parameter breaks a rule.
        TextGenerationError: The server refused or failed, or cannot be reached; see `errors`.
    """
    parameters = Parameters(
        do_sample=do_sample,
        max_new_tokens=max_new_tokens,
        best_of=best_of,
        repetition_penalty=repetition_penalty,
        frequency_penalty=frequency_penalty,
        return_full_text=return_full_text,
        seed=seed,
        stop=texts(stop_sequences) or [],
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        truncate=truncate,
        typical_p=typical_p,
        watermark=watermark,
        details=True,
        decoder_input_details=decoder_input_details,
        top_n_tokens=top_n_tokens,
        grammar=_grammar(grammar),
        token_healing=token_healing or None,
        beam_width=beam_width,
        length_penalty=length_penalty,
        early_stopping=early_stopping,
    )
    return Call("", encode(Request(prompt, parameters)), False, _response)


def generate_stream(
    _client: object,
    prompt: str,
    do_sample: bool = False,
    max_new_tokens: int | None = 20,
    repetition_penalty: float | None = None,
    frequency_penalty: float | None = None,
    return_full_text: bool = False,
    seed: int | None = None,
    stop_sequences: str | Sequence[str] | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    truncate: int | None = None,
    typical_p: float | None = None,
    watermark: bool = False,
    top_n_tokens: int | None = None,
    grammar: GrammarLike | None = None,
    token_healing: bool = False,
    beam_width: int | None = None,
    length_penalty: float | None = None,
    early_stopping: EarlyStopping | None = None,
) -> Stream[StreamResponse]:
    """Generate the text that follows `prompt`, token by token.

    The parameters are those of `generate`; with `beam_width` all tokens come at the end. The request is sent when the
    first token is asked for. Closing the iterator (`close`, `aclose`) cancels the generation. `AsyncClient` returns an
    asynchronous iterator.

    >>> for answer in client.generate_stream("The capital of France is", max_new_tokens=2):
    ...     print(answer.token.text)
     Paris
    .

    Raises:
        ValidationError: A parameter breaks a rule; raised by the call, or while iterating if the server says so.
        TextGenerationError: While iterating: the server refused or failed, or cannot be reached; see `errors`.
    """
    parameters = Parameters(
        do_sample=do_sample,
        max_new_tokens=max_new_tokens,
        repetition_penalty=repetition_penalty,
        frequency_penalty=frequency_penalty,
        return_full_text=return_full_text,
        seed=seed,
        stop=texts(stop_sequences) or [],
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        truncate=truncate,
        typical_p=typical_p,
        watermark=watermark,
        details=True,
        top_n_tokens=top_n_tokens,
        grammar=_grammar(grammar),
        token_healing=token_healing or None,
        beam_width=beam_width,
        length_penalty=length_penalty,
        early_stopping=early_stopping,
    )
    return Call("", encode(Request(prompt, parameters, stream=True)), True, _token)


def _grammar(value: GrammarLike | None) -> Grammar | None:
    """What is sent as `grammar`; raises `ValidationError`."""
    if value is None or isinstance(value, Grammar):
        return value
    if structured.is_model(value):
        return Grammar(GrammarType.Json, structured.schema_of(value))
    if not isinstance(value, dict) or set(value) != {"type", "value"}:
        raise ValidationError("`grammar` must be a Grammar, a pydantic model, or a dictionary with `type` and `value`")
    try:
        kind = GrammarType(value["type"])
    except ValueError as error:
        kinds = ", ".join(f'"{kind.value}"' for kind in GrammarType)
        raise ValidationError(f"`grammar.type` must be one of {kinds}. Given: {value['type']!r}") from error
    return Grammar(kind, value["value"])


def _response(payload: Any) -> Response:
    """The answer of `POST /` is a list of one response; that of `POST /generate` the response itself."""
    if isinstance(payload, list):
        responses = cast("list[Any]", payload)
        if not responses:
            raise UnknownError("unexpected answer: an empty list")
        return decode(Response, responses[0])
    return decode(Response, payload)


def _token(payload: Any) -> list[StreamResponse]:
    return [decode(StreamResponse, payload)]
