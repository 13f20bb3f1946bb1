"""Maps exceptions of handlers to gRPC statuses, in one place."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import grpc
from grpc import aio

from ..errors import EngineError

logger = logging.getLogger(__name__)

REASON_KEY = "error-reason"
"""Trailing metadata key with the machine-readable reason (docs/errors.md)."""


Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"


class ErrorInterceptor(aio.ServerInterceptor):
    """An `EngineError` becomes its status, message and reason. Anything else becomes INTERNAL `internal` without
    details, because a foreign message may hold paths or prompts; the log has the traceback.
    """

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """Wraps unary handlers; others pass as they are."""
        handler = await continuation(handler_call_details)
        if handler is None or handler.unary_unary is None:
            return handler
        inner = handler.unary_unary
        method = handler_call_details.method

        async def mapped(request: Any, context: Any) -> Any:
            try:
                return await inner(request, context)
            except EngineError as error:
                await _abort(context, grpc.StatusCode[error.grpc_status], str(error), error.reason)
            except aio.AbortError:
                raise
            except Exception:
                logger.exception("call failed", extra={"method": method})
                message = "internal error of the shard; see its log"
                await _abort(context, grpc.StatusCode.INTERNAL, message, EngineError.reason)

        return grpc.unary_unary_rpc_method_handler(
            mapped,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )


async def _abort(context: Any, code: grpc.StatusCode, message: str, reason: str) -> None:
    await context.abort(code, message, trailing_metadata=((REASON_KEY, reason),))
