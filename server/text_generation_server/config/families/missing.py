"""Models that people ask for and that are not served: what is missing for each, by the class that `architectures`
names. Transformers has a class for most of them, which could not run either.
"""

from collections.abc import Mapping

from ...errors import UnsupportedModel

_RESIDUALS = "attention over residuals"
_STREAMS = (
    "several residual streams with gates, hashed n-grams beside the embedding, and an indexer of sparse attention"
)
_SHORT = "short convolutions of keys and values, and a bias by distance"

MISSING: Mapping[str, tuple[str, str]] = {
    "AliceAIForCausalLM": ("Alice AI", _RESIDUALS),
    "HYV4ForCausalLM": ("Hy4", "hyper-connections, and an indexer of sparse attention with sinks"),
    "InklingForCausalLM": ("Inkling", _SHORT),
    "InklingForConditionalGeneration": ("Inkling", _SHORT),
    "InternLMXComposerForCausalLM": ("InternLM-XComposer", "a resampler of images with learned queries (Q-Former)"),
    "KimiK3ForCausalLM": ("Kimi K3", _RESIDUALS),
    "KimiK3ForConditionalGeneration": ("Kimi K3", _RESIDUALS),
    "LongcatFlashNgramForCausalLM": ("LongCat Flash Lite", "hashed n-grams beside the embedding"),
    "Qwen4ExpForCausalLM": ("Qwen 4 Exp", _STREAMS),
    "Qwen4ExpForConditionalGeneration": ("Qwen 4 Exp", _STREAMS),
}
"""A name for people, and what is missing."""


def refuse_missing(architecture: str) -> None:
    """Raises UnsupportedModel for one of these."""
    if architecture in MISSING:
        title, what = MISSING[architecture]
        raise UnsupportedModel(
            f"{title} ({architecture}) is not served, natively or through Transformers: {what} is missing here; "
            "docs/models.md has the models that are served"
        )
