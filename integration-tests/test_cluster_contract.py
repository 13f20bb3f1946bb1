"""What a cluster asks of one server: probes and metrics without a key from the first second on, load by known names and
types, and an end that is announced before requests are refused."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path

import httpx
from harness import API_KEY, START_LIMIT_S, Server, alive, descendants, free_port, start, wait_for

PHASES = ["downloading", "loading", "warming up"]
# What endpoint pickers and autoscalers read, by name and type.
LOAD = {
    "tgi_queue_size": "gauge",
    "tgi_batch_current_size": "gauge",
    "tgi_kv_cache_usage": "gauge",
    "tgi_cache_config_info": "gauge",
    "tgi_request_failure": "counter",
    "tgi_request_paused": "counter",
    "tgi_prefix_cache_query_tokens": "counter",
    "tgi_prefix_cache_hit_tokens": "counter",
    "vllm:num_requests_waiting": "gauge",
    "vllm:num_requests_running": "gauge",
    "vllm:kv_cache_usage_perc": "gauge",
    "vllm:gpu_cache_usage_perc": "gauge",
    "vllm:cache_config_info": "gauge",
    "vllm:prefix_cache_queries_total": "counter",
    "vllm:prefix_cache_hits_total": "counter",
}


def phases_until_ready(server: Server, port: httpx.Client) -> list[str]:
    """Asks without a pause, from before the port is open; once it is, every question has an answer."""
    seen: list[str] = []

    def opened() -> bool:
        with contextlib.suppress(httpx.ConnectError):
            return port.get("/live").status_code == 200
        return False

    def ready() -> bool:
        assert server.process.poll() is None, server.output()
        assert port.get("/live").status_code == 200
        reply = port.get("/ready")
        phase = reply.json().get("phase") if reply.status_code == 503 else None
        if phase is not None and phase not in seen:
            seen.append(phase)
        return reply.status_code == 200

    wait_for(opened, "an open port", 5.0)
    wait_for(ready, "a ready server", START_LIMIT_S)
    return seen


def types(page: str) -> dict[str, str]:
    declared = (line.split() for line in page.splitlines() if line.startswith("# TYPE "))
    return {name: kind for _, _, name, kind in declared}


def ended_by_a_signal(server: Server) -> bool:
    """Sends SIGTERM again. The launcher takes two that come at once for one, as groups of processes get them."""
    server.process.send_signal(signal.SIGTERM)
    return server.process.poll() is not None


def test_a_server_fits_a_cluster(tiny_llama: Path, tmp_path: Path) -> None:
    own_port = free_port()
    flags = ["--api-key", API_KEY, "--prometheus-port", str(own_port), "--metrics-aliases", "vllm"]
    server = start(tiny_llama, tmp_path, *flags, "--drain-delay", "60")
    pids: list[int] = []
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{own_port}", timeout=30) as port:
            seen = phases_until_ready(server, port)
            assert "loading" in seen
            assert seen == [phase for phase in PHASES if phase in seen]
            pids = descendants(server.process.pid)
            declared = types(port.get("/metrics").text)
            assert {name: declared.get(name) for name in LOAD} == LOAD
            assert server.client.get("/metrics").status_code == 401
            assert port.post("/generate", json={"inputs": "Hello"}).status_code == 404

            server.process.send_signal(signal.SIGTERM)
            wait_for(lambda: port.get("/ready").status_code == 503, "a server that leaves")
            assert port.get("/live").status_code == 200
            server.client.headers["Authorization"] = f"Bearer {API_KEY}"
            assert server.client.get("/health").status_code == 503
            server.generate("Hello", max_new_tokens=2)
        # Nobody waits for the end of the delay any more.
        wait_for(lambda: ended_by_a_signal(server), "the end")
        assert server.process.returncode == 1
        wait_for(lambda: not any(alive(pid) for pid in pids), "no process left")
    finally:
        server.client.close()
        server.process.kill()
        server.process.wait()
