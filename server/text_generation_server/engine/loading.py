"""Builds the engine of this process from its configuration: device, CPU threads, group, model."""

import logging
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from text_generation_kernels import use_triton

from ..config.classifier import check_classifier
from ..config.drafter import FoundDrafter, read_drafter_config
from ..config.facts import Dtype
from ..config.host_memory import available_host_memory
from ..config.implementation import AnyModelConfig, read_model_config
from ..config.kv_cache import quantised_kv_cache
from ..config.memory import check_fits
from ..config.model import ModelConfig
from ..config.parallel import ParallelConfig
from ..config.quantisation import Packed
from ..config.server import Attention, ServerConfig, check_attention
from ..config.serving import check_deterministic, override_rope
from ..config.shards import AskedShards, check_shards
from ..config.sizes import bytes_of_rank
from ..config.speculation import check_speculation
from ..distributed.group import init_group
from ..errors import ConfigurationError, OutOfMemory
from ..models.base import CausalLM
from ..models.encoder import keeps_bits
from ..models.registry import load_model
from ..models.sizes import bytes_of_weights
from .budget import gib
from .engine import Engine
from .memory import is_out_of_memory, let_segments_grow, memory_of
from .options import EngineOptions

logger = logging.getLogger(__name__)

_WORTH_THREADS = 1 << 19
"""Elements of the smallest MLP matrix that is worth several threads: a core reads its 2 MiB of float32 in about 0.2 ms,
and threads take some 0.05 ms to wake."""
_GROUP_TIMEOUT_S = 120.0


def build_engine(config: ServerConfig, folder: Path, drafter: Path | None = None) -> Engine:
    """Loads the model of `folder`, and its drafter of the folder `drafter`. It runs on the engine thread, which owns
    everything made here.

    Raises `ConfigurationError`, `UnsupportedModel`, `ModelFilesError`, `AdapterError` or `OutOfMemory`.
    """
    started = time.perf_counter()
    environment = config.environment
    device = choose_device(environment.parallel.local_rank)
    attention = choose_attention(config, device)
    use_triton(attention == "triton")
    model_config = override_rope(read_model_config(folder, config.model_impl, config.quantize), environment)
    shards = AskedShards(environment.parallel.world_size, config.expert_parallel, config.context_parallel)
    check_deterministic(config.deterministic, model_config, shards)
    check_speculation(config.speculate, model_config)
    asked = {"--speculate": config.speculate > 0, "--merge-adapter": config.merge_adapter is not None}
    check_classifier(model_config.classes, asked)
    kind = None if config.drafter is None else config.drafter.kind
    found = None if drafter is None else FoundDrafter(drafter, read_drafter_config(drafter, model_config, kind, folder))
    check_shards(model_config, shards)
    kv_cache = quantised_kv_cache(config.kv_cache_dtype, model_config)
    if device.type == "cpu":
        threads = cpu_threads(model_config, environment.parallel.local_world_size, environment.omp_num_threads)
        torch.set_num_threads(threads)
    dtype = getattr(torch, config.dtype or default_dtype(model_config, device))
    check_memory(
        bytes_of_weights(folder, model_config, dtype.itemsize, are_read=config.load_format != "dummy"),
        model_config,
        dtype,
        device,
        environment.parallel,
    )
    parallel = replace(
        environment.parallel, expert_parallel=config.expert_parallel, context_parallel=config.context_parallel
    )
    hidden_size = model_config.decoder.hidden_size if isinstance(model_config, ModelConfig) else None
    group = init_group(parallel, device, _GROUP_TIMEOUT_S, hidden_size, config.deterministic)
    model = load_into(
        device,
        lambda: load_model(
            *(folder, model_config, group, dtype, device, config.load_format, kv_cache),
            config.merge_adapter,
            found,
        ),
    )
    stored = kv_cache or str(dtype).removeprefix("torch.")
    if model_config.has_media and model.encoder is None:
        logger.warning("of %s the model of text is served alone, without images and sound", model_config.architecture)
    elif (encoder := model.encoder) is not None and config.deterministic and not keeps_bits(encoder):
        logger.warning("with --deterministic, %s is served without images", model_config.architecture)
    logger.info("model loaded", extra={"seconds": round(time.perf_counter() - started, 3), "kv_cache_dtype": stored})
    return Engine(
        model,
        group,
        eos_token_ids=model_config.eos_token_ids,
        attention_impl=attention,
        kv_cache_dtype=stored,
        watermark=environment.watermark,
        options=EngineOptions(
            memory_fraction=environment.cuda_memory_fraction,
            cuda_graphs=captured_sizes(config, attention),
            deterministic=config.deterministic,
            speculate=config.speculate,
            dequantised_copies=config.dequantised_copies,
            hub=environment.hub,
        ),
    )


def captured_sizes(config: ServerConfig, attention: str) -> tuple[int, ...] | None:
    """Returns the batch sizes that get a CUDA graph; empty: none; None: a default set. Operators of torch read lengths
    on the host, which a graph cannot do.
    """
    return config.cuda_graphs if attention == "triton" else ()


def load_into(device: torch.device, load: Callable[[], CausalLM]) -> CausalLM:
    """Runs `load`. Raises `OutOfMemory` with numbers where the memory of `device` does not suffice."""
    try:
        with torch.inference_mode():
            return load()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        memory = memory_of(device)
        raise OutOfMemory(
            f"the weights do not fit: {gib(memory.held())} of them are on {memory.name}, {gib(memory.free())} of its "
            f"{gib(memory.total())} are left; use more shards (--num-shard), a smaller --dtype, or a smaller model"
        ) from error


def choose_device(local_rank: int) -> torch.device:
    """Returns the CUDA device of the rank that is `local_rank` of its host, or the CPU where there is none.

    Raises ConfigurationError where there are fewer devices than ranks: NCCL refuses two ranks on one device.
    """
    if not torch.cuda.is_available():
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if local_rank >= count:
        raise ConfigurationError(
            f"no CUDA device is left for shard {local_rank} of this host, where {count} can be seen: "
            f"set --num-shard to at most {count}, or make more devices visible with CUDA_VISIBLE_DEVICES"
        )
    device = torch.device("cuda", local_rank)
    let_segments_grow()
    torch.cuda.set_device(device)
    return device


def choose_attention(config: ServerConfig, device: torch.device) -> Attention:
    """Returns the attention that the operator chose, else the fastest of this device. Raises `ConfigurationError` for
    one that does not run on it.
    """
    on_cuda = device.type != "cpu"
    check_attention(config.attention, on_cuda, config.environment)
    if not on_cuda or config.environment.disable_custom_kernels:
        return "torch"
    return config.attention or "triton"


def check_memory(
    whole: int | None, model: AnyModelConfig, dtype: torch.dtype, device: torch.device, parallel: ParallelConfig
) -> None:
    """Raises `OutOfMemory` when this rank's shard of weights that take `whole` bytes in all is larger than the memory
    left on its device; on a CPU, when the shards of all ranks of this host are. With None, the size is unknown.
    """
    if whole is None:
        return
    needed = bytes_of_rank(whole, model, dtype.itemsize, parallel.world_size)
    if device.type == "cuda":
        check_fits(needed, torch.cuda.mem_get_info(device)[0], f"{device} has {{}} left")
    else:
        # No rank of this host has begun to load, because ranks meet before they load.
        here = needed * parallel.local_world_size
        check_fits(here, available_host_memory(), "the machine has {} left", is_shared=True)


def cpu_threads(model: AnyModelConfig, local_world_size: int, omp_num_threads: int | None) -> int:
    """Returns the threads of one rank: OMP_NUM_THREADS, else an even share of the cores that this process may use.

    A model whose GEMMs take no longer than waking threads gets one thread; the other cores serve the requests.
    """
    if omp_num_threads is not None:
        return omp_num_threads
    if model.largest_matrix < _WORTH_THREADS:
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // local_world_size)


def default_dtype(config: AnyModelConfig, device: torch.device) -> Dtype:
    """Returns float32 on a CPU, where 16-bit types are slow; else the type of the checkpoint.

    Weight-only quantised models get bfloat16 though their files say float16, which their activations overflow at times.
    """
    if device.type == "cpu":
        return "float32"
    if any(isinstance(each, Packed) for each in config.schemes.used):
        return "bfloat16"
    return config.dtype or "float16"
