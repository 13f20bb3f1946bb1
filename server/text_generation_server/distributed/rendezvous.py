"""Rendezvous of the ranks of a group: a file on one host, an address of node 0 for several."""

import os
import socket
from datetime import timedelta

import torch.distributed as dist

from ..config.parallel import NodeConfig, ParallelConfig


def meeting_place(parallel: ParallelConfig) -> tuple[str, str]:
    """For error messages: where the ranks meet, and what may be wrong with it."""
    if parallel.node is None:
        return f"by the file {parallel.rendezvous}", "remove it if an earlier run has left it"
    return f"at {parallel.node.master_addr} port {parallel.node.master_port}", "all nodes must reach it"


def meeting_store(parallel: ParallelConfig, timeout_s: float) -> dist.Store:  # pyright: ignore[reportPrivateImportUsage]
    """The store by which ranks find each other. Raises torch's errors where it cannot be reached, and OSError.

    On one host it is a file in the folder of the sockets, which needs no port and is closed to other users.
    """
    if parallel.node is not None:
        return _tcp_store(parallel.node, parallel.rank, parallel.world_size, timeout_s)
    _stay_on_loopback()
    return dist.FileStore(str(parallel.rendezvous), parallel.world_size)  # pyright: ignore[reportPrivateImportUsage]


def _tcp_store(node: NodeConfig, rank: int, world_size: int, timeout_s: float) -> dist.Store:  # pyright: ignore[reportPrivateImportUsage]
    """Rank 0 listens on the address of its node alone: the store has no authentication."""
    listening = None
    if rank == 0:
        family = socket.AF_INET6 if ":" in node.master_addr else socket.AF_INET
        listening = socket.create_server((node.master_addr, node.master_port), family=family).detach()
    return dist.TCPStore(  # pyright: ignore[reportPrivateImportUsage]
        node.master_addr,
        node.master_port,
        world_size,
        rank == 0,
        timeout=timedelta(seconds=timeout_s),
        wait_for_workers=False,
        master_listen_fd=listening,
    )


def _stay_on_loopback() -> None:
    """Binds gloo and NCCL, which have no authentication, to loopback: all ranks are on this machine.

    Variables that the operator has set take precedence.
    """
    loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), None)
    if loopback is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", loopback)
