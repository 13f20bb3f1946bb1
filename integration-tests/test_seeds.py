"""A seed fixes the text: alone, in a batch, and on one or two shards."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from harness import Server

SAMPLING = {"do_sample": True, "temperature": 0.9, "top_p": 0.95, "top_k": 50, "max_new_tokens": 24}


def sampled(server: Server, seed: int) -> str:
    return server.generate("The cat sat", seed=seed, **SAMPLING)["generated_text"]


def test_the_same_seed_gives_the_same_text(server: Server, two_shards: Server) -> None:
    alone = [sampled(server, seed) for seed in range(16)]
    with ThreadPoolExecutor(16) as pool:
        batched = list(pool.map(lambda seed: sampled(server, seed), range(16)))
        sharded = list(pool.map(lambda seed: sampled(two_shards, seed), range(16)))
    assert batched == alone
    assert sharded == alone
    assert len(set(alone)) > 8


def test_a_random_seed_is_reported_and_reproduces_the_text(server: Server) -> None:
    answer = server.generate("The cat sat", **SAMPLING)
    seed = answer["details"]["seed"]
    assert sampled(server, seed) == answer["generated_text"]
    assert server.generate("The cat sat", max_new_tokens=4)["details"]["seed"] is None


def test_the_best_of_three_is_one_of_three_with_successive_seeds(server: Server) -> None:
    details = server.generate("The cat sat", best_of=3, **SAMPLING)["details"]
    samples = sorted([details, *details["best_of_sequences"]], key=lambda sample: sample["seed"])
    first = samples[0]["seed"]
    assert [sample["seed"] for sample in samples] == [first, first + 1, first + 2]
    for sample in samples:
        alone = server.generate("The cat sat", seed=sample["seed"], **SAMPLING)["details"]
        assert [token["id"] for token in sample["tokens"]] == [token["id"] for token in alone["tokens"]]


def test_the_best_of_three_with_a_seed_is_the_likeliest_of_three_seeds(server: Server) -> None:
    body = {"prompt": "The cat sat", "max_tokens": 24, "temperature": 0.9, "logprobs": 1}

    def choice(**fields: int) -> dict:
        return server.client.post("/v1/completions", json={**body, **fields}).json()["choices"][0]

    def mean(choice: dict) -> float:
        values = choice["logprobs"]["token_logprobs"]
        return sum(values) / len(values)

    alone = [choice(seed=seed) for seed in [7, 8, 9]]
    assert len({choice["text"] for choice in alone}) == 3
    assert choice(seed=7, best_of=3)["text"] == max(alone, key=mean)["text"]
