"""The installed module: the command's edges, and the parts against other code or plain models of them."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

import text_generation_router as router

if TYPE_CHECKING:
    from collections.abc import Callable

TEXTS = ["the quick brown fox", "naïve café", "你好世界", "a 🙂 and 👩‍🚀!", "", "  two  spaces\n"]


@pytest.fixture(scope="module")
def reference() -> Tokenizer:
    """A byte-level tokenizer with a BOS token, made by the library."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=["<s>"], show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return tokenizer


@pytest.fixture(scope="module")
def tokenizer(reference: Tokenizer) -> router.Tokenizer:
    return router.Tokenizer(reference.to_str())


@pytest.mark.parametrize("text", TEXTS)
def test_ids_and_text_equal_the_library(tokenizer: router.Tokenizer, reference: Tokenizer, text: str) -> None:
    for special in (True, False):
        ids = reference.encode(text, add_special_tokens=special).ids
        assert tokenizer.encode(text, special) == ids
        assert tokenizer.decode(ids) == reference.decode(ids)


@pytest.mark.parametrize("text", TEXTS)
def test_streamed_pieces_join_to_the_text(tokenizer: router.Tokenizer, text: str) -> None:
    stream = tokenizer.detokenizer()
    pieces = [stream.push(id) for id in tokenizer.encode(text, False)]
    assert "".join(pieces) + stream.flush() == text
    assert all("\ufffd" not in piece for piece in pieces)


def test_a_bad_tokenizer_is_a_value_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot load the tokenizer"):
        router.Tokenizer("{}")
    with pytest.raises(ValueError, match=r"missing\.json"):
        router.Tokenizer.from_file(str(tmp_path / "missing.json"))


def test_the_allocator_equals_a_set_of_slots() -> None:
    allocator, free = router.SlotAllocator(100), set(range(100))
    held: list[list[tuple[int, int]]] = []
    choices = random.Random(0)
    for _ in range(500):
        if held and choices.random() < 0.5:
            ranges = held.pop(choices.randrange(len(held)))
            allocator.free(ranges)
            free.update(slot for start, length in ranges for slot in range(start, start + length))
        else:
            count = choices.randint(1, 40)
            ranges = allocator.allocate(count)
            assert (ranges is None) == (count > len(free))
            if ranges is not None:
                taken = {slot for start, length in ranges for slot in range(start, start + length)}
                assert len(taken) == count
                assert taken <= free
                free -= taken
                held.append(ranges)
        assert allocator.available == len(free)


def test_freeing_what_is_not_held_is_a_value_error() -> None:
    allocator = router.SlotAllocator(4)
    with pytest.raises(ValueError, match="not allocated"):
        allocator.free([(0, 1)])
    assert allocator.available == allocator.capacity == 4


@dataclass
class Request:
    """A request of the simulation below: it ends after `tokens` of the 60 that it may generate."""

    number: int
    prompt: int
    tokens: int
    generated: int = 0
    # While it runs:
    started_with: int = 0
    computed: int = 0
    slots: int = 0

    @property
    def length(self) -> int:
        return self.prompt + self.generated

    def queued(self) -> router.Queued:
        return router.Queued(self.length, 60 - self.generated, generated=self.generated)

    def running(self) -> router.Running:
        left = max(self.started_with - self.computed, 0)
        return router.Running(
            self.computed, self.slots, 60 - self.generated, prompt_left=left, generated=self.generated
        )

    def start(self) -> None:
        """Take slots for all tokens and the next; after a pause, what was generated is computed as a prompt is."""
        self.started_with, self.computed, self.slots = self.length, 0, self.length + 1

    def compute(self, count: int) -> None:
        self.computed += count
        self.slots = max(self.slots, self.computed)
        if self.computed >= self.started_with:
            self.generated += 1


def simulate(scheduler: router.Scheduler, requests: list[Request], pool: int, rows: int) -> int:
    """Run all requests to their ends, within the budget of every step; return how often one was paused."""
    queue, running = requests, list[Request]()
    without_chunks = pauses = 0
    while queue or running:
        free = pool - sum(request.slots for request in running)
        plan = scheduler.plan(
            [request.queued() for request in queue],
            [request.running() for request in running],
            free,
            rows - len(running),
            without_chunks,
        )
        assert plan.decode or plan.chunks or plan.admit or plan.pause, "a step of nothing"
        paused = [running[index] for index in plan.pause]
        started = [queue[index] for index, _ in plan.admit]
        for index in plan.decode:
            running[index].compute(1)
        for index, count in plan.chunks:
            running[index].compute(count)
        for (_, count), request in zip(plan.admit, started, strict=True):
            request.start()
            request.compute(count)
        computed = [count for _, count in [*plan.chunks, *plan.admit]]
        assert sum(computed) <= 64
        running += started
        assert len(running) <= rows
        assert sum(request.slots for request in running) <= pool
        for request in running:
            if request.generated == request.tokens:
                scheduler.observe(request.tokens)
        queue = [request for request in queue if request not in started] + paused
        queue.sort(key=lambda request: request.number)
        running = [r for r in running if r not in paused and r.generated < r.tokens]
        running.sort(key=lambda request: request.number)
        without_chunks = 0 if computed else without_chunks + 1
        pauses += len(paused)
    return pauses


@pytest.mark.parametrize("chunking", [True, False])
def test_the_scheduler_runs_every_request_and_never_overfills_the_pool(chunking: bool) -> None:
    pool = 300
    scheduler = router.Scheduler(max_batch_prefill_tokens=64, max_batch_total_tokens=pool, prefill_chunking=chunking)
    choices = random.Random(1)
    requests = [Request(number, choices.randint(1, 60), choices.randint(1, 60)) for number in range(100)]
    pauses = simulate(scheduler, requests, pool, rows=6)
    assert all(request.generated == request.tokens for request in requests)
    assert pauses < 30
    assert scheduler.plan([], [], pool, 6) == scheduler.plan([], [], 0, 0)


def test_the_newest_request_pauses_when_slots_run_short() -> None:
    scheduler = router.Scheduler(max_batch_prefill_tokens=64, max_batch_total_tokens=20)
    running = [router.Running(10, 10, 5, generated=3)] * 2
    plan = scheduler.plan([], running, 0, 8)
    assert (plan.pause, plan.decode) == ([1], [])
    plan = scheduler.plan([], running[:1], 10, 9)
    assert (plan.pause, plan.decode) == ([], [0])


def test_prompts_join_decodes_by_the_rules_of_tgi() -> None:
    scheduler = router.Scheduler(max_batch_prefill_tokens=64, max_batch_total_tokens=1000, waiting_served_ratio=2.0)
    running = [router.Running(4, 8, 50, generated=1)]
    waiting = router.Queued(4, 4)
    plan = scheduler.plan([waiting], running, 900, 7)
    assert (plan.decode, plan.admit, plan.joined) == ([0], [], None)
    plan = scheduler.plan([waiting, waiting], running, 900, 7)
    assert (plan.decode, plan.admit, plan.joined) == ([0], [(0, 4), (1, 4)], "backpressure")
    plan = scheduler.plan([waiting], running, 900, 7, decodes_since_joining=19)
    assert (plan.decode, plan.admit, plan.joined) == ([0], [(0, 4)], "wait_exceeded")


def test_without_chunks_prompts_have_steps_of_their_own() -> None:
    scheduler = router.Scheduler(max_batch_prefill_tokens=64, max_batch_total_tokens=1000, prefill_chunking=False)
    running = [router.Running(4, 8, 50, generated=1)]
    plan = scheduler.plan([router.Queued(4, 4)], running, 900, 7, decodes_since_joining=1)
    assert (plan.decode, plan.admit, plan.joined) == ([], [(0, 4)], "backpressure")
    plan = scheduler.plan([router.Queued(4, 4)], running, 900, 7)
    assert (plan.decode, plan.admit, plan.joined) == ([0], [], None)


def test_chunks_are_as_long_as_the_promised_gap_lets_them() -> None:
    cost = router.StepCost([64, 128], [10.0, 20.0])
    running = [router.Running(4, 8, 50, generated=1)]
    for gap, chunk in [(15.0, 95), (None, 128)]:
        scheduler = router.Scheduler(
            max_batch_prefill_tokens=128, max_batch_total_tokens=1000, max_token_gap=gap, cost=cost
        )
        assert scheduler.plan([router.Queued(128, 4)], running, 900, 7).admit == [(0, chunk)]


def test_requests_with_a_cached_prefix_compute_the_rest_alone() -> None:
    scheduler = router.Scheduler(max_batch_prefill_tokens=64, max_batch_total_tokens=1000)
    queue = [router.Queued(50, 4, cached=48, unlocked=48), router.Queued(40, 4, follows=True), router.Queued(9, 4)]
    assert scheduler.plan(queue, [], 1000, 8).admit == [(0, 2), (2, 9)]


def test_short_outputs_let_more_requests_in() -> None:
    scheduler = router.Scheduler(max_batch_prefill_tokens=1000, max_batch_total_tokens=1000)
    queue = [router.Queued(10, 500)] * 20
    before = scheduler.plan(queue, [], 1000, 20)
    for _ in range(1000):
        scheduler.observe(10)
    after = scheduler.plan(queue, [], 1000, 20)
    assert len(before.admit) < len(after.admit) == 20


def test_limits_that_make_no_sense_are_value_errors() -> None:
    with pytest.raises(ValueError, match="waiting_served_ratio"):
        router.Scheduler(max_batch_prefill_tokens=64, max_batch_total_tokens=1000, waiting_served_ratio=-1.0)
    with pytest.raises(ValueError, match="max_token_gap"):
        router.Scheduler(max_batch_prefill_tokens=64, max_batch_total_tokens=1000, max_token_gap=-1.0)
    with pytest.raises(ValueError, match="same length"):
        router.StepCost([1, 2], [1.0])


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "import text_generation_router; text_generation_router.cli()", *argv]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def test_the_command_prints_the_schema() -> None:
    done = run("print-schema")
    assert done.returncode == 0
    assert "/generate_stream" in json.loads(done.stdout)["paths"]


def test_the_command_is_installed_under_its_name() -> None:
    script = Path(sys.executable).with_name("text-generation-router")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout.split() == ["text-generation-router", router.__version__]


def test_exit_codes_and_one_line_reasons(tmp_path: Path) -> None:
    assert router.main(["text-generation-router", "--no-such-flag"]) == 2
    done = run("--tokenizer-name", str(tmp_path / "nowhere"))
    assert done.returncode == 1
    assert "`--tokenizer-name" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_folder_without_a_tokenizer_is_a_clear_error(tmp_path: Path) -> None:
    done = run("--tokenizer-name", str(tmp_path), "--port", "0")
    assert done.returncode == 1
    assert "there is no tokenizer.json" in done.stderr
    assert "slow tokenizer cannot be converted" in done.stderr


def write_slow_tokenizer(folder: Path, reference: Tokenizer, **settings: bool) -> None:
    """The reference as files from before there was a `tokenizer.json`."""
    model = json.loads(reference.to_str())["model"]
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = "\n".join(" ".join(pair) for pair in model["merges"])
    (folder / "merges.txt").write_text(f"#version: 0.2\n{merges}\n")
    write_tokenizer_config(folder, **settings)


def write_tokenizer_config(folder: Path, **settings: bool) -> None:
    tokens = dict.fromkeys(("unk_token", "bos_token", "eos_token"), "<s>")
    config = {"tokenizer_class": "GPT2Tokenizer", **tokens, **settings}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def assert_begins_as_in_transformers(tokenizer: router.Tokenizer, folder: Path, with_bos: bool) -> None:
    from transformers import AutoTokenizer

    load = cast("Callable[..., Callable[[str], dict[str, list[int]]]]", AutoTokenizer.from_pretrained)  # pyright: ignore[reportUnknownMemberType]
    ids = tokenizer.encode(TEXTS[0], True)
    assert ids == load(folder)(TEXTS[0])["input_ids"]
    assert ids.count(0) == with_bos
    # So chats are encoded, whose template writes it.
    assert 0 not in tokenizer.encode(TEXTS[0], False)


@pytest.mark.parametrize("adds_bos", [False, True])
def test_a_tokenizer_json_says_itself_whether_bos_is_added(
    tmp_path: Path, reference: Tokenizer, adds_bos: bool
) -> None:
    stored = Tokenizer.from_str(reference.to_str())
    if not adds_bos:
        stored.post_processor = processors.ByteLevel()
    stored.save(str(tmp_path / "tokenizer.json"))
    write_tokenizer_config(tmp_path, add_bos_token=not adds_bos)
    tokenizer = router.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert_begins_as_in_transformers(tokenizer, tmp_path, adds_bos)


@pytest.mark.parametrize("settings", [{}, {"add_bos_token": False}, {"add_bos_token": True}], ids=str)
def test_a_converted_tokenizer_adds_bos_where_its_configuration_says_so(
    tmp_path: Path, reference: Tokenizer, settings: dict[str, bool]
) -> None:
    from text_generation_router.slow_tokenizer import convert

    write_slow_tokenizer(tmp_path, reference, **settings)
    tokenizer = router.Tokenizer(convert(str(tmp_path)))
    assert_begins_as_in_transformers(tokenizer, tmp_path, settings.get("add_bos_token", False))


def test_a_slow_tokenizer_is_converted(tmp_path: Path, reference: Tokenizer) -> None:
    from text_generation_router.slow_tokenizer import convert

    write_slow_tokenizer(tmp_path, reference)
    converted = router.Tokenizer(convert(str(tmp_path)))
    for text in TEXTS:
        assert converted.encode(text, False) == reference.encode(text, add_special_tokens=False).ids
    # The router then goes on to the shards, which are not there.
    done = run("--tokenizer-name", str(tmp_path), "--port", "0", "--master-shard-uds-path", str(tmp_path / "no"))
    assert done.returncode == 1
    assert "`--master-shard-uds-path`" in done.stderr
