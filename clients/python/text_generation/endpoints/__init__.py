"""The methods of the API, once for both clients: what each sends and how its answer is read.

The first parameter of these functions is the client whose method they describe, so that `functools.wraps` shows the
method as it is called. They make no use of it.
"""

from text_generation.endpoints.call import Call
from text_generation.endpoints.generate import generate, generate_stream
from text_generation.endpoints.info import image_limits
from text_generation.endpoints.openai import (
    ChatOptions,
    CompletionOptions,
    Messages,
    Prompts,
    RunOptions,
    chat,
    classify,
    completion,
    models,
    score,
)

__all__ = [
    "Call",
    "ChatOptions",
    "CompletionOptions",
    "Messages",
    "Prompts",
    "RunOptions",
    "chat",
    "classify",
    "completion",
    "generate",
    "generate_stream",
    "image_limits",
    "models",
    "score",
]
