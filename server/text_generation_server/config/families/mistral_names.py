"""Names of tensors in Mistral's own files, which `params.json` describes."""

from ..names import TensorNames

MISTRAL_NAMES = TensorNames(
    prefixes=("",),
    embedding="tok_embeddings",
    head="output",
    attention_norm="attention_norm",
    ffn_norm="ffn_norm",
    q="attention.wq",
    k="attention.wk",
    v="attention.wv",
    out="attention.wo",
    q_a="attention.wq_a",
    q_a_norm="attention.q_a_norm",
    q_b="attention.wq_b",
    kv_a="attention.wkv_a_with_mqa",
    kv_a_norm="attention.kv_a_norm",
    kv_b="attention.wkv_b",
    gate="feed_forward.w1",
    up="feed_forward.w3",
    down="feed_forward.w2",
    router="gate",
    expert_gate="experts.{expert}.w1",
    expert_up="experts.{expert}.w3",
    expert_down="experts.{expert}.w2",
    shared_gate="shared_experts.w1",
    shared_up="shared_experts.w3",
    shared_down="shared_experts.w2",
    ignored=("*vision*", "patch_merger.*", "pre_mm_projector_norm.*"),
)
