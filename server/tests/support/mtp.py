"""Models with a layer that guesses further tokens, with random weights, and what it drafts by plain torch alone."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM

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
_DELTA = {
    "head_dim": 16, "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 12,
}  # fmt: skip
_QWEN_EXPERTS = {
    "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 20,
    "decoder_sparse_step": 1, "norm_topk_prob": True,
}  # fmt: skip
CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "MiMo": ("qwen2", {"head_dim": 16}, "MiMoForCausalLM"),
    "GLM 4.5": ("glm4_moe", {**_EXPERTS, "head_dim": 16, "use_qk_norm": True}, "Glm4MoeForCausalLM"),
    "Qwen 3.5": ("qwen3_5_text", _DELTA, "Qwen3_5ForCausalLM"),
    "Qwen 3 Next": ("qwen3_next", {**_DELTA, **_QWEN_EXPERTS}, "Qwen3NextForCausalLM"),
    "DeepSeek V3": ("deepseek_v3", {**_EXPERTS, **_LATENT}, "DeepseekV3ForCausalLM"),
}


class MtpCase:
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
        self.is_qwen = name.startswith("Qwen")
        for module in (self.model, self.layer, self.joined):
            for parameter in module.parameters():
                nn.init.normal_(parameter, 1.0 if parameter.dim() == 1 else 0.0, 0.2)
        self.model.save_pretrained(folder)
        raw = json.loads((folder / "config.json").read_text())
        self.key = "mtp_num_hidden_layers" if self.is_qwen else "num_nextn_predict_layers"
        raw |= {"architectures": [architecture], self.key: 1}
        (folder / "config.json").write_text(json.dumps(raw))
        self._add(folder)
        self.folder = folder

    def _add(self, folder: Path) -> None:
        prefix = around = f"model.layers.{LAYERS}."
        names = "enorm", "hnorm", "shared_head.norm", "eh_proj"
        if self.hidden_first:
            prefix = around = "model.mtp_layers.0."
            names = "token_layernorm", "hidden_layernorm", "final_layernorm", "input_proj"
        if self.is_qwen:
            prefix, around = "mtp.layers.0.", "mtp."
            names = "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm", "fc"
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
        tensors |= {f"{around}{name}.weight": each.clone() for name, each in own.items()}
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
        if not self.is_qwen:
            embedded[:, 0] = 0
        parts = [self._norm(embedded, "embedded"), self._norm(hidden, "hidden")]
        x = self.joined(torch.cat(parts[::-1] if self.hidden_first else parts, dim=-1))
        positions = torch.arange(x.shape[1])[None]
        angles = self.model.model.rotary_emb(x, positions)
        made = self.layer(x, attention_mask=None, position_ids=positions, position_embeddings=angles)
        return self._norm(made[0] if isinstance(made, tuple) else made, "last")

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return functional.rms_norm(x, x.shape[-1:], self.norms[name] + self.is_qwen, 1e-5)
