"""Transport that both clients share: address, options, retries, errors. Nothing here does any input or output."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from threading import TIMEOUT_MAX
from typing import Any, NoReturn, TypeVar, cast
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx

from text_generation.errors import (
    INCOMPLETE_STREAM,
    ConnectionFailedError,
    IncompleteGenerationError,
    ResponseTimeoutError,
    ValidationError,
    parse_error,
)

Http = TypeVar("Http", httpx.Client, httpx.AsyncClient)

LONGEST_WAIT = 30.0
"""Seconds; a server that asks for more gets no retry."""
FIRST_BACKOFF = 0.2
"""Seconds before the first retry of a refused connection; doubled for each further one."""
BUSY = (429, 503)
NETWORK = ("http_proxy", "https_proxy", "all_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR")
"""Variables of the environment that httpx reads, and that may hold what it cannot use."""
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
        if not is_http(self.base_url):
            raise ValidationError(f"`base_url` must be like http://host:port. Given: {self.base_url!r}")
        # NaN is in no range.
        if self.timeout is not None and not 0 < self.timeout <= TIMEOUT_MAX:
            raise ValidationError(f"`timeout` must be a number of seconds above 0, or None. Given: {self.timeout}")
        if self.max_retries < 0:
            raise ValidationError(f"`max_retries` must not be negative. Given: {self.max_retries}")

    def url(self, path: str) -> str:
        """Address of `path` below the server; the empty path is the server itself."""
        return self.base_url.rstrip("/") + path if path else self.base_url

    def connections(self, kind: Callable[..., Http], transport: object) -> Http:
        """Make an `httpx.Client` or `httpx.AsyncClient`.

        The number of connections is not limited: the server says how many requests it takes at once.

        Raises:
            ValidationError: Headers or cookies are no text, or the environment names what cannot be used.
        """
        try:
            # The values of headers as the server reads them; httpx would take those in ASCII alone.
            headers = httpx.Headers(dict(self.headers or {}), encoding="utf-8")
        except (TypeError, ValueError) as error:
            raise ValidationError(f"`headers` cannot be sent: {error}") from error
        try:
            return kind(headers=headers, transport=transport, **self._http_options())
        except (httpx.InvalidURL, ImportError, OSError, ValueError) as error:
            raise ValidationError(
                f"the environment names a proxy or certificates that cannot be used ({', '.join(NETWORK)}): {error}"
            ) from error

    def _http_options(self) -> dict[str, Any]:
        return {
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
        question = f"is the proxy {proxy} right?" if (proxy := self._proxy()) else "is the server running?"
        raise ConnectionFailedError(f"no answer from {self.base_url}: {error}; {question}") from error

    def _proxy(self) -> str | None:
        """What of the environment stands between this client and the server, without its password."""
        url = httpx.URL(self.base_url)
        proxies = getproxies()
        proxy = proxies.get(url.scheme) or proxies.get("all")
        if not proxy or proxy_bypass(url.host):
            return None
        parsed = urlsplit(proxy)
        return f"{parsed.scheme}://{parsed.netloc.rpartition('@')[2]}"


def message(body: Mapping[str, Any] | None) -> tuple[str, dict[str, Any]]:
    """Method and content of a request with this body, as arguments of httpx; raises as `write_json`."""
    if body is None:
        return "GET", {}
    return "POST", {"content": write_json(body), "headers": JSON}


def write_json(body: Mapping[str, Any]) -> bytes:
    """The body of a request.

    Raises:
        ValidationError: A value has no JSON: a number that is not finite, half of a surrogate pair, an object.
    """
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise ValidationError(f"the request cannot be written as JSON: {error}") from error


def is_http(url: str) -> bool:
    """Whether this is an address of a server."""
    try:
        parsed = httpx.URL(url)
        # As sockets do, which take no names with empty or long parts.
        parsed.host.encode("idna")
    except (httpx.InvalidURL, UnicodeError):
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
