"""Operators of the forward pass, one a file: formula, layouts, bytes floor, torch implementation, Triton kernel.

Operators write into tensors that the caller passes, so that a captured graph replays them in place.
"""

from .attention.attention_options import AttentionOptions
from .attention.block_scores import block_scores
from .attention.compress_entries import compress_entries
from .attention.decode_attention import EARLY_BYTES, decode_attention
from .attention.index_postprocess import IndexNorms, index_postprocess
from .attention.index_scores import index_scores
from .attention.kv_cache import KvCache
from .attention.kv_quantisation import KV_CODES, bytes_of_head, scales_of_head
from .attention.latent_decode_attention import latent_decode_attention
from .attention.latent_expand import latent_expand
from .attention.latent_postprocess import latent_postprocess
from .attention.latent_prefill_attention import latent_prefill_attention
from .attention.merge_shares import Shares, merge_shares
from .attention.new_tokens import NewTokens
from .attention.own_slots import own_slots
from .attention.prefill_attention import prefill_attention
from .attention.qkv_postprocess import qkv_postprocess
from .attention.qkv_prologue import NO_PROLOGUE, QkvPrologue
from .attention.requests import Chunks, Decodes
from .attention.rotate_heads import rotate_heads
from .attention.span_attention import span_attention
from .attention.token_attention import token_attention
from .attention.top_slots import top_slots
from .collectives.allreduce_add_norm import allreduce_add_norm, fits_one_shot, fits_two_shots, reducible
from .collectives.allreduce_add_norm_peer import allreduce_add_norm_peer, announce
from .collectives.allreduce_add_norm_receive import allreduce_add_norm_receive
from .collectives.exchange import Exchange
from .lora.adapter_tiles import TILE_TOKENS, AdapterPages, AdapterTables, TableSizes, adapter_tables
from .lora.lora_delta import delta_splits, lora_delta, lora_delta_takes
from .lora.lora_expand import lora_expand
from .lora.lora_expand_gated import lora_expand_gated
from .lora.lora_lookup import lora_lookup
from .lora.lora_shrink import empty_shrunk, lora_shrink, shrink_splits
from .lora.rank_pages import LONGEST_RUN, OUTPUT_BLOCK, RANK_UNITS, part_of_blocks, run_of
from .lora.replace_norm import replace_norm
from .lora.replace_rows import replace_rows
from .lora.replaced_logits import ReplacedRows, replaced_logits
from .lora.shrunk_words import LAST_TURN, MOST_LAUNCHES
from .lora.site_adapters import SiteAdapters
from .matmul.adapted_gemv import adapted_gemv, adapted_gemv_takes
from .matmul.adapted_linear import adapted_linear
from .matmul.dequantise import dequantise
from .matmul.gemv_blocks import LONGEST as LONGEST_NORMALISED
from .matmul.group_quantisation import KERNEL_GROUPS, PackedMatrix, pack_codes, pack_scales, unpack_codes
from .matmul.ladder import SMALL_BATCH
from .matmul.linear import linear
from .matmul.linear_split_k import leaves_partials, linear_split_k, linear_splits
from .matmul.token_linear import NormPrologue, send_linear, token_linear
from .matmul.w8a8_gated import w8a8_gated
from .matmul.w8a8_linear import w8a8_linear
from .matmul.w8a8_split_k import w8a8_split_k, w8a8_splits
from .matmul.weight_only_linear import weight_only_linear
from .moe.adapted_experts import adapted_experts
from .moe.expert_factors import ExpertFactors
from .moe.expert_load import expert_load
from .moe.expert_matrix import ExpertMatrix
from .moe.expert_mlps import ExpertMlps
from .moe.mixture import mixture
from .moe.moe_experts import moe_experts
from .moe.moe_route import RouteOptions, moe_route, router_scores
from .moe.routing import Routing
from .norm.act_and_mul import act_and_mul
from .norm.activate import activate
from .norm.activations import GATED, alone, sigmoid
from .norm.add_layer_norm import add_layer_norm
from .norm.add_rms_norm import add_rms_norm
from .norm.gated_norm import gated_norm
from .norm.layer_norm import layer_norm
from .norm.mix_streams import mix_streams
from .norm.quantise import NOT_QUANTISED, Quantised
from .norm.quantise_rows import quantise_rows
from .norm.rms_norm import rms_norm
from .norm.sigmoid_gate import sigmoid_gate
from .norm.stream_coefs import stream_coefs
from .recurrent.causal_conv import causal_conv
from .recurrent.gated_delta import gated_delta
from .recurrent.gated_lru import LruDynamics, gated_lru
from .recurrent.kimi_delta import kimi_delta
from .recurrent.runs import Runs
from .recurrent.selective_scan import ScanDynamics, selective_scan
from .recurrent.state_space import SpaceDynamics, state_space
from .runtime.batches import padded_batch
from .runtime.device import has_fp8_gemms
from .runtime.launch import compilations, compile_only, compiling_only, fingerprint_compiler
from .runtime.launch_order import LaunchOrderError
from .runtime.register import triton_enabled, use_triton
from .sampling.advance_state import advance_state
from .sampling.choose import choose
from .sampling.columns import EXCLUDED, MAX_LOGIT_BIAS, MAX_TOP, Flags, Floats, Ints, mask_words, num_splits, split_size
from .sampling.draw import draw
from .sampling.embed import embed
from .sampling.logits_process import logits_process
from .sampling.newest_tokens import newest_tokens
from .sampling.survivors import survivors
from .sampling.top_tokens import top_tokens
from .sampling.values import SampledTokens, SamplingBatch, SamplingColumns, SamplingRules, SplitStatistics
from .speculation.accept_tokens import accept_tokens
from .speculation.choose_draft import choose_draft
from .speculation.hint_draft import hint_draft
from .speculation.ngram_draft import MAX_MATCH, ngram_draft
from .speculation.values import Drafts, Hints, Sequences, WindowInputs, Windows
from .speculation.window_tokens import window_tokens

__all__ = [
    "EARLY_BYTES",
    "EXCLUDED",
    "GATED",
    "KERNEL_GROUPS",
    "KV_CODES",
    "LAST_TURN",
    "LONGEST_NORMALISED",
    "LONGEST_RUN",
    "MAX_LOGIT_BIAS",
    "MAX_MATCH",
    "MAX_TOP",
    "MOST_LAUNCHES",
    "NOT_QUANTISED",
    "NO_PROLOGUE",
    "OUTPUT_BLOCK",
    "RANK_UNITS",
    "SMALL_BATCH",
    "TILE_TOKENS",
    "AdapterPages",
    "AdapterTables",
    "AttentionOptions",
    "Chunks",
    "Decodes",
    "Drafts",
    "Exchange",
    "ExpertFactors",
    "ExpertMatrix",
    "ExpertMlps",
    "Flags",
    "Floats",
    "Hints",
    "IndexNorms",
    "Ints",
    "KvCache",
    "LaunchOrderError",
    "LruDynamics",
    "NewTokens",
    "NormPrologue",
    "PackedMatrix",
    "QkvPrologue",
    "Quantised",
    "ReplacedRows",
    "RouteOptions",
    "Routing",
    "Runs",
    "SampledTokens",
    "SamplingBatch",
    "SamplingColumns",
    "SamplingRules",
    "ScanDynamics",
    "Sequences",
    "Shares",
    "SiteAdapters",
    "SpaceDynamics",
    "SplitStatistics",
    "TableSizes",
    "WindowInputs",
    "Windows",
    "accept_tokens",
    "act_and_mul",
    "activate",
    "adapted_experts",
    "adapted_gemv",
    "adapted_gemv_takes",
    "adapted_linear",
    "adapter_tables",
    "add_layer_norm",
    "add_rms_norm",
    "advance_state",
    "allreduce_add_norm",
    "allreduce_add_norm_peer",
    "allreduce_add_norm_receive",
    "alone",
    "announce",
    "block_scores",
    "bytes_of_head",
    "causal_conv",
    "choose",
    "choose_draft",
    "compilations",
    "compile_only",
    "compiling_only",
    "compress_entries",
    "decode_attention",
    "delta_splits",
    "dequantise",
    "draw",
    "embed",
    "empty_shrunk",
    "expert_load",
    "fingerprint_compiler",
    "fits_one_shot",
    "fits_two_shots",
    "gated_delta",
    "gated_lru",
    "gated_norm",
    "has_fp8_gemms",
    "hint_draft",
    "index_postprocess",
    "index_scores",
    "kimi_delta",
    "latent_decode_attention",
    "latent_expand",
    "latent_postprocess",
    "latent_prefill_attention",
    "layer_norm",
    "leaves_partials",
    "linear",
    "linear_split_k",
    "linear_splits",
    "logits_process",
    "lora_delta",
    "lora_delta_takes",
    "lora_expand",
    "lora_expand_gated",
    "lora_lookup",
    "lora_shrink",
    "mask_words",
    "merge_shares",
    "mix_streams",
    "mixture",
    "moe_experts",
    "moe_route",
    "newest_tokens",
    "ngram_draft",
    "num_splits",
    "own_slots",
    "pack_codes",
    "pack_scales",
    "padded_batch",
    "part_of_blocks",
    "prefill_attention",
    "qkv_postprocess",
    "quantise_rows",
    "reducible",
    "replace_norm",
    "replace_rows",
    "replaced_logits",
    "rms_norm",
    "rotate_heads",
    "router_scores",
    "run_of",
    "scales_of_head",
    "selective_scan",
    "send_linear",
    "shrink_splits",
    "sigmoid",
    "sigmoid_gate",
    "span_attention",
    "split_size",
    "state_space",
    "stream_coefs",
    "survivors",
    "token_attention",
    "token_linear",
    "top_slots",
    "top_tokens",
    "triton_enabled",
    "unpack_codes",
    "use_triton",
    "w8a8_gated",
    "w8a8_linear",
    "w8a8_split_k",
    "w8a8_splits",
    "weight_only_linear",
    "window_tokens",
]
