"""A server that answers like a text-generation server, without a model, on a free port of the loopback device."""

from __future__ import annotations

import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKENS = [" Paris", "."]
USAGE = {"prompt_tokens": 5, "completion_tokens": len(TOKENS), "total_tokens": 5 + len(TOKENS)}
TEXT = "".join(TOKENS)
CAPITAL = '{"country": "France", "city": "Paris"}'
"""What a request with a JSON schema gets."""
IMAGES: dict[str, Any] = {"max_image_bytes": 20_000_000, "max_images_per_request": 2, "allowed_image_domains": []}
HEAD = {"id": "", "created": 1, "model": "m", "system_fingerprint": "1-native"}
WAIT = 10.0
"""Seconds after which a test that waits for the other side fails."""


def token(number: int) -> dict[str, Any]:
    return {"id": number, "text": TOKENS[number], "logprob": -0.5, "special": False}


def response() -> dict[str, Any]:
    details: dict[str, Any] = {"finish_reason": "length", "generated_tokens": 2, "seed": None, "prefill": []}
    return {"generated_text": TEXT, "details": {**details, "tokens": [token(0), token(1)]}}


def stream_events() -> list[dict[str, Any]]:
    details = {"finish_reason": "length", "generated_tokens": 2, "seed": None, "input_length": 5}
    return [
        {"index": 1, "token": token(0), "generated_text": None, "details": None},
        {"index": 2, "token": token(1), "generated_text": TEXT, "details": details},
    ]


def completion(prompts: int = 1) -> dict[str, Any]:
    choices = [{"index": index, "text": TEXT, "logprobs": None, "finish_reason": "length"} for index in range(prompts)]
    return {"object": "text_completion", **HEAD, "choices": choices, "usage": USAGE}


def scores(choices: int) -> dict[str, Any]:
    def score(index: int) -> dict[str, Any]:
        return {
            "index": index,
            "object": "score",
            "score": -0.5 - index,
            "mean_logprob": -0.25 - index / 2,
            "tokens": 2,
        }

    return {"object": "list", **HEAD, "data": [score(index) for index in range(choices)], "usage": USAGE}


def classes(texts: int) -> dict[str, Any]:
    def classified(index: int) -> dict[str, Any]:
        label = ("positive", "negative")[index % 2]
        return {"index": index, "label": label, "probs": [0.25, 0.75], "num_classes": 2}

    return {"object": "list", **HEAD, "data": [classified(index) for index in range(texts)], "usage": USAGE}


def completion_events() -> list[Any]:
    choices = [{"index": 0, "text": text, "logprobs": None, "finish_reason": ""} for text in TOKENS]
    choices[-1]["finish_reason"] = "length"
    return [*({"object": "text_completion", **HEAD, "choices": [choice]} for choice in choices), "[DONE]"]


def chat() -> dict[str, Any]:
    message = {"role": "assistant", "content": TEXT}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    return {"object": "chat.completion", **HEAD, "choices": [choice], "usage": USAGE}


def chat_events() -> list[Any]:
    head = {"object": "chat.completion.chunk", **HEAD}
    deltas = [{"role": "assistant", "content": text} for text in TOKENS]
    reasons = [None, "stop"]
    choices = [
        {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        for delta, reason in zip(deltas, reasons, strict=True)
    ]
    chunks = [{**head, "choices": [choice], "usage": None} for choice in choices]
    return [*chunks, {**head, "choices": [], "usage": USAGE}, "[DONE]"]


def call(number: int, name: str, arguments: str) -> dict[str, Any]:
    """A call of a tool, as in answers."""
    return {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


def message_answer(reason: str, **message: Any) -> dict[str, Any]:
    """An answer of a chat with this message."""
    choice = {"index": 0, "message": {"role": "assistant", "content": None, **message}, "finish_reason": reason}
    return {"object": "chat.completion", **HEAD, "choices": [choice], "usage": USAGE}


def message_events(answer: dict[str, Any], size: int = 1000) -> list[Any]:
    """The events of a stream that says the same as `answer`, in pieces of at most `size` characters."""
    choice = answer["choices"][0]
    message, head = choice["message"], {"object": "chat.completion.chunk", **HEAD}

    def event(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        choices = [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}]
        return {**head, "choices": choices, "usage": None}

    def pieces(text: str | None) -> list[str]:
        text = text or ""
        return [text[start : start + size] for start in range(0, len(text), size)]

    events = [event({"role": "assistant", "content": ""})]
    events += [event({"reasoning_content": piece}) for piece in pieces(message.get("reasoning_content"))]
    events += [event({"content": piece}) for piece in pieces(message["content"])]
    for index, whole in enumerate(message.get("tool_calls", [])):
        function = {"name": whole["function"]["name"], "arguments": ""}
        events.append(event({"tool_calls": [{**whole, "index": index, "function": function}]}))
        for piece in pieces(whole["function"]["arguments"]):
            events.append(event({"tool_calls": [{"index": index, "function": {"arguments": piece}}]}))
    return [*events, event({}, choice["finish_reason"]), {**head, "choices": [], "usage": USAGE}, "[DONE]"]


def frame(event: Any) -> bytes:
    """An event as servers write it."""
    text = event if isinstance(event, str) else json.dumps(event, ensure_ascii=False)
    return f"data: {text}\n\n".encode()


class Stub:
    """What a test sees of the server.

    Attributes:
        url: Address of the server.
        requests: Bodies of the requests so far, with the path as `path`.
        script: Answers to give, first to last, before the usual ones; see `answer`.
        info: What `/info` answers; None for a server without this route.
        models: Names that `/v1/models` lists; None for a server without this route.
        gate: Set it to let streams go on after their first event.
        left: Set when a client left a stream before its end.
    """

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[dict[str, Any]] = []
        self.script: list[tuple[int, Any]] = []
        self.info: dict[str, Any] | None = {"images": IMAGES}
        self.models: list[str] | None = ["org/model"]
        self.gate = threading.Event()
        self.gate.set()
        self.left = threading.Event()

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Status and JSON answer, or for a stream the list of its events."""
        if self.script:
            return self.script.pop(0)
        stream = body.get("stream", False)
        if body.get("parameters", {}).get("max_new_tokens") == 10_000:
            error = {"error": "Input validation error: too long", "error_type": "validation"}
            return (200, [error]) if stream else (422, error)
        if path == "/":
            if '"grammar": {"type": "json"' in json.dumps(body) and not stream:
                return 200, [{**response(), "generated_text": CAPITAL}]
            return 200, stream_events() if stream else [response()]
        if path == "/v1/completions":
            prompts = 1 if isinstance(body["prompt"], str) else len(body["prompt"])
            return 200, completion_events() if stream else completion(prompts)
        if path == "/v1/classify":
            return 200, classes(len(body["input"]) if isinstance(body.get("input"), list) else 1)
        if path == "/v1/score":
            return 200, scores(len(body["choices"]))
        if path == "/v1/chat/completions":
            if '"response_format": {"type": "json_schema"' in json.dumps(body) and not stream:
                return 200, message_answer("stop", content=CAPITAL)
            return 200, chat_events() if stream else chat()
        return 404, {"error": f"no such path: {path}", "error_type": "not_found"}


class Server(ThreadingHTTPServer):
    """Takes many connections at once."""

    request_queue_size = 256
    daemon_threads = True


class Handler(BaseHTTPRequestHandler):
    """Writes what the stub answers; a stream in chunks, with a keep-alive comment first."""

    protocol_version = "HTTP/1.1"
    stub: Stub

    def do_GET(self) -> None:
        if self.path == "/v1/models" and self.stub.models is not None:
            self._json(200, {"object": "list", "data": [{"id": name, "object": "model"} for name in self.stub.models]})
        elif self.path == "/info" and self.stub.info is not None:
            self._json(200, self.stub.info)
        else:
            self._json(404, {"error": f"no such path: {self.path}", "error_type": "not_found"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.stub.requests.append({"path": self.path, **body})
        status, answer = self.stub.answer(self.path, body)
        if status == 200 and body.get("stream"):
            self._stream(answer)
        else:
            self._json(status, answer)

    def _json(self, status: int, answer: Any) -> None:
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, events: list[Any]) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        self._chunk(b":\n\n" + frame(events[0]))
        if not self.stub.gate.is_set() and self._client_leaves():
            return
        for event in events[1:]:
            self._chunk(frame(event))
        self._chunk(b"")

    def _client_leaves(self) -> bool:
        """Wait until the gate opens, or the client closes the connection."""
        self.connection.settimeout(0.01)
        while not self.stub.gate.is_set():
            try:
                if not self.connection.recv(1):
                    self.stub.left.set()
                    self.close_connection = True
                    return True
            except TimeoutError:
                continue
        self.connection.settimeout(WAIT)
        return False

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def log_message(self, format: str, *args: Any) -> None:
        """Keep quiet."""


@contextmanager
def running() -> Generator[Stub, None, None]:
    """Serve until the block ends."""
    stub = Stub()
    handler = type("BoundHandler", (Handler,), {"stub": stub})
    with Server(("127.0.0.1", 0), handler) as server:
        stub.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield stub
        finally:
            stub.gate.set()
            server.shutdown()
            thread.join()
