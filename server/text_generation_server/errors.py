"""Errors that callers can tell apart, each with its gRPC status and a machine-readable reason (docs/errors.md).

Raise the narrowest kind with a message that names the offending value and the field, flag or file that changes it.
"""

from typing import ClassVar

_MOST_BYTES, _END_BYTES = 2000, 700
"""Of a message, and of its end, which has the remedy. A status whose headers are too long is lost, and with it the
connection; what files and requests say may be of any length."""


class EngineError(Exception):
    """Base of every expected failure. Never raised itself. A long message loses its middle."""

    grpc_status: ClassVar[str] = "INTERNAL"
    """Name of the gRPC status code."""
    reason: ClassVar[str] = "internal"
    """Value of the trailing metadata key `error-reason`, and of `RequestFailure.reason`."""

    def __str__(self) -> str:
        """Returns the message, in at most so many bytes of UTF-8 as a gRPC status carries."""
        text = super().__str__().encode(errors="replace")
        if len(text) <= _MOST_BYTES:
            return text.decode()
        start, end = text[: _MOST_BYTES - _END_BYTES - 5], text[-_END_BYTES:]
        return f"{start.decode(errors='ignore')} ... {end.decode(errors='ignore')}"


class InvalidRequest(EngineError):
    """A call carries a value that breaks its contract; nothing was changed."""

    grpc_status = "INVALID_ARGUMENT"
    reason = "invalid_request"


class PlanRefused(EngineError):
    """A plan before this one failed; plans are refused until ClearCache of everything."""

    grpc_status = "FAILED_PRECONDITION"
    reason = "plan_refused"


class NotReady(EngineError):
    """The call is out of order: before Warmup, or a second Warmup."""

    grpc_status = "FAILED_PRECONDITION"
    reason = "not_ready"


class OutOfMemory(EngineError):
    """The device has too little memory for what was asked."""

    grpc_status = "RESOURCE_EXHAUSTED"
    reason = "out_of_memory"


class OutOfSlots(EngineError):
    """A running request was not granted a slot for its next position."""

    grpc_status = "RESOURCE_EXHAUSTED"
    reason = "out_of_slots"


class NumericalError(EngineError):
    """The model produced NaN or infinite logits for a request, or its encoder such embeddings."""

    grpc_status = "INTERNAL"
    reason = "numerical_error"


class MasksMissing(EngineError):
    """The masks of a plan's constrained rows did not come in time."""

    grpc_status = "DEADLINE_EXCEEDED"
    reason = "masks_missing"


class NoTokenAllowed(EngineError):
    """The mask of a request leaves no token that may be chosen."""

    grpc_status = "FAILED_PRECONDITION"
    reason = "no_token_allowed"


class EngineFailed(EngineError):
    """The engine cannot go on; the shard must be restarted."""

    grpc_status = "UNAVAILABLE"
    reason = "engine_failed"


class UnsupportedModel(EngineError):
    """Start-up: the architecture, or a feature that its configuration asks for, is not implemented. Later: a call is
    for models with an encoder of images, which this one has not.
    """

    grpc_status = "FAILED_PRECONDITION"
    reason = "unsupported_model"


class ModelFilesError(EngineError):
    """Start-up: files of the model folder are missing, damaged or do not fit its configuration."""

    grpc_status = "FAILED_PRECONDITION"
    reason = "model_files"


class ConfigurationError(EngineError):
    """Start-up: a flag, an environment variable or a key of a JSON file has a wrong value."""

    grpc_status = "FAILED_PRECONDITION"
    reason = "configuration"


class AdapterError(EngineError):
    """Files of a LoRA adapter are missing, damaged, do not fit the model, or need what is not computed."""

    grpc_status = "INVALID_ARGUMENT"
    reason = "adapter_invalid"


class AdapterNotFound(EngineError):
    """What a LoRA adapter is to be loaded from is not on this machine."""

    grpc_status = "NOT_FOUND"
    reason = "adapter_not_found"


class AdapterChanged(EngineError):
    """The files of a LoRA adapter have other contents than the caller asked for."""

    grpc_status = "FAILED_PRECONDITION"
    reason = "adapter_changed"
