"""Finds the folder of a model: a local folder, one in the hub's cache, or a download from the hub or an object store.

Weights are safetensors; `.bin` files are converted only when asked. Offline mode, endpoint and token are settings of
huggingface_hub.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .config.files import PARAMS, TRANSFORMERS, Layout, indexed_files, is_duplicate, layout_of
from .config.object_url import is_object_url
from .config.pointer import refuse_pointer
from .config.server import HubConfig, LoadFormat
from .errors import ModelFilesError
from .hub_pickles import convert
from .object_store import ObjectPlace, import_boto3, object_snapshot
from .telemetry import Progress

logger = logging.getLogger(__name__)

SMALL_FILES = ("*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken")
"""What serving reads of a repository beside its weights."""
_NO_WEIGHTS = ("training", "optimizer", "scheduler", "args", "arguments")
_DOWNLOAD_ATTEMPTS = 5
_BACK_OFF_S = 5.0


@dataclass(frozen=True)
class ModelSource:
    """The model that the command line names."""

    model_id: str
    revision: str | None = None
    load_format: LoadFormat = "auto"
    auto_convert: bool = False
    extension: str = ".safetensors"
    flag: str = "--model-id"
    """What names it, and its revision, in messages."""
    revision_flag: str = "--revision"

    @property
    def needs_weights(self) -> bool:
        """Whether weights are read; false for random weights."""
        return self.load_format != "dummy"


def hub_cache(hub: HubConfig) -> Path:
    """Returns the folder of downloads."""
    from huggingface_hub import constants

    return hub.cache_dir or Path(constants.HF_HUB_CACHE)


def present_folder(source: ModelSource, hub: HubConfig) -> Path | None:
    """Returns the folder of a model on this machine, complete or not; None: it must be downloaded.

    Raises `ModelFilesError` for a name that is neither a folder nor one that a hub could have.
    """
    return _local_folder(source, hub) or _cached_snapshot(source, hub)


def find_folder(source: ModelSource, hub: HubConfig) -> Path:
    """Returns the complete folder of a model on this machine. Raises `ModelFilesError`."""
    folder = present_folder(source, hub)
    if folder is None:
        raise ModelFilesError(
            f"{source.model_id} is neither a folder nor in the hub cache; "
            f"run `text-generation-server download-weights {source.model_id}` first"
        )
    _check_folder(folder, source)
    return folder


def prepare_folder(
    source: ModelSource,
    hub: HubConfig,
    check: Callable[[Path], None] = lambda _: None,
    pause: Callable[[float], None] = time.sleep,
) -> Path:
    """Returns the folder of a model, and downloads and converts what it lacks.

    `check` gets the folder before the weights are downloaded; if it raises, they are not. Raises `ModelFilesError`.
    """
    folder = _local_folder(source, hub)
    if folder is None:
        folder = _download(source, hub, check, pause)
    else:
        _check_not_only_gguf(folder, source)
        check(folder)
    if source.needs_weights and source.auto_convert and not stored_weights(folder, source.extension):
        convert(folder, stored_weights(folder, ".bin"))
    _check_folder(folder, source)
    return folder


def stored_weights(folder: Path, extension: str) -> list[Path]:
    """Returns the weight files of a folder in order of name, without files of training.

    Raises `ModelFilesError` for a path that is no regular file.
    """
    found = sorted(folder.glob(f"*{extension}"))
    files = [
        path
        for path in found
        if not any(word in path.stem.split("_") for word in _NO_WEIGHTS) and not is_duplicate(path)
    ]
    for path in files:
        if not path.is_file():
            # Opening a pipe would wait for a writer.
            raise ModelFilesError(
                f"{path} is not a regular file: a pipe, a device, a folder or a broken link holds no weights"
            )
    return files


def _local_folder(source: ModelSource, hub: HubConfig) -> Path | None:
    """Returns the override folder if it is set, else the model id if it is a folder; None: the hub may have it.

    Raises `ModelFilesError` for a name that is neither.
    """
    if hub.override_dir is not None:
        if not hub.override_dir.is_dir():
            raise ModelFilesError(f"WEIGHTS_CACHE_OVERRIDE is no folder: {hub.override_dir}")
        return hub.override_dir.resolve()
    if is_object_url(source.model_id):
        ObjectPlace.of(source.model_id)
        if source.revision is not None:
            raise ModelFilesError(f"{source.model_id} has no revisions: leave --revision out")
        return None
    folder = Path(source.model_id).expanduser()
    try:
        is_dir, exists = folder.is_dir(), folder.exists()
    except PermissionError as error:
        raise ModelFilesError(
            f"{folder.absolute()} cannot be looked at ({error.strerror}): let this user search the folders above it, "
            "or name another one with --model-id"
        ) from error
    if is_dir:
        return folder.resolve()
    if exists:
        raise ModelFilesError(f"{source.model_id} is a file: --model-id must name the folder that the model is in")
    if not is_hub_name(source.model_id):
        absolute = str(folder.absolute())
        meant = "" if absolute == source.model_id else f", that is {absolute}"
        raise ModelFilesError(
            f"no such folder here: {source.model_id}{meant}; --model-id must name an existing "
            "folder, a model of the hub as `organisation/name`, or one of an object store as `s3://bucket/prefix`"
        )
    return None


def is_hub_name(model_id: str) -> bool:
    """Whether a hub could have a model of this name: it has at most one slash, and does not look like a path."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    if model_id.startswith(("/", ".", "~")) or "\\" in model_id:
        return False
    try:
        validate_repo_id(model_id)
    except HFValidationError:
        return False
    return True


def _check_not_only_gguf(folder: Path, source: ModelSource) -> None:
    """Refuses a folder with GGUF weights alone. It runs before the configuration is read, which such a folder lacks."""
    readable = not source.needs_weights or any(stored_weights(folder, end) for end in (source.extension, ".bin"))
    if not readable and any(folder.glob("*.gguf")):
        raise ModelFilesError(f"{folder} has its weights as GGUF, which is not read: use the model's safetensors")


def _check_folder(folder: Path, source: ModelSource) -> None:
    layout = layout_of(folder)
    _check_config(folder, source)
    if not source.needs_weights:
        return
    if source.extension == ".safetensors" and (folder / layout.index).is_file():
        # Before weights are missed that it names elsewhere.
        indexed_files(folder)
    if weights := stored_weights(folder, source.extension):
        for path in weights:
            refuse_pointer(path)
        return
    name = _name_of(folder, source)
    if stored_weights(folder, ".bin"):
        raise ModelFilesError(
            f"{name} has its weights as .bin files only; pass --auto-convert to convert them to safetensors"
        )
    raise ModelFilesError(
        f"{name} has no *{source.extension} weights; pass --auto-convert if the model has .bin weights, or "
        "--load-format dummy for random ones"
    )


def _check_config(folder: Path, source: ModelSource) -> None:
    if not (folder / layout_of(folder).config).is_file():
        name = _name_of(folder, source)
        raise ModelFilesError(f"{name} has no config.json: --model-id must name a folder with a Transformers model")


def _name_of(folder: Path, source: ModelSource) -> str:
    """What the user knows it by: nobody looks for objects of a store in the cache."""
    return source.model_id if is_object_url(source.model_id) else str(folder)


def _snapshot(
    source: ModelSource, hub: HubConfig, weights: str | None, local_only: bool = False, layout: Layout = TRANSFORMERS
) -> Path:
    """Files at the top of the repository that serving reads, and no others."""
    duplicates = [] if layout is PARAMS else ["consolidated*"]
    patterns = [*SMALL_FILES, *([f"*{weights}"] if weights else [])]
    return snapshot(source, hub, patterns, ["*/*", *duplicates], local_only)


def snapshot(source: ModelSource, hub: HubConfig, patterns: list[str], ignored: list[str], local_only: bool) -> Path:
    """Returns the folder of a repository in the hub's cache, with the files that `patterns` name and `ignored` do not.
    It downloads what is not there, unless `local_only`. Raises errors of huggingface_hub, or boto3, and of the network.
    """
    if is_object_url(source.model_id):
        return object_snapshot(source.model_id, hub_cache(hub), patterns, ignored, local_only)
    from huggingface_hub import snapshot_download

    return Path(
        snapshot_download(
            source.model_id,
            revision=source.revision,
            cache_dir=hub.cache_dir,
            allow_patterns=patterns,
            ignore_patterns=ignored,
            local_files_only=local_only,
            tqdm_class=_logging_bar(),
        )
    )


def _logging_bar() -> type:
    """Returns a class of progress bars: that of files logs its progress, and none writes to a terminal."""
    from huggingface_hub.utils import tqdm

    progress = Progress(logger, "downloading", "downloading files")

    class Bar(tqdm):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            self._counts_files = options.get("unit") != "B"
            self._done = 0
            super().__init__(*arguments, **{**options, "disable": True})

        def update(self, n: float | None = 1) -> bool | None:
            if self._counts_files and self.total:
                self._done += int(n or 0)
                progress.report(self._done, int(self.total))
            return super().update(n)

    return Bar


def _cached_snapshot(source: ModelSource, hub: HubConfig) -> Path | None:
    return if_cached(lambda: _snapshot(source, hub, source.extension, local_only=True))


def if_cached(find: Callable[[], Path]) -> Path | None:
    """Returns what `find` looks for in the hub's cache; None: it is not there."""
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return find()
    except (LocalEntryNotFoundError, PermissionError):
        return None


def _download(
    source: ModelSource, hub: HubConfig, check: Callable[[Path], None], pause: Callable[[float], None]
) -> Path:
    """Downloads small files first, then safetensors, or `.bin` files if only these exist and may be converted."""
    place = "in the object store" if is_object_url(source.model_id) else "on the hub"
    logger.info("looking for the model %s", place, extra={"model_id": source.model_id, "revision": source.revision})
    folder = retried(lambda: _snapshot(source, hub, None), source, hub, pause)
    if is_object_url(source.model_id):
        _check_config(folder, source)
    check(folder)
    if not source.needs_weights:
        return folder
    layout = layout_of(folder)
    folder = retried(lambda: _snapshot(source, hub, source.extension, layout=layout), source, hub, pause)
    if stored_weights(folder, source.extension) or not source.auto_convert:
        return folder
    return retried(lambda: _snapshot(source, hub, ".bin"), source, hub, pause)


def retried(call: Callable[[], Path], source: ModelSource, hub: HubConfig, pause: Callable[[float], None]) -> Path:
    """Runs a download, tries again after faults of the network or the hub, and names the cause of a lasting failure."""
    from .hub_faults import exhausted_reason, is_unknown_to_all, lasting_reason
    from .object_faults import exhausted_object_reason, lasting_object_reason

    is_object = is_object_url(source.model_id)
    name = source.model_id if source.revision is None else f"{source.model_id} at revision {source.revision}"
    attempt = 1
    while True:
        try:
            return call()
        except _faults(is_object) as error:
            reason = lasting_reason(error, source, name, hub_cache(hub))
            if reason is None and is_object:
                reason = lasting_object_reason(error, source.model_id, attempt)
            if reason is None and attempt > 1 and is_unknown_to_all(error):
                reason = (
                    f"there is no folder {source.model_id} in {Path.cwd()}, and the hub, which may have a model of "
                    f"this name, cannot be reached; check {source.flag}, the current directory and the network"
                )
            if reason is None and attempt == _DOWNLOAD_ATTEMPTS:
                exhausted = exhausted_object_reason if is_object else exhausted_reason
                reason = exhausted(error, name, attempt)
            if reason is not None:
                raise ModelFilesError(reason) from error
            logger.warning("download failed, trying again", extra={"attempt": attempt, "error": type(error).__name__})
            attempt += 1
            pause(_BACK_OFF_S)


def _faults(is_object: bool) -> tuple[type[Exception], ...]:
    """What a download may fail with."""
    if is_object:
        import_boto3()
        from botocore.exceptions import BotoCoreError, ClientError

        return OSError, BotoCoreError, ClientError
    import httpx2

    return OSError, httpx2.HTTPError
