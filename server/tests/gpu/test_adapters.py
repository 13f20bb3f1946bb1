"""Requests with adapters on a GPU: kernels, graphs of their own, and nothing compiled after warm-up."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.adapters import AdapterCase, write_adapter, write_base
from support.gpu_engine import build, router, with_adapters_in_turn
from support.router import Stream

from text_generation_server.engine.adapter_requests import AdapterCopy, AdapterSource
from text_generation_server.engine.requests import MaskSource, StepPlan, StepReply

pytestmark = pytest.mark.gpu

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
CASES: dict[str, list[dict[str, Any]]] = {
    "biased": [
        {"target_modules": ALL},
        {"target_modules": ALL, "r": 20, "rank_pattern": {"q_proj": 65}},
        {"target_modules": ALL, "use_dora": True},
        {"target_modules": ["embed_tokens", "lm_head"]},
        {
            "target_modules": ["q_proj"],
            "bias": "all",
            "modules_to_save": ["lm_head", "embed_tokens", "input_layernorm"],
        },
    ],
    "qwen3 moe": [
        {"target_modules": ["q_proj"], "target_parameters": EXPERTS},
        {"target_modules": ["o_proj"], "target_parameters": EXPERTS[1:], "r": 20},
        {"target_modules": ["gate_proj", "up_proj", "down_proj"]},
        {"target_modules": ["q_proj"], "trainable_token_indices": {"embed_tokens": [21, 9], "lm_head": [5, 40]}},
        {"target_modules": ["q_proj"]},
    ],
}

COME_LATER = {"biased": (0, 1, 2), "qwen3 moe": (4,)}
"""Those that change linear layers alone."""
PAGES = 10
"""At least those of all adapters of a base."""


@pytest.fixture(scope="module", params=CASES)
def folders(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A base, and every adapter of it."""
    root, base = tmp_path_factory.mktemp("adapters"), request.param
    for number, options in enumerate(CASES[base]):
        write_adapter(AdapterCase(base, options), root / str(number))
    return [write_base(base, root / base), *(root / str(number) for number in range(len(CASES[base])))]


def asked(count: int = 40) -> list[Stream]:
    return with_adapters_in_turn(count, 6)


def tokens(
    engine: Any, streams: list[Stream], adapters: Sequence[Path] = (), **options: Any
) -> list[tuple[list[int], list[float]]]:
    driver = router(engine, adapters, eos=(), **options)
    driver.run(*streams)
    assert not any(each.failure for each in streams)
    assert max(reply.timings.kernel_compilations for reply in driver.replies) == 0
    return [(each.tokens, each.logprobs) for each in streams]


@pytest.mark.parametrize("later", [False, True], ids=["from the start", "later"])
@pytest.mark.parametrize("graphs", [None, ()], ids=["graphs", "no graphs"])
def test_adapters_give_what_merged_weights_give(
    folders: list[Path], graphs: tuple[int, ...] | None, later: bool
) -> None:
    base, *adapters = folders
    known = [each for number, each in enumerate(adapters) if not later or number not in COME_LATER[base.name]]
    engine = build(base, torch.float32, cuda_graphs=graphs, adapters=known, pages=PAGES, later=later)
    found = [tokens(engine, asked(), adapters, chunk=chunk, depth=2) for chunk in (200, 7)]
    for number, folder in enumerate(folders):
        alone = build(base, torch.float32, cuda_graphs=graphs, merge_adapter=folder if number else None)
        streams = asked()
        for each in streams:
            each.adapter = 0
        expected = tokens(alone, streams, chunk=200)
        for place in range(number, 40, 6):
            for each in found:
                assert each[place][0] == expected[place][0]
                assert each[place][1] == pytest.approx(expected[place][1], abs=2e-3)


@pytest.mark.parametrize("graphs", [None, ()], ids=["graphs", "no graphs"])
def test_company_changes_no_bit(folders: list[Path], graphs: tuple[int, ...] | None) -> None:
    base, *adapters = folders
    engine = build(base, torch.bfloat16, cuda_graphs=graphs, adapters=adapters, deterministic=True)
    want = [tokens(engine, [each], adapters, chunk=200)[0] for each in asked()]
    for options in ({"chunk": 200}, {"chunk": 7, "depth": 2, "pause": 0.05}):
        assert tokens(engine, asked(), adapters, **options) == want


def test_the_base_has_the_bits_of_a_server_without_adapters(folders: list[Path]) -> None:
    base, *adapters = folders
    streams = [each for each in asked() if each.adapter == 0]
    plain = tokens(build(base, torch.bfloat16), streams, chunk=200)
    again = [each for each in asked() if each.adapter == 0]
    assert tokens(build(base, torch.bfloat16, adapters=adapters), again, chunk=200) == plain


def test_copies_beside_steps_harm_none_of_them(folders: list[Path]) -> None:
    """Adapters take each other's pages while requests of the base decode, and are whole afterwards."""
    base, *adapters = folders
    engine = build(base, torch.bfloat16, adapters=adapters, pages=PAGES, deterministic=True)
    loaded = [engine.load_adapter(AdapterSource(each.name, str(each))) for each in adapters]
    want = tokens(engine, asked(), adapters, chunk=200)
    streams = [each for each in asked() if each.adapter == 0]
    driver = router(engine, eos=())
    send = driver.send

    def beside(plan: StepPlan, masks: MaskSource) -> Callable[[], StepReply]:
        adapter = loaded[plan.number % len(loaded)]
        copies = [AdapterCopy(1 + plan.number % 3, adapter.generation, PAGES - adapter.pages)]
        return send(replace(plan, adapter_copies=copies), masks)

    driver.send = beside
    driver.run(*streams)
    alone = [found for found, each in zip(want, asked(), strict=True) if each.adapter == 0]
    assert [(each.tokens, each.logprobs) for each in streams] == alone
    assert tokens(engine, asked(), adapters, chunk=200) == want
