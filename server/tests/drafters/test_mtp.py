"""Layers of a model's checkpoint that guess further tokens draft what plain torch says, and change no text."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.engine_driver import LIMITS, make_engine
from support.loading import load
from support.thread_ranks import ThreadGroup, thread_groups, together
from support.windows import request, run
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM

from text_generation_server.drafters import DraftStep, MtpDrafter
from text_generation_server.engine.engine import Engine
from text_generation_server.engine.options import EngineOptions
from text_generation_server.engine.requests import Chunk, Request, StepPlan
from text_generation_server.errors import ConfigurationError, ModelFilesError

PROMPTS = [[5, 6, 7, 5, 6], [1, 2, 3], [9, 8, 7, 6, 9, 8, 7, 6], [11]]
SETTINGS: list[dict[str, Any]] = [
    {},
    {"do_sample": True, "seed": 7, "temperature": 0.7},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.7},
    {"do_sample": True, "seed": 11, "top_p": 0.9, "top_k": 20},
]
HIDDEN, LAYERS = 64, 2
_SIZES = {
    "vocab_size": 200, "hidden_size": HIDDEN, "intermediate_size": 96, "num_hidden_layers": LAYERS,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "initializer_range": 0.3,
    "rms_norm_eps": 1e-5, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
    "tie_word_embeddings": False,
}  # fmt: skip
_EXPERTS = {
    "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 1,
    "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.5,
}  # fmt: skip
_LATENT = {
    "kv_lora_rank": 32, "q_lora_rank": 48, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 16,
    "num_key_value_heads": 4, "head_dim": 16,
}  # fmt: skip
CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "MiMo": ("qwen2", {"head_dim": 16}, "MiMoForCausalLM"),
    "GLM 4.5": ("glm4_moe", {**_EXPERTS, "head_dim": 16, "use_qk_norm": True}, "Glm4MoeForCausalLM"),
    "DeepSeek V3": ("deepseek_v3", {**_EXPERTS, **_LATENT}, "DeepseekV3ForCausalLM"),
}


class Case:
    """A model with a layer more than it computes, in its authors' layout, and this layer in plain torch."""

    def __init__(self, name: str, folder: Path) -> None:
        model_type, values, architecture = CASES[name]
        torch.manual_seed(1)
        config = AutoConfig.for_model(model_type, **{**_SIZES, **values})
        self.model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        self.layer: Any = type(self.model.model.layers[-1])(config, LAYERS - 1).eval()
        self.joined = nn.Linear(2 * HIDDEN, HIDDEN, bias=False)
        self.norms = {each: torch.randn(HIDDEN) * 0.2 + 1 for each in ("embedded", "hidden", "last")}
        self.hidden_first = name == "MiMo"
        for module in (self.model, self.layer, self.joined):
            for parameter in module.parameters():
                nn.init.normal_(parameter, 1.0 if parameter.dim() == 1 else 0.0, 0.2)
        self.model.save_pretrained(folder)
        raw = json.loads((folder / "config.json").read_text())
        raw |= {"architectures": [architecture], "num_nextn_predict_layers": 1}
        (folder / "config.json").write_text(json.dumps(raw))
        self._add(folder)
        self.folder = folder

    def _add(self, folder: Path) -> None:
        prefix, *names = (
            ("model.mtp_layers.0.", "token_layernorm", "hidden_layernorm", "final_layernorm", "input_proj")
            if self.hidden_first
            else (f"model.layers.{LAYERS}.", "enorm", "hnorm", "shared_head.norm", "eh_proj")
        )
        own = dict(zip(names, (*self.norms.values(), self.joined.weight.detach()), strict=True))
        tensors = load_file(folder / "model.safetensors")
        # Transformers knows how the experts of its class are stored.
        saved = type(self.model)(self.model.config)
        saved.model.layers[-1] = self.layer
        saved.save_pretrained(folder / "layer")
        before = f"model.layers.{LAYERS - 1}."
        for name, each in load_file(folder / "layer" / "model.safetensors").items():
            if name.startswith(before):
                tensors[prefix + name.removeprefix(before)] = each
        tensors |= {f"{prefix}{name}.weight": each.clone() for name, each in own.items()}
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    @torch.no_grad()
    def drafts(self, text: list[int], count: int) -> list[int]:
        """Greedy drafts of what follows a text."""
        hidden = self.model.model(input_ids=torch.tensor([text])).last_hidden_state[:, :-1]
        tokens, found = text[1:], list[int]()
        for _ in range(count):
            made = self._pairs(torch.tensor([tokens]), hidden)[:, -1:]
            found.append(int(self.model.lm_head(made).argmax()))
            tokens, hidden = [*tokens, found[-1]], torch.cat([hidden, made], dim=1)
        return found

    def _pairs(self, tokens: Tensor, hidden: Tensor) -> Tensor:
        embedded = self.model.model.embed_tokens(tokens)
        embedded[:, 0] = 0
        parts = [self._norm(embedded, "embedded"), self._norm(hidden, "hidden")]
        x = self.joined(torch.cat(parts[::-1] if self.hidden_first else parts, dim=-1))
        positions = torch.arange(x.shape[1])[None]
        angles = self.model.model.rotary_emb(x, positions)
        made = self.layer(x, attention_mask=None, position_ids=positions, position_embeddings=angles)
        return self._norm(made[0] if isinstance(made, tuple) else made, "last")

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return functional.rms_norm(x, x.shape[-1:], self.norms[name], 1e-5)


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(request.param, tmp_path_factory.mktemp("model"))


def asked() -> list[Request]:
    return [request(row, PROMPTS[row], **each) for row, each in enumerate(SETTINGS)]


@pytest.mark.parametrize("width", [1, 4])
def test_text_and_drafts(case: Case, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    expected = run(make_engine(load(case.folder)), asked(), 1)
    engine = make_engine(load(case.folder, drafter=case.folder), LIMITS, options=EngineOptions(speculate=3))
    seen: list[tuple[list[int], list[int]]] = []
    original = MtpDrafter.draft

    def draft(drafter: MtpDrafter, step: DraftStep) -> None:
        original(drafter, step)
        for row in step.chosen.tolist():
            # The others sample.
            if row in (0, 2):
                length, limit = int(step.sequences.length[row]), int(step.drafts.limits[row])
                ids = step.drafts.ids[row, : min(int(step.drafts.counts[row]), limit - length)].tolist()
                seen.append((step.drafts.tokens[row, :length].tolist(), ids))

    monkeypatch.setattr(MtpDrafter, "draft", draft)
    assert run(engine, asked(), width).ids == expected.ids
    assert max(len(ids) for _, ids in seen) == min(width, 3)
    for text, ids in seen:
        assert ids == case.drafts(text, len(ids)), text


def test_ranks_draft_alike(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a shard of the layer."""
    drafted: dict[int, list[Tensor]] = {}
    original = MtpDrafter.draft

    def draft(drafter: MtpDrafter, step: DraftStep) -> None:
        original(drafter, step)
        drafted.setdefault(id(drafter), []).append(step.drafts.ids[step.chosen].clone())

    def build(group: ThreadGroup) -> Engine:
        model = load(case.folder, group=group, drafter=case.folder)
        engine = make_engine(model, None, group=group, options=EngineOptions(speculate=3))
        engine.warmup(LIMITS)
        return engine

    chunks = [Chunk(each.row, 0, len(each.input_ids)) for each in asked()]
    plans = StepPlan(0, admit=asked(), chunks=chunks), StepPlan(1, decode=[2, 0, 1, 3], widths=[4] * 4)
    for ranks in (1, 2):
        engines = together([partial(build, group) for group in thread_groups(ranks)])
        with monkeypatch.context() as patch:
            patch.setattr(MtpDrafter, "draft", draft)
            for plan in plans:
                together([lambda engine=engine, plan=plan: engine.step(plan).result() for engine in engines])
    alone, first, second = drafted.values()
    for each in zip(alone, first, second, strict=True):
        assert all(torch.equal(each[0], other) for other in each[1:])


def test_a_model_without_such_layers(case: Case, tmp_path: Path) -> None:
    config = json.loads((case.folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_nextn_predict_layers": 0}))
    with pytest.raises(ConfigurationError, match="`num_nextn_predict_layers` is 0 or missing, so the model has no lay"):
        load(case.folder, drafter=tmp_path)


def test_a_checkpoint_without_them(case: Case, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((case.folder / "config.json").read_text())
    tensors = load_file(case.folder / "model.safetensors")
    kept = {name: each for name, each in tensors.items() if "mtp" not in name and f"layers.{LAYERS}." not in name}
    save_file(kept, tmp_path / "model.safetensors")
    with pytest.raises(ModelFilesError, match="is in none of the model's safetensors files"):
        load(tmp_path, drafter=tmp_path)
