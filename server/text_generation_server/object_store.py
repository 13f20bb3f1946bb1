"""Models and adapters in an object store with the protocol of S3: `s3://bucket/prefix` becomes a folder of the cache.

    s3--BUCKET--PREFIX/blobs/ID              contents of an object, by its key, entity tag and size
    s3--BUCKET--PREFIX/snapshots/ID/NAME     links to them, by the list of all objects directly below the prefix
    s3--BUCKET--PREFIX/latest.json           that list, and the snapshot of it

So what has not changed is not fetched again. Credentials, region and endpoint are boto3's own settings. Without
credentials requests are not signed, as public buckets allow.
"""

import hashlib
import json
import logging
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

from .config.object_url import SCHEME
from .errors import ModelFilesError
from .object_fetch import fetch
from .telemetry import Progress

logger = logging.getLogger(__name__)

_AT_A_TIME = 8
_LATEST = "latest.json"
_ID_DIGITS = 40


@dataclass(frozen=True)
class StoredObject:
    """An object directly below the prefix."""

    name: str
    size: int
    etag: str

    @property
    def blob(self) -> str:
        """The name of the file with its contents."""
        return _id([self])


@dataclass(frozen=True)
class ObjectPlace:
    """Where the objects of a model or an adapter are."""

    bucket: str
    prefix: str
    """Empty, or with a slash at its end."""

    @classmethod
    def of(cls, url: str) -> "ObjectPlace":
        """Raises ModelFilesError for a URL without a bucket."""
        bucket, _, prefix = url.removeprefix(SCHEME).partition("/")
        if not bucket:
            raise ModelFilesError(f"{url} names no bucket: write s3://bucket/prefix")
        return cls(bucket, f"{prefix.strip('/')}/" if prefix.strip("/") else "")

    def root(self, cache: Path) -> Path:
        """The folder of everything that was fetched from here."""
        return cache / f"s3--{quote(self.bucket, safe='')}--{quote(self.prefix.rstrip('/'), safe='')}"


def object_snapshot(url: str, cache: Path, patterns: list[str], ignored: list[str], local_only: bool) -> Path:
    """Returns the folder with the objects of `url` that `patterns` name and `ignored` do not. It fetches what is not
    there, unless `local_only`. Raises ModelFilesError, LocalEntryNotFoundError where the folder is not complete and
    nothing may be fetched, and errors of boto3, of the network and of the disk.
    """
    from huggingface_hub import constants

    place = ObjectPlace.of(url)
    root = place.root(cache)
    if local_only or constants.is_offline_mode():
        return _present(root, patterns, ignored)
    import_boto3()
    from botocore.exceptions import BotoCoreError
    from huggingface_hub.errors import LocalEntryNotFoundError
    from huggingface_hub.utils import WeakFileLock

    from .object_faults import is_of_network

    client = store_client()
    try:
        found = list(_listed(client, place))
    except BotoCoreError as error:
        try:
            folder = _present(root, patterns, ignored) if is_of_network(error) else None
        except LocalEntryNotFoundError:
            folder = None
        if folder is None:
            raise
        logger.warning("the object store cannot be reached; what was fetched before is served: %s", folder)
        return folder
    if not found:
        raise ModelFilesError(f"there is no object directly below {url}: check its bucket and prefix")
    # Nothing is made for what the store does not have.
    root.mkdir(parents=True, exist_ok=True)
    with WeakFileLock(root / ".lock"):
        return _complete(client, place, root, found, _chosen(found, patterns, ignored))


def import_boto3() -> Any:
    """The client, which not every installation has. Raises ModelFilesError."""
    try:
        import boto3
    except ImportError as error:
        raise ModelFilesError(
            "models in object stores need boto3, which is not installed: pip install 'text-generation-server[s3]'"
        ) from error
    return boto3


def store_client() -> Any:
    """Returns a client with the credentials, region and endpoint of the environment; it asks no store yet. Raises
    ModelFilesError for settings that are no client's.
    """
    from botocore import UNSIGNED
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    try:
        session = import_boto3().session.Session()
        options: dict[str, Any] = {"connect_timeout": 10, "read_timeout": 60, "max_pool_connections": _AT_A_TIME}
        if session.get_credentials() is None:
            options["signature_version"] = UNSIGNED
        client: Any = session.client("s3", config=Config(**options))
        if ".amazonaws." in client.meta.endpoint_url:
            return client
        # Other stores seldom have a name for each bucket.
        return session.client("s3", config=Config(**options, s3={"addressing_style": "path"}))
    except (BotoCoreError, ValueError) as error:
        raise ModelFilesError(f"the AWS_* variables or files name no object store: {error}") from error


def _listed(client: Any, place: ObjectPlace) -> Iterable[StoredObject]:
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=place.bucket, Prefix=place.prefix, Delimiter="/")
    for page in pages:
        for each in page.get("Contents", ()):
            name = str(each["Key"]).removeprefix(place.prefix)
            if name not in ("", ".", "..") and "\0" not in name:
                yield StoredObject(name, int(each["Size"]), str(each["ETag"]))


def _complete(
    client: Any, place: ObjectPlace, root: Path, found: list[StoredObject], chosen: list[StoredObject]
) -> Path:
    """Fetches what is missing, a few objects at a time, and links it into the snapshot of this list."""
    blobs, folder = root / "blobs", root / "snapshots" / _id(found)
    blobs.mkdir(exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    missing = [each for each in chosen if not (blobs / each.blob).is_file()]
    progress = Progress(logger, "downloading", "downloading files")
    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        jobs = [
            pool.submit(fetch, client, place.bucket, place.prefix + each.name, each.etag, each.size, blobs / each.blob)
            for each in missing
        ]
        try:
            for number, job in enumerate(jobs):
                job.result()
                progress.report(len(chosen) - len(missing) + number + 1, len(chosen))
        finally:
            # After a failure those that wait would fail too, or take hours.
            pool.shutdown(cancel_futures=True)
    for each in chosen:
        _link(folder / each.name, Path("..", "..", "blobs", each.blob))
    contents = {"snapshot": folder.name, "objects": [asdict(each) for each in found]}
    partial = root / f"{_LATEST}.partial"
    partial.write_text(json.dumps(contents), encoding="utf-8")
    partial.replace(root / _LATEST)
    return folder


def _link(path: Path, target: Path) -> None:
    if path.is_symlink() and path.readlink() == target:
        return
    partial = path.with_name(f"{path.name}.partial")
    partial.unlink(missing_ok=True)
    partial.symlink_to(target)
    os.replace(partial, path)


def _present(root: Path, patterns: list[str], ignored: list[str]) -> Path:
    """The folder of the list that was read last, if it is complete. Raises LocalEntryNotFoundError."""
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        latest = cast("dict[str, Any]", json.loads((root / _LATEST).read_text(encoding="utf-8")))
        found = [StoredObject(**each) for each in latest["objects"]]
        folder = root / "snapshots" / str(latest["snapshot"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LocalEntryNotFoundError(f"nothing was fetched to {root}") from error
    if any(not (folder / each.name).is_file() for each in _chosen(found, patterns, ignored)):
        raise LocalEntryNotFoundError(f"{folder} is not complete")
    return folder


def _chosen(found: list[StoredObject], patterns: list[str], ignored: list[str]) -> list[StoredObject]:
    from huggingface_hub.utils import filter_repo_objects

    return list(
        filter_repo_objects(found, allow_patterns=patterns, ignore_patterns=ignored, key=lambda each: each.name)
    )


def _id(objects: list[StoredObject]) -> str:
    """Tells contents apart, as far as the store does."""
    lines = sorted(f"{each.size} {each.etag} {each.name}\0" for each in objects)
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:_ID_DIGITS]
