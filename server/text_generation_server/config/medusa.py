"""`config.json` of Medusa heads in TGI's layout (Cai et al., 2024). Imports no torch."""

from dataclasses import dataclass

from .json_object import JsonObject
from .spec import DecoderSpec

KEY = "medusa_num_heads"
"""Which no other drafter has."""
_MOST = 64


@dataclass(frozen=True)
class MedusaConfig:
    """Heads that each draft a token of their own place, from the last hidden states of the model."""

    source: str
    """The file that says so."""
    heads: int
    blocks: int
    """Residual blocks of a head."""
    hidden_size: int
    vocab_size: int
    layers: tuple[int, ...] = ()
    """It reads no hidden states before layers."""


def read_medusa(config: JsonObject, decoder: DecoderSpec) -> MedusaConfig:
    """Reads what is said of heads for this model, whose sizes they have. Raises `ConfigurationError`."""
    heads = config.integer(KEY, maximum=_MOST)
    blocks = config.integer("medusa_num_layers", default=1, maximum=_MOST)
    return MedusaConfig(config.source, heads, blocks, decoder.hidden_size, decoder.vocab_size)
