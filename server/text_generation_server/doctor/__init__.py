"""What a start would do on this machine, and what would keep it from working; it starts and downloads nothing."""

from collections.abc import Iterator

from ..config.copies import DequantisedCopies
from ..config.implementation import ModelImpl
from ..config.kv_cache import KvCacheDtype
from ..config.server import Environment
from ..config.serving import AskedLimits
from ..config.shards import AskedShards
from ..hub import ModelSource
from .devices import device_findings, memory_of, read_devices
from .finding import Finding
from .model import model_findings
from .software import software_findings
from .storage import storage_findings

__all__ = ["Finding", "examine"]


def examine(
    source: ModelSource | None,
    environment: Environment,
    limits: AskedLimits,
    dtype: str | None,
    shards: AskedShards,
    model_impl: ModelImpl = "auto",
    quantize: str | None = None,
    kv_cache_dtype: KvCacheDtype = "auto",
    copies: DequantisedCopies = "auto",
) -> Iterator[Finding]:
    """Findings in the order in which a person would look: programs, devices, folders, and a model, if one is named."""
    yield from software_findings()
    devices = read_devices()
    yield from device_findings(devices, shards.count)
    yield from storage_findings(environment.hub)
    if source is not None:
        if dtype is None and not devices.cards:
            dtype = "float32"
        if copies == "auto" and not devices.cards:
            copies = "off"
        memory = memory_of(devices, environment.cuda_memory_fraction, shards.count)
        yield from model_findings(
            source, environment, limits, dtype, shards, memory, model_impl, quantize, kv_cache_dtype, copies
        )
