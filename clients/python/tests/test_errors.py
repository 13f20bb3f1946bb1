"""Which exception an error of the server becomes."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from text_generation import Client, errors
from text_generation.errors import TextGenerationError, parse_error


@pytest.mark.parametrize(
    ("error_type", "kind"),
    [
        ("validation", errors.ValidationError),
        ("template_error", errors.TemplateError),
        ("tool_error", errors.ToolError),
        ("suffix not supported", errors.ValidationError),
        ("batch size exceeded", errors.ValidationError),
        ("generation", errors.GenerationError),
        ("stream_serialization_error", errors.GenerationError),
        ("incomplete_generation", errors.IncompleteGenerationError),
        ("incomplete_generation_stream", errors.IncompleteGenerationError),
        ("overloaded", errors.OverloadedError),
        ("healthcheck", errors.ShardNotReadyError),
        ("malformed_json", errors.BadRequestError),
        ("request_timeout", errors.BadRequestError),
        ("unsupported_media_type", errors.UnsupportedMediaTypeError),
        ("payload_too_large", errors.PayloadTooLargeError),
        ("not_found", errors.NotFoundError),
        ("method_not_allowed", errors.MethodNotAllowedError),
        ("unauthorized", errors.UnauthorizedError),
        ("internal", errors.InternalError),
        ("shutting_down", errors.ShuttingDownError),
    ],
)
@pytest.mark.parametrize("status", [200, 400, 500])
def test_the_error_type_decides_before_the_status(status: int, error_type: str, kind: type[Exception]) -> None:
    openai = {"error": {"message": "boom", "type": "other", "param": None, "code": None}, "error_type": error_type}
    for payload in ({"error": "boom", "error_type": error_type}, openai):
        error = parse_error(status, payload)
        assert type(error) is kind
        assert (str(error), error.message, error.status, error.error_type) == ("boom", "boom", status, error_type)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, errors.BadRequestError),
        (401, errors.UnauthorizedError),
        (403, errors.ShardNotReadyError),
        (404, errors.NotFoundError),
        (405, errors.MethodNotAllowedError),
        (413, errors.PayloadTooLargeError),
        (415, errors.UnsupportedMediaTypeError),
        (422, errors.ValidationError),
        (424, errors.ShardNotReadyError),
        (429, errors.RateLimitExceededError),
        (500, errors.UnknownError),
        (503, errors.ShardNotReadyError),
        (504, errors.ShardTimeoutError),
    ],
)
@pytest.mark.parametrize("error_type", [None, "new in a later version"])
def test_the_status_decides_without_a_known_error_type(
    status: int, kind: type[Exception], error_type: str | None
) -> None:
    assert type(parse_error(status, {"error": "boom", "error_type": error_type})) is kind


@pytest.mark.parametrize(
    ("payload", "kind", "message"),
    [
        # As TGI writes errors into OpenAI streams; the status in it is always 422, whatever the cause.
        (
            {"error": {"message": "Model is overloaded", "http_status_code": 422}},
            errors.GenerationError,
            "Model is overloaded",
        ),
        ({"error": {"message": "late", "type": "overloaded"}}, errors.OverloadedError, "late"),
        ({"error": {}}, errors.GenerationError, "200"),
        ({"error": "boom"}, errors.GenerationError, "boom"),
        ({"error": "boom", "error_type": 3}, errors.GenerationError, "boom"),
    ],
)
def test_events_without_an_error_type(payload: dict[str, Any], kind: type[Exception], message: str) -> None:
    error = parse_error(200, payload)
    assert type(error) is kind
    assert message in str(error)


def test_what_has_no_json_is_a_wrong_parameter() -> None:
    client = Client("http://127.0.0.1:1")
    with pytest.raises(errors.ValidationError, match="JSON"):
        client.chat([{"role": "user", "content": "once"}], temperature=float("nan"))
    with pytest.raises(errors.ValidationError, match="JSON"):
        client.generate("once \ud800")


def test_every_error_has_one_base_and_survives_pickling() -> None:
    error = parse_error(429, {"error": "Model is overloaded", "error_type": "overloaded"}, retry_after=2.0)
    copy = pickle.loads(pickle.dumps(error))
    assert isinstance(copy, TextGenerationError)
    assert (type(copy), str(copy), copy.retry_after) == (errors.OverloadedError, "Model is overloaded", 2.0)


def test_constructors_of_tgi_work() -> None:
    assert str(errors.ValidationError("wrong")) == "wrong"
    assert "bert" in str(errors.NotSupportedError("bert"))
