"""What both clients do around a request: address, options, retries, errors. Nothing here does any input or output."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, NoReturn, cast

import httpx

from text_generation.errors import (
    INCOMPLETE_STREAM,
    ConnectionFailedError,
    IncompleteGenerationError,
    ResponseTimeoutError,
    ValidationError,
    parse_error,
)

LONGEST_WAIT = 30.0
"""Seconds; a server that asks for more gets no retry."""
FIRST_BACKOFF = 0.2
"""Seconds before the first retry of a refused connection; doubled for each further one."""
BUSY = (429, 503)
JSON = {"Content-Type": "application/json"}
"""Headers of a request whose body is that of `write_json`."""


@dataclass(frozen=True)
class Settings:
    """Where and how a client sends its requests.

    Attributes:
        base_url: Address of the server; generate requests go there, OpenAI ones to paths below.
        headers: Sent with every request.
        cookies: Sent with every request.
        timeout: Longest silence of the server in seconds, None for no limit.
        max_retries: How often a request is sent again when that is safe.
    """

    base_url: str
    headers: Mapping[str, str] | None
    cookies: Mapping[str, str] | None
    timeout: float | None
    max_retries: int

    def __post_init__(self) -> None:
        """Check it; raises `ValidationError`."""
        if not _is_http(self.base_url):
            raise ValidationError(f"`base_url` must be like http://host:port. Given: {self.base_url!r}")
        if self.max_retries < 0:
            raise ValidationError(f"`max_retries` must not be negative. Given: {self.max_retries}")

    def url(self, path: str) -> str:
        """Address of `path` below the server; the empty path is the server itself."""
        return self.base_url.rstrip("/") + path if path else self.base_url

    def http_options(self) -> dict[str, Any]:
        """Arguments of `httpx.Client` and `httpx.AsyncClient`.

        The number of connections is not limited: the server says how many requests it takes at once.
        """
        return {
            "headers": dict(self.headers or {}),
            "cookies": dict(self.cookies or {}),
            "timeout": httpx.Timeout(self.timeout, pool=None),
            "limits": httpx.Limits(max_connections=None, max_keepalive_connections=20),
        }

    def wait_after_refusal(self, response: httpx.Response, attempt: int) -> float:
        """Seconds to wait before sending a refused request again.

        A busy server (429, 503) that says when to come back has not begun with the request.

        Args:
            response: The refusal, with its body read.
            attempt: Number of attempts before this one.

        Raises:
            TextGenerationError: It is not safe, or not allowed any more, to try again.
        """
        wait = retry_after(response)
        if response.status_code in BUSY and wait is not None and wait <= LONGEST_WAIT and attempt < self.max_retries:
            return wait
        raise parse_error(response.status_code, _error_payload(response), retry_after=wait)

    def wait_after_failure(self, error: httpx.RequestError, attempt: int) -> float:
        """As `wait_after_refusal`, for a request without an answer; only a refused connection is safe to try again."""
        if isinstance(error, httpx.ConnectError) and attempt < self.max_retries:
            return FIRST_BACKOFF * 2**attempt * random.uniform(0.5, 1.0)
        self.fail(error)

    def fail(self, error: httpx.RequestError, *, reading: bool = False) -> NoReturn:
        """Raise the error of this package for one of httpx; `reading` means that an answer had begun."""
        if isinstance(error, httpx.TimeoutException):
            raise ResponseTimeoutError(
                f"{self.base_url} was silent for {self.timeout} s; pass a larger `timeout`, or stream the answer"
            ) from error
        if reading:
            raise IncompleteGenerationError(f"{INCOMPLETE_STREAM}: {error}") from error
        raise ConnectionFailedError(f"no answer from {self.base_url}: {error}; is the server running?") from error


def write_json(body: Mapping[str, Any]) -> bytes:
    """The body of a request.

    Raises:
        ValidationError: A value has no JSON: a number that is not finite, half of a surrogate pair, an object.
    """
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise ValidationError(f"the request cannot be written as JSON: {error}") from error


def _is_http(url: str) -> bool:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        return False
    return parsed.scheme in ("http", "https") and bool(parsed.host)


def retry_after(response: httpx.Response) -> float | None:
    """Seconds that the header `Retry-After` (RFC 9110, section 10.2.3) asks to wait, if it is there and makes sense."""
    value = response.headers.get("retry-after", "").strip()
    if value.isascii() and value.isdigit():
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None


def _error_payload(response: httpx.Response) -> Mapping[str, Any]:
    """The error object of a refusal; one is made of a body that is plain text, as proxies send."""
    try:
        payload = json.loads(response.content)
    except ValueError:
        payload = None
    if isinstance(payload, Mapping):
        return cast("Mapping[str, Any]", payload)
    is_text = response.headers.get("content-type", "").startswith("text/plain")
    return {"error": response.text[:500].strip() if is_text else ""}
