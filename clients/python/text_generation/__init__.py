"""Client of the text-generation inference server, and of Hugging Face TGI.

>>> from text_generation import Client
>>> client = Client("http://127.0.0.1:3000")
>>> client.generate("The capital of France is", max_new_tokens=2).generated_text
' Paris.'

Answers are dataclasses (`text_generation.types`); everything that goes wrong is a `TextGenerationError`
(`text_generation.errors`).
"""

from importlib.metadata import PackageNotFoundError, version

from text_generation.async_client import AsyncClient
from text_generation.client import Client
from text_generation.images import Image
from text_generation.joining import ChunkJoiner, join_chunks

try:
    __version__ = version("text-generation-client")
except PackageNotFoundError:  # Run from the sources, not installed.
    __version__ = "0+unknown"

__all__ = ["AsyncClient", "ChunkJoiner", "Client", "Image", "__version__", "join_chunks"]
