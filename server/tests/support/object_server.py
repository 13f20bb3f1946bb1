"""A small object store with the parts of S3's protocol that a download needs, on the loopback."""

import hashlib
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape

PAGE = 2
"""Objects in one answer of a list."""


@dataclass
class ObjectServer:
    """Buckets with their objects, and what is wrong with the store."""

    buckets: dict[str, dict[str, bytes]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    """Method, path, and the range that was asked for."""
    signed: list[bool] = field(default_factory=list)
    breaks_after: int | None = None
    """Bytes of the next large object after which the connection ends, once."""
    refuses: tuple[int, str] | None = None
    """Status and code of every answer."""
    lacks: str | None = None
    """The name of objects that are listed and not there."""
    knows_ranges: bool = True
    address: str = ""

    def fetched(self) -> list[str]:
        """The objects that were asked for, by their name, in order."""
        return sorted(each.split()[1].rpartition("/")[2] for each in self.requests if "list-type" not in each)


def etag(content: bytes) -> str:
    return f'"{hashlib.md5(content).hexdigest()}"'


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    store: ObjectServer

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        store, parts = self.store, urlsplit(self.path)
        store.requests.append(" ".join(filter(None, ("GET", self.path, self.headers.get("Range")))))
        store.signed.append("Authorization" in self.headers)
        bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
        if store.refuses is not None:
            self._fail(*store.refuses)
        elif bucket not in store.buckets:
            self._fail(404, "NoSuchBucket")
        elif "list-type" in parts.query:
            self._list(store.buckets[bucket], {name: each[0] for name, each in parse_qs(parts.query).items()})
        elif key not in store.buckets[bucket] or key.rpartition("/")[2] == store.lacks:
            self._fail(404, "NoSuchKey")
        else:
            self._send_object(store.buckets[bucket][key])

    def _list(self, objects: dict[str, bytes], asked: dict[str, str]) -> None:
        prefix, first = asked.get("prefix", ""), int(asked.get("continuation-token", 0))
        keys = sorted(key for key in objects if key.startswith(prefix) and "/" not in key[len(prefix) :])
        contents = "".join(
            f"<Contents><Key>{escape(quote(key))}</Key><ETag>{escape(etag(objects[key]))}</ETag>"
            f"<Size>{len(objects[key])}</Size></Contents>"
            for key in keys[first : first + PAGE]
        )
        more, following = first + PAGE < len(keys), f"<NextContinuationToken>{first + PAGE}</NextContinuationToken>"
        body = (
            f"<ListBucketResult><EncodingType>url</EncodingType><IsTruncated>{str(more).lower()}</IsTruncated>"
            f"{following if more else ''}{contents}</ListBucketResult>"
        )
        self._send(200, body.encode(), {})

    def _send_object(self, content: bytes) -> None:
        store, headers = self.store, {"ETag": etag(content)}
        if self.headers.get("If-Match", headers["ETag"]) != headers["ETag"]:
            self._fail(412, "PreconditionFailed")
            return
        status, wanted = 200, self.headers.get("Range")
        if wanted is not None and store.knows_ranges:
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            status, content = 206, content[start:]
        self._send(status, content, headers)

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        end = self.store.breaks_after
        if end is not None and len(body) > end:
            self.store.breaks_after = None
            self.wfile.write(body[:end])
            self.close_connection = True
            return
        self.wfile.write(body)

    def _fail(self, status: int, code: str) -> None:
        self._send(status, f"<Error><Code>{code}</Code><Message>because</Message></Error>".encode(), {})


@contextmanager
def object_server() -> Generator[ObjectServer]:
    """Serves while the context lasts."""
    store = ObjectServer()
    handler = type("Handler", (_Handler,), {"store": store})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        store.address = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield store
        finally:
            server.shutdown()
            thread.join()
