"""The tensors of a checkpoint that a rank need not read."""

from ..config.families import VISION_PARTS
from ..config.model import ModelConfig
from ..config.names import TensorNames
from ..config.quantisation import BESIDE
from ..distributed import TensorParallelGroup
from .base import CausalLM
from .encoder import Encoder
from .vision import VisionEncoder


def unread(config: ModelConfig, model: CausalLM, group: TensorParallelGroup) -> tuple[str, ...]:
    """Returns patterns of the tensors that this rank need not read."""
    # Where the head is the embedding, some files hold it twice, and Transformers reads the embedding too.
    tied = tuple(f"{head}.weight" for head in config.names.all_heads) if config.decoder.head.tied else ()
    beside = BESIDE if config.schemes.method else ()
    ignored = (*_ignored(config, model.encoder), *_shared(config.names))
    return (*ignored, *tied, *beside, *_of_other_ranks(config.names, group))


def _shared(names: TensorNames) -> tuple[str, ...]:
    """Returns patterns of what layers share: of some of it files have copies, or what another layer reads."""
    each = (layer for layers in names.sharing for layer in layers)
    return tuple(f"*{names.layer.format(layer)}{names.shared_part}*" for layer in each)


def _ignored(config: ModelConfig, encoder: Encoder | None) -> tuple[str, ...]:
    """Returns patterns of the tensors that nobody needs: of an encoder that is read, a few; else all that it has."""
    if not isinstance(encoder, VisionEncoder):
        return config.names.ignored
    return (*(each for each in config.names.ignored if each not in VISION_PARTS), *encoder.ignored)


def _of_other_ranks(names: TensorNames, group: TensorParallelGroup) -> tuple[str, ...]:
    """Returns patterns of the tensors that other ranks read, and this one need not."""
    if group.world_size == 1:
        return ()
    others = [f"*{name.replace('{head}', '*')}.*" for name in (names.q_norm, names.k_norm) if "{head}" in name]
    if group.expert_parallel:
        others += [f"*{name.replace('{expert}', '*')}.*" for name in names.experts(gated=True)]
    if group.rank:
        # The first rank adds the biases of all-reduced outputs; the last ranks may have an empty vocabulary shard.
        of_blocks = () if names.block is None else (names.block.down,)
        biased = names.out, names.down, names.shared_down, names.mamba_out, *of_blocks
        others += [f"*{name}.bias" for name in biased] + [f"{head}.*" for head in names.all_heads]
    return tuple(others)
