"""The doctor: what a start would do on this machine, and what would keep it from working; it starts and downloads
nothing.
"""

from collections.abc import Iterator
from pathlib import Path

from ..config.copies import DequantisedCopies
from ..config.drafter import read_drafter_config
from ..config.implementation import AnyModelConfig, ModelImpl, read_model_config
from ..config.kv_cache import KvCacheDtype
from ..config.object_url import is_object_url
from ..config.server import AskedComputation, Environment, HubConfig
from ..config.serving import AskedLimits
from ..config.shards import AskedShards
from ..errors import AdapterError, AdapterNotFound, ConfigurationError, EngineError, ModelFilesError
from ..hub import ModelSource, is_hub_name, present_folder
from ..hub_adapters import find_adapter
from ..hub_drafter import find_drafter
from ..object_store import ObjectPlace, store_client
from .devices import Devices, device_findings, memory_of, read_devices
from .finding import Finding
from .model import missing_model, model_findings
from .software import software_findings
from .storage import storage_findings

__all__ = ["Finding", "examine"]


def examine(
    source: ModelSource | None,
    limits: AskedLimits,
    dtype: str | None,
    shards: AskedShards,
    computation: AskedComputation,
    model_impl: ModelImpl = "auto",
    quantize: str | None = None,
    kv_cache_dtype: KvCacheDtype = "auto",
) -> Iterator[Finding]:
    """Yields findings in the order in which a person would look: programs, devices, flags, folders, and the model, if
    the caller names one.
    """
    yield from software_findings()
    devices = read_devices()
    yield from device_findings(devices, shards.count)
    try:
        environment = Environment.read()
    except ConfigurationError as error:
        yield Finding("environment", "error", str(error), "correct the variable that the message names")
        return
    yield from flag_findings(computation, environment, devices)
    yield from adapter_findings(computation, environment.hub)
    yield from drafter_findings(computation, source, environment.hub)
    yield from storage_findings(environment.hub, missing_model(source, environment.hub), bool(devices.cards))
    if source is not None:
        if dtype is None and not devices.cards:
            dtype = "float32"
        memory = memory_of(devices, environment.cuda_memory_fraction, shards.count)
        copies = copies_of(computation, devices)
        yield from model_findings(
            source,
            environment,
            limits,
            dtype,
            shards,
            memory,
            model_impl,
            quantize,
            kv_cache_dtype,
            copies,
            computation.deterministic,
            computation.speculate,
            is_shared=not devices.cards,
        )


def flag_findings(computation: AskedComputation, environment: Environment, devices: Devices) -> Iterator[Finding]:
    """Yields flags with which no model can be served on this machine."""
    try:
        # Unusable devices are another finding.
        computation.check(environment, on_cuda=bool(devices.cards or devices.driver))
    except ConfigurationError as error:
        yield Finding("flags", "error", str(error), "correct the flag, or the variable of the same name")


def adapter_findings(computation: AskedComputation, hub: HubConfig) -> Iterator[Finding]:
    """Yields whether adapters are of a kind that is computed; a start checks that they fit the model."""
    merged = [] if computation.merge_adapter is None else [computation.merge_adapter]
    for asked in (*merged, *computation.lora_adapters):
        try:
            found = find_adapter(asked, hub)
        except AdapterNotFound as error:
            yield _absent("adapter", asked.source, error)
            continue
        plan = f"serve adapter {found.name} of {found.source}"
        if asked in merged:
            plan = f"merge the adapter of {found.source} into the weights"
        yield _adapter_finding(found.folder, asked.flag, plan)


def drafter_findings(computation: AskedComputation, source: ModelSource | None, hub: HubConfig) -> Iterator[Finding]:
    """Yields whether a drafter is here and, where the model is, whether its configuration fits; a start checks its
    tensors too.
    """
    if computation.drafter is None:
        return
    name = computation.drafter.source
    try:
        folder = find_drafter(computation.drafter, hub)
    except ModelFilesError as error:
        yield _absent("drafter", name, error)
        return
    try:
        if (model := _model_of(source, hub)) is not None:
            read_drafter_config(folder, model[1], computation.drafter.kind, model[0])
        yield Finding("drafter", "plan", f"draft with what is in {folder}")
    except EngineError as error:
        yield Finding("drafter", "error", str(error), "correct what the message names")


def _absent(subject: str, name: str, error: EngineError) -> Finding:
    """Finds what is not here: an error where a start cannot download it either."""
    if is_object_url(name):
        try:
            ObjectPlace.of(name)
            store_client()
        except ModelFilesError as wrong:
            return Finding(subject, "error", str(wrong), "correct what the message names")
    elif not is_hub_name(name):
        return Finding(subject, "error", str(error), "correct the name")
    return Finding(subject, "warning", str(error), "a start downloads it")


def _model_of(source: ModelSource | None, hub: HubConfig) -> tuple[Path, AnyModelConfig] | None:
    """Returns the folder and the configuration of a model that is here; None also for a wrong one, which is a finding
    of the model.
    """
    try:
        folder = None if source is None else present_folder(source, hub)
        return None if folder is None else (folder, read_model_config(folder))
    except EngineError:
        return None


def _adapter_finding(folder: Path, flag: str, plan: str) -> Finding:
    # Loads torch, which other starts need not wait for here.
    from ..adapters.config import read_config

    try:
        read_config(folder)
    except AdapterError as error:
        return Finding("adapter", "error", str(error), f"name the folder of another adapter, or leave {flag} out")
    return Finding("adapter", "plan", plan)


def copies_of(computation: AskedComputation, devices: Devices) -> DequantisedCopies:
    """Returns what a start would make of `--dequantised-copies`; deterministic mode has no copies."""
    if computation.deterministic or (computation.dequantised_copies == "auto" and not devices.cards):
        return "off"
    return computation.dequantised_copies
