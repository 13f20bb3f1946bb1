"""GPT-Neo: GPT-2 without fused and transposed matrices, whose scores are not scaled, with a window in local layers."""

from dataclasses import replace
from typing import cast

from ..json_object import JsonObject
from ..names import TensorNames
from ..spec import AttentionSpec, DecoderSpec, EmbeddingSpec, LayerSpec
from .common import MOST_LAYERS, Heads, decoder, layer_norm, plain
from .family import Family

_KINDS = ("global", "local")


def _gpt_neo(config: JsonObject) -> DecoderSpec:
    heads, norm, ffn = Heads.of(config), layer_norm(config), plain(config, "intermediate_size", "activation_function")
    mixer = AttentionSpec(heads.count, heads.count, heads.size, 1.0, rope=None, out_bias=True)
    kinds = {"global": mixer, "local": replace(mixer, window=config.integer("window_size"))}
    layers = tuple(LayerSpec(kinds[kind], ffn, norm, norm) for kind in _types(config))
    return decoder(config, layers, norm, EmbeddingSpec(positions=config.integer("max_position_embeddings")))


def _types(config: JsonObject) -> list[str]:
    """Whether each layer is global or local: `attention_layers` lists them, else `attention_types` has pairs of a list
    and how often it comes.
    """
    count = config.integer("num_hidden_layers", maximum=MOST_LAYERS)
    key = "attention_layers" if "attention_layers" in config else "attention_types"
    found = list(config.strings(key)) if key == "attention_layers" else _repeated(config, key)
    if len(found) != count or any(kind not in _KINDS for kind in found):
        raise config.error(key, f"{count} times `global` or `local` in all")
    return found


def _repeated(config: JsonObject, key: str) -> list[str]:
    items = config.array(key)
    wrong = config.error(key, 'a list of pairs such as [["global", "local"], 12]')
    found: list[str] = []
    for item in items:
        pair = cast("list[object]", item) if isinstance(item, list) else []
        kinds = cast("list[object]", pair[0]) if len(pair) == 2 and isinstance(pair[0], list) else []
        times = pair[1] if len(pair) == 2 else None
        if not kinds or isinstance(times, bool) or not isinstance(times, int) or not 0 < times <= MOST_LAYERS:
            raise wrong
        if len(found) + len(kinds) * times > MOST_LAYERS:
            raise wrong
        found += [str(kind) for kind in kinds] * times
    return found


GPT_NEO = Family(
    "GPT-Neo",
    _gpt_neo,
    TensorNames(
        prefixes=("transformer.", ""),
        embedding="wte",
        positions="wpe",
        final_norm="ln_f",
        layer="h.{}.",
        attention_norm="ln_1",
        ffn_norm="ln_2",
        q="attn.attention.q_proj",
        k="attn.attention.k_proj",
        v="attn.attention.v_proj",
        out="attn.attention.out_proj",
        up="mlp.c_fc",
        down="mlp.c_proj",
        ignored=("*.attention.bias", "*.attention.masked_bias"),
    ),
    {
        "activation_function": "gelu_new",
        "attention_types": [[["global", "local"], 12]],
        "layer_norm_epsilon": 1e-5,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
        "window_size": 256,
    },
    aliases={"num_attention_heads": "num_heads", "num_hidden_layers": "num_layers"},
    unread=("head_dim", "layer_norm_eps", "num_key_value_heads", "sliding_window"),
)
