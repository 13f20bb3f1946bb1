"""Adapters that come and go while requests run: loads, copies to pages, evictions, reloads and refusals, as plans and
calls of a router bring them.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.adapters import AdapterCase, rewrite, write_adapter, write_base
from support.engine_driver import copy_adapters, directly, engine_with, make_engine, make_request, stream
from support.loading import load
from support.router import Router

from text_generation_server.engine.adapter_copies import PendingCopies
from text_generation_server.engine.adapter_plans import AdapterChecker, Resident
from text_generation_server.engine.adapter_requests import AdapterCopy, AdapterLoaded, AdapterSource
from text_generation_server.engine.engine import Engine
from text_generation_server.engine.requests import Chunk, ServingLimits, StepPlan, WarmupLimits
from text_generation_server.errors import (
    AdapterChanged,
    AdapterError,
    AdapterNotFound,
    EngineError,
    InvalidRequest,
    OutOfMemory,
)

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
CASES = {
    "one": AdapterCase("biased", {"target_modules": ALL}),
    "two": AdapterCase("biased", {"target_modules": ["q_proj", "down_proj"], "r": 20}),
    "three": AdapterCase("biased", {"target_modules": ["o_proj"], "use_dora": True, "lora_bias": False}),
}
LIMITS = WarmupLimits(max_batch_prefill_tokens=32, max_batch_size=4, max_batch_total_tokens=256, prefill_chunking=True)
SERVING = ServingLimits(256, 31, 32, 4)
PROMPT = [5, 6, 7, 8]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("adapters")
    for name, case in CASES.items():
        write_adapter(case, root / name)
    return {"": write_base("biased", root / "base"), **{name: root / name for name in CASES}}


@pytest.fixture
def engine(folders: dict[str, Path]) -> Engine:
    """Two pages, for adapters that are not loaded yet."""
    return engine_with(load(folders[""]), LIMITS, [], pages=2, later=True)


@pytest.fixture(scope="module")
def expected(folders: dict[str, Path]) -> dict[str, list[int]]:
    """The tokens of `PROMPT` by adapter."""
    return {
        name: tokens(make_engine(load(folders[""], merge_adapter=folder if name else None), LIMITS))
        for name, folder in folders.items()
    }


def tokens(engine: Engine, adapter: int = 0) -> list[int]:
    one = stream(0, PROMPT, 8)
    one.adapter = adapter
    Router(directly(engine), SERVING, budget=32).run(one)
    assert one.failure is None
    return one.tokens


def loaded(engine: Engine, folder: Path) -> AdapterLoaded:
    return engine.load_adapter(AdapterSource(folder.name, str(folder)))


class Plans:
    """Sends plans by hand."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._number = 0
        engine.clear_cache(None)

    def send(self, plan: StepPlan) -> list[int]:
        """The tokens of the step; `ready` has what the reply says."""
        reply = self._engine.step(replace(plan, number=self._number)).result()
        self._number += 1
        self.ready, self.failures = list(reply.adapters_ready), list(reply.failures)
        return list(reply.ids)

    def copy(self, number: int, adapter: AdapterLoaded, page: int = 0) -> None:
        self.send(StepPlan(0, adapter_copies=[AdapterCopy(number, adapter.generation, page)]))

    def start(self, row: int, adapter: int) -> list[int]:
        request = replace(make_request(row, PROMPT), adapter=adapter)
        return self.send(StepPlan(0, admit=[request], chunks=[Chunk(row, 0, len(PROMPT))]))


def test_adapters_come_and_go_while_requests_decode(
    engine: Engine, folders: dict[str, Path], expected: dict[str, list[int]]
) -> None:
    one, two = loaded(engine, folders["one"]), loaded(engine, folders["two"])
    assert (one.pages, two.pages) == (1, 2)
    plans = Plans(engine)
    base = plans.start(0, 0)
    # The copy is beside a step of the base, whose reply says that it is done.
    base += plans.send(StepPlan(0, decode=[0], adapter_copies=[AdapterCopy(1, one.generation, 1)]))
    assert plans.ready == [1]
    first = plans.start(1, 1)
    for _ in range(3):
        base_token, first_token = plans.send(StepPlan(0, decode=[0, 1]))
        base.append(base_token)
        first.append(first_token)
    assert (base, first) == (expected[""][:5], expected["one"][:4])
    # The other one takes the pages of the first, once nobody uses it.
    plans.send(StepPlan(0, drop=[1], decode=[0], adapter_copies=[AdapterCopy(2, two.generation, 0)]))
    assert plans.ready == [2]
    second = plans.start(2, 2)
    for _ in range(3):
        second += plans.send(StepPlan(0, decode=[2]))
    assert second == expected["two"][:4]
    plans.start(3, 1)
    assert "`adapter` 1 has no copy" in plans.failures[0].message


def test_a_number_becomes_another_adapter(
    engine: Engine, folders: dict[str, Path], expected: dict[str, list[int]]
) -> None:
    """Nothing of the one before is left, neither factors nor what DoRA multiplies outputs by."""
    for name in ("three", "one", "two", "three", "one"):
        copy_adapters(engine, [folders[name]])
        assert tokens(engine, 1) == expected[name]
    assert tokens(engine) == expected[""]


def test_a_reload_under_a_folder_is_another_generation(
    engine: Engine, folders: dict[str, Path], tmp_path: Path
) -> None:
    write_adapter(CASES["one"], tmp_path)
    before = loaded(engine, tmp_path)
    copy_adapters(engine, [tmp_path])
    old = tokens(engine, 1)
    rewrite(tmp_path, lambda all: {name: each * 1.5 for name, each in all.items()})
    after = loaded(engine, tmp_path)
    assert after.generation != before.generation
    with pytest.raises(AdapterChanged, match="put new versions of an adapter into a folder of their own"):
        engine.load_adapter(AdapterSource("mine", str(tmp_path), generation=before.generation))
    # Both are there, and the old one goes on.
    plans = Plans(engine)
    plans.copy(1, before)
    plans.copy(2, after, 1)
    found = plans.start(0, 1), plans.start(1, 2)
    pairs = [plans.send(StepPlan(0, decode=[0, 1])) for _ in range(3)]
    assert found[0] + [pair[0] for pair in pairs] == old[:4]
    assert found[1] + [pair[1] for pair in pairs] != old[:4]


def test_what_is_unloaded_stays_on_its_pages(
    engine: Engine, folders: dict[str, Path], expected: dict[str, list[int]]
) -> None:
    one = loaded(engine, folders["one"])
    plans = Plans(engine)
    plans.copy(1, one)
    engine.unload_adapter(one.generation)
    engine.unload_adapter(one.generation)
    assert plans.start(0, 1) == expected["one"][:1]
    with pytest.raises(InvalidRequest, match=f"generation {one.generation:x}, which LoadAdapter has not brought"):
        plans.copy(2, one, 1)
    assert loaded(engine, folders["one"]) == one


def test_clear_cache_forgets_numbers_and_keeps_host_memory(engine: Engine, folders: dict[str, Path]) -> None:
    one = loaded(engine, folders["one"])
    plans = Plans(engine)
    plans.copy(1, one)
    plans = Plans(engine)
    plans.start(0, 1)
    assert "`adapter` 1 has no copy" in plans.failures[0].message
    plans.copy(1, one)
    assert plans.ready == [1]


@pytest.mark.parametrize(
    ("copy", "message"),
    [
        (AdapterCopy(0, 0, 0), "names number 0; Warmup had 2 pages"),
        (AdapterCopy(3, 0, 0), "names number 3; Warmup had 2 pages"),
        (AdapterCopy(2, 0, 2), "names pages 2 to 2 of 2"),
        (AdapterCopy(2, 77, 0), "names generation 4d, which LoadAdapter has not brought"),
        (AdapterCopy(2, 0, 0), "overwrites adapter 1 with 2, which requests that run"),
        (AdapterCopy(1, 0, 1), "overwrites adapter 1 with 1, which requests that run"),
    ],
)
def test_wrong_copies_change_nothing(
    copy: AdapterCopy, message: str, engine: Engine, folders: dict[str, Path], expected: dict[str, list[int]]
) -> None:
    one = loaded(engine, folders["one"])
    plans = Plans(engine)
    plans.copy(1, one)
    found = plans.start(0, 1)
    with pytest.raises(InvalidRequest, match=message):
        engine.step(StepPlan(2, adapter_copies=[replace(copy, generation=copy.generation or one.generation)]))
    assert found + plans.send(StepPlan(0, decode=[0])) == expected["one"][:2]


def test_two_copies_of_a_plan_do_not_overlap(engine: Engine, folders: dict[str, Path]) -> None:
    one = loaded(engine, folders["one"])
    copies = [AdapterCopy(1, one.generation, 0), AdapterCopy(2, one.generation, 0)]
    with pytest.raises(InvalidRequest, match="or a copy of the same plan, need"):
        engine.step(StepPlan(0, adapter_copies=copies))


def test_without_later_only_what_was_loaded_before_has_room(folders: dict[str, Path]) -> None:
    engine = engine_with(load(folders[""]), LIMITS, [folders["three"]], pages=2)
    with pytest.raises(AdapterError, match="name it with --lora-adapters"):
        loaded(engine, folders["one"])
    # One that was read while Warmup ran.
    copied = engine_with(load(folders[""]), LIMITS, [folders["one"]], pages=2)._adapters.all()[0]
    checker = AdapterChecker(2, lambda _: copied, lambda _: False)
    with pytest.raises(InvalidRequest, match="set `adapters_later` there"):
        checker.copy([AdapterCopy(1, 5, 0)], set)


def test_pages_take_memory_where_adapters_may_come(folders: dict[str, Path]) -> None:
    model = load(folders[""])
    engine = engine_with(model, LIMITS, [folders["two"]], pages=2)
    assert engine is not None
    assert model.adapters is not None
    assert model.adapters.pool is not None
    some = model.adapters.bytes_of(model.adapters.pool.memory.room)
    every = model.adapters.bytes_of(model.adapters.room(2, [], True))
    assert 0 < some < every
    plain = load(folders[""])
    make_engine(plain, LIMITS)
    assert plain.adapters is not None
    assert plain.adapters.pool is None


def _empty(folder: Path) -> None:
    folder.mkdir(exist_ok=True)


def _pickle(folder: Path) -> None:
    (folder / "adapter_model.safetensors").unlink()
    torch.save({}, folder / "adapter_model.bin")


def _damaged(folder: Path) -> None:
    path = folder / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-7])


def _changed(key: str, value: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "adapter_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))

    return change


def _huge(folder: Path) -> None:
    rewrite(folder, lambda all: {name: torch.full_like(each, 3.4e38) for name, each in all.items()})


BAD: dict[str, tuple[Callable[[Path], None], type[EngineError], str]] = {
    "gone": (lambda _: None, AdapterNotFound, "is no folder on this machine"),
    "empty": (_empty, AdapterError, "holds no adapter"),
    "damaged": (_damaged, AdapterError, "is damaged or not a safetensors file"),
    "pickle": (_pickle, AdapterError, "is a pickle"),
    "method": (_changed("peft_type", "IA3"), AdapterError, "only LORA is computed"),
    "unknown": (_changed("surprise", True), AdapterError, "`surprise` is not known"),
    "huge": (_huge, AdapterError, "beyond the range of bfloat16"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_harm_nobody(
    name: str, folders: dict[str, Path], expected: dict[str, list[int]], tmp_path: Path
) -> None:
    change, kind, message = BAD[name]
    dtype = torch.bfloat16 if name == "huge" else torch.float32
    engine = engine_with(load(folders[""], dtype=dtype), LIMITS, [], pages=2, later=True)
    folder = tmp_path / "bad"
    if name not in ("gone", "empty"):
        write_adapter(CASES["one"], folder)
    change(folder)
    plans = Plans(engine)
    plans.copy(1, loaded(engine, folders["one"]))
    found = plans.start(0, 1)
    with pytest.raises(kind, match=message):
        engine.load_adapter(AdapterSource("bad", str(folder), untrusted=True))
    found += plans.send(StepPlan(0, decode=[0]))
    assert dtype != torch.float32 or found == expected["one"][:2]
    assert loaded(engine, folders["two"]).rank == 20


def test_a_name_of_the_hub_that_was_not_downloaded(engine: Engine) -> None:
    with pytest.raises(AdapterNotFound, match="neither a folder nor in the hub cache"):
        engine.load_adapter(AdapterSource("sums", "org/sums@v2"))


def test_host_memory_that_does_not_suffice(
    engine: Engine, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("text_generation_server.models.adapters.low_rank_pages", _no_memory)
        with pytest.raises(OutOfMemory, match="host memory does not suffice for adapter `one`"):
            loaded(engine, folders["one"])
    assert loaded(engine, folders["one"]).pages == 1


def _no_memory(*_: object, **__: object) -> None:
    raise MemoryError


def test_models_whose_requests_can_have_none_say_why(folders: dict[str, Path]) -> None:
    merged = make_engine(load(folders[""], merge_adapter=folders["one"]), None)
    with pytest.raises(AdapterError, match="--merge-adapter"):
        loaded(merged, folders["two"])
    with pytest.raises(InvalidRequest, match="`adapter_pages` must be 0"):
        merged.warmup(replace(LIMITS, adapter_pages=1))


class Event:
    """Stands for the end of a copy on a device."""

    def __init__(self) -> None:
        self.passed = False

    def query(self) -> bool:
        return self.passed

    def synchronize(self) -> None:
        self.passed = True


def test_copies_under_way_are_told_once_by_later_replies() -> None:
    pending, events = PendingCopies(), [Event(), Event()]
    residents = {1: Resident(0, 1, False), 2: Resident(1, 1, False)}
    for number, event in enumerate(events, 1):
        pending.note(number + 4, number, residents[number], event)  # type: ignore[arg-type]
    assert pending.take_ready(4, wait=True) == []
    assert pending.take_ready(6, wait=False) == []
    events[1].passed = True
    assert pending.take_ready(5, wait=False) == []
    assert pending.take_ready(6, wait=False) == [2]
    assert (residents[1].ready, residents[2].ready) == (False, True)
    assert pending.take_ready(6, wait=True) == [1]
    assert pending.take_ready(7, wait=True) == []


def test_a_copy_whose_number_or_pages_are_taken_is_never_told() -> None:
    pending, old, new = PendingCopies(), Resident(0, 1, False), Resident(0, 1, False)
    pending.note(0, 1, old, Event())  # type: ignore[arg-type]
    pending.keep({2: new})
    pending.note(1, 2, new, Event())  # type: ignore[arg-type]
    assert pending.take_ready(1, wait=True) == [2]
    assert (old.ready, new.ready) == (False, True)
