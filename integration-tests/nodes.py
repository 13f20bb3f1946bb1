"""Two launchers as two nodes: with addresses of the loopback network, or in network namespaces of their own."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import Server, end, free_port, start

NAME = "text-generation"


@dataclass(frozen=True)
class Certificates:
    """The authority of some nodes, and a certificate that it has signed."""

    authority: Path
    certificate: Path
    key: Path

    @property
    def flags(self) -> list[str]:
        return [
            *("--cluster-ca", str(self.authority)),
            *("--cluster-cert", str(self.certificate)),
            *("--cluster-key", str(self.key)),
        ]


def make_certificates(directory: Path) -> Certificates:
    """As docs/nodes.md says."""
    directory.mkdir()
    new_key = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "9",
    ]
    authority = [*new_key, "-subj", "/CN=nodes", "-keyout", "ca.key", "-out", "ca.pem"]
    node = [*new_key, "-subj", f"/CN={NAME}", "-addext", f"subjectAltName=DNS:{NAME}"]
    node += ["-addext", "basicConstraints=CA:FALSE", "-CA", "ca.pem", "-CAkey", "ca.key"]
    node += ["-keyout", "node.key", "-out", "node.pem"]
    for command in (authority, node):
        subprocess.run(command, cwd=directory, check=True, capture_output=True)
    return Certificates(directory / "ca.pem", directory / "node.pem", directory / "node.key")


@dataclass(frozen=True)
class Host:
    """Where a node runs: its address, and the command that gets there."""

    address: str
    wrapper: Sequence[str] = ()


LOOPBACK = (Host("127.0.0.2"), Host("127.0.0.3"))


@contextlib.contextmanager
def two_nodes(
    model: Path, directory: Path, hosts: Sequence[Host], flags: Sequence[Sequence[str]], shards: int = 1
) -> Iterator[list[Server]]:
    """Both launchers with so many shards each; node `r` with `flags[r]`. Only node 0 answers requests."""
    # The sessions, the meeting of the ranks, and one for each rank.
    port = "29500" if hosts[0].wrapper else str(free_port())
    nodes: list[Server] = []
    try:
        for rank, host in enumerate(hosts):
            own = directory / f"node-{rank}"
            own.mkdir()
            arguments = ["--nnodes", "2", "--node-rank", str(rank), "--master-port", port, "--num-shard", str(shards)]
            arguments += ["--master-addr", hosts[0].address, "--local-addr", host.address, *flags[rank]]
            nodes.append(start(model, own, *arguments, wrapper=host.wrapper))
        yield nodes
    finally:
        for node in nodes:
            end(node)


@contextlib.contextmanager
def namespaces() -> Iterator[tuple[list[Host], list[str]]]:
    """Two hosts on one link, the first of them this one, and the command that takes the link down.

    Raises `CalledProcessError` where this process may not make them.
    """
    name, link = f"tgi-{os.getpid()}", f"tgi{os.getpid()}"
    addresses = ("10.231.77.1", "10.231.77.2")
    inside = ["ip", "netns", "exec", name]

    def run(*command: str) -> None:
        subprocess.run(command, check=True, capture_output=True, text=True)

    run("ip", "netns", "add", name)
    try:
        run("ip", "link", "add", f"{link}a", "type", "veth", "peer", "name", f"{link}b", "netns", name)
        run("ip", "address", "add", f"{addresses[0]}/30", "dev", f"{link}a")
        run("ip", "link", "set", f"{link}a", "up")
        run(*inside, "ip", "address", "add", f"{addresses[1]}/30", "dev", f"{link}b")
        run(*inside, "ip", "link", "set", f"{link}b", "up")
        run(*inside, "ip", "link", "set", "lo", "up")
        yield [Host(addresses[0]), Host(addresses[1], inside)], ["ip", "link", "set", f"{link}a", "down"]
    finally:
        # The link goes with either end.
        for leftover in (["link", "delete", f"{link}a"], ["netns", "delete", name]):
            subprocess.run(["ip", *leftover], check=False, capture_output=True)
