"""Errors of the client; the server names the kind of each of its errors in `error_type`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, cast

INCOMPLETE_STREAM = "the stream ended before the generation did"


class TextGenerationError(Exception):
    """Base of every error this package raises.

    Attributes:
        message: What went wrong, in the server's words where it answered.
        status: HTTP status of the answer; 200 for an error inside a stream, None where there was no answer.
        error_type: The server's name for the kind of error, if it gave one.
        retry_after: Seconds after which the server suggests to try again, if it does.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        error_type: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        """Keep the message as the text of the exception, and the rest as attributes."""
        super().__init__(message)
        self.message = message
        self.status = status
        self.error_type = error_type
        self.retry_after = retry_after


class ValidationError(TextGenerationError):
    """A parameter or the prompt breaks a rule; raised by the client before sending, or by the server (422)."""


class TemplateError(ValidationError):
    """The model's chat template cannot render the messages, or there is no template."""


class ToolError(ValidationError):
    """The tools of a chat request are wrong, or the model's call of one cannot be read."""


class GrammarError(ValidationError):
    """The grammar or schema of this request can be followed no further."""


class InvalidAnswerError(TextGenerationError, ValueError):
    """An answer is not what the pydantic model that it was to be read into describes.

    Attributes:
        text: The answer.
    """

    def __init__(self, message: str, *, text: str = "") -> None:
        """Keep the answer."""
        super().__init__(message)
        self.text = text


class TurnLimitError(TextGenerationError):
    """The model still called tools in the last turn that `run_tools` allowed.

    Attributes:
        messages: The conversation up to the results of the calls before.
    """

    def __init__(self, message: str, *, messages: Sequence[Any] = ()) -> None:
        """Keep the conversation."""
        super().__init__(message)
        self.messages = list(messages)


class MissingDependencyError(TextGenerationError, ImportError):
    """A package is not installed that only a part of this one needs."""


class BadRequestError(TextGenerationError):
    """The server could not read the request: malformed JSON, or another 400."""


class UnsupportedMediaTypeError(BadRequestError):
    """The content type or encoding of the body is not understood (415)."""


class PayloadTooLargeError(BadRequestError):
    """The body is larger than the server's `--payload-limit` (413)."""


class MethodNotAllowedError(BadRequestError):
    """The path exists, with another method (405); usually a wrong `base_url`."""


class NotFoundError(TextGenerationError):
    """No such path (404); usually a wrong `base_url`."""


class UnauthorizedError(TextGenerationError):
    """No or a wrong API key (401); pass `headers={"Authorization": "Bearer <key>"}`."""


class OverloadedError(TextGenerationError):
    """The server runs as many requests as it allows (429); try again after `retry_after` seconds."""


class RateLimitExceededError(TextGenerationError):
    """A 429 that is not the model server's own, as gateways send."""


class GenerationError(TextGenerationError):
    """The model failed while generating (424, or an error inside a stream)."""


class IncompleteGenerationError(TextGenerationError):
    """The generation, or the connection that carried it, ended before the last token."""


class ShardNotReadyError(TextGenerationError):
    """The server is up but cannot generate now (403, 424 or 503 without a better name)."""


class ShardTimeoutError(TextGenerationError):
    """A gateway waited too long for the server (504)."""


class ShuttingDownError(ShardNotReadyError):
    """The server is stopping and takes no new request (503)."""


class NotSupportedError(TextGenerationError):
    """The model cannot be used with this client. Never raised; kept for code that catches it."""

    def __init__(self, model_id: str) -> None:
        """Name the model."""
        super().__init__(f"model `{model_id}` is not available for inference with this client")


class UnknownError(TextGenerationError):
    """An answer that fits none of the other classes, or that is not of the text-generation API."""


class InternalError(UnknownError):
    """A bug of the server (500); its log has the details."""


class ConnectionFailedError(TextGenerationError, ConnectionError):
    """The server cannot be reached, or it closed the connection without an answer."""


class ResponseTimeoutError(TextGenerationError, TimeoutError):
    """The server was silent for longer than the client's `timeout`."""


_BY_ERROR_TYPE: dict[str, type[TextGenerationError]] = {
    "validation": ValidationError,
    "Input validation error": ValidationError,
    "suffix not supported": ValidationError,
    "batch size exceeded": ValidationError,
    "utf8": ValidationError,
    "image_fetch": ValidationError,
    "length mismatch": ValidationError,
    "template_error": TemplateError,
    "missing_template_variable": TemplateError,
    "tool_error": ToolError,
    "grammar": GrammarError,
    "malformed_json": BadRequestError,
    "request_timeout": BadRequestError,
    "unsupported_media_type": UnsupportedMediaTypeError,
    "payload_too_large": PayloadTooLargeError,
    "method_not_allowed": MethodNotAllowedError,
    "not_found": NotFoundError,
    "unauthorized": UnauthorizedError,
    "overloaded": OverloadedError,
    "generation": GenerationError,
    "stream_serialization_error": GenerationError,
    "headers": GenerationError,
    "no details": GenerationError,
    "incomplete_generation": IncompleteGenerationError,
    "incomplete_generation_stream": IncompleteGenerationError,
    "Incomplete generation": IncompleteGenerationError,
    "healthcheck": ShardNotReadyError,
    "shutting_down": ShuttingDownError,
    "internal": InternalError,
}

_BY_STATUS: dict[int, type[TextGenerationError]] = {
    # An error event that names no type, in a stream that began well.
    200: GenerationError,
    400: BadRequestError,
    401: UnauthorizedError,
    403: ShardNotReadyError,
    404: NotFoundError,
    405: MethodNotAllowedError,
    413: PayloadTooLargeError,
    415: UnsupportedMediaTypeError,
    422: ValidationError,
    424: ShardNotReadyError,
    429: RateLimitExceededError,
    503: ShardNotReadyError,
    504: ShardTimeoutError,
}


def parse_error(
    status_code: int, payload: Mapping[str, Any], *, retry_after: float | None = None
) -> TextGenerationError:
    """Turn an error body, or an error event of a stream, into the exception to raise.

    Args:
        status_code: HTTP status of the answer.
        payload: The JSON object: `{"error": text, "error_type": kind}`, or with an OpenAI error object as `error`.
        retry_after: Seconds from the answer's `Retry-After` header.
    """
    error = payload.get("error")
    is_object = isinstance(error, Mapping)
    details = cast("Mapping[str, Any]", error) if is_object else {"message": error or payload.get("message")}
    # `error_type` is exact; the `type` of an error object may be one of OpenAI's coarser names.
    error_type = next(
        (name for name in (payload.get("error_type"), details.get("type")) if isinstance(name, str)), None
    )
    by_status = _BY_STATUS.get(status_code, UnknownError)
    kind = _BY_ERROR_TYPE.get(error_type, by_status) if error_type else by_status
    message = details.get("message") or _reason(status_code)
    return kind(str(message), status=status_code, error_type=error_type, retry_after=retry_after)


def _reason(status_code: int) -> str:
    """A message for an answer that has none."""
    try:
        return f"the server answered {status_code} {HTTPStatus(status_code).phrase}"
    except ValueError:
        return f"the server answered {status_code}"
