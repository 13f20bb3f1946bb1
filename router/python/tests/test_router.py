"""The installed module: the command's edges, and the parts against other code or plain models of them."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

import text_generation_router as router

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


def test_the_scheduler_runs_every_request_and_never_overfills_the_pool() -> None:
    pool, size = 300, 6
    scheduler = router.Scheduler(max_batch_prefill_tokens=64, max_batch_total_tokens=pool, max_batch_size=size)
    choices = random.Random(1)
    queue = [(choices.randint(1, 60), choices.randint(1, 60)) for _ in range(100)]
    running: list[tuple[int, int, int]] = []
    steps = 0
    while queue or running:
        action = scheduler.next_action(queue, running, steps)
        if action.kind == "prefill":
            joined, queue = queue[: action.count], queue[action.count :]
            assert sum(length for length, _ in joined) <= 64
            running += [scheduler.admitted(*request) for request in joined]
            steps = 0
        else:
            assert action.kind == "decode"
            running = [(held, length + 1, left - 1) for held, length, left in running]
            steps += 1
        running = [request for request in running if request[2] > 0]
        assert len(running) <= size
        assert sum(length for _, length, _ in running) <= pool
        assert scheduler.peak(running) <= pool
    assert scheduler.next_action([], [], 0).kind == "wait"


def test_many_waiting_requests_interrupt_the_running_ones() -> None:
    scheduler = router.Scheduler(max_batch_prefill_tokens=64, max_batch_total_tokens=1000, max_batch_size=8)
    running = [scheduler.admitted(4, 50)]
    action = scheduler.next_action([(4, 4)], running, 1)
    assert (action.kind, action.count, action.concat) == ("prefill", 1, "backpressure")
    assert scheduler.next_action([(4, 4)], running, 0).kind == "decode"


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


def test_a_slow_tokenizer_is_converted(tmp_path: Path, reference: Tokenizer) -> None:
    from text_generation_router.slow_tokenizer import convert

    model = json.loads(reference.to_str())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = "\n".join(" ".join(pair) for pair in model["merges"])
    (tmp_path / "merges.txt").write_text(f"#version: 0.2\n{merges}\n")
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "GPT2Tokenizer", "unk_token": "<s>", "bos_token": "<s>", "eos_token": "<s>"})
    )
    converted = router.Tokenizer(convert(str(tmp_path)))
    for text in TEXTS:
        assert converted.encode(text, False) == reference.encode(text, add_special_tokens=False).ids
    # The router then goes on to the shards, which are not there.
    done = run("--tokenizer-name", str(tmp_path), "--port", "0", "--master-shard-uds-path", str(tmp_path / "no"))
    assert done.returncode == 1
    assert "`--master-shard-uds-path`" in done.stderr
