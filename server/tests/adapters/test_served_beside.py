"""Adapters beside the base against PEFT: logits are those that PEFT computes, in a step with other adapters and the
base, on any number of ranks.
"""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import pytest
import torch
from support.adapter_cases import CASES, write_pairs, write_trained_embedding
from support.adapters import peft_logits, rewrite, write_adapter, write_base
from support.adapters_on_device import on_device
from support.driver import Driver
from support.families import PROMPTS
from support.loading import load
from support.thread_ranks import ThreadGroup, thread_groups, together

from text_generation_server.errors import AdapterError
from text_generation_server.layers.weights import ends

BESIDE = {
    "biased": ["dora rslora", "lora bias", "bias all", "bias lora_only", "lora bias and bias"],
    "qwen3 moe": [
        *("experts", "experts second", "experts by old names", "experts all-linear", "experts high rank", "router"),
    ],
    "mixtral": ["mixtral"],
    "gpt-oss": ["gpt-oss", "gpt-oss bias"],
    "llama4": ["llama4"],
    "llama": [
        "modules to save",
        "plain",
        "embedding",
        "embedding dora",
        "head",
        "head dora",
        "tokens",
        "tokens of both",
    ],
    "tied": ["tied", "tied head", "tied embedding", "tied both", "tied whole", "tied whole both", "tokens tied"],
    "gpt2": ["gpt2 bias", "gpt2 norms", "gpt2", "gpt2 dora", "gpt2 table"],
}
"""Adapters that are served together, by their base."""


@pytest.fixture(scope="module")
def base_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The checkpoint of a base, written once."""
    root = tmp_path_factory.mktemp("bases")
    return cache(lambda name: write_base(name, root / name))


def mixed(base: Path, adapters: list[Path], group: ThreadGroup) -> list[torch.Tensor]:
    """The logits of every prompt with the base and with each adapter, all in one step."""
    names = {f"{number} {i}": prompt for i, prompt in enumerate(PROMPTS) for number in range(1 + len(adapters))}
    used = {name: int(name.split()[0]) for name in names}
    model = load(base, group=group)
    checker = on_device(model, adapters)
    driver = Driver(model, num_rows=len(names), max_tokens=32, group=group, adapters=used, checker=checker)
    parts = driver.prefill(names, all_logits=True).split([len(prompt) for prompt in names.values()])
    of_number = [
        [part for part, number in zip(parts, used.values(), strict=True) if number == n]
        for n in range(1 + len(adapters))
    ]
    return [torch.cat(each) for each in of_number]


@pytest.mark.parametrize(("ranks", "cut"), [(1, False), (2, False), (2, True)])
@pytest.mark.parametrize("base", BESIDE)
def test_logits_are_those_of_peft(
    base: str,
    ranks: int,
    cut: bool,
    base_folder: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`cut`: each rank has a shard of the embedding, as of one of a GiB."""
    monkeypatch.setattr(ends, "cuts_embedding", lambda *_: cut)
    cases = {name: CASES[name] for name in BESIDE[base]}
    expected: list[torch.Tensor] = []
    for name, case in cases.items():
        expected.append(torch.cat(peft_logits(write_adapter(case, tmp_path / name), case)))
    folder = base_folder(base)
    plain = Driver(load(folder), max_tokens=32)
    expected.insert(0, plain.prefill({str(i): prompt for i, prompt in enumerate(PROMPTS)}, all_logits=True))
    adapters = [tmp_path / name for name in cases]
    for found in together([partial(mixed, folder, adapters, group) for group in thread_groups(ranks)]):
        for name, each, wanted in zip(["", *cases], found, expected, strict=True):
            torch.testing.assert_close(
                each,
                wanted,
                atol=1e-5 * float(wanted.abs().max()),
                rtol=1e-5,
                msg=lambda text, name=name: f"{name}: {text}",
            )


@pytest.mark.parametrize(("ranks", "expert_parallel"), [(1, False), (2, False), (2, True)])
@pytest.mark.parametrize("name", ["experts", "experts high rank", "gpt-oss", "pairs", "trained embedding"])
def test_other_files_and_expert_parallel_ranks(
    name: str, ranks: int, expert_parallel: bool, base_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    others = {"pairs": (write_pairs, "qwen3 moe"), "trained embedding": (write_trained_embedding, "llama")}
    if name in others:
        write, base = others[name]
        expected = write(tmp_path)
    else:
        case, base = CASES[name], CASES[name].base
        expected = peft_logits(write_adapter(case, tmp_path), case)[-1][-1:]
    if expert_parallel and base == "llama":
        return
    folder = base_folder(base)

    def logits(group: ThreadGroup) -> torch.Tensor:
        model = load(folder, group=group)
        checker = on_device(model, [tmp_path])
        driver = Driver(model, max_tokens=32, group=group, adapters={"a": 1}, checker=checker)
        return driver.prefill({"a": PROMPTS[-1]})

    for found in together([partial(logits, group) for group in thread_groups(ranks, expert_parallel)]):
        torch.testing.assert_close(found, expected, atol=1e-5 * float(expected.abs().max()), rtol=1e-5)


def test_experts_whose_outputs_an_adapter_multiplies_are_refused(
    base_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    write_pairs(tmp_path)

    def with_lengths(all: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        names = [name.removesuffix("lora_B.weight") for name in all if name.endswith("lora_B.weight")]
        return all | {f"{name}lora_magnitude_vector": torch.ones(len(all[f"{name}lora_B.weight"])) for name in names}

    rewrite(tmp_path, with_lengths, use_dora=True)
    with pytest.raises(AdapterError, match=r"experts.0.down_proj.weight.*--merge-adapter"):
        on_device(load(base_folder("qwen3 moe")), [tmp_path])
