"""Versions of the libraries that the shard needs, and the C compiler that Triton needs."""

import platform
import shutil
from collections.abc import Callable, Iterator
from importlib import metadata

from .. import __version__
from .finding import Finding

_SUBJECT = "software"
_LIBRARIES = ("torch", "triton", "grpcio", "protobuf", "safetensors", "huggingface_hub", "tokenizers", "transformers")
_OPTIONAL = {"transformers": "tokenizers of other forms cannot be converted"}
"""Optional libraries, and what does not work without them."""


def software_findings(
    version_of: Callable[[str], str] = metadata.version, which: Callable[[str], str | None] = shutil.which
) -> Iterator[Finding]:
    """Yields findings about software. `version_of` raises PackageNotFoundError for what is not installed."""
    present = [f"text-generation-server {__version__}", f"Python {platform.python_version()}"]
    for name in _LIBRARIES:
        try:
            present.append(f"{name} {version_of(name)}")
        except metadata.PackageNotFoundError:
            remedy = f"pip install {name}, or install text-generation-server again"
            if name in _OPTIONAL:
                yield Finding(_SUBJECT, "warning", f"{name} is not installed: {_OPTIONAL[name]}", remedy)
            elif name != "triton" or platform.system() == "Linux":
                yield Finding(_SUBJECT, "error", f"{name} is not installed", remedy)
    yield Finding(_SUBJECT, "ok", ", ".join(present))
    if platform.system() == "Linux" and not any(which(name) for name in ("cc", "gcc", "clang")):
        yield Finding(
            _SUBJECT,
            "warning",
            "there is no C compiler, with which Triton builds the launchers of its kernels on GPUs",
            "apt-get install gcc, or set CC to a compiler",
        )
