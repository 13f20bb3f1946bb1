"""Model families: one file for each, from `config.json` to a `DecoderSpec` and the names of its tensors."""

from .family import Family
from .llama import LLAMA

FAMILIES: dict[str, Family] = {"LlamaForCausalLM": LLAMA}
"""By the model class that `architectures` names."""

__all__ = ["FAMILIES", "Family"]
