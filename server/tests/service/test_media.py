"""PutMedia over gRPC: pixels from a file beside the socket, or from the message."""

import os
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from support.engine_driver import make_engine
from support.fake_model import FakeModel
from support.media import TOKEN, FakeEncoder, Image
from support.service import error_of, ready, request_pb, run, serving

from text_generation_server.engine.requests import ShardEngine
from text_generation_server.pb import generate_pb2 as pb

IMAGE = Image(8, 12, 1)
WARMUP = pb.WarmupRequest(
    max_batch_prefill_tokens=64,
    max_batch_size=4,
    max_batch_total_tokens=128,
    media_rows=40,
    max_media_pixels=256,
)
ENCODE = pb.Encode(item=3, first_layer=0, layers=3, row=4, rows=6)
REFUSED = (grpc.StatusCode.INVALID_ARGUMENT, "invalid_request")


def with_encoder() -> ShardEngine:
    model = FakeModel()
    model.encoder = FakeEncoder(8, axes=True)
    return cast("ShardEngine", make_engine(model, limits=None))


def put(item: int = 3, **source: Any) -> pb.PutMediaRequest:
    views = [pb.MediaView(height=IMAGE.height, width=IMAGE.width)]
    return pb.PutMediaRequest(item=item, views=views, grid_height=2, grid_width=3, rows=IMAGE.rows, **source)


def test_an_image_comes_by_file_or_by_message_and_is_read(tmp_path: Path) -> None:
    async def test() -> None:
        (tmp_path / "pixels").write_bytes(IMAGE.pixels.tobytes())
        async with serving(tmp_path, with_encoder) as shard:
            await ready(shard)
            info = (await shard.stub.Info(pb.InfoRequest())).media
            assert (info.token_id, info.layers, info.whole_spans, info.axes) == (TOKEN, 3, False, True)
            limits = await shard.stub.Warmup(WARMUP)
            assert len(limits.media_cost.pixels) == len(limits.media_cost.times_ms) > 1
            await shard.stub.PutMedia(put(3, file="pixels"))
            assert (tmp_path / "pixels").exists()
            await shard.stub.PutMedia(put(4, pixels=IMAGE.pixels.tobytes()))
            request = request_pb(1, [1, 2, *[TOKEN] * 6, 3])
            request.media.add(first=2, length=6, row=4, grid_height=2, grid_width=3)
            chunk = pb.Chunk(row=1, first=0, count=9)
            plan = pb.StepPlan(number=0, admit=[request], chunks=[chunk], encode=[ENCODE], forget=[4])
            reply = await shard.stub.Prefill(plan)
            assert (list(reply.rows), list(reply.failures)) == ([1], [])
            assert reply.timings.encode_ns > 0

    run(test())


def test_a_shard_without_an_encoder_says_so(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as shard:
            await ready(shard)
            assert not (await shard.stub.Info(pb.InfoRequest())).HasField("media")
            code, reason, message = await error_of(shard.stub.PutMedia(put(pixels=b"")))
            assert (code, reason) == (grpc.StatusCode.FAILED_PRECONDITION, "unsupported_model")
            assert "has no `media`" in message

    run(test())


def _pipe(folder: Path) -> None:
    os.mkfifo(folder / "pipe")


def _link(folder: Path) -> None:
    (folder / "sound").write_bytes(IMAGE.pixels.tobytes())
    (folder / "link").symlink_to(folder / "sound")


BAD_SOURCES = {
    "none": ({}, lambda _: None, "`source` must be `file` or `pixels`"),
    "bytes": ({"pixels": b"abc"}, lambda _: None, "`pixels` holds 3 bytes, and `views` have 288"),
    "folder": ({"file": "../pixels"}, lambda _: None, "`file` must be the plain name"),
    "path": ({"file": "/etc/passwd"}, lambda _: None, "`file` must be the plain name"),
    "dots": ({"file": ".."}, lambda _: None, "`file` must be the plain name"),
    "empty": ({"file": ""}, lambda _: None, "`file` must be the plain name"),
    "absent": ({"file": "pixels"}, lambda _: None, "`file` cannot be opened: No such file or directory"),
    "link": ({"file": "link"}, _link, "`file` cannot be opened: Too many levels of symbolic links"),
    "pipe": ({"file": "pipe"}, _pipe, "`file` must be a regular file of the shard's user"),
    "socket": ({"file": "shard-0"}, lambda _: None, "`file` cannot be opened"),
    "size": ({"file": "size"}, lambda folder: (folder / "size").write_bytes(b"abc"), "`file` holds 3 bytes"),
}


@pytest.mark.parametrize("name", list(BAD_SOURCES))
def test_wrong_sources_are_refused_and_harm_nobody(name: str, tmp_path: Path) -> None:
    source, prepare, message = BAD_SOURCES[name]

    async def test() -> None:
        prepare(tmp_path)
        async with serving(tmp_path, with_encoder) as shard:
            await ready(shard)
            early = await error_of(shard.stub.PutMedia(put(pixels=IMAGE.pixels.tobytes())))
            assert early[:2] == (grpc.StatusCode.FAILED_PRECONDITION, "not_ready")
            await shard.stub.Warmup(WARMUP)
            code, reason, text = await error_of(shard.stub.PutMedia(put(**source)))
            assert (code, reason) == REFUSED
            assert message in text
            await shard.stub.PutMedia(put(pixels=IMAGE.pixels.tobytes()))
            reply = await shard.stub.Prefill(pb.StepPlan(number=0, encode=[ENCODE]))
            assert list(reply.failures) == []

    run(test())
