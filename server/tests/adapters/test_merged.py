"""Merged adapters against PEFT: logits are those that PEFT computes with the adapter beside the base."""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.adapter_cases import CASES, write_pairs, write_trained_embedding
from support.adapters import peft_logits, rewrite, write_adapter, write_base
from support.driver import Driver
from support.families import PROMPTS
from support.loading import load
from support.thread_ranks import ThreadGroup, thread_groups, together


@pytest.fixture(scope="module")
def base_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The checkpoint of a base, written once."""
    root = tmp_path_factory.mktemp("bases")
    return cache(lambda name: write_base(name, root / name))


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_peft(name: str, base_folder: Callable[[str], Path], tmp_path: Path) -> None:
    case = CASES[name]
    expected = torch.cat(peft_logits(write_adapter(case, tmp_path), case))
    base = base_folder(case.base)
    driver = Driver(load(base, merge_adapter=tmp_path), max_tokens=32)
    logits = driver.prefill({str(i): prompt for i, prompt in enumerate(PROMPTS)}, all_logits=True)
    torch.testing.assert_close(logits, expected, atol=1e-5 * float(expected.abs().max()), rtol=1e-5)
    plain = Driver(load(base), max_tokens=32).prefill({"a": PROMPTS[-1]})
    assert (plain[-1] - logits[-1]).abs().max() > 1e-3


@pytest.mark.parametrize(
    "name", ["plain", "dora", "tied head", "embedding dora", "gpt2 dora", "experts", "gpt-oss", "tokens"]
)
@pytest.mark.parametrize("expert_parallel", [False, True])
def test_ranks_merge_their_slices(
    name: str, expert_parallel: bool, base_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    case = CASES[name]
    if expert_parallel and "experts" not in str(case.options):
        return
    expected = torch.cat([each[-1:] for each in peft_logits(write_adapter(case, tmp_path), case)])
    base = base_folder(case.base)

    def logits(group: ThreadGroup) -> torch.Tensor:
        driver = Driver(load(base, group=group, merge_adapter=tmp_path), max_tokens=32, group=group)
        return driver.prefill({str(i): prompt for i, prompt in enumerate(PROMPTS)})

    for each in together([partial(logits, group) for group in thread_groups(2, expert_parallel)]):
        torch.testing.assert_close(each, expected, atol=1e-5 * float(expected.abs().max()), rtol=1e-5)


def test_merged_weights_are_quantised(base_folder: Callable[[str], Path], tmp_path: Path) -> None:
    """As those of a checkpoint into which PEFT has merged the adapter."""
    case, base = CASES["dora"], base_folder("llama")
    merged = write_adapter(case, tmp_path / "adapter").merge_and_unload()
    merged.save_pretrained(tmp_path / "merged")
    folders = (base, tmp_path / "adapter"), (tmp_path / "merged", None)
    ours, expected = (
        Driver(load(folder, quantize="eetq", merge_adapter=adapter), max_tokens=32).prefill({"a": PROMPTS[-1]})
        for folder, adapter in folders
    )
    torch.testing.assert_close(ours, expected, atol=2e-2, rtol=0)


def test_sixteen_bits_are_rounded_once(base_folder: Callable[[str], Path], tmp_path: Path) -> None:
    case = CASES["plain"]
    expected = torch.cat(peft_logits(write_adapter(case, tmp_path), case))[-1:]
    model = load(base_folder("llama"), dtype=torch.bfloat16, merge_adapter=tmp_path)
    logits = Driver(model, max_tokens=32).prefill({"a": PROMPTS[-1]})
    assert (logits.float() - expected).norm() < 0.05 * expected.norm()


def test_classes_of_transformers_are_merged_too(base_folder: Callable[[str], Path], tmp_path: Path) -> None:
    case = CASES["modules to save"]
    expected = torch.cat(peft_logits(write_adapter(case, tmp_path), case))[-1:]
    model = load(base_folder("llama"), impl="transformers", merge_adapter=tmp_path)
    logits = Driver(model, max_tokens=32).prefill({"a": PROMPTS[-1]})
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("prefix", ["base_model.model.model.", "base_model.model.language_model.", ""])
def test_wrappers_around_the_trained_model_do_not_matter(
    prefix: str, base_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    """Names begin with other words, as of a model of images beside text."""
    case = CASES["head"]
    expected = torch.cat(peft_logits(write_adapter(case, tmp_path), case))[-1:]
    rewrite(tmp_path, lambda all: {prefix + name.removeprefix("base_model.model."): each for name, each in all.items()})
    logits = Driver(load(base_folder("llama"), merge_adapter=tmp_path), max_tokens=32).prefill({"a": PROMPTS[-1]})
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


def test_pairs_of_each_expert(base_folder: Callable[[str], Path], tmp_path: Path) -> None:
    """The layout of older files, which PEFT converts when it loads them."""
    expected = write_pairs(tmp_path)
    logits = Driver(load(base_folder("qwen3 moe"), merge_adapter=tmp_path), max_tokens=32).prefill({"a": PROMPTS[-1]})
    torch.testing.assert_close(logits, expected, atol=1e-5 * float(expected.abs().max()), rtol=1e-5)


def test_pickle_of_the_operator(base_folder: Callable[[str], Path], tmp_path: Path) -> None:
    case = CASES["plain"]
    expected = torch.cat(peft_logits(write_adapter(case, tmp_path), case))[-1:]
    path = tmp_path / "adapter_model.safetensors"
    torch.save(load_file(path), tmp_path / "adapter_model.bin")
    path.unlink()
    logits = Driver(load(base_folder("llama"), merge_adapter=tmp_path), max_tokens=32).prefill({"a": PROMPTS[-1]})
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


def test_embedding_that_was_trained_below_its_change(base_folder: Callable[[str], Path], tmp_path: Path) -> None:
    expected = write_trained_embedding(tmp_path)
    logits = Driver(load(base_folder("llama"), merge_adapter=tmp_path), max_tokens=32).prefill({"a": PROMPTS[-1]})
    torch.testing.assert_close(logits, expected, atol=1e-5 * float(expected.abs().max()), rtol=1e-5)
