"""The pixels of one PutMedia: from a file beside the shard's socket, or from the message itself. Imports no torch.

The caller of the shard may name a file, so this is checked as any input: a plain name, a regular file of this user with
exactly the bytes of the views, no link. The file stays as it is; who made it deletes it.
"""

import os
import stat
from pathlib import Path

import numpy as np

from ..engine.media_requests import Pixels, pixels_of
from ..errors import InvalidRequest
from ..pb import generate_pb2 as pb
from .convert import views_from_pb

_CHANNELS = 3


def read_pixels(message: pb.PutMediaRequest, folder: Path | None) -> Pixels:
    """Returns the bytes of all views. Raises `InvalidRequest`, naming the field."""
    wanted = _CHANNELS * pixels_of(views_from_pb(message))
    source = message.WhichOneof("source")
    if source == "pixels":
        if len(message.pixels) != wanted:
            raise InvalidRequest(f"`pixels` holds {len(message.pixels)} bytes, and `views` have {wanted}")
        # The engine takes memory that may be written to.
        return np.frombuffer(bytearray(message.pixels), dtype=np.uint8)
    if source is None:
        raise InvalidRequest("`source` must be `file` or `pixels`")
    if folder is None:
        raise InvalidRequest("`file` needs a shard with a socket in a folder; send `pixels`")
    return _read(folder, message.file, wanted)


def _read(folder: Path, name: str, wanted: int) -> Pixels:
    if not name or name in (".", "..") or "/" in name or "\0" in name:
        raise InvalidRequest("`file` must be the plain name of a file in the folder of the shard's socket")
    # Without O_NONBLOCK, opening a pipe would wait for somebody who writes to it.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        file = os.open(folder / name, flags)
    except OSError as error:
        raise InvalidRequest(f"`file` cannot be opened: {error.strerror}") from error
    with open(file, "rb", buffering=0) as opened:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            raise InvalidRequest("`file` must be a regular file of the shard's user")
        if found.st_size != wanted:
            raise InvalidRequest(f"`file` holds {found.st_size} bytes, and `views` have {wanted}")
        pixels, read = bytearray(wanted), 0
        while read < wanted and (count := opened.readinto(memoryview(pixels)[read:])):
            read += count
    if read != wanted:
        raise InvalidRequest(f"`file` was cut to {read} bytes while it was read, and `views` have {wanted}")
    return np.frombuffer(pixels, dtype=np.uint8)
