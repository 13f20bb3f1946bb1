"""Environment and command line become one checked configuration."""

from dataclasses import replace
from pathlib import Path

import pytest
from support.server_config import server_config

from text_generation_server.config.cluster import ClusterFiles, ClusterListener, cluster_listener
from text_generation_server.config.parallel import NodeConfig, ParallelConfig
from text_generation_server.config.server import (
    Environment,
    HubConfig,
    ServerConfig,
    WatermarkConfig,
    allocator_is_set,
)
from text_generation_server.errors import ConfigurationError


def test_defaults() -> None:
    environment = Environment.read({})
    assert environment.parallel == ParallelConfig(0, 1, Path("/tmp/text-generation-server-rendezvous"))
    assert environment.watermark == WatermarkConfig(0.5, 2.0)
    assert environment.hub == HubConfig(None, None)
    assert environment.cuda_memory_fraction == 1.0
    assert (environment.rope_scaling, environment.rope_factor, environment.omp_num_threads) == (None, None, None)
    assert not environment.disable_custom_kernels


def test_every_variable_is_read() -> None:
    environment = Environment.read(
        {
            "RANK": "1",
            "WORLD_SIZE": "2",
            "WATERMARK_GAMMA": "0.25",
            "WATERMARK_DELTA": "4",
            "CUDA_MEMORY_FRACTION": "0.5",
            "ROPE_SCALING": "dynamic",
            "ROPE_FACTOR": "2.0",
            "DISABLE_CUSTOM_KERNELS": "True",
            "DISABLE_PEER_MEMORY": "1",
            "OMP_NUM_THREADS": "3",
            "HUGGINGFACE_HUB_CACHE": "/cache",
            "WEIGHTS_CACHE_OVERRIDE": "/weights",
        },
        uds_path="/run/shard",
    )
    assert environment == Environment(
        ParallelConfig(1, 2, Path("/run/shard-rendezvous"), peer_memory=False),
        WatermarkConfig(0.25, 4.0),
        HubConfig(Path("/cache"), Path("/weights")),
        cuda_memory_fraction=0.5,
        rope_scaling="dynamic",
        rope_factor=2.0,
        disable_custom_kernels=True,
        omp_num_threads=3,
    )


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE must be a whole number, not 'two'"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE must be between 1"),
        ({"WORLD_SIZE": "2"}, "RANK is not set"),
        ({"WORLD_SIZE": "2", "RANK": "1", "LOCAL_WORLD_SIZE": "1"}, "several nodes: LOCAL_RANK, MASTER_ADDR"),
        ({"WORLD_SIZE": "2", "RANK": "2"}, "RANK must be between 0 and 1, not 2"),
        ({"WATERMARK_GAMMA": "1.5"}, "WATERMARK_GAMMA must be between"),
        ({"WATERMARK_DELTA": "nan"}, "WATERMARK_DELTA must be between"),
        ({"CUDA_MEMORY_FRACTION": "0"}, "CUDA_MEMORY_FRACTION must be between"),
        ({"ROPE_SCALING": "magic"}, "ROPE_SCALING must be one of linear, dynamic"),
        ({"ROPE_FACTOR": "x"}, "ROPE_FACTOR must be a number"),
        ({"DISABLE_CUSTOM_KERNELS": "maybe"}, "DISABLE_CUSTOM_KERNELS must be true or false"),
        ({"OMP_NUM_THREADS": "0"}, "OMP_NUM_THREADS must be between"),
    ],
)
def test_a_wrong_variable_is_named(variables: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Environment.read(variables)


@pytest.mark.parametrize(("text", "on"), [("1", True), ("Yes", True), ("on", True), ("0", False), ("off", False)])
def test_switches_are_what_the_launcher_takes_too(text: str, on: bool) -> None:
    assert Environment.read({"DISABLE_CUSTOM_KERNELS": text}).disable_custom_kernels is on


def config(variables: dict[str, str], sharded: bool, remote_urls: tuple[str, ...] = ()) -> ServerConfig:
    usual = {"load_format": "auto", "attention": "torch"}
    return server_config(Path("/run"), variables, sharded=sharded, remote_urls=remote_urls, **usual)


def test_the_name_of_the_group_is_read() -> None:
    assert Environment.read({"SHARD_GROUP": "start-1"}).shard_group == "start-1"
    assert not Environment.read({}).shard_group


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_what_the_operator_says_of_the_allocator_counts(name: str) -> None:
    assert allocator_is_set({name: "max_split_size_mb:64"})
    assert not allocator_is_set({name: ""})
    assert not allocator_is_set({})


def test_sockets_follow_the_rank() -> None:
    server = config({"RANK": "1", "WORLD_SIZE": "2"}, sharded=True)
    assert server.socket_path == Path("/run/shard-1")
    assert server.urls == ["unix:///run/shard-0", "unix:///run/shard-1"]


def test_ranks_of_several_nodes_have_a_place_on_their_own() -> None:
    variables = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1"}
    server = config({**variables, "MASTER_PORT": "29501"}, sharded=True, remote_urls=("https://10.0.0.2:29503",))
    assert server.environment.parallel.node == NodeConfig(1, 2, "10.0.0.1", 29501)
    assert server.socket_path == Path("/run/shard-1")
    assert server.urls == ["unix:///run/shard-0", "unix:///run/shard-1", "https://10.0.0.2:29503"]
    alone = Environment.read({**variables, "LOCAL_WORLD_SIZE": "4"})
    assert alone.parallel.node is None


def test_a_port_for_other_nodes_needs_certificates_or_none_by_name() -> None:
    files = (Path("node.pem"), Path("node.key"), Path("ca.pem"))
    with pytest.raises(ConfigurationError, match="--listen needs --cluster-cert"):
        cluster_listener("10.0.0.2:29502", files[0], files[1], None, insecure=False)
    assert cluster_listener("10.0.0.2:29502", *files, insecure=False) == ClusterListener(
        "10.0.0.2:29502", ClusterFiles(*files)
    )
    assert cluster_listener("10.0.0.2:29502", None, None, None, insecure=True) == ClusterListener(
        "10.0.0.2:29502", None
    )


def test_copies_are_not_asked_for_where_all_tokens_are_computed_in_one_way() -> None:
    alone = config({}, sharded=False)
    assert replace(alone, deterministic=True).dequantised_copies == "auto"
    with pytest.raises(ConfigurationError, match=r"--deterministic .* --dequantised-copies on: leave one of them out"):
        replace(alone, deterministic=True, dequantised_copies="on")


def test_sharded_and_world_size_must_agree() -> None:
    with pytest.raises(ConfigurationError, match="--sharded needs"):
        config({}, sharded=True)
    with pytest.raises(ConfigurationError, match="pass --sharded"):
        config({"RANK": "0", "WORLD_SIZE": "2"}, sharded=False)
