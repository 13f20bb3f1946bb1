"""Drafters beside a decoder: those of folders of their own, layers of the model's checkpoint, and whole models."""

import logging
from dataclasses import replace

import torch

from ..config.draft_model import DraftModelConfig
from ..config.drafter import FoundDrafter
from ..config.model import ModelConfig
from ..config.mtp import MtpConfig
from ..config.spec import AttentionSpec, DecoderSpec, LatentAttentionSpec, LayerSpec, NormSpec
from ..distributed import TensorParallelGroup
from ..drafters import Drafter, DraftModel, ModelEnds, MtpDrafter, MtpLayer, load_drafter
from ..errors import ModelFilesError
from ..layers.infer import AddNorm, Norm, Taps
from ..layers.weights import Checkpoint, Dense
from ..weights import SafetensorsSource, WeightSource
from .builder import DecoderBuilder, Ends
from .unread import unread

logger = logging.getLogger(__name__)


def taps_of(found: FoundDrafter | None) -> Taps | None:
    """Returns what the decoder writes for a drafter that reads hidden states between layers."""
    return Taps(found.config.layers) if found is not None and found.config.layers else None


def build_drafter(
    found: FoundDrafter,
    config: ModelConfig,
    builder: DecoderBuilder,
    group: TensorParallelGroup,
    source: WeightSource,
    device: torch.device,
) -> Drafter:
    """Reads the drafter of the model that `builder` has built; layers of the model's own checkpoint come from `source`.
    Raises ConfigurationError or ModelFilesError.
    """
    if (ends := builder.ends) is None:
        raise ValueError("the model is built first")
    if isinstance(found.config, DraftModelConfig):
        return _whole(found, found.config.model, config.decoder.vocab_size, ends.embedding.dtype, device)
    if not isinstance(found.config, MtpConfig):
        return load_drafter(found.folder, found.config, builder.taps, *ends[:3], group)
    return _mtp(found.config, config, (ends, builder.taps), group, source, device)


def _whole(
    found: FoundDrafter, config: ModelConfig, vocab_size: int, dtype: torch.dtype, device: torch.device
) -> DraftModel:
    """Reads a whole model, which each rank has whole."""
    alone, files = TensorParallelGroup(0, 1, device), SafetensorsSource(found.folder, dtype, device)
    model = DecoderBuilder(config, alone, files, device).build()
    files.warn_unread(unread(config, model, alone))
    files.warn_not_finite()
    layers = len(config.decoder.layers)
    logger.info("drafter loaded", extra={"drafter": str(found.folder), "model": config.architecture, "layers": layers})
    return DraftModel(model, vocab_size)


def _last_with_attention(decoder: DecoderSpec) -> LayerSpec:
    """Layers with a state cannot draft: what they draft is not taken back."""
    return next(
        each for each in reversed(decoder.layers) if isinstance(each.mixer, AttentionSpec | LatentAttentionSpec)
    )


def _mtp(
    mtp: MtpConfig,
    config: ModelConfig,
    of_model: tuple[Ends, Taps | None],
    group: TensorParallelGroup,
    source: WeightSource,
    device: torch.device,
) -> MtpDrafter:
    (ends, taps), decoder, names = of_model, config.decoder, mtp.names
    like, norm = _last_with_attention(decoder), decoder.final_norm
    if taps is None or norm is None or ends.final_norm is None:
        raise ValueError("the model has no final norm, or nothing keeps its hidden states")
    alone = replace(decoder, layers=(like,))
    # Its tensors have the names of those of other layers.
    prefixes = config.names.prefixes if names.prefix is None else (names.prefix,)
    sub = replace(config, decoder=alone, names=replace(config.names, layer=mtp.layer, prefixes=prefixes))
    checkpoint = Checkpoint.of(source, alone, sub.names, group, config.schemes)
    joined = f"{checkpoint.outside(mtp.around)}{names.joined}.weight"
    if not source.has(joined):
        raise ModelFilesError(
            f"the files of the model hold no layers that guess further tokens (`{joined}`), though {mtp.source} has "
            "them: let `method` of --speculative-config be another one, such as ngram"
        )
    single = DecoderBuilder(sub, group, source, device).build_layer()

    def own_norm(name: str, spec: NormSpec = norm) -> Norm:
        return Norm(spec, checkpoint.norm(checkpoint.outside(f"{mtp.around}{name}"), spec, decoder.hidden_size))

    hidden = decoder.hidden_size
    own = MtpLayer(
        own_norm(names.embedded_norm),
        own_norm(names.hidden_norm),
        Dense(source.read(joined, (hidden, 2 * hidden))),
        single.layer,
        AddNorm(group, own_norm(names.last_norm), single.output_norm, decoder.residual_scale),
        single.caches,
        single.ropes,
    )
    return MtpDrafter(mtp, own, ModelEnds(taps, ends.final_norm, ends.embedding, ends.head), group)
