"""Findings about the model: its files, and whether its weights and KV cache fit into memory."""

from collections.abc import Iterator
from pathlib import Path

from ..config.classifier import check_classifier
from ..config.copies import DequantisedCopies, are_affordable, copied_bytes
from ..config.fallback import FallbackConfig
from ..config.implementation import AnyModelConfig, ModelImpl
from ..config.kv_cache import KvCacheDtype, QuantisedKvCache, kv_cache_bytes, quantised_kv_cache
from ..config.model import ModelConfig
from ..config.object_url import is_object_url
from ..config.parallel import kv_heads_of_rank
from ..config.recurrent import RecurrentSpec
from ..config.server import Environment, HubConfig
from ..config.serving import AskedLimits, check_deterministic, check_servable
from ..config.shards import AskedShards, shares_heads
from ..config.sizes import ITEM_BYTES, bytes_of_rank
from ..config.spec import AttentionSpec, CompressedAttentionSpec, LatentAttentionSpec, MixerSpec
from ..config.speculation import check_speculation
from ..engine.widths import most_window_tokens
from ..errors import EngineError
from ..hub import ModelSource, find_folder, hub_cache, present_folder
from ..models.sizes import bytes_of_weights
from ..object_store import store_client
from .finding import Finding

_SUBJECT = "model"
_GIB, _MIB = 2**30, 2**20
_ROWS = 128
"""Requests that run at once where no flag says how many."""
_MOST_SHARDS = 1024
"""Upper bound of the shards that a remedy names."""


def missing_model(source: ModelSource | None, hub: HubConfig) -> bool | None:
    """Whether a start would download the model; None without a model."""
    if source is None:
        return None
    try:
        return present_folder(source, hub) is None
    except EngineError:
        # Another finding says what is wrong with the model's name.
        return False


def model_findings(
    source: ModelSource,
    environment: Environment,
    limits: AskedLimits,
    dtype: str | None,
    shards: AskedShards,
    memory: int,
    model_impl: ModelImpl = "auto",
    quantize: str | None = None,
    kv_cache_dtype: KvCacheDtype = "auto",
    copies: DequantisedCopies = "auto",
    deterministic: bool = False,
    speculate: int = 0,
    is_shared: bool = False,
) -> Iterator[Finding]:
    """Yields findings about the model, and downloads nothing. Each shard may use `memory` bytes, of one memory for all
    of them where `is_shared`. `dtype` None means the model's type.
    """
    try:
        if present_folder(source, environment.hub) is None:
            yield from _to_download(source, environment)
            return
        folder = find_folder(source, environment.hub)
        config = check_servable(folder, environment, limits, source.needs_weights, model_impl, quantize, shards)
        check_deterministic(deterministic, config, shards)
        check_speculation(speculate, config)
        check_classifier(config.classes, {"--speculate": speculate > 0})
        kv_cache = quantised_kv_cache(kv_cache_dtype, config)
        if isinstance(config, FallbackConfig):
            from ..models.fallback import check_runnable

            check_runnable(config, shards.count, kv_cache)
    except EngineError as error:
        yield Finding(_SUBJECT, "error", str(error), "correct the flag, variable or file that the message names")
        return
    how = ", through its class of Transformers" if isinstance(config, FallbackConfig) else ""
    how += _without_images(config)
    if config.classes:
        how += f", a classifier with {config.classes} class{'es' * (config.classes > 1)}"
    yield Finding(_SUBJECT, "plan", f"serve {config.architecture} from {folder}{how}")
    yield from _memory(folder, config, source, dtype, kv_cache, copies, shards, memory, is_shared, speculate)


def _without_images(config: AnyModelConfig) -> str:
    if not config.has_media:
        return ""
    if isinstance(config, ModelConfig) and config.vision is not None:
        return ", with images"
    because = f" ({config.text_alone})" if isinstance(config, ModelConfig) else ""
    return f", its model of text alone, without images and sound{because}"


def _to_download(source: ModelSource, environment: Environment) -> Iterator[Finding]:
    from huggingface_hub import constants, get_token

    if constants.HF_HUB_OFFLINE:
        yield Finding(
            _SUBJECT,
            "error",
            f"{source.model_id} is not on this machine, and HF_HUB_OFFLINE forbids a download",
            "unset HF_HUB_OFFLINE, or name the folder of a model",
        )
        return
    if is_object_url(source.model_id):
        endpoint = store_client().meta.endpoint_url
        place = hub_cache(environment.hub)
        yield Finding(_SUBJECT, "plan", f"download {source.model_id} from {endpoint} to {place}")
        return
    yield Finding(
        _SUBJECT, "plan", f"download {source.model_id} from {constants.ENDPOINT} to {hub_cache(environment.hub)}"
    )
    if get_token() is None:
        yield Finding(
            _SUBJECT,
            "warning",
            "no token of the hub is set; gated and private models cannot be downloaded",
            "set HF_TOKEN, where the model needs it",
        )


def _memory(
    folder: Path,
    config: AnyModelConfig,
    source: ModelSource,
    dtype: str | None,
    kv_cache: QuantisedKvCache | None,
    copies: DequantisedCopies,
    shards: AskedShards,
    memory: int,
    is_shared: bool,
    speculate: int,
) -> Iterator[Finding]:
    served = dtype or config.dtype or "float16"
    itemsize = ITEM_BYTES[served]
    whole = bytes_of_weights(folder, config, itemsize, source.needs_weights)
    if whole is None:
        yield Finding(_SUBJECT, "warning", "how large the weights are cannot be known before they are converted")
        return
    method = config.schemes.method
    how = f"quantised by {method!r}" if method else f"in {served}"
    weights = bytes_of_rank(whole, config, itemsize, shards.count)
    text = f"{weights / _GIB:.2f} GiB of weights {how} for each shard, of {memory / _GIB:.1f} GiB"
    left = memory - weights
    if left <= 0:
        more = None if is_shared else _fitting_count(config, whole, itemsize, memory)
        remedy = "" if more is None else f"set --num-shard {more} or more, "
        remedy = f"{remedy}set --quantize or a smaller --dtype, or name a smaller model"
        yield Finding("memory", "error", text, remedy)
        return
    if isinstance(config, FallbackConfig):
        yield Finding("memory", "ok", text)
        return
    per_token = kv_bytes_per_token(config, shards.count, kv_cache or itemsize, shards.context_parallel)
    if per_row := state_bytes_per_row(config, shards.count, itemsize):
        text = f"{text}; {per_row / _MIB:.1f} MiB of states for each request that may run (--max-batch-size)"
        left -= _ROWS * per_row
        per_token_of_windows = state_bytes_per_window_token(config, shards.count, itemsize)
        if windows := most_window_tokens(speculate, _ROWS) * per_token_of_windows:
            text = f"{text}; {windows / _MIB:.1f} MiB to take back rejected drafts from them (--speculate)"
            left -= windows
    if not per_token:
        yield Finding("memory", "ok", text)
        return
    context = config.max_context_length
    copied = _copied(config, itemsize, copies, shards.count, left, per_token)
    if copied:
        text = f"{text}; {copied / _GIB:.2f} GiB of {8 * itemsize}-bit copies"
    tokens = max(0, left - copied) // per_token
    text = f"{text}; the rest holds about {tokens:,} tokens, and a request has at most {context:,}"
    if tokens < context:
        remedy = f"set --max-total-tokens to at most {tokens}, or use more shards"
        yield Finding("memory", "warning", text, remedy)
    else:
        yield Finding("memory", "ok", text)


def _copied(
    config: ModelConfig, itemsize: int, copies: DequantisedCopies, shards: int, left: int, per_token: int
) -> int:
    """Returns the bytes of the copies that each shard will keep. `engine/copies.py` decides with measured memory."""
    size = copied_bytes(config, itemsize) // shards
    shortens = (left - size) // per_token < min(config.max_context_length, left // per_token)
    if copies == "off" or (copies == "auto" and (shortens or not are_affordable(size, left))):
        return 0
    return min(size, left)


def _fitting_count(config: AnyModelConfig, whole: int, itemsize: int, memory: int) -> int | None:
    """Returns the fewest shards that have less than `memory` bytes of weights each and can share the heads, where these
    are known. None: no number does.
    """
    counts = (
        count
        for count in range(1, _MOST_SHARDS + 1)
        if isinstance(config, FallbackConfig) or shares_heads(config, count)
    )
    return next((count for count in counts if bytes_of_rank(whole, config, itemsize, count) < memory), None)


def kv_bytes_per_token(
    config: ModelConfig, shards: int, element: int | QuantisedKvCache, context_parallel: bool = False
) -> int:
    """Returns the bytes of K and V of a token on one shard, in all layers, copies of shared heads included. Of latent
    attention that is the share of one of the shards, where these have some positions each.

    `element` is the bytes of a number, or the type of a quantised KV cache, with the scales of each head.
    """

    def of(mixer: MixerSpec) -> int:
        count, size = _cached(mixer, shards)
        whole = count * (size * element if isinstance(element, int) else kv_cache_bytes(element, size))
        return -(-whole // shards) if context_parallel and isinstance(mixer, LatentAttentionSpec) else whole

    return sum(map(of, config.decoder.mixers))


def state_bytes_per_row(config: ModelConfig, shards: int, itemsize: int) -> int:
    """Returns the bytes of a request's states on one shard, where a number of the model takes `itemsize` bytes."""
    recurrent = (mixer for mixer in config.decoder.mixers if isinstance(mixer, RecurrentSpec))
    return sum(mixer.inputs(shards) * (mixer.kernel - 1) * itemsize + mixer.state(shards) * 4 for mixer in recurrent)


def state_bytes_per_window_token(config: ModelConfig, shards: int, itemsize: int) -> int:
    """Returns the bytes of what recurrent layers keep of a token of a window on one shard, as `state_bytes_per_row`."""
    recurrent = (mixer for mixer in config.decoder.mixers if isinstance(mixer, RecurrentSpec))
    return sum(mixer.read(shards) for mixer in recurrent) * itemsize


def _cached(mixer: MixerSpec, shards: int) -> tuple[int, int]:
    """Returns the number of vectors that a layer caches of a token on one shard, and their size. Caches that an indexer
    belongs to have one vector.
    """
    if isinstance(mixer, CompressedAttentionSpec):
        index = 0 if mixer.indexer is None else mixer.index_vectors * mixer.indexer.head_dim
        return 1, mixer.vectors * mixer.head_dim + index
    # States of recurrent layers do not depend on the number of tokens.
    if not isinstance(mixer, AttentionSpec | LatentAttentionSpec):
        return 0, 0
    if isinstance(mixer, LatentAttentionSpec):
        return 1, mixer.latent_dim + mixer.shared_dim + mixer.index_dim
    index = 0 if mixer.indexer is None else mixer.indexer.head_dim
    own = kv_heads_of_rank(mixer.num_heads, mixer.num_kv_heads, shards) if mixer.reads_layer is None else 0
    return (1, 2 * own * mixer.head_dim + index) if index else (2 * own, mixer.head_dim)
