"""Fetches one object of an object store into a file, and goes on where an earlier attempt ended."""

import os
from pathlib import Path
from typing import Any

_CHUNK = 1 << 20


def fetch(client: Any, bucket: str, key: str, etag: str, size: int, path: Path) -> None:
    """Writes the object to `path`, which gets its name when it is complete and has `size` bytes. What an earlier
    attempt has left beside it is kept: the store gives the rest, if its entity tag is still `etag`.

    Raises errors of boto3, of the network and of the disk, all of which another attempt may mend.
    """
    from botocore.exceptions import FlexibleChecksumError

    partial = path.with_name(f"{path.name}.incomplete")
    start = partial.stat().st_size if partial.is_file() else 0
    if start > size:
        partial.unlink()
        start = 0
    try:
        if start < size or not size:
            _append(client, partial, start, {"Bucket": bucket, "Key": key, "IfMatch": etag})
    except FlexibleChecksumError:
        # More of the same would never be right.
        partial.unlink(missing_ok=True)
        raise
    if (fetched := partial.stat().st_size) != size:
        if fetched > size:
            partial.unlink()
        raise ConnectionError(f"of {key} there are {fetched} bytes of {size}")
    os.replace(partial, path)


def _append(client: Any, partial: Path, start: int, asked: dict[str, str]) -> None:
    if start:
        asked = {**asked, "Range": f"bytes={start}-"}
    answer = client.get_object(**asked)
    # A store that knows no ranges answers with the whole object.
    goes_on = start and str(answer.get("ContentRange", "")).startswith(f"bytes {start}-")
    with partial.open("ab" if goes_on else "wb") as file:
        for chunk in answer["Body"].iter_chunks(_CHUNK):
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
