"""The devices of this machine: those that its driver shows, and those that torch can use."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..config.host_memory import total_host_memory
from ..config.memory import cuda_memory, driver_version, has_cuda_devices
from .finding import Finding

_SUBJECT = "devices"
_GIB = 2**30
_OLDEST = (8, 0)
"""The lowest compute capability for which kernels are built and tested."""
_OLDEST_DRIVERS = {"12": "525", "13": "580"}
"""The oldest driver for each major version of CUDA, from its release notes."""


@dataclass(frozen=True)
class Card:
    """One CUDA device that torch can use, with memory in bytes."""

    name: str
    capability: tuple[int, int]
    memory: int
    free: int


@dataclass(frozen=True)
class Devices:
    """The devices: `driver` is the number that the driver shows, `driver_version` its version if `nvidia-smi` tells it,
    and `built_for` the CUDA version of torch, or None for a build without CUDA.
    """

    cards: Sequence[Card]
    driver: int
    built_for: str | None
    host_memory: int
    problem: str | None = None
    """Why torch cannot use the devices, in its words."""
    driver_version: str | None = None


def read_devices() -> Devices:
    """Asks driver and torch. It takes seconds, for torch to load, and some memory of every device."""
    try:
        import torch
    except ImportError as error:
        return Devices((), 0, None, total_host_memory(), f"torch cannot be loaded: {error}")
    driver = len(cuda_memory()) or int(has_cuda_devices())
    cards: list[Card] = []
    problem = None
    try:
        for index in range(torch.cuda.device_count()):
            free, memory = torch.cuda.mem_get_info(index)
            name, capability = torch.cuda.get_device_name(index), torch.cuda.get_device_capability(index)
            cards.append(Card(name, capability, memory, free))
        if driver and not cards:
            torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        problem = " ".join(str(error).split())
    return Devices(cards, driver, torch.version.cuda, total_host_memory(), problem, driver_version())


def memory_of(devices: Devices, fraction: float, shards: int) -> int:
    """Returns the bytes that each shard may use: `fraction` of its GPU, or a share of the host memory without GPUs."""
    if not devices.cards:
        return devices.host_memory // shards
    return int(min(card.free for card in devices.cards[:shards]) * fraction)


def device_findings(devices: Devices, shards: int) -> Iterator[Finding]:
    """Yields findings about the devices on which `shards` shards would run."""
    if not devices.cards:
        yield from _without_cards(devices, shards)
        return
    if devices.driver_version is not None:
        yield Finding(_SUBJECT, "ok", f"driver {devices.driver_version}, and torch for CUDA {devices.built_for}")
    for index, card in enumerate(devices.cards):
        yield from _card(index, card)
    if shards > len(devices.cards):
        yield Finding(
            _SUBJECT,
            "error",
            f"{shards} shards for {len(devices.cards)} visible devices: some would share a device, which NCCL refuses",
            f"set --num-shard {len(devices.cards)}, or make more devices visible with CUDA_VISIBLE_DEVICES",
        )
    names = ", ".join(f"cuda:{index}" for index in range(min(shards, len(devices.cards))))
    yield Finding(_SUBJECT, "plan", f"run {_shards(shards)} on {names}")


def _without_cards(devices: Devices, shards: int) -> Iterator[Finding]:
    if devices.driver or devices.problem:
        reason = devices.problem or "torch sees none of them"
        if devices.driver_version is not None:
            reason = f"{reason} (driver {devices.driver_version})"
        text = f"there are NVIDIA devices that cannot be used: {reason}" if devices.driver else reason
        yield Finding(_SUBJECT, "error", text, _usable(devices.built_for))
        return
    memory = f"{devices.host_memory / _GIB:.1f} GiB of memory"
    yield Finding(_SUBJECT, "ok", f"no GPU; {memory}")
    yield Finding(_SUBJECT, "plan", f"run {_shards(shards)} on the CPU, which is slow for all but small models")


def _usable(built_for: str | None) -> str:
    """Returns what makes torch, built for this version of CUDA or without CUDA, able to use the devices."""
    if built_for is None:
        return "install a build of torch with CUDA: pip install --force-reinstall 'torch==2.11.*'"
    oldest = _OLDEST_DRIVERS.get(built_for.split(".")[0])
    if oldest is None:
        driver = f"the driver that the release notes of CUDA {built_for} name, or a later one"
    else:
        driver = f"a driver from version {oldest} on (on Ubuntu `apt-get install nvidia-driver-{oldest}`)"
    return (
        f"torch is built for CUDA {built_for}: install {driver}, `unset CUDA_VISIBLE_DEVICES` and, in a container, "
        "pass devices on (--gpus all)"
    )


def _card(index: int, card: Card) -> Iterator[Finding]:
    text = f"cuda:{index} {card.name}, {card.free / _GIB:.1f} of {card.memory / _GIB:.1f} GiB free"
    if card.capability < _OLDEST:
        major, minor = card.capability
        yield Finding(
            _SUBJECT,
            "error",
            f"{text}: its compute capability {major}.{minor} is below 8.0, for which there are no kernels",
            "use a card of the Ampere generation or later, or --disable-custom-kernels, which is slow",
        )
    elif card.free < card.memory // 2:
        remedy = "see `nvidia-smi` for who uses it, and end it, or lower --cuda-memory-fraction"
        yield Finding(_SUBJECT, "warning", f"{text}: other processes use more than half of it", remedy)
    else:
        yield Finding(_SUBJECT, "ok", text)


def _shards(count: int) -> str:
    return "1 shard" if count == 1 else f"{count} shards"
