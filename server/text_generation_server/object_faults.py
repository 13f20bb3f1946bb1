"""Why an object store did not give what was asked for: whether to try again, and what to tell the user."""

from typing import Any, cast

_CREDENTIALS = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN of temporary ones) to credentials that may "
    "list and read it"
)
_PLACE = "check bucket and prefix, AWS_ENDPOINT_URL and AWS_DEFAULT_REGION"
_REPEATED = (404, 408, 409, 412, 429)
"""Objects that have gone or changed since they were listed are listed again; others are faults that pass."""


def lasting_object_reason(error: Exception, url: str, attempt: int) -> str | None:
    """Returns the message for a fault of this attempt, from 1, that another cannot mend; None for other faults."""
    from botocore import exceptions

    if isinstance(error, exceptions.ClientError):
        return _refusal(error, url, attempt)
    if isinstance(error, exceptions.NoCredentialsError | exceptions.PartialCredentialsError):
        return f"the credentials for {url} are missing or incomplete ({error}): {_CREDENTIALS}"
    if isinstance(error, exceptions.ParamValidationError):
        return f"{url} cannot be asked for ({' '.join(str(error).split())}): {_PLACE}"
    passes = is_of_network(error) or isinstance(error, exceptions.FlexibleChecksumError)
    if isinstance(error, exceptions.BotoCoreError) and not passes:
        return f"{url} cannot be read ({error}): check the AWS_* variables and files"
    return None


def is_of_network(error: Exception) -> bool:
    """Whether no answer came, or not all of it."""
    from botocore import exceptions

    kinds = exceptions.HTTPClientError, exceptions.ConnectionError, exceptions.IncompleteReadError
    return isinstance(error, kinds)


def exhausted_object_reason(error: Exception, url: str, attempts: int) -> str:
    """Returns the message for a fault that has outlasted all attempts."""
    return f"downloading {url} failed {attempts} times ({_said(error)}); {_PLACE}, and the network"


def _refusal(error: Any, url: str, attempt: int) -> str | None:
    answer = cast("dict[str, dict[str, Any]]", error.response)
    status, code = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0), answer.get("Error", {}).get("Code", "")
    if code == "NoSuchBucket":
        return f"there is no bucket of {url}: {_PLACE}"
    if code == "NoSuchKey" and (error.operation_name != "GetObject" or attempt > 1):
        # An object that has gone meanwhile is not listed again.
        return f"the object store does not have what it lists for {url}: {_said(error)}; {_PLACE}"
    if status in _REPEATED or status >= 500:
        return None
    if status in (401, 403):
        return f"the object store refuses {url}: {_said(error)}; {_CREDENTIALS}"
    return f"the object store refuses {url}: {_said(error)}; {_PLACE}"


def _said(error: Exception) -> str:
    """Type and text of the error as one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
