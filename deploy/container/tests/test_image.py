"""The image serves without rights on a root that is read-only, and ends within its grace; so does the chart's Pod.

`IMAGE` names the image. Needs podman, for the Pod also helm on the path. Serves the demo model on the CPU, in the
network of the host.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from harness import free_port, wait_for

ROOT = Path(__file__).parents[3]
CHART = ROOT / "deploy" / "kubernetes" / "text-generation"
MODEL = ROOT / "models" / "demo"
IMAGE = os.environ["IMAGE"]
DRAIN_DELAY_S = 3
GRACE_S = 90
LIMIT_S = 120.0
STORY = {"model": "demo", "prompt": "Once upon a time", "ignore_eos": True, "stream": True}


def podman(*arguments: str, given: str | None = None) -> str:
    """What it prints. Fails with what it says of an error."""
    run = subprocess.run(["podman", *arguments], input=given, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


@dataclass
class Ports:
    """Where a container is to serve."""

    http: int = field(default_factory=free_port)
    management: int = field(default_factory=free_port)

    def ready(self) -> bool:
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"http://127.0.0.1:{self.management}/ready").status_code == 200
        return False

    def stream(self, tokens: int, started: Callable[[], object] = lambda: None) -> str:
        """The last event of a completion; `started` is called with the first token."""
        body = {**STORY, "max_tokens": tokens}
        url = f"http://127.0.0.1:{self.http}/v1/completions"
        with httpx.stream("POST", url, json=body, timeout=120) as reply:
            assert reply.status_code == 200, reply.read()
            lines = filter(None, reply.iter_lines())
            next(lines)
            started()
            return list(lines)[-1]


def state(container: str) -> dict[str, Any]:
    return json.loads(podman("inspect", "--format", "{{json .State}}", container))


@pytest.fixture
def container() -> Iterator[tuple[str, Ports]]:
    ports = Ports()
    rights = ["--read-only", "--cap-drop=all", "--security-opt=no-new-privileges", "--stop-timeout", str(GRACE_S)]
    flags = ["--model-id", "/model", "--hostname", "127.0.0.1", "--port", str(ports.http)]
    flags += ["--prometheus-port", str(ports.management), "--drain-delay", str(DRAIN_DELAY_S)]
    flags += ["--max-batch-total-tokens", "8192"]
    name = podman("run", "--detach", "--network=host", *rights, "--volume", f"{MODEL}:/model:ro", IMAGE, *flags)
    try:
        wait_for(lambda: ports.ready() or not state(name)["Running"], "a server that serves", LIMIT_S)
        assert state(name)["Running"], podman("logs", name)
        yield name, ports
    finally:
        podman("rm", "--force", "--time", "0", "--volumes", name)


def test_the_image_serves_without_rights_and_finishes_streams(container: tuple[str, Ports]) -> None:
    name, ports = container
    assert podman("exec", name, "id", "-u") == "10001"
    for folder in ("/", "/opt", "/usr"):
        with pytest.raises(AssertionError, match="Read-only file system"):
            podman("exec", name, "touch", f"{folder}/file")
    started = threading.Event()
    last: list[str] = []
    stream = threading.Thread(target=lambda: last.append(ports.stream(600, started.set)))
    stream.start()
    assert started.wait(30)
    podman("stop", name)
    stream.join()
    assert last == ["data: [DONE]"]
    assert state(name)["ExitCode"] == 0


@pytest.fixture
def pod() -> Iterator[tuple[dict[str, Any], Ports]]:
    """The Pod of the chart, on this host instead of a node."""
    if shutil.which("helm") is None:
        pytest.skip("helm is not on the path")
    ports = Ports()
    repository, _, tag = IMAGE.rpartition(":") if ":" in IMAGE.rpartition("/")[2] else (IMAGE, "", "latest")
    values = {
        "model": {"id": "/model"},
        "image": {"repository": repository, "tag": tag},
        "gpus": 0,
        "ports": {"http": ports.http, "management": ports.management},
        "drainDelay": DRAIN_DELAY_S,
        "args": ["--max-batch-total-tokens", "8192"],
    }
    command = ["helm", "template", "release", str(CHART), "--kube-version", "1.30", "--values", "-"]
    run = subprocess.run(command, input=json.dumps(values), capture_output=True, text=True, check=True)
    deployment = next(one for one in yaml.safe_load_all(run.stdout) if one and one["kind"] == "Deployment")
    spec = deployment["spec"]["template"]["spec"] | {"hostNetwork": True}
    (server,) = spec["containers"]
    # podman 4 knows no names of ports, and none at all in the network of the host.
    del server["ports"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        server[probe]["httpGet"]["port"] = ports.management
    server["volumeMounts"].append({"name": "model", "mountPath": "/model", "readOnly": True})
    spec["volumes"].append({"name": "model", "hostPath": {"path": str(MODEL), "type": "Directory"}})
    played = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"played-{ports.http}"}, "spec": spec}
    podman("kube", "play", "-", given=yaml.safe_dump(played))
    try:
        wait_for(ports.ready, "a server that serves", LIMIT_S)
        yield played, ports
    finally:
        podman("pod", "rm", "--force", "--time", "0", played["metadata"]["name"])


def test_the_pod_of_the_chart_leaves_without_a_failed_request(pod: tuple[dict[str, Any], Ports]) -> None:
    played, ports = pod
    name = played["metadata"]["name"]
    (server,) = played["spec"]["containers"]
    # The kubelet asks from outside; podman would need a program for it in the image.
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        asked = server[probe]["httpGet"]
        assert httpx.get(f"http://127.0.0.1:{asked['port']}{asked['path']}").status_code == 200
    ends: list[str] = []

    def client() -> None:
        # As a Service does: who is not ready gets nothing more.
        while ports.ready():
            ends.append(ports.stream(48))

    clients = [threading.Thread(target=client) for _ in range(4)]
    for one in clients:
        one.start()
    wait_for(lambda: len(ends) >= 4, "answers", LIMIT_S)
    podman("pod", "stop", "--time", str(played["spec"]["terminationGracePeriodSeconds"]), name)
    for one in clients:
        one.join()
    assert set(ends) == {"data: [DONE]"}
    assert state(f"{name}-server")["ExitCode"] == 0
