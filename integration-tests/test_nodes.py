"""Two nodes answer as one host with all their shards, and end together."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from harness import Server, alive, command_line, descendants, serving, wait_for
from nodes import LOOPBACK, NAME, Certificates, Host, make_certificates, namespaces, two_nodes
from test_lifecycle import stream_in_background

END_LIMIT_S = 10.0
NEW_TOKENS = 16


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("nodes") / "right")


@pytest.fixture(scope="module")
def link() -> Iterator[tuple[Sequence[Host], Sequence[str]]]:
    try:
        made = namespaces()
        hosts_and_cut = made.__enter__()
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"network namespaces cannot be made here: {getattr(error, 'stderr', None) or error}")
    yield hosts_and_cut
    made.__exit__(None, None, None)


def processes(nodes: Sequence[Server]) -> list[int]:
    return [pid for node in nodes for pid in (node.process.pid, *descendants(node.process.pid))]


def assert_certificate_needed(node: Server, certificates: Certificates) -> None:
    """The shard of a node does not answer a client that trusts it and has no certificate itself."""
    address = re.search(r"--listen (\S+)", command_line(node.shards()[0]))
    assert address is not None
    credentials = grpc.ssl_channel_credentials(certificates.authority.read_bytes())
    options = (("grpc.ssl_target_name_override", NAME),)
    with (
        grpc.secure_channel(address.group(1), credentials, options) as channel,
        pytest.raises(grpc.RpcError) as refused,
    ):
        health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
    assert refused.value.code() == grpc.StatusCode.UNAVAILABLE


def end_of_all(nodes: Sequence[Server], pids: Sequence[int], limit_s: float = END_LIMIT_S) -> list[int]:
    """Exit codes, once every process is gone, within the limit."""
    end = time.monotonic() + limit_s
    codes = [node.process.wait(timeout=max(0.1, end - time.monotonic())) for node in nodes]
    left = [f"{pid} {command_line(pid)}" for pid in pids if alive(pid)]
    assert not left
    assert [node.sockets() for node in nodes] == [[], []]
    return codes


def test_answers_are_those_of_one_host_and_a_link_that_goes_down_ends_both(
    tiny_llama: Path,
    tmp_path: Path,
    certificates: Certificates,
    link: tuple[Sequence[Host], Sequence[str]],
    two_shards: Server,
    prompts: list[str],
) -> None:
    hosts, cut = link
    with two_nodes(tiny_llama, tmp_path, hosts, [certificates.flags] * 2) as nodes:
        nodes[0].wait_ready()
        for prompt in prompts[::5]:
            expected = two_shards.ids(prompt, max_new_tokens=NEW_TOKENS)
            assert nodes[0].ids(prompt, max_new_tokens=NEW_TOKENS) == expected
        pids = processes(nodes)
        subprocess.run(cut, check=True)
        assert end_of_all(nodes, pids) == [1, 1]
        for own, other in ((0, f"node 1 ({hosts[1].address})"), (1, f"node 0 ({hosts[0].address})")):
            assert f"{other} is lost: it sent nothing for 5 s" in nodes[own].output()


def test_two_nodes_with_two_shards_each_answer_as_one_host_with_four(
    tiny_llama: Path, tmp_path: Path, certificates: Certificates, prompts: list[str]
) -> None:
    some = prompts[::5]
    (tmp_path / "one").mkdir()
    with serving(tiny_llama, tmp_path / "one", "--num-shard", "4") as one_host:
        expected = [one_host.ids(prompt, max_new_tokens=NEW_TOKENS) for prompt in some]
    with two_nodes(tiny_llama, tmp_path, LOOPBACK, [certificates.flags] * 2, shards=2) as nodes:
        nodes[0].wait_ready()
        assert [len(node.shards()) for node in nodes] == [2, 2]
        assert_certificate_needed(nodes[1], certificates)
        assert [nodes[0].ids(prompt, max_new_tokens=NEW_TOKENS) for prompt in some] == expected
        pids = processes(nodes)
        nodes[1].process.send_signal(signal.SIGTERM)
        assert end_of_all(nodes, pids) == [0, 0]


# The thread of a stream that is cut off ends with the error of its client.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    ("number", "said"),
    [(signal.SIGKILL, "shard 1 stopped: signal 9"), (signal.SIGSTOP, "shard 1 did not answer"), (None, "")],
)
def test_a_shard_that_is_lost_ends_both_and_a_stop_of_either_lets_streams_finish(
    tiny_llama: Path, tmp_path: Path, certificates: Certificates, number: signal.Signals | None, said: str
) -> None:
    with two_nodes(tiny_llama, tmp_path, LOOPBACK, [certificates.flags] * 2) as nodes:
        nodes[0].wait_ready()
        pids = processes(nodes)
        assert_certificate_needed(nodes[1], certificates)
        thread, lines, started = stream_in_background(nodes[0], 300)
        assert started.wait(60)
        if number is None:
            nodes[1].process.send_signal(signal.SIGTERM)
        else:
            (shard,) = nodes[1].shards()
            subprocess.run(["kill", f"-{number.value}", str(shard)], check=True)
        assert end_of_all(nodes, pids) == ([0, 0] if number is None else [1, 1])
        thread.join(60)
        if number is None:
            assert '"generated_tokens":300' in lines[-1].replace(" ", "")
        assert all(said in node.output() for node in nodes)


def test_only_nodes_with_a_certificate_of_the_authority_are_let_in(
    tiny_llama: Path, tmp_path: Path, certificates: Certificates
) -> None:
    wrong = make_certificates(tmp_path / "wrong")
    stranger = Certificates(certificates.authority, wrong.certificate, wrong.key)
    limit = ["--shard-startup-timeout", "6"]
    flags = [[*certificates.flags, *limit], [*stranger.flags, *limit]]
    with two_nodes(tiny_llama, tmp_path, LOOPBACK, flags) as nodes:
        assert nodes[1].process.wait(timeout=30) == 1
        assert "it does not trust the certificate of this node" in nodes[1].output()
        wait_for(lambda: "refused a connection from 127.0.0.3: invalid certificate" in nodes[0].output(), "a refusal")
        assert nodes[0].process.wait(timeout=30) == 1
        assert "node 1 did not connect within 6 s" in nodes[0].output()
    with two_nodes(tiny_llama, tmp_path / "wrong", LOOPBACK, [certificates.flags, wrong.flags]) as nodes:
        assert nodes[1].process.wait(timeout=30) == 1
        assert "its certificate cannot be trusted" in nodes[1].output()
