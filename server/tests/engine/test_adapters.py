"""Requests with adapters: each gets what its adapter merged into the weights gives, in any company, and the base's
requests what the base gives.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support.adapters import AdapterCase, write_adapter, write_base
from support.engine_driver import directly, make_engine, stream
from support.families import PROMPTS
from support.loading import load
from support.router import Router, Stream

from text_generation_server.engine.engine import Engine
from text_generation_server.engine.options import EngineOptions
from text_generation_server.engine.requests import ServingLimits, WarmupLimits
from text_generation_server.errors import AdapterError
from text_generation_server.layers.weights import CurrentAdapters
from text_generation_server.models import adapters

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
ADAPTERS = {
    "whole": AdapterCase("biased", {"target_modules": ALL}),
    "high rank": AdapterCase("biased", {"target_modules": ALL, "r": 20, "rank_pattern": {"q_proj": 33}}),
    "queries": AdapterCase("biased", {"target_modules": ["q_proj"], "layers_to_transform": [1]}),
    "dora": AdapterCase("biased", {"target_modules": ALL, "use_dora": True, "use_rslora": True}),
    "biases": AdapterCase("biased", {"target_modules": ["o_proj", "up_proj"], "lora_bias": True}),
    "ends": AdapterCase("biased", {"target_modules": ["embed_tokens", "lm_head"], "use_dora": True}),
    "tokens": AdapterCase(
        "biased",
        {"target_modules": ["q_proj"], "trainable_token_indices": {"embed_tokens": [21, 9], "lm_head": [5, 40, 41]}},
    ),
    "saved": AdapterCase(
        "biased",
        {
            "target_modules": ["v_proj"],
            "bias": "lora_only",
            "modules_to_save": ["lm_head", "embed_tokens", "input_layernorm", "norm"],
        },
    ),
}
LIMITS = WarmupLimits(max_batch_prefill_tokens=32, max_batch_size=8, max_batch_total_tokens=512, prefill_chunking=True)
SERVING = ServingLimits(512, 63, 64, 8)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The base, and every adapter."""
    root = tmp_path_factory.mktemp("adapters")
    found = {"": write_base("biased", root / "base")}
    for name, case in ADAPTERS.items():
        write_adapter(case, root / name)
        found[name] = root / name
    return found


def engine_of(folder: Path, deterministic: bool = False, **more: Any) -> Engine:
    return make_engine(load(folder, **more), LIMITS, options=EngineOptions(deterministic=deterministic))


def asked(adapters: Sequence[int]) -> list[Stream]:
    streams = [stream(i, PROMPTS[i % len(PROMPTS)], 6, prefill_logprobs=True) for i in range(len(adapters))]
    for each, adapter in zip(streams, adapters, strict=True):
        each.adapter = adapter
    return streams


def run(engine: Engine, streams: list[Stream], **options: Any) -> list[tuple[list[int], list[float]]]:
    engine.clear_cache(None)
    Router(directly(engine), SERVING, budget=32, **options).run(*streams)
    assert not any(each.failure for each in streams)
    return [(each.tokens, each.logprobs + each.prompt_logprobs) for each in streams]


@pytest.fixture(scope="module")
def served(folders: dict[str, Path]) -> Engine:
    return engine_of(folders[""], adapters=[folder for name, folder in folders.items() if name])


def test_the_shard_says_which_adapters_it_has(served: Engine, folders: dict[str, Path]) -> None:
    infos = served.info.adapters
    assert [(each.name, each.number, each.rank) for each in infos] == [
        ("whole", 1, 4),
        ("high rank", 2, 33),
        ("queries", 3, 4),
        ("dora", 4, 4),
        ("biases", 5, 4),
        ("ends", 6, 4),
        ("tokens", 7, 4),
        ("saved", 8, 4),
    ]
    assert len({each.generation for each in infos}) == 8
    again = load(folders[""], adapters=[folders["dora"]]).adapters
    assert again is not None
    assert again.infos[0].generation == infos[3].generation != 0


def test_each_request_gets_what_its_merged_adapter_gives(served: Engine, folders: dict[str, Path]) -> None:
    first, second = [2, 0, 1, 4, 3, 5, 0, 1], [6, 0, 8, 7, 6, 3, 8, 7]
    for order, options in ((first, {"chunk": 32}), (first, {"chunk": 3, "depth": 2}), (second, {"chunk": 3})):
        mixed = run(served, asked(order), **options)
        for number, name in enumerate(folders):
            alone = engine_of(folders[""], merge_adapter=folders[name] if name else None)
            expected = run(alone, asked([0] * len(order)))
            for place in (at for at, adapter in enumerate(order) if adapter == number):
                assert mixed[place][0] == expected[place][0]
                assert mixed[place][1] == pytest.approx(expected[place][1], abs=2e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_company_changes_no_bit(folders: dict[str, Path], dtype: torch.dtype) -> None:
    """The base's requests alone run without adapted layers."""
    adapters = [folder for name, folder in folders.items() if name]
    engine = engine_of(folders[""], deterministic=True, adapters=adapters, dtype=dtype)
    order = [5, 1, 0, 6, 4, 7, 8, 2]
    want = [run(engine, [each], chunk=32)[0] for each in asked(order)]
    for options in ({"chunk": 32}, {"chunk": 1}, {"chunk": 5, "depth": 2, "pause": 0.1}):
        assert run(engine, asked(order), **options) == want


def test_company_changes_no_bit_of_experts(tmp_path: Path) -> None:
    """Rows of several adapters and of the base meet in the tiles of an expert."""
    cases = [
        {"target_modules": ["q_proj"], "target_parameters": EXPERTS},
        {"target_modules": ["o_proj"], "target_parameters": EXPERTS[1:], "r": 20},
        {"target_modules": ["gate_proj", "up_proj", "down_proj"]},
    ]
    for number, options in enumerate(cases):
        write_adapter(AdapterCase("qwen3 moe", options), tmp_path / str(number))
    base, adapters = write_base("qwen3 moe", tmp_path / "base"), [tmp_path / str(number) for number in range(3)]
    engine = engine_of(base, deterministic=True, adapters=adapters)
    order = [1, 2, 0, 3, 1, 0, 3, 2]
    want = [run(engine, [each], chunk=32)[0] for each in asked(order)]
    for options in ({"chunk": 32}, {"chunk": 5, "depth": 2, "pause": 0.1}):
        assert run(engine, asked(order), **options) == want
    plain = run(engine_of(base, deterministic=True), asked([0] * 8), chunk=32)
    assert [each == other for each, other in zip(want, plain, strict=True)] == [adapter == 0 for adapter in order]


def test_steps_of_the_base_alone_know_no_adapters(served: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a step of the base alone has tables of adapters")

    expected = run(served, asked([0, 0, 0]), chunk=5)
    for name in ("begin", "step"):
        monkeypatch.setattr(CurrentAdapters, name, property(refuse) if name == "step" else refuse)
    assert run(served, asked([0, 0, 0]), chunk=5) == expected
    with pytest.raises(AssertionError):
        run(served, asked([0, 8, 0]))


def test_adapters_differ(served: Engine) -> None:
    engine = served
    found = [run(engine, [each])[0][1] for each in (asked([adapter] * 8)[7] for adapter in range(9))]
    assert len({tuple(round(value, 3) for value in logprobs) for logprobs in found}) == 9


def test_an_unknown_adapter_fails_alone(served: Engine) -> None:
    streams = asked([1, 9, 0])
    engine = served
    engine.clear_cache(None)
    Router(directly(engine), SERVING, budget=32).run(*streams)
    assert [each.failure is None for each in streams] == [True, False, True]
    failure = streams[1].failure
    assert failure is not None
    assert failure.reason == "invalid_request"
    assert "`adapter` 9 is not on this shard: it has adapters 1 to 8" in failure.message


def test_a_shard_without_adapters_says_how_to_get_some() -> None:
    engine = make_engine()
    one = stream(0, [1, 2], 2)
    one.adapter = 1
    Router(directly(engine), SERVING, budget=32).run(one)
    assert one.failure is not None
    assert "it has none (--lora-adapters)" in one.failure.message


def test_what_requests_cannot_have_for_themselves_is_refused(tmp_path: Path) -> None:
    case = AdapterCase("qwen3 moe", {"target_modules": ["q_proj"], "modules_to_save": ["q_norm"]})
    write_adapter(case, tmp_path / "adapter")
    with pytest.raises(AdapterError, match=r"q_norm.weight.*--merge-adapter"):
        load(write_base("qwen3 moe", tmp_path / "base"), adapters=[tmp_path / "adapter"])


def test_whole_tables_are_bounded(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapters, "_MOST_ROW_BYTES", 99 * 32 * 4)
    load(folders[""], adapters=[folders["tokens"]])
    with pytest.raises(AdapterError, match=r"replace .* GiB of embeddings and heads .*--merge-adapter"):
        load(folders[""], adapters=[folders["saved"]])
