"""What a shard is told, for tests that start one, or judge what it is told."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from text_generation_server.config.server import Environment, ServerConfig


def server_config(folder: Path, variables: Mapping[str, str], **fields: Any) -> ServerConfig:
    """Of a shard alone that has the model of `folder` with random weights; `fields` are those with other values."""
    uds_path = str(folder / "shard")
    usual: dict[str, Any] = {
        "model_id": str(folder),
        "revision": None,
        "sharded": False,
        "dtype": None,
        "load_format": "dummy",
        "attention": None,
        "uds_path": uds_path,
        "socket_dir_owned": False,
        "exit_on_stdin_eof": False,
        "environment": Environment.read(variables, uds_path),
    }
    return ServerConfig(**usual | fields)
