"""Environment and command line become one checked configuration."""

from pathlib import Path

import pytest

from text_generation_server.config.parallel import ParallelConfig
from text_generation_server.config.server import Environment, HubConfig, ServerConfig, WatermarkConfig
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


def config(variables: dict[str, str], sharded: bool) -> ServerConfig:
    return ServerConfig(
        model_id="model",
        revision=None,
        sharded=sharded,
        dtype=None,
        load_format="auto",
        attention="torch",
        uds_path="/run/shard",
        socket_dir_owned=False,
        exit_on_stdin_eof=False,
        environment=Environment.read(variables),
    )


def test_the_name_of_the_group_is_read() -> None:
    assert Environment.read({"SHARD_GROUP": "start-1"}).shard_group == "start-1"
    assert not Environment.read({}).shard_group


def test_sockets_follow_the_rank() -> None:
    server = config({"RANK": "1", "WORLD_SIZE": "2"}, sharded=True)
    assert server.socket_path == Path("/run/shard-1")
    assert server.urls == ["unix:///run/shard-0", "unix:///run/shard-1"]


def test_sharded_and_world_size_must_agree() -> None:
    with pytest.raises(ConfigurationError, match="--sharded needs"):
        config({}, sharded=True)
    with pytest.raises(ConfigurationError, match="pass --sharded"):
        config({"RANK": "0", "WORLD_SIZE": "2"}, sharded=False)
