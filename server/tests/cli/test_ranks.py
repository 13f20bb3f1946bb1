"""Processes of several ranks: what they compute, where they listen, what they leave behind."""

import os
import signal
import socket
import struct
from pathlib import Path

from support.processes import WAIT_S, RankClients, close_stdin, serve_arguments, started, wait_until_serving

from text_generation_server.pb import generate_pb2 as pb

LISTENING = "0A"
"""State of a socket in /proc/net/tcp."""


def listening_addresses(pid: int) -> set[str]:
    """Where a process listens for TCP connections."""
    links = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()]
    inodes = {link[len("socket:[") : -1] for link in links if link.startswith("socket:[")}
    addresses: set[str] = set()
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING and fields[9] in inodes:
                words = struct.iter_unpack("=I", bytes.fromhex(fields[1].split(":")[0]))
                packed = b"".join(struct.pack(">I", word) for (word,) in words)
                addresses.add(socket.inet_ntop(family, packed))
    return addresses


def test_two_shards_give_the_tokens_of_one(llama_folder: Path, tmp_path: Path) -> None:
    prompts = [[5], [6, 7, 8], list(range(10, 30)), [100, 50], [300]]
    with started(*serve_arguments(llama_folder, tmp_path)) as process:
        wait_until_serving(process)
        alone = RankClients(tmp_path, 1).generate(prompts)
    assert not any(token % 2 for tokens in alone[:2] for token in tokens)
    assert any(token % 2 for tokens in alone[2:] for token in tokens)
    environment = {"WORLD_SIZE": "2"}
    arguments = serve_arguments(llama_folder, tmp_path / "two", "--sharded")
    (tmp_path / "two").mkdir()
    with started(*arguments, RANK="0", **environment) as first, started(*arguments, RANK="1", **environment) as second:
        wait_until_serving(first)
        wait_until_serving(second)
        assert listening_addresses(first.pid) | listening_addresses(second.pid) <= {"127.0.0.1", "::1"}
        group = RankClients(tmp_path / "two", 2)
        assert group.generate(prompts) == alone
        assert group.lose_masks([300]) == [alone[4][:1]] * 2
        (found, _) = group.call("ServiceDiscovery", pb.ServiceDiscoveryRequest())
        assert list(found.urls) == [f"unix://{tmp_path}/two/shard-{rank}" for rank in range(2)]
        # A rank whose step waits for another one that hangs ends nevertheless; a busy machine gets more than its 3 s.
        second.send_signal(signal.SIGSTOP)
        group.stubs[0].Decode.future(pb.StepPlan(number=1, decode=[0]))
        group.stubs[0].Health(pb.HealthRequest(), timeout=WAIT_S)
        first.send_signal(signal.SIGTERM)
        assert first.wait(30) == 0
        second.send_signal(signal.SIGTERM)
        second.send_signal(signal.SIGCONT)
        assert second.wait(30) == 0


def test_ranks_whose_parent_is_gone_leave_no_file(llama_folder: Path, tmp_path: Path) -> None:
    sockets = tmp_path / "sockets"
    sockets.mkdir(mode=0o700)
    arguments = serve_arguments(llama_folder, sockets, "--sharded", "--exit-on-stdin-eof", "--socket-dir-owned")
    with (
        started(*arguments, RANK="0", WORLD_SIZE="2") as first,
        started(*arguments, RANK="1", WORLD_SIZE="2") as second,
    ):
        wait_until_serving(first)
        wait_until_serving(second)
        assert (sockets / "shard-rendezvous").exists()
        for process in (first, second):
            close_stdin(process)
        assert [process.wait(WAIT_S) for process in (first, second)] == [0, 0]
        assert not sockets.exists()
