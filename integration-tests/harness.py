"""Starts the real launcher on a free port and watches it from outside, as an operator would."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

DEMO = Path(__file__).parents[1] / "models" / "demo"
START_LIMIT_S = 120.0
# Several servers run at once: none may fill the GPU with its pool, where there is one.
POOL_TOKENS = "32768"
# Of servers that ask for one.
API_KEY = "key-of-the-tests"


def wait_for(condition: Callable[[], bool], what: str, limit_s: float = 30.0) -> None:
    """Polls `condition` until it holds; `what` says in the failure what never came true."""
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {limit_s} s: {what}")
        time.sleep(0.02)


_PORTS_IN_A_ROW = 16
_runs_of_ports = itertools.count(os.getpid() * 97)


def free_port() -> int:
    """The first of 16 ports in a row that are free on every address and that no other caller gets.

    They lie below those that the kernel gives to connections, which may take any of those at any time.
    """
    for run in _runs_of_ports:
        first = 12_000 + _PORTS_IN_A_ROW * (run % 1_250)
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + _PORTS_IN_A_ROW):
                stack.enter_context(socket.socket()).bind(("0.0.0.0", port))
            return first
    raise AssertionError("the runs of ports never end")


def children_by_parent() -> dict[int, list[int]]:
    """Ids of all processes of the machine, by the id of their parent."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                stat = (entry / "stat").read_text()
                parent = int(stat.rsplit(")", 1)[1].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    return children


def descendants(pid: int) -> list[int]:
    """Ids of all processes below `pid`."""
    children = children_by_parent()
    found: list[int] = []
    pending = [pid]
    while pending:
        below = children.get(pending.pop(), [])
        found += below
        pending += below
    return found


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def started_at(pid: int) -> int:
    """Ticks since the machine's start; of a process that is gone 0."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19])
    except OSError:
        return 0


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


@dataclass
class Server:
    """A running launcher. `runtime_dir` is where it makes its socket directory."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path
    runtime_dir: Path
    client: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        self.client = httpx.Client(base_url=self.url, timeout=120)

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def shards(self) -> list[int]:
        """The launcher's own children, the oldest first; on a GPU a shard has children that look like it."""
        own = children_by_parent().get(self.process.pid, [])
        return sorted((pid for pid in own if "serve" in command_line(pid).split()), key=started_at)

    def shard(self, rank: int) -> int:
        """The shard of a rank. One on standby for it is younger."""

        def is_rank(pid: int) -> bool:
            with contextlib.suppress(OSError):
                return f"RANK={rank}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            return False

        return next(filter(is_rank, self.shards()))

    def sockets(self) -> list[Path]:
        return [path for path in self.runtime_dir.rglob("*") if path.is_socket()]

    def wait_ready(self) -> None:
        def ready() -> bool:
            if self.process.poll() is not None:
                raise RuntimeError(f"the launcher ended with {self.process.returncode}:\n{self.output()}")
            with contextlib.suppress(httpx.TransportError):
                return self.client.get("/health").status_code == 200
            return False

        wait_for(ready, f"healthy server; its output:\n{self.output()}", START_LIMIT_S)

    def stop(self) -> int:
        """SIGTERM, then the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)

    def metric(self, name: str) -> float:
        """Value of a gauge or counter; its labels, if it has any, belong to the name."""
        found = re.search(rf"^{re.escape(name)} (\S+)$", self.client.get("/metrics").text, re.MULTILINE)
        return float(found.group(1)) if found else 0.0

    def generate(self, inputs: str, **parameters: object) -> dict:
        """POST /generate with details; the decoded body of a 200."""
        body = {"inputs": inputs, "parameters": {"details": True, **parameters}}
        reply = self.client.post("/generate", json=body)
        if reply.status_code != 200:
            raise AssertionError(f"{reply.status_code}: {reply.text}")
        return reply.json()

    def ids(self, inputs: str, **parameters: object) -> list[int]:
        return [token["id"] for token in self.generate(inputs, **parameters)["details"]["tokens"]]


def start(
    model: Path | str,
    directory: Path,
    *arguments: str,
    environment: dict[str, str] | None = None,
    wrapper: Sequence[str] = (),
) -> Server:
    """Starts the launcher for `model`; `directory` takes its output and sockets. Does not wait.

    `wrapper`: a command that runs the rest of its command line.
    """
    port = free_port()
    runtime_dir = directory / "run"
    runtime_dir.mkdir(mode=0o700)
    log = directory / "launcher.log"
    command = ["text-generation-launcher", "--model-id", str(model), "--hostname", "127.0.0.1", "--port", str(port)]
    command += ["--max-batch-total-tokens", POOL_TOKENS]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*wrapper, *command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # Processes on standby take seconds of a core, and few tests lose shards.
            env={
                **os.environ,
                "XDG_RUNTIME_DIR": str(runtime_dir),
                "STANDBY_SHARDS": "false",
                **(environment or {}),
            },
        )
    return Server(process, f"http://127.0.0.1:{port}", log, runtime_dir)


@contextlib.contextmanager
def serving(
    model: Path | str, directory: Path, *arguments: str, environment: dict[str, str] | None = None
) -> Iterator[Server]:
    """A ready server that is stopped at the end, whatever happened to it."""
    server = start(model, directory, *arguments, environment=environment)
    try:
        server.wait_ready()
        yield server
    finally:
        end(server)


def end(server: Server) -> None:
    """Stops a server whatever has happened to it, and what is left of it."""
    server.client.close()
    below = descendants(server.process.pid)
    if server.process.poll() is None:
        server.process.send_signal(signal.SIGTERM)
        try:
            server.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            server.process.kill()
    for pid in filter(alive, below):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
