"""Merged adapters against PEFT: logits are those that PEFT computes with the adapter beside the base."""

import copy
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from support.adapters import AdapterCase, base_of, peft_logits, rewrite, write_adapter, write_base
from support.driver import Driver
from support.families import PROMPTS
from support.loading import load
from support.thread_ranks import ThreadGroup, thread_groups, together

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
ATTENTION = ALL[:4]
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
CASES: dict[str, AdapterCase] = {
    "plain": AdapterCase("llama", {"target_modules": ALL}),
    "rslora": AdapterCase("llama", {"target_modules": ALL, "use_rslora": True}),
    "patterns": AdapterCase(
        "llama",
        {
            "target_modules": ALL,
            "rank_pattern": {"q_proj": 2, r"layers\.1\..*\.o_proj": 6},
            "alpha_pattern": {"v_proj": 3, r".*\.0\.mlp\.up_proj": 9, "q_proj": 5},
        },
    ),
    "patterns rslora": AdapterCase(
        "llama", {"target_modules": ALL, "use_rslora": True, "rank_pattern": {"q_proj": 2, "down_proj": 7}}
    ),
    "some layers": AdapterCase("llama", {"target_modules": ["q_proj", "down_proj"], "layers_to_transform": [1]}),
    "regex": AdapterCase("llama", {"target_modules": r".*\.0\.(self_attn|mlp)\.(q|up)_proj"}),
    "all-linear": AdapterCase("llama", {"target_modules": "all-linear"}),
    "orthogonal": AdapterCase("llama", {"target_modules": ALL, "init_lora_weights": "orthogonal"}),
    "dora": AdapterCase("llama", {"target_modules": ALL, "use_dora": True}),
    "dora rslora": AdapterCase("biased", {"target_modules": ALL, "use_dora": True, "use_rslora": True}),
    "lora bias": AdapterCase("biased", {"target_modules": ALL, "lora_bias": True}),
    "bias all": AdapterCase("biased", {"target_modules": ["q_proj", "down_proj"], "bias": "all"}),
    "bias lora_only": AdapterCase("biased", {"target_modules": ["q_proj", "down_proj"], "bias": "lora_only"}),
    "lora bias and bias": AdapterCase(
        "biased", {"target_modules": ["k_proj", "up_proj"], "bias": "lora_only", "lora_bias": True}
    ),
    "modules to save": AdapterCase(
        "llama",
        {"target_modules": ["q_proj"], "modules_to_save": ["lm_head", "embed_tokens", "input_layernorm", "norm"]},
    ),
    "embedding": AdapterCase("llama", {"target_modules": ["q_proj", "embed_tokens"]}),
    "embedding dora": AdapterCase("llama", {"target_modules": ["embed_tokens"], "use_dora": True}),
    "head": AdapterCase("llama", {"target_modules": ["q_proj", "lm_head"]}),
    "head dora": AdapterCase("llama", {"target_modules": ["lm_head"], "use_dora": True}),
    "tied": AdapterCase("tied", {"target_modules": ALL}),
    "tied head": AdapterCase("tied", {"target_modules": ["q_proj", "lm_head"]}),
    "tied embedding": AdapterCase("tied", {"target_modules": ["q_proj", "embed_tokens"]}),
    "tied both": AdapterCase("tied", {"target_modules": ["embed_tokens"], "ensure_weight_tying": True}),
    "tied whole": AdapterCase("tied", {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]}),
    "tied whole both": AdapterCase(
        "tied", {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"], "ensure_weight_tying": True}
    ),
    "tokens": AdapterCase("llama", {"target_modules": ["q_proj"], "trainable_token_indices": [21, 4, 95]}),
    "tokens of both": AdapterCase(
        "llama", {"target_modules": ["q_proj"], "trainable_token_indices": {"embed_tokens": [21, 9], "lm_head": [5]}}
    ),
    "tokens tied": AdapterCase("tied", {"target_modules": ["q_proj"], "trainable_token_indices": [21, 4]}),
    "gpt2": AdapterCase("gpt2", {"target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True}),
    "gpt2 dora": AdapterCase(
        "gpt2", {"target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True, "use_dora": True}
    ),
    "gpt2 table": AdapterCase("gpt2", {"target_modules": ["wte", "c_fc"], "fan_in_fan_out": True}),
    "experts": AdapterCase("qwen3 moe", {"target_modules": ATTENTION, "target_parameters": EXPERTS}),
    "experts second": AdapterCase("qwen3 moe", {"target_modules": ["q_proj"], "target_parameters": EXPERTS[1:]}),
    "experts by old names": AdapterCase("qwen3 moe", {"target_modules": ALL}),
    "experts all-linear": AdapterCase("qwen3 moe", {"target_modules": "all-linear", "use_rslora": True}),
    "router": AdapterCase("qwen3 moe", {"target_modules": ["q_proj"], "target_parameters": ["mlp.gate.weight"]}),
    "mixtral": AdapterCase("mixtral", {"target_modules": ["q_proj", "w1", "w2", "w3", "gate"]}),
    "gpt-oss": AdapterCase(
        "gpt-oss", {"target_modules": ATTENTION, "target_parameters": [*EXPERTS, "mlp.router.weight"]}
    ),
    "gpt-oss bias": AdapterCase("gpt-oss", {"target_modules": ["q_proj"], "bias": "all"}),
    "llama4": AdapterCase(
        "llama4",
        {
            "target_modules": ATTENTION,
            "target_parameters": ["feed_forward.experts.gate_up_proj", "feed_forward.experts.down_proj"],
        },
    ),
    "gated queries": AdapterCase("gated queries", {"target_modules": ALL}),
    "interleaved rope": AdapterCase("interleaved rope", {"target_modules": ALL}),
}


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
    case = CASES["experts by old names"]
    write_adapter(case, tmp_path)
    generator = torch.Generator().manual_seed(7)

    def pairs(_: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        made: dict[str, torch.Tensor] = {}
        for expert in range(4):
            for name, inputs, outputs in (("gate_proj", 32, 20), ("up_proj", 32, 20), ("down_proj", 20, 32)):
                module = f"base_model.model.model.layers.1.mlp.experts.{expert}.{name}"
                made[f"{module}.lora_A.weight"] = torch.randn(4, inputs, generator=generator) * 0.1
                made[f"{module}.lora_B.weight"] = torch.randn(outputs, 4, generator=generator) * 0.1
        return made

    rewrite(tmp_path, pairs, rank_pattern={}, alpha_pattern={}, target_parameters=None, target_modules=ALL)
    peft = PeftModel.from_pretrained(copy.deepcopy(base_of("qwen3 moe")), tmp_path).eval()
    expected = torch.cat(peft_logits(peft, case))[-1:]
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
    case, name = CASES["embedding dora"], "base_model.model.model.embed_tokens.base_layer.weight"
    write_adapter(case, tmp_path)
    rewrite(tmp_path, lambda all: {**all, name: all[name] * 1.5 + 0.1})
    peft = PeftModel.from_pretrained(copy.deepcopy(base_of("llama")), tmp_path).eval()
    expected = torch.cat(peft_logits(peft, case))[-1:]
    logits = Driver(load(base_folder("llama"), merge_adapter=tmp_path), max_tokens=32).prefill({"a": PROMPTS[-1]})
    torch.testing.assert_close(logits, expected, atol=1e-5 * float(expected.abs().max()), rtol=1e-5)
