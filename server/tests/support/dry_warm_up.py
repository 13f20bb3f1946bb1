"""Warm-up that takes the CPU for a device: it names kernel variants and computes nothing."""

# pyright: basic
from typing import Any

from kernel_support.variants import Variants, dry_run_variants

from text_generation_server.config.server import WatermarkConfig
from text_generation_server.distributed import TensorParallelGroup
from text_generation_server.engine.adapter_probe import AdapterProbe
from text_generation_server.engine.media_requests import MediaInfo
from text_generation_server.engine.memory import memory_of
from text_generation_server.engine.options import EngineOptions
from text_generation_server.engine.probe import Probe
from text_generation_server.engine.requests import ServingLimits, WarmupLimits
from text_generation_server.engine.runner import StepRunner


def dry_probe(
    model: Any,
    group: TensorParallelGroup,
    asked: WarmupLimits,
    options: EngineOptions | None = None,
    media: MediaInfo | None = None,
    adapters: AdapterProbe | None = None,
) -> Probe:
    """What warms `model` up."""
    more = WatermarkConfig(), options or EngineOptions(), False, media, adapters
    probe = Probe(model, group, memory_of(model.device), asked, 2, [1], *more)
    probe._is_cuda = True
    return probe


def warmed_up(probe: Probe, limits: ServingLimits) -> tuple[StepRunner, Variants]:
    """What serves, and the variants that warm-up has named. Call `pretend_a_device` before."""
    runner = probe.build_runner(limits)
    with dry_run_variants() as variants:
        probe.run_every_kernel(runner)
    return runner, variants
