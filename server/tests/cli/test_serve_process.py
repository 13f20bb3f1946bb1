"""The real command in processes of its own: readiness, signals, the watch on the parent, errors at start."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path

import grpc
import pytest
from support.processes import COMMAND, WAIT_S, RankClients, close_stdin, serve_arguments, started, wait_until_serving

from text_generation_server.pb import generate_pb2 as pb
from text_generation_server.pb import generate_pb2_grpc as pb_grpc


def test_the_longest_path_of_a_socket_works(llama_folder: Path, tmp_path: Path) -> None:
    """107 bytes, which is also what the launcher allows."""
    folder = tmp_path / ("d" * (107 - len(f"{tmp_path}//shard-0")))
    folder.mkdir()
    assert len(f"{folder}/shard-0") == 107
    with started(*serve_arguments(llama_folder, folder)) as process:
        wait_until_serving(process)


def test_a_shard_with_a_drafter(tmp_path: Path) -> None:
    demo = Path(__file__).parents[3] / "models" / "demo"
    drafter = ("--speculate", "3", "--drafter", str(demo / "drafter"))
    with started(*serve_arguments(demo, tmp_path, *drafter)) as process:
        wait_until_serving(process)


@pytest.mark.parametrize("command", ["serve", "download-weights"])
def test_a_drafter_of_another_model_ends_the_start(llama_folder: Path, command: str) -> None:
    demo = Path(__file__).parents[3] / "models" / "demo" / "drafter"
    arguments = (str(llama_folder), "--speculate", "3", "--drafter", str(demo))
    with started(command, *arguments) as process:
        _, errors = process.communicate(timeout=WAIT_S)
        assert process.returncode == 1
        assert "`model` of --speculative-config names a drafter of another model" in errors.splitlines()[-1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_shard_in_order(llama_folder: Path, tmp_path: Path, number: signal.Signals) -> None:
    """Its folder stays, for a shard that is started again."""
    with started(*serve_arguments(llama_folder, tmp_path, "--socket-dir-owned")) as process:
        wait_until_serving(process)
        process.send_signal(number)
        assert process.wait(WAIT_S) == 0
        assert list(tmp_path.iterdir()) == []


def test_signals_that_ask_for_nothing_end_no_shard(llama_folder: Path, tmp_path: Path) -> None:
    """A launcher decides what the end of a terminal means; a shard without one ends with it."""
    pointless = [signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGPROF, signal.SIGRTMIN + 1]
    with started(*serve_arguments(llama_folder, tmp_path, "--exit-on-stdin-eof")) as process:
        wait_until_serving(process)
        for number in [*pointless, signal.SIGHUP]:
            process.send_signal(number)
        close_stdin(process)
        assert process.wait(WAIT_S) == 0
    with started(*serve_arguments(llama_folder, tmp_path)) as process:
        wait_until_serving(process)
        for number in [*pointless, signal.SIGHUP]:
            process.send_signal(number)
        assert process.wait(WAIT_S) == 0


def test_the_end_of_standard_input_ends_the_shard_and_its_folder(llama_folder: Path, tmp_path: Path) -> None:
    sockets = tmp_path / "sockets"
    sockets.mkdir(mode=0o700)
    with started(*serve_arguments(llama_folder, sockets, "--exit-on-stdin-eof", "--socket-dir-owned")) as process:
        wait_until_serving(process)
        close_stdin(process)
        assert process.wait(WAIT_S) == 0
        assert not sockets.exists()


def test_a_shard_on_standby_starts_when_it_is_told_to(llama_folder: Path, tmp_path: Path) -> None:
    with started(*serve_arguments(llama_folder, tmp_path, "--standby", "--exit-on-stdin-eof")) as process:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        wait_until_serving(process)
        close_stdin(process)
        assert process.wait(WAIT_S) == 0
        assert list(tmp_path.iterdir()) == []


def test_a_shard_on_standby_does_nothing_before_and_ends_with_its_parent(tmp_path: Path) -> None:
    """A start would fail, for there is no model."""
    (tmp_path / "config.json").write_text("{}")
    with started(*serve_arguments(tmp_path, tmp_path, "--standby", "--load-format", "dummy")) as process:
        close_stdin(process)
        assert process.wait(WAIT_S) == 0
        assert process.communicate() == ("", "")


LAUNCHER = """
import json, os, subprocess, sys
arguments = json.loads(sys.argv[1])
stdin = None if sys.argv[2] == "inherited" else subprocess.PIPE
child = subprocess.Popen(arguments, stdin=stdin, env={**os.environ, "LAUNCHER_PID": str(os.getpid())})
print(json.dumps({"message": "started", "pid": child.pid}), flush=True)
child.wait()
"""


@contextmanager
def launched(stdin: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that stands in for the launcher, and the id of its child. `stdin` is "piped" from it to the child, or
    "inherited" by both, so that its end tells the child nothing.
    """
    command = [sys.executable, "-c", LAUNCHER, json.dumps([*COMMAND, *arguments]), stdin]
    with started(command=command) as launcher:
        assert launcher.stdout is not None
        pid = json.loads(launcher.stdout.readline())["pid"]
        try:
            yield launcher, pid
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def wait_until_gone(launcher: subprocess.Popen[str]) -> None:
    """Its children have its standard output too, which ends with the last of them."""
    assert launcher.stdout is not None
    launcher.stdout.read()


def test_a_process_that_reads_no_input_ends_with_its_launcher(tmp_path: Path) -> None:
    """It has none of the end of file that tells others, as one that still imports what it needs."""
    (tmp_path / "config.json").write_text("{}")
    standby = serve_arguments(tmp_path, tmp_path, "--standby", "--load-format", "dummy")
    with launched("inherited", *standby) as (launcher, _):
        launcher.kill()
        wait_until_gone(launcher)


def test_a_shard_that_a_signal_has_stopped_ends_with_its_launcher(llama_folder: Path, tmp_path: Path) -> None:
    sockets = tmp_path / "sockets"
    sockets.mkdir(mode=0o700)
    shard = serve_arguments(llama_folder, sockets, "--exit-on-stdin-eof", "--socket-dir-owned")
    with launched("piped", *shard) as (launcher, pid):
        wait_until_serving(launcher)
        os.kill(pid, signal.SIGSTOP)
        launcher.kill()
        wait_until_gone(launcher)
        assert not sockets.exists()


def test_a_process_whose_launcher_is_gone_already_does_not_start(tmp_path: Path) -> None:
    launcher = subprocess.Popen([sys.executable, "-c", ""])
    launcher.wait()
    with started(*serve_arguments(tmp_path, tmp_path), LAUNCHER_PID=str(launcher.pid)) as process:
        assert process.wait(WAIT_S) == 1
        assert process.communicate() == ("", "")


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


@contextmanager
def hanging(socket: Path) -> Iterator[subprocess.Popen[str]]:
    """A shard whose engine hangs."""
    process = subprocess.Popen(
        [sys.executable, "-c", HANGING, str(socket)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "hanging\n"
        assert socket.exists()
        yield process
    finally:
        process.kill()
        process.communicate()


def test_the_end_of_standard_input_ends_a_shard_whose_engine_hangs(tmp_path: Path) -> None:
    socket = tmp_path / "shard-0"
    with hanging(socket) as process:
        close_stdin(process)
        process.wait(WAIT_S)
        assert not socket.exists()


def test_a_signal_ends_a_shard_whose_engine_hangs_within_its_time(tmp_path: Path) -> None:
    """The limit is 3 s; a busy machine gets more."""
    socket = tmp_path / "shard-0"
    with hanging(socket) as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert not socket.exists()


def test_a_shard_that_is_abandoned_ends_at_once_and_says_why(tmp_path: Path) -> None:
    socket = tmp_path / "shard-0"
    with hanging(socket) as process, grpc.insecure_channel(f"unix:{socket}") as channel:
        stub = pb_grpc.TextGenerationServiceStub(channel)
        with pytest.raises(grpc.RpcError):
            stub.Abandon(pb.AbandonRequest(reason="the ranks disagree"), timeout=WAIT_S)
        assert process.wait(WAIT_S) == 1
        _, errors = process.communicate()
        assert "abandoned: the ranks disagree" in errors


def test_a_cpu_needs_no_triton(llama_folder: Path, tmp_path: Path) -> None:
    """As on macOS, where there is none."""
    hidden = "import sys; sys.modules['triton'] = None; from text_generation_server.__main__ import main; main()"
    with started(*serve_arguments(llama_folder, tmp_path), command=[sys.executable, "-c", hidden]) as process:
        wait_until_serving(process)
        tokens = RankClients(tmp_path, 1).generate([[5], [6, 7, 8]])
    assert [len(ids) for ids in tokens] == [12, 12]


def test_the_service_needs_no_torch() -> None:
    code = "import sys; import text_generation_server.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


LLAMA = "LlamaForCausalLM"


def write_config(folder: Path, architecture: str = "UnknownModel", quantised: str = "", weights: bytes = b"") -> Path:
    """A configuration that names an architecture we lack, or one whose weights are quantised by a method."""
    if weights:
        (folder / "model.safetensors").write_bytes(weights)
    (folder / "config.json").write_text(
        json.dumps(
            {
                "architectures": [architecture],
                **({"quantization_config": {"quant_method": quantised, "bits": 4}} if quantised else {}),
                "vocab_size": 8,
                "hidden_size": 8,
                "intermediate_size": 8,
                "num_hidden_layers": 1,
                "num_attention_heads": 1,
            }
        )
    )
    return folder


def with_small_heads(folder: Path) -> Path:
    """A model that is known, and whose keys and values cannot have 8 bits."""
    path = write_config(folder, LLAMA) / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "head_dim": 2}))
    (folder / "tokenizer.json").touch()
    return folder


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (lambda tmp: ["serve", str(tmp / "nowhere"), "--uds-path", f"{tmp}/shard"], {}, "no such folder"),
        (lambda _: ["serve", "some/model"], {}, "neither a folder nor"),
        (lambda tmp: serve_arguments(write_config(tmp), tmp, "--load-format", "dummy"), {}, "UnknownModel"),
        (lambda tmp: serve_arguments(tmp, tmp), {"WORLD_SIZE": "x"}, "WORLD_SIZE must be a whole number"),
        (lambda tmp: serve_arguments(tmp, tmp, "--sharded"), {}, "--sharded needs"),
        (lambda tmp: ["download-weights", str(tmp)], {}, "no config.json"),
        (lambda tmp: ["download-weights", str(write_config(tmp))], {}, "UnknownModel"),
        (lambda tmp: ["download-weights", str(write_config(tmp, LLAMA, "exl2"))], {}, "quantised by 'exl2'"),
        (lambda _: ["download-weights", "some/model", "--cuda-graphs", "abc"], {}, "--cuda-graphs must be"),
        (
            lambda _: ["download-weights", "some/model", "--deterministic", "--dequantised-copies", "on"],
            {},
            "excludes --dequantised-copies on",
        ),
        (
            lambda tmp: ["download-weights", "some/model", "--merge-adapter", str(tmp)],
            {},
            "holds no adapter: a folder with adapter_config.json",
        ),
        (
            lambda tmp: serve_arguments(write_config(tmp, LLAMA), tmp, "--merge-adapter", "org/absent"),
            {},
            "org/absent is neither a folder nor in the hub cache; the launcher downloads those of --merge-adapter",
        ),
        (
            lambda tmp: serve_arguments(
                write_config(tmp, LLAMA), tmp, "--load-format", "dummy", "--merge-adapter", str(tmp)
            ),
            {},
            "--load-format dummy reads none: leave one of them out",
        ),
        (lambda _: ["download-weights", "some/model"], {"CUDA_MEMORY_FRACTION": "0.005"}, "between 0.01 and 1.0"),
        (
            lambda _: ["download-weights", "some/model", "--attention", "triton"],
            {"DISABLE_CUSTOM_KERNELS": "true"},
            "--attention triton ",
        ),
        (
            lambda tmp: ["download-weights", str(with_small_heads(tmp)), "--kv-cache-dtype", "int8"],
            {},
            "--kv-cache-dtype int8 needs",
        ),
        (lambda tmp: serve_arguments(write_config(tmp, LLAMA, "gptq", b"\x10" + bytes(40)), tmp), {}, "is damaged"),
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


def test_the_doctor_reports_an_environment_that_cannot_be_read() -> None:
    with started("doctor", CUDA_MEMORY_FRACTION="0.005") as process:
        output, errors = process.communicate(timeout=WAIT_S)
        assert (process.returncode, errors) == (0, "")
        (said,) = [finding for finding in map(json.loads, output.splitlines()) if finding["subject"] == "environment"]
        assert said["status"] == "error"
        assert "CUDA_MEMORY_FRACTION must be between 0.01 and 1.0" in said["text"]


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
