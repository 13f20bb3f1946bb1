"""Configuration of a shard process: command line and environment, read once into frozen values.

No other file of the package reads environment variables. Others only set variables of libraries, where the operator has
not.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar, cast, get_args

from ..errors import ConfigurationError
from .adapters import AskedAdapter
from .asked_drafter import AskedDrafter, check_drafter
from .cluster import ClusterListener
from .copies import DequantisedCopies
from .facts import Dtype
from .implementation import ModelImpl
from .kv_cache import KvCacheDtype
from .parallel import DEFAULT_UDS_PATH, NodeConfig, ParallelConfig, rendezvous_path

_Number = TypeVar("_Number", int, float)
# What launcher and router take too.
_TRUE = ("true", "1", "yes", "on", "y", "t")
_FALSE = ("false", "0", "no", "off", "n", "f")

LoadFormat = Literal["auto", "safetensors", "dummy"]
"""Where weights come from: safetensors files (`auto` finds them), or random numbers for benchmarks (`dummy`)."""
Attention = Literal["torch", "triton"]
"""Implementations of attention and of the operators around it. `torch` is the only one on a CPU."""
RopeOverride = Literal["linear", "dynamic"]


@dataclass(frozen=True)
class WatermarkConfig:
    """`gamma`: fraction of the vocabulary on the green list; `delta`: what is added to its logits."""

    gamma: float = 0.5
    delta: float = 2.0


@dataclass(frozen=True)
class HubConfig:
    """Where model folders are. None leaves the choice to huggingface_hub."""

    cache_dir: Path | None = None
    override_dir: Path | None = None


@dataclass(frozen=True)
class Environment:
    """Every environment variable that the shard understands, checked."""

    parallel: ParallelConfig
    watermark: WatermarkConfig
    hub: HubConfig
    cuda_memory_fraction: float = 1.0
    rope_scaling: RopeOverride | None = None
    rope_factor: float | None = None
    disable_custom_kernels: bool = False
    omp_num_threads: int | None = None
    shard_group: str = ""
    """The name of this start of the group, equal in every rank."""

    @classmethod
    def read(cls, variables: Mapping[str, str] | None = None, uds_path: str = DEFAULT_UDS_PATH) -> "Environment":
        """Reads `variables` (default: the process's). Raises `ConfigurationError` naming the variable.

        Ranks of one `uds_path` are one group.
        """
        env = _Variables(os.environ if variables is None else variables)
        return cls(
            parallel=_parallel(env, uds_path),
            watermark=WatermarkConfig(
                gamma=env.number("WATERMARK_GAMMA", 0.5, low=0.0, high=1.0),
                delta=env.number("WATERMARK_DELTA", 2.0, low=-1e4, high=1e4),
            ),
            hub=HubConfig(env.path("HUGGINGFACE_HUB_CACHE"), env.path("WEIGHTS_CACHE_OVERRIDE")),
            cuda_memory_fraction=env.number("CUDA_MEMORY_FRACTION", 1.0, low=0.01, high=1.0),
            rope_scaling=cast("RopeOverride | None", env.choice("ROPE_SCALING", get_args(RopeOverride))),
            rope_factor=env.number("ROPE_FACTOR", 1.0, low=1.0, high=1e4) if env.get("ROPE_FACTOR") else None,
            disable_custom_kernels=env.flag("DISABLE_CUSTOM_KERNELS"),
            shard_group=env.get("SHARD_GROUP") or "",
            omp_num_threads=env.integer("OMP_NUM_THREADS", 1, low=1) if env.get("OMP_NUM_THREADS") else None,
        )


@dataclass(frozen=True)
class AskedComputation:
    """Flags about how a shard computes, before a shard exists."""

    attention: Attention | None = None
    cuda_graphs: str | None = None
    deterministic: bool = False
    dequantised_copies: DequantisedCopies = "auto"
    merge_adapter: AskedAdapter | None = None
    lora_adapters: tuple[AskedAdapter, ...] = ()
    speculate: int = 0
    drafter: AskedDrafter | None = None

    def check(self, environment: Environment, on_cuda: bool) -> None:
        """Raises `ConfigurationError` for flags with which no model can be served."""
        parse_cuda_graphs(self.cuda_graphs)
        check_copies(self.deterministic, self.dequantised_copies)
        check_attention(self.attention, on_cuda, environment)
        check_drafter(self.drafter, self.speculate)


@dataclass(frozen=True)
class ServerConfig:
    """Everything that `serve` was told."""

    model_id: str
    revision: str | None
    sharded: bool
    dtype: Dtype | None
    load_format: LoadFormat
    attention: Attention | None
    uds_path: str
    socket_dir_owned: bool
    exit_on_stdin_eof: bool
    environment: Environment
    cuda_graphs: tuple[int, ...] | None = None
    """Batch sizes of decode that get a CUDA graph; empty: none; None: a default set."""
    deterministic: bool = False
    speculate: int = 0
    """The most drafts of a request that a step checks; 0: there is no speculation."""
    drafter: AskedDrafter | None = None
    """The model that drafts; None: drafts come from the text alone."""
    expert_parallel: bool = False
    """Whether each rank has some of a mixture's experts whole, instead of a shard of each."""
    context_parallel: bool = False
    """Whether each rank keeps some of the positions of latent attention, instead of all."""
    model_impl: ModelImpl = "auto"
    kv_cache_dtype: KvCacheDtype = "auto"
    dequantised_copies: DequantisedCopies = "auto"
    merge_adapter: Path | None = None
    """The folder of an adapter that is merged into the weights while they are read."""
    quantize: str | None = None
    """The format to which 16-bit weights are quantised while they are read; quantised checkpoints need none."""
    listener: ClusterListener | None = None
    """Where the router of another node reaches this rank; None on the router's own node."""
    remote_urls: tuple[str, ...] = ()
    """Addresses of the ranks of other nodes, in rank order, which rank 0 tells the router."""

    def __post_init__(self) -> None:
        world_size = self.environment.parallel.world_size
        if self.sharded and world_size < 2:
            raise ConfigurationError(
                "--sharded needs the environment variables RANK and WORLD_SIZE with 2 or more ranks"
            )
        if not self.sharded and world_size > 1:
            raise ConfigurationError(f"WORLD_SIZE is {world_size} but --sharded is not given; pass --sharded")
        check_copies(self.deterministic, self.dequantised_copies)
        check_drafter(self.drafter, self.speculate)

    @property
    def socket_path(self) -> Path:
        """The socket of this rank."""
        return Path(f"{self.uds_path}-{self.environment.parallel.local_rank}")

    @property
    def urls(self) -> list[str]:
        """Where all ranks listen, in rank order: those of this host on sockets."""
        local = [f"unix://{self.uds_path}-{rank}" for rank in range(self.environment.parallel.local_world_size)]
        return [*local, *self.remote_urls]


class _Variables:
    """Typed access to environment variables; an empty value counts as unset."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = variables

    def get(self, name: str) -> str | None:
        return self._variables.get(name, "").strip() or None

    def path(self, name: str) -> Path | None:
        value = self.get(name)
        return Path(value).expanduser() if value else None

    def integer(self, name: str, default: int, low: int, high: int = 2**31) -> int:
        value = self.get(name)
        try:
            number = default if value is None else int(value)
        except ValueError:
            raise ConfigurationError(f"{name} must be a whole number, not {value!r}") from None
        return self._in_range(name, number, low, high)

    def number(self, name: str, default: float, low: float, high: float) -> float:
        value = self.get(name)
        try:
            number = default if value is None else float(value)
        except ValueError:
            raise ConfigurationError(f"{name} must be a number, not {value!r}") from None
        return self._in_range(name, number, low, high)

    def choice(self, name: str, choices: tuple[str, ...]) -> str | None:
        value = self.get(name)
        if value is not None and value not in choices:
            raise ConfigurationError(f"{name} must be one of {', '.join(choices)}, not {value!r}")
        return value

    def flag(self, name: str) -> bool:
        value = (self.get(name) or "false").lower()
        if value not in _TRUE + _FALSE:
            raise ConfigurationError(f"{name} must be true or false, not {value!r}")
        return value in _TRUE

    @staticmethod
    def _in_range(name: str, number: _Number, low: _Number, high: _Number) -> _Number:
        if not low <= number <= high:
            raise ConfigurationError(f"{name} must be between {low} and {high}, not {number}")
        return number


def _parallel(env: _Variables, uds_path: str) -> ParallelConfig:
    world_size = env.integer("WORLD_SIZE", 1, low=1)
    if world_size > 1 and env.get("RANK") is None:
        raise ConfigurationError(f"WORLD_SIZE is {world_size} but RANK is not set; each shard needs its own RANK")
    return ParallelConfig(
        rank=env.integer("RANK", 0, low=0, high=world_size - 1),
        world_size=world_size,
        rendezvous=rendezvous_path(uds_path),
        peer_memory=not env.flag("DISABLE_PEER_MEMORY"),
        node=_node(env, world_size),
    )


def _node(env: _Variables, world_size: int) -> NodeConfig | None:
    """Reads torchrun's variables. None: all ranks are on this host."""
    local_world_size = env.integer("LOCAL_WORLD_SIZE", world_size, low=1, high=world_size)
    if local_world_size == world_size:
        return None
    master_addr = env.get("MASTER_ADDR")
    if master_addr is None or env.get("LOCAL_RANK") is None:
        raise ConfigurationError(
            f"WORLD_SIZE is {world_size} and LOCAL_WORLD_SIZE is {local_world_size}, which is several nodes: "
            "LOCAL_RANK, MASTER_ADDR and MASTER_PORT must be set too"
        )
    return NodeConfig(
        local_rank=env.integer("LOCAL_RANK", 0, low=0, high=local_world_size - 1),
        local_world_size=local_world_size,
        master_addr=master_addr,
        master_port=env.integer("MASTER_PORT", 29500, low=1, high=65535),
    )


def triton_cache(variables: Mapping[str, str] | None = None) -> Path:
    """Returns the folder in which Triton keeps compiled kernels."""
    env = _Variables(os.environ if variables is None else variables)
    home = env.path("TRITON_HOME") or Path.home()
    return env.path("TRITON_CACHE_DIR") or home / ".triton" / "cache"


def check_copies(deterministic: bool, copies: DequantisedCopies) -> None:
    """Raises `ConfigurationError` for flags that exclude each other."""
    if deterministic and copies == "on":
        raise ConfigurationError(
            "--deterministic computes all tokens by one algorithm, so it excludes --dequantised-copies on: "
            "leave one of them out"
        )


def check_merge(load_format: LoadFormat, merges: bool, has_adapters: bool = False) -> None:
    """Raises `ConfigurationError` for adapters of random weights, and for one that is merged where others are served:
    those were trained on weights without it.
    """
    if load_format == "dummy" and (merges or has_adapters):
        raise ConfigurationError(
            f"{'--lora-adapters' if has_adapters else '--merge-adapter'} needs weights of files, and --load-format "
            "dummy reads none: leave one of them out"
        )
    if merges and has_adapters:
        raise ConfigurationError(
            "--merge-adapter changes the base on which the adapters of --lora-adapters were trained: leave one of them "
            "out"
        )


def check_attention(attention: Attention | None, on_cuda: bool, environment: Environment) -> None:
    """Raises `ConfigurationError` for kernels that do not run on the device, or that another flag excludes."""
    if attention == "triton" and not on_cuda:
        raise ConfigurationError("--attention triton runs on CUDA devices only; leave it out or use --attention torch")
    if attention == "triton" and environment.disable_custom_kernels:
        raise ConfigurationError(
            "--attention triton contradicts --disable-custom-kernels; leave it out or use --attention torch"
        )


def allocator_is_set(variables: Mapping[str, str] | None = None) -> bool:
    """Whether the operator has configured torch's allocator."""
    env = _Variables(os.environ if variables is None else variables)
    return any(env.get(name) for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"))


def parse_cuda_graphs(value: str | None) -> tuple[int, ...] | None:
    """Parses `--cuda-graphs`: batch sizes separated by commas, `0` for none, nothing for the default set."""
    if value is None or not value.strip():
        return None
    try:
        sizes = [int(part) for part in value.split(",")]
    except ValueError:
        sizes = [-1]
    if min(sizes) < 0 or (0 in sizes and len(sizes) > 1):
        raise ConfigurationError(
            f"--cuda-graphs must be batch sizes with commas between them, such as 1,2,4,8, or 0 for none, not {value!r}"
        )
    return tuple(size for size in sizes if size)
