"""What a client of TGI finds: routes, headers, error bodies, metrics; and a client written by others."""

from __future__ import annotations

import pytest
from harness import Server
from huggingface_hub import InferenceClient
from huggingface_hub.errors import ValidationError


def test_small_routes(server: Server) -> None:
    info = server.client.get("/info").json()
    assert info["max_input_tokens"] == info["max_input_length"]
    assert info["router"] == "text-generation-router"
    assert server.client.get("/").status_code == 200
    text = "Hello wörld"
    for token in server.client.post("/tokenize", json={"inputs": text}).json():
        assert token["text"] == text.encode()[token["start"] : token["stop"]].decode()
    assert token["stop"] == len(text.encode())
    assert server.client.get("/docs/").status_code == 200
    assert server.client.get("/api-doc/openapi.json").json()["openapi"].startswith("3.1")


def test_headers_of_a_plain_answer(server: Server) -> None:
    body = {"inputs": "Hello", "parameters": {"max_new_tokens": 4}}
    headers = server.client.post("/generate", json=body, headers={"x-request-id": "abc-1"}).headers
    for name in ["total", "validation", "queue", "inference"]:
        assert headers[f"x-{name}-time"].isdigit()
    assert headers["x-generated-tokens"] == "4"
    assert headers["x-compute-characters"] == "5"
    assert headers["x-request-id"] == "abc-1"


@pytest.mark.parametrize(
    ("content", "status"),
    [(b"{", 400), (b'{"inputs": 3}', 422), (b'{"inputs": ""}', 422), (b'{"inputs": "' + b"a" * 3_000_000 + b'"}', 413)],
)
def test_every_error_has_one_shape(server: Server, content: bytes, status: int) -> None:
    reply = server.client.post("/generate", content=content, headers={"content-type": "application/json"})
    assert reply.status_code == status
    assert set(reply.json()) == {"error", "error_type", "request_id"}
    assert reply.json()["request_id"] == reply.headers["x-request-id"]


def test_best_of_returns_the_others_too(server: Server) -> None:
    details = server.generate("Hello", best_of=2, do_sample=True, max_new_tokens=4)["details"]
    assert len(details["best_of_sequences"]) == 1


def test_prompt_and_top_tokens(server: Server) -> None:
    details = server.generate("Hello world", max_new_tokens=3, top_n_tokens=3, decoder_input_details=True)["details"]
    assert details["prefill"][0]["logprob"] is None
    assert all(token["logprob"] < 0 for token in details["prefill"][1:])
    assert [top[0]["id"] for top in details["top_tokens"]] == [token["id"] for token in details["tokens"]]


def test_hub_client(server: Server) -> None:
    client = InferenceClient(server.url)
    plain = server.generate("Hello world", max_new_tokens=8)["generated_text"]
    assert client.text_generation("Hello world", max_new_tokens=8, return_full_text=False) == plain
    streamed = client.text_generation("Hello world", max_new_tokens=8, stream=True)
    assert "".join(streamed) == plain
    with pytest.raises(ValidationError):
        client.text_generation("Hello world", max_new_tokens=100_000)


def test_metrics_count_requests(server: Server) -> None:
    before = server.metric("tgi_request_count")
    server.generate("Hello", max_new_tokens=2)
    assert server.metric("tgi_request_count") == before + 1
    text = server.client.get("/metrics").text
    for name in ["tgi_request_duration", "tgi_batch_inference_duration", "tgi_request_time_to_first_token_duration"]:
        assert f"{name}_bucket" in text
