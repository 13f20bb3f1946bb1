"""The real command in processes of its own: readiness, signals, the watch on the parent, ranks, errors at start."""

import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from text_generation_server.pb import generate_pb2 as pb
from text_generation_server.pb import generate_pb2_grpc as pb_grpc

WAIT_S = 90.0
LISTENING = "0A"
"""State of a socket in /proc/net/tcp."""
COMMAND = [sys.executable, "-m", "text_generation_server.cli"]


@contextmanager
def started(*arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def serve_arguments(model: Path, sockets: Path, *more: str) -> list[str]:
    return ["serve", str(model), "--uds-path", str(sockets / "shard"), "--json-output", *more]


def wait_until_serving(process: subprocess.Popen[str]) -> None:
    """Reads the log up to the record that says so, then asks the health service."""
    assert process.stdout is not None
    for line in process.stdout:
        record = json.loads(line)
        if record["message"] == "serving":
            with grpc.insecure_channel(f"unix:{record['socket']}") as channel:
                reply = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=WAIT_S)
            assert reply.status == health_pb2.HealthCheckResponse.SERVING
            return
    raise AssertionError(process.stderr.read() if process.stderr else "no output")


def close_stdin(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    process.stdin = None


def test_the_longest_path_of_a_socket_works(llama_folder: Path, tmp_path: Path) -> None:
    """107 bytes, which is also what the launcher allows."""
    folder = tmp_path / ("d" * (107 - len(f"{tmp_path}//shard-0")))
    folder.mkdir()
    assert len(f"{folder}/shard-0") == 107
    with started(*serve_arguments(llama_folder, folder)) as process:
        wait_until_serving(process)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_shard_in_order(llama_folder: Path, tmp_path: Path, number: signal.Signals) -> None:
    with started(*serve_arguments(llama_folder, tmp_path)) as process:
        wait_until_serving(process)
        process.send_signal(number)
        assert process.wait(WAIT_S) == 0
        assert list(tmp_path.iterdir()) == []


def test_the_end_of_standard_input_ends_the_shard_and_its_folder(llama_folder: Path, tmp_path: Path) -> None:
    sockets = tmp_path / "sockets"
    sockets.mkdir(mode=0o700)
    with started(*serve_arguments(llama_folder, sockets, "--exit-on-stdin-eof", "--socket-dir-owned")) as process:
        wait_until_serving(process)
        close_stdin(process)
        assert process.wait(WAIT_S) == 0
        assert not sockets.exists()


HANGING = """
import sys, threading
from pathlib import Path
from text_generation_server.engine.worker import EngineWorker
from text_generation_server.service.server import ServiceSettings, serve

class Hanging:
    class info:
        device_type = dtype = ""
    def close(self): pass

def hang(_):
    print("hanging", flush=True)
    threading.Event().wait()

worker = EngineWorker(Hanging)
worker.ready.add_done_callback(lambda _: worker.submit(hang))
serve(worker, ServiceSettings(Path(sys.argv[1]), [], Path("."), exit_on_stdin_eof=True))
"""


def test_the_end_of_standard_input_ends_a_shard_whose_engine_hangs(tmp_path: Path) -> None:
    socket = tmp_path / "shard-0"
    process = subprocess.Popen(
        [sys.executable, "-c", HANGING, str(socket)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "hanging\n"
        assert socket.exists()
        close_stdin(process)
        process.wait(WAIT_S)
        assert not socket.exists()
    finally:
        process.kill()
        process.communicate()


def test_the_service_needs_no_torch() -> None:
    code = "import sys; import text_generation_server.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class Group:
    """The router's view of all ranks: every call goes to each, generations are joined."""

    def __init__(self, sockets: Path, world_size: int) -> None:
        self.channels = [grpc.insecure_channel(f"unix://{sockets}/shard-{rank}") for rank in range(world_size)]
        self.stubs = [pb_grpc.TextGenerationServiceStub(channel) for channel in self.channels]

    def call(self, name: str, request: object) -> list[object]:
        futures = [getattr(stub, name).future(request, timeout=WAIT_S) for stub in self.stubs]
        return [future.result() for future in futures]

    def generate(self, prompts: list[list[int]]) -> dict[int, list[int]]:
        """Ids by request; every second request samples with the seed 7."""
        self.call("Warmup", pb.WarmupRequest(max_batch_prefill_tokens=128, max_batch_size=8))
        requests = [
            pb.Request(
                id=i,
                input_ids=prompt,
                parameters=pb.NextTokenChooserParameters(
                    temperature=0.7 if i % 2 else 1.0,
                    top_p=0.9 if i % 2 else 1.0,
                    typical_p=1.0,
                    do_sample=bool(i % 2),
                    seed=7,
                    repetition_penalty=1.0,
                ),
                stopping_parameters=pb.StoppingCriteriaParameters(max_new_tokens=12, ignore_eos_token=True),
                slots=[pb.SlotRange(start=40 * i, length=len(prompt) + 12)],
            )
            for i, prompt in enumerate(prompts)
        ]
        tokens: dict[int, list[int]] = {i: [] for i in range(len(prompts))}
        replies = self.call("Prefill", pb.PrefillRequest(batch=pb.Batch(id=1, requests=requests)))
        while True:
            for reply in replies:
                assert reply.batch == replies[0].batch
                assert not reply.failures
                for generation in reply.generations:
                    tokens[generation.request_id] += generation.tokens.ids
            if not replies[0].HasField("batch"):
                return tokens
            replies = self.call("Decode", pb.DecodeRequest(batches=[replies[0].batch]))


def test_two_shards_give_the_tokens_of_one(llama_folder: Path, tmp_path: Path) -> None:
    prompts = [[5], [6, 7, 8], list(range(10, 30)), [100, 50], [300]]
    with started(*serve_arguments(llama_folder, tmp_path)) as process:
        wait_until_serving(process)
        alone = Group(tmp_path, 1).generate(prompts)
    environment = {"WORLD_SIZE": "2"}
    arguments = serve_arguments(llama_folder, tmp_path / "two", "--sharded")
    (tmp_path / "two").mkdir()
    with started(*arguments, RANK="0", **environment) as first, started(*arguments, RANK="1", **environment) as second:
        wait_until_serving(first)
        wait_until_serving(second)
        assert listening_addresses(first.pid) | listening_addresses(second.pid) <= {"127.0.0.1", "::1"}
        group = Group(tmp_path / "two", 2)
        assert group.generate(prompts) == alone
        (found, _) = group.call("ServiceDiscovery", pb.ServiceDiscoveryRequest())
        assert list(found.urls) == [f"unix://{tmp_path}/two/shard-{rank}" for rank in range(2)]
        for process in (first, second):
            process.send_signal(signal.SIGTERM)
        assert [process.wait(WAIT_S) for process in (first, second)] == [0, 0]


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


def write_config(folder: Path) -> Path:
    """A configuration that names an architecture we lack."""
    (folder / "config.json").write_text(
        json.dumps(
            {
                "architectures": ["UnknownForCausalLM"],
                "vocab_size": 8,
                "hidden_size": 8,
                "intermediate_size": 8,
                "num_hidden_layers": 1,
                "num_attention_heads": 1,
            }
        )
    )
    return folder


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (lambda tmp: ["serve", str(tmp / "nowhere"), "--uds-path", f"{tmp}/shard"], {}, "neither a folder nor"),
        (lambda tmp: serve_arguments(write_config(tmp), tmp, "--load-format", "dummy"), {}, "UnknownForCausalLM"),
        (lambda tmp: serve_arguments(tmp, tmp), {"WORLD_SIZE": "x"}, "WORLD_SIZE must be a whole number"),
        (lambda tmp: serve_arguments(tmp, tmp, "--sharded"), {}, "--sharded needs"),
        (lambda tmp: ["download-weights", str(tmp)], {}, "no config.json"),
    ],
)
def test_an_error_at_start_is_one_line_and_status_1(
    tmp_path: Path, arguments: Callable[[Path], list[str]], environment: dict[str, str], message: str
) -> None:
    with started(*arguments(tmp_path), HF_HUB_OFFLINE="1", **environment) as process:
        output, errors = process.communicate(timeout=WAIT_S)
        assert process.returncode == 1
        assert message in errors.splitlines()[-1]
        assert "Traceback" not in errors + output
        assert (errors + output).count(message) == 1
        assert not list(tmp_path.glob("shard*"))


def test_download_weights_ends_with_the_folder(llama_folder: Path) -> None:
    with started("download-weights", str(llama_folder), "--json-output") as process:
        output, _ = process.communicate(timeout=WAIT_S)
        assert process.returncode == 0
        assert json.loads(output.splitlines()[-1])["model_path"] == str(llama_folder.resolve())


def test_the_version_is_that_of_the_package() -> None:
    with started("--version") as process:
        output, _ = process.communicate(timeout=WAIT_S)
        assert (process.returncode, output) == (0, f"text-generation-server {version('text-generation-server')}\n")


def test_wrong_usage_is_status_2() -> None:
    with started("serve", "model", "--dtype", "int3") as process:
        _, errors = process.communicate(timeout=WAIT_S)
        assert process.returncode == 2
        assert "--dtype" in errors


def test_a_download_ends_with_its_parent(tmp_path: Path) -> None:
    """A pipe in place of config.json keeps the command waiting until its parent is gone."""
    os.mkfifo(tmp_path / "config.json")
    with started("download-weights", str(tmp_path), "--exit-on-stdin-eof") as process:
        close_stdin(process)
        assert process.wait(WAIT_S) == 1
