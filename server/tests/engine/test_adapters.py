"""Requests with adapters: each gets what its adapter merged into the weights gives, in any company, and the base's
requests what the base gives.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support.adapters import AdapterCase, write_adapter, write_base
from support.engine_driver import copy_adapters, directly, engine_with, make_engine, stream
from support.families import PROMPTS
from support.loading import load
from support.router import Router, Stream

from text_generation_server.engine import adapter_store
from text_generation_server.engine.adapter_requests import AdapterSource
from text_generation_server.engine.engine import Engine
from text_generation_server.engine.options import EngineOptions
from text_generation_server.engine.requests import ServingLimits, WarmupLimits
from text_generation_server.errors import AdapterError
from text_generation_server.layers.weights import CurrentAdapters

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


def merged(folder: Path, adapter: Path | None) -> Engine:
    return make_engine(load(folder, merge_adapter=adapter), LIMITS)


def asked(adapters: Sequence[int]) -> list[Stream]:
    streams = [stream(i, PROMPTS[i % len(PROMPTS)], 6, prefill_logprobs=True) for i in range(len(adapters))]
    for each, adapter in zip(streams, adapters, strict=True):
        each.adapter = adapter
    return streams


def run(
    engine: Engine, streams: list[Stream], adapters: Sequence[Path] = (), **options: Any
) -> list[tuple[list[int], list[float]]]:
    copy_adapters(engine, adapters)
    Router(directly(engine), SERVING, budget=32, **options).run(*streams)
    assert not any(each.failure for each in streams)
    return [(each.tokens, each.logprobs + each.prompt_logprobs) for each in streams]


@pytest.fixture(scope="module")
def adapters(folders: dict[str, Path]) -> list[Path]:
    """All adapters, in the order of their numbers."""
    return [folder for name, folder in folders.items() if name]


@pytest.fixture(scope="module", params=[False, True], ids=["from the start", "later"])
def served(request: pytest.FixtureRequest, folders: dict[str, Path], adapters: list[Path]) -> Engine:
    """An engine that knew all adapters at Warmup, or those alone that change more than linear layers."""
    known = adapters[5:] if request.param else adapters
    return engine_with(load(folders[""]), LIMITS, known, pages=10, later=request.param)


def test_a_load_says_what_it_takes(folders: dict[str, Path]) -> None:
    engine = make_engine(load(folders[""]), None)
    loaded = {name: engine.load_adapter(AdapterSource(name, str(folder))) for name, folder in folders.items() if name}
    assert {name: (each.rank, each.pages) for name, each in loaded.items()} == {
        "whole": (4, 1),
        "high rank": (33, 3),
        "queries": (4, 1),
        "dora": (4, 1),
        "biases": (4, 1),
        "ends": (4, 1),
        "tokens": (4, 1),
        "saved": (4, 1),
    }
    assert len({each.generation for each in loaded.values()} - {0}) == 8
    # Of queries alone, one matrix of 32 x 32, of which a page has 16 units, and a scale for each part of its layer.
    assert loaded["queries"].num_bytes < loaded["whole"].num_bytes / 4
    assert engine.load_adapter(AdapterSource("again", str(folders["dora"]))) == loaded["dora"]
    other = make_engine(load(folders[""]), None).load_adapter(AdapterSource("dora", str(folders["dora"])))
    assert other.generation == loaded["dora"].generation


def test_each_request_gets_what_its_merged_adapter_gives(
    served: Engine, folders: dict[str, Path], adapters: list[Path]
) -> None:
    first, second = [2, 0, 1, 4, 3, 5, 0, 1], [6, 0, 8, 7, 6, 3, 8, 7]
    for order, options in ((first, {"chunk": 32}), (first, {"chunk": 3, "depth": 2}), (second, {"chunk": 3})):
        mixed = run(served, asked(order), adapters, **options)
        for number, name in enumerate(folders):
            expected = run(merged(folders[""], folders[name] if name else None), asked([0] * len(order)))
            for place in (at for at, adapter in enumerate(order) if adapter == number):
                assert mixed[place][0] == expected[place][0]
                assert mixed[place][1] == pytest.approx(expected[place][1], abs=2e-4)


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_company_changes_no_bit(
    folders: dict[str, Path], adapters: list[Path], dtype: torch.dtype, later: bool
) -> None:
    """The base's requests alone run without adapted layers."""
    model, options = load(folders[""], dtype=dtype), EngineOptions(deterministic=True)
    engine = engine_with(model, LIMITS, adapters[5:] if later else adapters, 10, later, options=options)
    order = [5, 1, 0, 6, 4, 7, 8, 2]
    want = [run(engine, [each], adapters, chunk=32)[0] for each in asked(order)]
    for company in ({"chunk": 32}, {"chunk": 1}, {"chunk": 5, "depth": 2, "pause": 0.1}):
        assert run(engine, asked(order), adapters, **company) == want


def test_company_changes_no_bit_of_experts(tmp_path: Path) -> None:
    """Rows of several adapters and of the base meet in the tiles of an expert."""
    cases = [
        {"target_modules": ["q_proj"], "target_parameters": EXPERTS},
        {"target_modules": ["o_proj"], "target_parameters": EXPERTS[1:], "r": 20},
        {"target_modules": ["gate_proj", "up_proj", "down_proj"]},
    ]
    for number, case in enumerate(cases):
        write_adapter(AdapterCase("qwen3 moe", case), tmp_path / str(number))
    base, adapters = write_base("qwen3 moe", tmp_path / "base"), [tmp_path / str(number) for number in range(3)]
    options = EngineOptions(deterministic=True)
    engine = engine_with(load(base), LIMITS, adapters, options=options)
    order = [1, 2, 0, 3, 1, 0, 3, 2]
    want = [run(engine, [each], adapters, chunk=32)[0] for each in asked(order)]
    for company in ({"chunk": 32}, {"chunk": 5, "depth": 2, "pause": 0.1}):
        assert run(engine, asked(order), adapters, **company) == want
    plain = run(make_engine(load(base), LIMITS, options=options), asked([0] * 8), chunk=32)
    assert [each == other for each, other in zip(want, plain, strict=True)] == [adapter == 0 for adapter in order]


def test_steps_of_the_base_alone_know_no_adapters(
    served: Engine, adapters: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a step of the base alone has tables of adapters")

    expected = run(served, asked([0, 0, 0]), chunk=5)
    for name in ("begin", "step"):
        monkeypatch.setattr(CurrentAdapters, name, property(refuse) if name == "step" else refuse)
    assert run(served, asked([0, 0, 0]), chunk=5) == expected
    with pytest.raises(AssertionError):
        run(served, asked([0, 8, 0]), adapters)


def test_adapters_differ(served: Engine, adapters: list[Path]) -> None:
    found = [run(served, [each], adapters)[0][1] for each in (asked([adapter] * 8)[7] for adapter in range(9))]
    assert len({tuple(round(value, 3) for value in logprobs) for logprobs in found}) == 9


def test_an_adapter_without_a_copy_fails_alone(served: Engine, adapters: list[Path]) -> None:
    streams = asked([1, 9, 0])
    copy_adapters(served, adapters)
    Router(directly(served), SERVING, budget=32).run(*streams)
    assert [each.failure is None for each in streams] == [True, False, True]
    failure = streams[1].failure
    assert failure is not None
    assert failure.reason == "invalid_request"
    assert "`adapter` 9 has no copy on this shard" in failure.message


def test_a_shard_without_pages_says_how_to_get_some() -> None:
    engine = make_engine()
    one = stream(0, [1, 2], 2)
    one.adapter = 1
    Router(directly(engine), SERVING, budget=32).run(one)
    assert one.failure is not None
    assert "Warmup had `adapter_pages` 0 (--lora-adapters)" in one.failure.message


def test_what_requests_cannot_have_for_themselves_is_refused(tmp_path: Path) -> None:
    options = {"target_modules": ["q_proj"], "modules_to_save": ["q_norm"]}
    write_adapter(AdapterCase("qwen3 moe", options), tmp_path / "adapter")
    engine = make_engine(load(write_base("qwen3 moe", tmp_path / "base")), None)
    with pytest.raises(AdapterError, match=r"q_norm.weight.*--merge-adapter"):
        engine.load_adapter(AdapterSource("mine", str(tmp_path / "adapter")))


def test_whole_tables_are_bounded(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter_store, "_MOST_ROW_BYTES", 99 * 32 * 4)
    engine = make_engine(load(folders[""]), None)
    engine.load_adapter(AdapterSource("tokens", str(folders["tokens"])))
    with pytest.raises(AdapterError, match=r"replace .* GiB of embeddings and heads .*--merge-adapter"):
        engine.load_adapter(AdapterSource("saved", str(folders["saved"])))


@pytest.mark.parametrize("name", ["ends", "tokens", "saved"])
def test_ends_and_norms_are_those_of_adapters_of_the_start(name: str, folders: dict[str, Path]) -> None:
    engine = engine_with(load(folders[""]), LIMITS, [], pages=1, later=True)
    with pytest.raises(AdapterError, match="name it with --lora-adapters"):
        engine.load_adapter(AdapterSource(name, str(folders[name])))
    copy_adapters(engine, [folders["dora"]])
