"""The command `text-generation-server`: builds the configuration from flags and environment, and starts the work."""

import contextlib
import gc
import json
import logging
import os
import sys
from collections.abc import Callable, Generator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from . import __version__
from .config.adapters import parse_adapters, parse_merged
from .config.asked_drafter import asked_drafter
from .config.classifier import check_classifier
from .config.cluster import cluster_listener
from .config.drafter import read_drafter_config
from .config.fallback import FallbackConfig
from .config.kv_cache import quantised_kv_cache
from .config.memory import cuda_memory, has_cuda_devices
from .config.parallel import DEFAULT_UDS_PATH
from .config.server import AskedComputation, Environment, ServerConfig, check_merge, parse_cuda_graphs
from .config.serving import AskedLimits, check_deterministic, check_servable
from .config.shards import AskedShards
from .config.speculation import check_speculation
from .engine.requests import ShardEngine
from .engine.worker import EngineWorker
from .errors import EngineError
from .flags import (
    AttentionFlag,
    AutoConvert,
    ContextParallel,
    Copies,
    CudaGraphs,
    Deterministic,
    Drafter,
    DrafterMethod,
    DrafterRevision,
    DtypeFlag,
    ExitOnEof,
    ExpertParallel,
    Format,
    Impl,
    Json,
    KvCache,
    Level,
    LoraAdapters,
    MaxInputTokens,
    MaxTotalTokens,
    MergeAdapter,
    ModelId,
    NumShard,
    Quantize,
    Revision,
    Speculate,
    TrustRemoteCode,
)
from .hub import ModelSource, find_folder, prepare_folder
from .hub_adapters import find_adapter, prepare_adapters
from .hub_drafter import find_drafter, prepare_drafter
from .service.parent import start_is_due, watch_parent
from .service.server import ServiceSettings, TraceSettings
from .service.server import serve as serve_shard
from .service.signals import ignore_pointless
from .telemetry import LEVELS, configure_logging

logger = logging.getLogger(__name__)

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"text-generation-server {__version__}")
        raise typer.Exit


@app.callback()
def common_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit")
    ] = False,
) -> None:
    """One rank of a model, and the files that it needs; text-generation-launcher starts both."""


@app.command()
def serve(
    model_id: ModelId,
    revision: Revision = None,
    sharded: Annotated[bool, typer.Option("--sharded", help="One of several ranks; see RANK and WORLD_SIZE")] = False,
    dtype: DtypeFlag = None,
    load_format: Format = "auto",
    model_impl: Impl = "auto",
    quantize: Quantize = None,
    attention: AttentionFlag = None,
    cuda_graphs: CudaGraphs = None,
    deterministic: Deterministic = False,
    speculate: Speculate = 0,
    drafter: Drafter = None,
    drafter_revision: DrafterRevision = None,
    drafter_method: DrafterMethod = None,
    enable_expert_parallel: ExpertParallel = False,
    enable_context_parallel: ContextParallel = False,
    kv_cache_dtype: KvCache = "auto",
    dequantised_copies: Copies = "auto",
    merge_adapter: MergeAdapter = None,
    trust_remote_code: TrustRemoteCode = False,
    uds_path: Annotated[str, typer.Option(help="Rank r of this host listens on <uds-path>-<r>")] = DEFAULT_UDS_PATH,
    socket_dir_owned: Annotated[
        bool, typer.Option("--socket-dir-owned", help="Remove the folder of the socket at the end, if it is empty")
    ] = False,
    listen: Annotated[
        str | None, typer.Option(help="Address and port for the router of another node, such as 10.0.0.3:29503")
    ] = None,
    cluster_cert: Annotated[Path | None, typer.Option(help="PEM file with the certificate of this node")] = None,
    cluster_key: Annotated[Path | None, typer.Option(help="PEM file with its key")] = None,
    cluster_ca: Annotated[Path | None, typer.Option(help="PEM file with the authority that all nodes trust")] = None,
    cluster_insecure: Annotated[
        bool, typer.Option("--cluster-insecure", help="Let everybody use --listen, without TLS")
    ] = False,
    remote_url: Annotated[
        list[str] | None, typer.Option(help="Address of a rank of another node, in rank order; for rank 0")
    ] = None,
    exit_on_stdin_eof: ExitOnEof = False,
    standby: Annotated[
        bool, typer.Option("--standby", help="Load the code, then wait for a byte on standard input before the rest")
    ] = False,
    otlp_endpoint: Annotated[
        str | None,
        typer.Option(
            help="Collector of traces, as OTLP over gRPC; rank 0 traces steps, all do where the level is DEBUG"
        ),
    ] = None,
    otlp_service_name: Annotated[str | None, typer.Option(help="Name of this shard in traces")] = None,
    logger_level: Level = "INFO",
    json_output: Json = False,
) -> None:
    """Serve one rank of a model over a Unix socket, and over TCP where it has its router on another node."""
    ignore_pointless(exit_on_stdin_eof)
    configure_logging(logger_level, json_output)
    with _reported_errors():
        environment = Environment.read(uds_path=uds_path)
        merged = parse_merged(merge_adapter)
        config = ServerConfig(
            model_id=model_id,
            revision=revision,
            sharded=sharded,
            dtype=dtype,
            load_format=load_format,
            attention=attention,
            uds_path=uds_path,
            socket_dir_owned=socket_dir_owned,
            exit_on_stdin_eof=exit_on_stdin_eof,
            environment=environment,
            cuda_graphs=parse_cuda_graphs(cuda_graphs),
            deterministic=deterministic,
            speculate=speculate,
            drafter=asked_drafter(drafter, drafter_revision, drafter_method),
            expert_parallel=enable_expert_parallel,
            context_parallel=enable_context_parallel,
            model_impl=model_impl,
            kv_cache_dtype=kv_cache_dtype,
            dequantised_copies=dequantised_copies,
            merge_adapter=None if merged is None else find_adapter(merged, environment.hub).folder,
            quantize=quantize,
            listener=cluster_listener(listen, cluster_cert, cluster_key, cluster_ca, cluster_insecure),
            remote_urls=tuple(remote_url or ()),
        )
        _note_remote_code(trust_remote_code)
        traces = None
        rank = config.environment.parallel.rank
        # The ranks compute the same steps: where the log has no details, one of them tells of them.
        if otlp_endpoint and (rank == 0 or LEVELS[logger_level] <= LEVELS["DEBUG"]):
            traces = TraceSettings(otlp_endpoint, otlp_service_name, rank)
        _serve(config, traces, standby)


@app.command()
def download_weights(
    model_id: ModelId,
    revision: Revision = None,
    extension: Annotated[str, typer.Option(help="Ending of the weight files")] = ".safetensors",
    max_input_tokens: MaxInputTokens = None,
    max_total_tokens: MaxTotalTokens = None,
    num_shard: NumShard = 1,
    enable_expert_parallel: ExpertParallel = False,
    enable_context_parallel: ContextParallel = False,
    auto_convert: AutoConvert = False,
    dtype: DtypeFlag = None,  # noqa: ARG001  what a shard is told is accepted here, also where nothing is checked of it
    load_format: Format = "auto",
    model_impl: Impl = "auto",
    quantize: Quantize = None,
    attention: AttentionFlag = None,
    cuda_graphs: CudaGraphs = None,
    deterministic: Deterministic = False,
    speculate: Speculate = 0,
    drafter: Drafter = None,
    drafter_revision: DrafterRevision = None,
    drafter_method: DrafterMethod = None,
    kv_cache_dtype: KvCache = "auto",
    dequantised_copies: Copies = "auto",
    merge_adapter: MergeAdapter = None,
    lora_adapters: LoraAdapters = None,
    trust_remote_code: TrustRemoteCode = False,
    exit_on_stdin_eof: ExitOnEof = False,
    logger_level: Level = "INFO",
    json_output: Json = False,
) -> None:
    """Find, download or convert a model; the last record of the output holds its folder in `model_path`.

    Flags with which it could not be served end this before the weights are downloaded.
    """
    ignore_pointless(exit_on_stdin_eof)
    configure_logging(logger_level, json_output)
    if exit_on_stdin_eof:
        # No work is lost: a download resumes, and converted files get their names when they are complete.
        watch_parent(lambda: os._exit(1))
    with _reported_errors():
        _note_remote_code(trust_remote_code)
        source = ModelSource(model_id, revision, load_format, auto_convert, extension)
        environment = Environment.read()
        limits = AskedLimits(max_input_tokens, max_total_tokens)
        shards = AskedShards(num_shard, enable_expert_parallel, enable_context_parallel)
        computation = AskedComputation(
            *(attention, cuda_graphs, deterministic, dequantised_copies),
            *(
                parse_merged(merge_adapter),
                parse_adapters(lora_adapters),
                speculate,
                asked_drafter(drafter, drafter_revision, drafter_method),
            ),
        )
        computation.check(environment, on_cuda=has_cuda_devices() or bool(cuda_memory()))
        merged = computation.merge_adapter
        check_merge(load_format, merged is not None, bool(computation.lora_adapters))
        asked_adapters = computation.lora_adapters if merged is None else [merged]
        if found := prepare_adapters(asked_adapters, environment.hub):
            # Loads torch, which a start without an adapter need not wait for here.
            from .adapters.config import read_config

            for each in found:
                read_config(each.folder)

        def check(folder: Path) -> None:
            config = check_servable(folder, environment, limits, source.needs_weights, model_impl, quantize, shards)
            check_deterministic(deterministic, config, shards)
            check_speculation(speculate, config)
            check_classifier(
                config.classes,
                {
                    "--speculate": speculate > 0,
                    "--merge-adapter": merged is not None,
                    "--lora-adapters": bool(computation.lora_adapters),
                },
            )
            if computation.drafter is not None:
                asked = computation.drafter
                of_model = asked.source == model_id
                drafting = folder if of_model else prepare_drafter(asked, environment.hub)
                read_drafter_config(drafting, config, asked.kind, folder)
            kv_cache = None if kv_cache_dtype == "auto" else quantised_kv_cache(kv_cache_dtype, config)
            if isinstance(config, FallbackConfig):
                # Loads torch and transformers, which other models need not wait for.
                from .models.fallback import check_runnable

                check_runnable(config, shards.count, kv_cache)

        folder = prepare_folder(source, environment.hub, check)
        logger.info("model is ready", extra={"model_path": str(folder)})


@app.command()
def doctor(
    model_id: Annotated[str | None, typer.Argument(help="Folder of a model, or its id on the hub")] = None,
    revision: Revision = None,
    dtype: DtypeFlag = None,
    num_shard: NumShard = 1,
    enable_expert_parallel: ExpertParallel = False,
    enable_context_parallel: ContextParallel = False,
    max_input_tokens: MaxInputTokens = None,
    max_total_tokens: MaxTotalTokens = None,
    load_format: Format = "auto",
    auto_convert: AutoConvert = False,
    model_impl: Impl = "auto",
    quantize: Quantize = None,
    attention: AttentionFlag = None,
    cuda_graphs: CudaGraphs = None,
    deterministic: Deterministic = False,
    speculate: Speculate = 0,
    drafter: Drafter = None,
    drafter_revision: DrafterRevision = None,
    drafter_method: DrafterMethod = None,
    kv_cache_dtype: KvCache = "auto",
    dequantised_copies: Copies = "auto",
    merge_adapter: MergeAdapter = None,
    lora_adapters: LoraAdapters = None,
) -> None:
    """Print findings about this machine and a model, one JSON record a line; see `text-generation-launcher doctor`."""
    with _reported_errors():
        from .doctor import examine

        source = None
        if model_id is not None:
            source = ModelSource(model_id, revision, load_format, auto_convert)
        limits = AskedLimits(max_input_tokens, max_total_tokens)
        shards = AskedShards(num_shard, enable_expert_parallel, enable_context_parallel)
        computation = AskedComputation(
            *(attention, cuda_graphs, deterministic, dequantised_copies),
            *(
                parse_merged(merge_adapter),
                parse_adapters(lora_adapters),
                speculate,
                asked_drafter(drafter, drafter_revision, drafter_method),
            ),
        )
        for finding in examine(source, limits, dtype, shards, computation, model_impl, quantize, kv_cache_dtype):
            typer.echo(json.dumps(asdict(finding)))


@app.command()
def explain(
    model_id: Annotated[
        str, typer.Argument(help="Folder of a model, or its id in the hub cache; config.json is enough")
    ],
    revision: Revision = None,
    tokens: Annotated[str, typer.Option(help="Numbers of tokens in a step")] = "1,2,8,16,32,64,128,256,512,2048,8192",
    card: Annotated[str, typer.Option(help="h100, h200, a100, l40s and others")] = "h100",
    num_shard: NumShard = 1,
    dtype: DtypeFlag = None,
    quantize: Quantize = None,
) -> None:
    """Print which kernel computes which matrix at which number of tokens, and why not the kernels before it."""
    with _reported_errors():
        from .explain import explain as explained
        from .explain import parse_tokens

        counts = parse_tokens(tokens)
        folder = find_folder(ModelSource(model_id, revision, "dummy"), Environment.read().hub)
        for line in explained(folder, card, counts, num_shard, dtype, quantize):
            typer.echo(line)


def _note_remote_code(trusted: bool) -> None:
    if trusted:
        logger.info("--trust-remote-code has no effect: the shard runs no code that comes with a model")


def _serve(config: ServerConfig, traces: TraceSettings | None, standby: bool) -> None:
    folder = find_folder(ModelSource(config.model_id, config.revision, config.load_format), config.environment.hub)
    drafter = None if config.drafter is None else find_drafter(config.drafter, config.environment.hub)
    if standby:
        _engine_builder()
        from text_generation_kernels import fingerprint_compiler

        fingerprint_compiler()
        # Imported objects live for good: the garbage collector need not walk them several times in warm-up.
        gc.freeze()
        if not start_is_due():
            return

    def build() -> ShardEngine:
        # Imported on the engine thread: the socket is up while torch loads.
        return _engine_builder()(config, folder, drafter)

    worker = EngineWorker(build)
    settings = ServiceSettings(
        config.socket_path,
        config.urls,
        folder,
        config.environment.parallel.rendezvous,
        config.environment.shard_group,
        config.socket_dir_owned,
        config.exit_on_stdin_eof,
        traces,
        config.listener,
    )
    serve_shard(worker, settings)
    # A thread inside torch cannot be ended, and torch's own end waits for the other ranks: leave without either.
    logging.shutdown()
    os._exit(0)


def _engine_builder() -> Callable[[ServerConfig, Path, Path | None], ShardEngine]:
    """Imports torch and the engine, which takes seconds the first time, and touches no device."""
    # Torch's CPU threads spin while they wait for each other; OpenMP reads this once, when torch loads. On cores that
    # router and clients use too, a spinning thread keeps the one it waits for from running, and steps take 10 times as
    # long.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from .engine.loading import build_engine

    return build_engine


@contextlib.contextmanager
def _reported_errors() -> Generator[None, None, None]:
    """An expected error ends the process with status 1; its reason is the last line on standard error.

    No log record repeats it: the launcher reads that line and logs it once.
    """
    try:
        yield
    except EngineError as error:
        logging.shutdown()
        reason = " ".join(str(error).split())
        sys.stderr.write(f"Error: {reason}\n")
        sys.stderr.flush()
        os._exit(1)
