"""Operators of the forward pass, one a file: formula, layouts, bytes floor, torch implementation, Triton kernel.

Operators write into tensors that the caller passes, so that a captured graph replays them in place.
"""

from ._activations import alone, sigmoid
from ._attention import padded_batch
from ._device import has_fp8_products
from ._exchange import Exchange
from ._groups import pack_codes, pack_scales, unpack_codes
from ._launch import compilations, compile_only, fingerprint_compiler, rehearsing
from ._moe_matrix import ExpertMatrix
from ._register import triton_enabled, use_triton
from ._sampling import EXCLUDED, MAX_LOGIT_BIAS, MAX_TOP, Flags, Floats, Ints, mask_words, num_splits, split_size
from ._vector_blocks import LONGEST as LONGEST_NORMALISED
from .act_and_mul import act_and_mul
from .activate import activate
from .add_layer_norm import add_layer_norm
from .add_rms_norm import add_rms_norm
from .advance_state import advance_state
from .attention_options import AttentionOptions
from .causal_conv import causal_conv
from .choose import choose
from .decode_attention import decode_attention
from .dequantise import dequantise
from .draw import draw
from .embed import embed
from .gated_delta import gated_delta
from .gated_norm import gated_norm
from .grouped_linear import grouped_linear
from .kv_codes import KV_CODES
from .latent_decode_attention import latent_decode_attention
from .latent_expand import latent_expand
from .latent_postprocess import latent_postprocess
from .latent_prefill_attention import latent_prefill_attention
from .layer_norm import layer_norm
from .linear_in_parts import linear_in_parts, linear_parts
from .logits_process import logits_process
from .mixture import mixture
from .moe_experts import moe_experts
from .moe_route import RouteOptions, moe_route
from .newest_tokens import newest_tokens
from .peer_add_norm import announce, peer_add_norm
from .prefill_attention import prefill_attention
from .qkv_postprocess import qkv_postprocess
from .quantise_rows import quantise_rows
from .receive_add_norm import receive_add_norm
from .reduce_add_norm import fits_one_shot, fits_two_shots, reduce_add_norm, reducible
from .rms_norm import rms_norm
from .sampling_values import SampledTokens, SamplingBatch, SamplingColumns, SamplingRules, SplitStatistics
from .scaled_gated import scaled_gated
from .scaled_in_parts import scaled_in_parts, scaled_parts
from .scaled_linear import scaled_linear
from .selective_scan import selective_scan
from .sigmoid_gate import sigmoid_gate
from .skinny_linear import skinny_linear
from .state_space import state_space
from .survivors import survivors
from .token_attention import token_attention
from .token_linear import send_linear, token_linear
from .top_tokens import top_tokens

__all__ = [
    "EXCLUDED",
    "KV_CODES",
    "LONGEST_NORMALISED",
    "MAX_LOGIT_BIAS",
    "MAX_TOP",
    "AttentionOptions",
    "Exchange",
    "ExpertMatrix",
    "Flags",
    "Floats",
    "Ints",
    "RouteOptions",
    "SampledTokens",
    "SamplingBatch",
    "SamplingColumns",
    "SamplingRules",
    "SplitStatistics",
    "act_and_mul",
    "activate",
    "add_layer_norm",
    "add_rms_norm",
    "advance_state",
    "alone",
    "announce",
    "causal_conv",
    "choose",
    "compilations",
    "compile_only",
    "decode_attention",
    "dequantise",
    "draw",
    "embed",
    "fingerprint_compiler",
    "fits_one_shot",
    "fits_two_shots",
    "gated_delta",
    "gated_norm",
    "grouped_linear",
    "has_fp8_products",
    "latent_decode_attention",
    "latent_expand",
    "latent_postprocess",
    "latent_prefill_attention",
    "layer_norm",
    "linear_in_parts",
    "linear_parts",
    "logits_process",
    "mask_words",
    "mixture",
    "moe_experts",
    "moe_route",
    "newest_tokens",
    "num_splits",
    "pack_codes",
    "pack_scales",
    "padded_batch",
    "peer_add_norm",
    "prefill_attention",
    "qkv_postprocess",
    "quantise_rows",
    "receive_add_norm",
    "reduce_add_norm",
    "reducible",
    "rehearsing",
    "rms_norm",
    "scaled_gated",
    "scaled_in_parts",
    "scaled_linear",
    "scaled_parts",
    "selective_scan",
    "send_linear",
    "sigmoid",
    "sigmoid_gate",
    "skinny_linear",
    "split_size",
    "state_space",
    "survivors",
    "token_attention",
    "token_linear",
    "top_tokens",
    "triton_enabled",
    "unpack_codes",
    "use_triton",
]
