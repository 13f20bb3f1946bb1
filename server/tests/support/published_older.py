"""The same of models of 2021 and 2022 that hold buffers beside their weights."""

import dataclasses

import torch

from support.families import Case, Raw, State
from support.published import TOKENS, own


def with_buffers(case: Case, *names: str) -> Case:
    """The same model, with tensors in its file that nothing needs."""
    before = case.relayout or (lambda state, raw: (state, raw))

    def relayout(state: State, raw: Raw) -> tuple[State, Raw]:
        state, raw = before(state, raw)
        return {**state, **{name: torch.ones(1, 1, 2, 2) for name in names}}, raw

    return dataclasses.replace(case, relayout=relayout)


GPT_NEO = own(
    "gpt_neo",
    {**TOKENS, "hidden_size": 32, "num_heads": 4, "num_layers": 4, "max_position_embeddings": 2048},
    activation_function="gelu_new",
    attention_layers=["global", "local", "global", "local"],
    attention_types=[[["global", "local"], 2]],
    intermediate_size=None,
    layer_norm_epsilon=1e-05,
    window_size=4,
)
CODEGEN = own(
    "codegen",
    {**TOKENS, "n_embd": 32, "n_head": 4, "n_layer": 3, "n_positions": 2048, "n_ctx": 2048},
    activation_function="gelu_new",
    n_inner=None,
    rotary_dim=4,
    scale_attn_weights=True,
    tie_word_embeddings=False,
)
XGLM = own(
    "xglm",
    {**TOKENS, "d_model": 32, "attention_heads": 4, "num_layers": 3, "ffn_dim": 48, "max_position_embeddings": 2048},
    activation_function="gelu",
    decoder_start_token_id=2,
    pad_token_id=1,
    scale_embedding=True,
)
OLDER: dict[str, Case] = {
    "GPT-Neo 1.3B": with_buffers(
        GPT_NEO, "transformer.h.0.attn.attention.bias", "transformer.h.0.attn.attention.masked_bias"
    ),
    "CodeGen 350M": with_buffers(CODEGEN, "transformer.h.0.attn.causal_mask"),
    "XGLM 564M": with_buffers(XGLM, "model.embed_positions.weights"),
}
