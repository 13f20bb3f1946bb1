"""Why a download failed: whether to try again, and what to tell the user."""

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from huggingface_hub import constants, errors

if TYPE_CHECKING:
    from .hub import ModelSource

_FULL = (errno.ENOSPC, errno.EDQUOT)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
_TOO_MANY_REQUESTS = 429
_ANOTHER_FOLDER = "name another folder with --huggingface-hub-cache (HUGGINGFACE_HUB_CACHE)"


def lasting_reason(error: Exception, source: "ModelSource", name: str, cache: Path) -> str | None:
    """Returns the message for a fault that another attempt cannot mend; None for other faults.

    `name` is the model with its revision; `cache` is the folder of downloads.
    """
    answer = hub_answer(error)
    if answer is not None:
        return _refusal(answer, source, name)
    if isinstance(error, OSError) and error.errno in _FULL:
        return f"the disk is full: {name} does not fit into the hub cache; free space there, or {_ANOTHER_FOLDER}"
    if isinstance(error, OSError) and error.errno in _FORBIDDEN:
        # Only errors of the operating system have a file name.
        path = error.filename or cache
        return (
            f"{path} cannot be written to ({error.strerror}), and {name} goes into the hub cache {cache}: make that "
            f"writable for this user, or {_ANOTHER_FOLDER}"
        )
    if constants.is_offline_mode():
        return f"{name} is not in the hub cache and HF_HUB_OFFLINE forbids a download"
    return None


def exhausted_reason(error: Exception, name: str, attempts: int) -> str:
    """Returns the message for a fault that has outlasted all attempts."""
    answer = hub_answer(error)
    if answer is None:
        return f"downloading {name} failed {attempts} times ({type(error).__name__}); check the network"
    remedy = "try again later"
    if answer.response.status_code == _TOO_MANY_REQUESTS:
        remedy = f"{remedy}, or set HF_TOKEN, with which the hub allows more requests"
    return f"downloading {name} failed {attempts} times: the hub answers {_said(answer)}; {remedy}"


def is_unknown_to_all(error: Exception) -> bool:
    """Whether this machine has nothing of the model and no hub has answered: the name may mean a folder elsewhere."""
    from_cache = isinstance(error, errors.LocalEntryNotFoundError)
    # An incomplete snapshot shows that the hub has answered before.
    return from_cache and not isinstance(error, errors.IncompleteSnapshotError) and hub_answer(error) is None


def hub_answer(error: Exception) -> errors.HfHubHTTPError | None:
    """Returns the answer of the hub that caused `error`. The library hides most answers behind a missing file."""
    return next((each for each in _causes(error) if isinstance(each, errors.HfHubHTTPError)), None)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _refusal(answer: errors.HfHubHTTPError, source: "ModelSource", name: str) -> str | None:
    """Returns the message for an answer of the hub; None where a later answer may differ."""
    if isinstance(answer, errors.GatedRepoError):
        return f"{name} is gated: accept its terms on the hub and set HF_TOKEN"
    if isinstance(answer, errors.RevisionNotFoundError):
        return f"the hub has no {name}; check {source.revision_flag}"
    if isinstance(answer, errors.RepositoryNotFoundError):
        return (
            f"{source.model_id} is neither a local folder nor a model of the hub; check {source.flag}, and HF_TOKEN if "
            "it is private"
        )
    status = answer.response.status_code
    if status in (401, 403):
        return (
            f"the hub refuses {name}: {_said(answer)}; set HF_TOKEN to a token that is valid and may read it, and "
            "accept the model's licence on the hub where it has one"
        )
    if status == _TOO_MANY_REQUESTS or status >= 500:
        return None
    return f"the hub refuses {name}: {_said(answer)}; check {source.flag} and HF_ENDPOINT"


def _said(answer: errors.HfHubHTTPError) -> str:
    """Returns status and text of the answer as one line."""
    words = [str(answer.response.status_code), answer.response.reason_phrase]
    if answer.server_message:
        words.append(f"({answer.server_message})")
    return " ".join(" ".join(words).split())
