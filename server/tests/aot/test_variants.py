"""Warm-up names every kernel variant that serving needs: a compilation later is a stall of seconds."""

# pyright: basic
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from kernel_support.variants import Variants, dry_run_variants, launched_variants, pretend_a_device
from support import dry_warm_up
from support.dry_ranks import OneOfTwo
from support.fake_model import FakeModel
from torch import Tensor

import text_generation_kernels as kernels
from text_generation_kernels.collectives.exchange import Exchange, control_block
from text_generation_server.config.recurrent import (
    GatedDeltaSpec,
    KimiDeltaSpec,
    LightningSpec,
    Mamba2Spec,
    MambaSpec,
    ShortConvSpec,
)
from text_generation_server.config.spec import DenseSpec, NormSpec
from text_generation_server.distributed import TensorParallelGroup
from text_generation_server.engine.dummy_steps import run_step
from text_generation_server.engine.options import EngineOptions
from text_generation_server.engine.requests import (
    Chunk,
    NextTokenChooserParameters,
    Request,
    ServingLimits,
    SlotRange,
    StepPlan,
    WarmupLimits,
)
from text_generation_server.engine.runner import StepRunner
from text_generation_server.engine.widths import window_widths
from text_generation_server.layers.infer import (
    AddNorm,
    ContextParallel,
    DenseFeedForward,
    GatedDelta,
    KimiDelta,
    Lightning,
    Mamba,
    Mamba2,
    Norm,
    OutputFusion,
    ShortConv,
)
from text_generation_server.layers.infer.state import CacheShape, InferState
from text_generation_server.layers.rope import RopeTable
from text_generation_server.layers.weights import (
    Activations,
    ActivationScheme,
    Dense,
    DenseWeights,
    GatedDeltaWeights,
    HeadSplit,
    KimiDeltaWeights,
    LightningWeights,
    Mamba2Weights,
    MambaWeights,
    NormWeights,
    ShortConvWeights,
    StepAdapters,
    VocabularyShard,
)
from text_generation_server.layers.weights.w8a8 import W8A8Linear

KINDS: list[list[dict[str, Any]]] = [
    [{}],
    [{"do_sample": True}, {"repetition_penalty": 1.2}],
    [{"do_sample": True, "top_p": 0.9}],
    [{}, {"do_sample": True, "top_k": 5, "typical_p": 0.9}, {"watermark": True, "min_new_tokens": 2}],
]


class Logits(FakeModel):
    """Logits of a vocabulary shard, and nothing before them."""

    def __init__(self, vocab_size: int, group: TensorParallelGroup, dtype: torch.dtype) -> None:
        super().__init__(max_context_length=8192)
        self.vocab_size, self.dtype = vocab_size, dtype
        self.vocabulary = VocabularyShard.of(vocab_size, group.rank, group.world_size)

    def forward(self, input_ids: Tensor, state: InferState) -> Tensor:
        return torch.zeros(len(input_ids if state.logit_tokens is None else state.logit_tokens), 1)

    def logits(self, hidden: Tensor, deterministic: bool = False, adapters: StepAdapters | None = None) -> Tensor:
        return torch.zeros(len(hidden), self.vocabulary.width, dtype=self.dtype)


class Attending(Logits):
    """A layer of attention before them, with four heads for each of `kv_heads`."""

    def __init__(self, kv_heads: int, group: TensorParallelGroup) -> None:
        super().__init__(64, group, torch.bfloat16)
        self.caches = (CacheShape(kv_heads, 128, 128),)

    def forward(self, input_ids: Tensor, state: InferState) -> Tensor:
        cache = state.caches[0]
        q = torch.zeros(len(input_ids), 4 * cache.k.shape[1], 128, dtype=self.dtype)
        decodes, chunks, first = state.decodes, state.chunks, 0
        if decodes is not None and chunks is None and len(input_ids) == 1:
            qkv = q.new_zeros(1, 6 * cache.k.shape[1] * 128)
            tokens = kernels.NewTokens(torch.zeros(8192, 128), state.positions, state.slots)
            kernels.token_attention(qkv, kernels.NO_PROLOGUE, tokens, cache, decodes, 1.0, torch.empty_like(q))
        elif decodes is not None:
            first = len(decodes.rows)
            out = torch.empty_like(q[:first])
            kernels.decode_attention(q[:first], cache, decodes, 1.0, out)
        if chunks is not None:
            kernels.prefill_attention(q, cache, chunks, 1.0, torch.empty_like(q))
        return super().forward(input_ids, state)


class SharedLatents(Logits):
    """A layer of latent attention before them, of which two ranks have some positions each."""

    def __init__(self, group: TensorParallelGroup) -> None:
        super().__init__(64, group, torch.bfloat16)
        self._parallel = ContextParallel(group)
        self.caches = (CacheShape(1, 576, 512, shared=True, ranks=2, readers=16),)

    def forward(self, input_ids: Tensor, state: InferState) -> Tensor:
        cache, scale = state.caches[0].k, 1.0
        q = torch.zeros(len(input_ids), 8, 576, dtype=self.dtype)
        out = q.new_empty(*q.shape[:2], 512)
        if (decodes := state.decodes) is not None:
            first = len(decodes.rows)
            self._parallel.attend(q[:first], cache, decodes, scale, out[:first], state)
        if state.chunks is not None:
            contexts, chunks = self._parallel.gathered(cache, state.chunks, state)
            kernels.latent_prefill_attention(q, contexts, chunks, scale, out)
            self._parallel.attend_with_queries(q, cache, state.chunks, scale, out, state)
        return super().forward(input_ids, state)


class Recurrent(Logits):
    """One layer with a state of each kind before them."""

    def __init__(self, group: TensorParallelGroup) -> None:
        super().__init__(64, group, torch.bfloat16)
        rows = partial(torch.zeros, dtype=self.dtype)
        unrotated = RopeTable(None, 128, FakeModel.device)
        unrotated.resize(8192)
        self.recurrent = [
            GatedDelta(
                0,
                GatedDeltaSpec(4, 2, 128, 128, 4, 1e-6),
                GatedDeltaWeights(
                    Made(1544), rows(1024, 4), torch.zeros(4), torch.zeros(4), rows(128), Made(64)
                ),
                HeadSplit(0, 4, (0, 1)),
            ),
            Mamba(
                1,
                MambaSpec(512, 16, 4, 32),
                MambaWeights(
                    Made(1024), rows(512, 4), rows(512), Made(64), None, Made(512), torch.zeros(512, 16),
                    torch.zeros(512), torch.zeros(512), Made(64),
                ),
                group,
            ),
            Mamba2(
                2,
                Mamba2Spec(16, 64, 2, 128, 4, 1e-5),
                Mamba2Weights(
                    Made(2576), rows(1536, 4), rows(1536), torch.zeros(16), torch.zeros(16), torch.zeros(16),
                    rows(2, 512), Made(64),
                ),
                HeadSplit(0, 16, (0, 1)),
                group,
            ),
            ShortConv(3, ShortConvSpec(512, 3), ShortConvWeights(Made(1536), rows(512, 3), None, Made(64))),
            KimiDelta(
                4,
                KimiDeltaSpec(4, 128, 128, 4, 1e-6, rank=128),
                KimiDeltaWeights(
                    Made(1796), Made(512), Made(512), rows(1536, 4), torch.zeros(4), torch.zeros(4, 128),
                    torch.zeros(128), Made(64),
                ),
                HeadSplit(0, 4, (0, 1, 2, 3)),
            ),
            Lightning(
                5,
                LightningSpec((0.1,) * 4, 128, 0.1, 1e-6, 2, qk_norm_eps=1e-6),
                LightningWeights(
                    Made(2048), kernels.SpaceDynamics(*torch.zeros(3, 4), 0.1, 0.1), rows(128), rows(128),
                    rows(2, 256), Made(64),
                ),
                HeadSplit(0, 4, (0, 1, 2, 3)),
                unrotated,
                group,
            ),
        ]  # fmt: skip
        self.states = [mixer.state for mixer in self.recurrent]

    def forward(self, input_ids: Tensor, state: InferState) -> Tensor:
        x = Activations(torch.zeros(len(input_ids), 64, dtype=self.dtype))
        for mixer in self.recurrent:
            mixer.forward(x, state)
        return super().forward(input_ids, state)


class Made(Dense):
    """A matrix of so many outputs, of which only their number counts."""

    def __init__(self, outputs: int) -> None:
        super().__init__(torch.zeros(outputs, 1))

    def apply(self, x: Activations, block: int | None = None) -> Tensor:
        return x.x.new_zeros(len(x.x), len(self.weight))


class EightBit(Logits):
    """A W8A8 feed-forward network before them, and the norm after it."""

    def __init__(self, group: TensorParallelGroup) -> None:
        super().__init__(64, group, torch.bfloat16)
        first, down = (
            W8A8Linear(torch.zeros(shape, dtype=torch.int8), torch.ones(shape[0]), ActivationScheme(torch.int8))
            for shape in ((512, 128), (128, 256))
        )
        self.ffn = DenseFeedForward(DenseSpec(256, "silu"), DenseWeights(first, down))
        norm = Norm(NormSpec(1e-5), NormWeights(torch.ones(128, dtype=self.dtype), None))
        self.add_norm = AddNorm(group, norm)
        self.fusion = OutputFusion(group, takes_partials=self.add_norm.takes_partials)

    def forward(self, input_ids: Tensor, state: InferState) -> Tensor:
        x = torch.zeros(len(input_ids), 128, dtype=self.dtype)
        self.add_norm.read(self.ffn.forward_fused(Activations(x), state, self.fusion), x)
        return super().forward(input_ids, state)


class OneOfSeveral(TensorParallelGroup):
    """A rank to which the others send zeros."""

    def all_gather(self, tensor: Tensor) -> Tensor:
        return tensor.new_zeros(self.world_size, *tensor.shape)

    def all_to_all(self, tensor: Tensor) -> Tensor:
        return torch.zeros_like(tensor)


def warmed_up(
    model: Any, group: TensorParallelGroup, limits: ServingLimits, speculate: int = 0
) -> tuple[StepRunner, Variants]:
    """What serves, and the variants that warm-up has named."""
    asked = WarmupLimits(limits.max_input_tokens, limits.max_batch_size)
    probe = dry_warm_up.dry_probe(model, group, asked, EngineOptions(speculate=speculate))
    return dry_warm_up.warmed_up(probe, limits)


def request(row: int, length: int, **parameters: Any) -> Request:
    """With room for two tokens more. Nothing is computed, so all may have the same slots."""
    chooser = NextTokenChooserParameters(**parameters)
    return Request(row, row, np.zeros(length, dtype=np.int64), chooser, (SlotRange(0, length + 2),))


def prompts_and_decodes(runner: StepRunner, count: int, length: int, kinds: list[dict[str, Any]]) -> None:
    """Prompts of so many requests, decodes of all of them, and of all but one beside another prompt."""
    rows, last = list(range(count)), count - 1
    asked = [request(row, length, **kinds[row % len(kinds)]) for row in rows]
    runner.launch(StepPlan(0, admit=asked, chunks=[Chunk(row, 0, length) for row in rows]))
    runner.launch(StepPlan(1, decode=rows))
    runner.launch(StepPlan(2, drop=[last], admit=asked[last:], chunks=[Chunk(last, 0, length)], decode=rows[:last]))
    runner.launch(StepPlan(3, drop=rows))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("vocab_size", "rank", "ranks"), [(151_936, 0, 1), (151_936, 1, 2), (50_257, 2, 3)])
@torch.inference_mode()
def test_sampling_needs_no_variant_that_warm_up_did_not_name(
    vocab_size: int, rank: int, ranks: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alignments differ by how many rows choose, and by where they stand in the input of the step."""
    pretend_a_device(monkeypatch)
    group, most = OneOfSeveral(rank, ranks, FakeModel.device), 9
    runner, named = warmed_up(Logits(vocab_size, group, dtype), group, ServingLimits(64, 32, 64, most))
    with launched_variants() as needed:
        for kinds in KINDS:
            for count in range(1, most + 1):
                for length in (1, 2):
                    prompts_and_decodes(runner, count, length, kinds)
    assert {name for name, _ in needed} >= {"draw_kernel", "survivors_kernel", "advance_state_kernel"}
    assert not needed - named


@pytest.mark.parametrize("kv_heads", [1, 8])
@torch.inference_mode()
def test_attention_needs_no_variant_that_warm_up_did_not_name(kv_heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of any length: their lengths and number decide about tiles and their splits."""
    pretend_a_device(monkeypatch)
    group, most = TensorParallelGroup(0, 1, FakeModel.device), 20
    runner, named = warmed_up(Attending(kv_heads, group), group, ServingLimits(8192, 4096, 8192, most))
    with launched_variants() as needed:
        for longest in (1, 16, 40, 64, 100, 128, 129, 150, 180, 300, 700, 1500, 3000):
            for others in (0, 1, 2, 15, 16):
                for length in {1, longest}:
                    lengths = [longest] + [length] * others
                    if sum(lengths) > 4096:
                        continue
                    admit = [request(row, each) for row, each in enumerate(lengths)]
                    runner.launch(StepPlan(0, admit=admit, chunks=[Chunk(r, 0, n) for r, n in enumerate(lengths)]))
                    runner.launch(StepPlan(1, drop=range(len(lengths))))
        rows = torch.full((most,), runner.table.padding_row, dtype=torch.int64)
        for count in range(1, most + 1):
            for longest in (1, 200, 8192):
                runner.decode_rows(rows[:count], longest)
    assert {name for name, _ in needed} >= {
        "prefill_attention_kernel",
        "decode_attention_kernel",
        "token_attention_kernel",
    }
    assert not needed - named


@pytest.mark.parametrize("kv_heads", [1, 8])
@pytest.mark.parametrize("drafts", [2, 7])
@torch.inference_mode()
def test_windows_need_no_variant_that_warm_up_did_not_name(
    drafts: int, kv_heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any number of windows of every width that plans may name."""
    pretend_a_device(monkeypatch)
    group, most = TensorParallelGroup(0, 1, FakeModel.device), 64
    model, limits = Attending(kv_heads, group), ServingLimits(8192, 256, 8192, most)
    runner, named = warmed_up(model, group, limits, drafts)
    rows = torch.full((most,), runner.table.padding_row, dtype=torch.int64)
    with launched_variants() as needed:
        for width in window_widths(drafts):
            for count in range(1, most + 1):
                runner.decode_windows(rows[:count], width, limits.max_total_tokens)
    assert "decode_attention_kernel" in {name for name, _ in needed}
    assert not needed - named


@torch.inference_mode()
def test_shared_contexts_need_no_variant_that_warm_up_did_not_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contexts that come to every rank, of any length, and any number of queries that go there."""
    pretend_a_device(monkeypatch)
    group, most = OneOfTwo(), 20
    runner, named = warmed_up(SharedLatents(group), group, ServingLimits(8192, 2048, 8192, most))
    with launched_variants() as needed:
        for count in (1, 2, 7, 16, 17, 40, 100, 257, 700, 2000):
            for behind in (0, 1, 100, 1000, 6000):
                for others in range(0, 20, 6):
                    first = request(0, behind + count)
                    admit = [first] + [request(row, 1) for row in range(1, 1 + others)]
                    chunks = [Chunk(0, behind, count)] + [Chunk(row, 0, 1) for row in range(1, 1 + others)]
                    runner.launch(StepPlan(0, admit=[replace(first, cached_length=behind), *admit[1:]], chunks=chunks))
                    runner.launch(StepPlan(1, drop=range(1 + others)))
        rows = torch.full((most,), runner.table.padding_row, dtype=torch.int64)
        for count in range(1, most + 1):
            for longest in (1, 200, 8192):
                runner.decode_rows(rows[:count], longest)
    assert {name for name, _ in needed} >= {"own_slots_kernel", "merge_shares_kernel", "latent_decode_attention_kernel"}
    assert not needed - named


@torch.inference_mode()
def test_recurrent_layers_need_no_variant_that_warm_up_did_not_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of any length: long ones are computed in blocks."""
    pretend_a_device(monkeypatch)
    group, most = TensorParallelGroup(0, 1, FakeModel.device), 20
    runner, named = warmed_up(Recurrent(group), group, ServingLimits(8192, 4096, 8192, most))
    with launched_variants() as needed:
        for longest in (1, 2, 16, 17, 63, 64, 65, 300, 2000):
            for others in (0, 1, 2, 15, 16):
                lengths = [longest] + [1] * others
                admit = [request(row, each) for row, each in enumerate(lengths)]
                runner.launch(StepPlan(0, admit=admit, chunks=[Chunk(r, 0, n) for r, n in enumerate(lengths)]))
                runner.launch(StepPlan(1, drop=range(len(lengths))))
        rows = torch.full((most,), runner.table.padding_row, dtype=torch.int64)
        for count in range(1, most + 1):
            runner.decode_rows(rows[:count], 8)
    assert len({name for name, _ in needed}) > 8
    assert not needed - named


@pytest.mark.parametrize("drafts", [3, 7])
@torch.inference_mode()
def test_windows_of_recurrent_layers_need_no_variant_that_warm_up_did_not_name(
    drafts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows over copies of states, and accepted tokens over the states themselves, beside prompts and without."""
    pretend_a_device(monkeypatch)
    group, most = TensorParallelGroup(0, 1, FakeModel.device), 20
    runner, named = warmed_up(Recurrent(group), group, ServingLimits(8192, 256, 8192, most), drafts)
    # Kernels write nothing, and operators of torch index with what they would have written.
    monkeypatch.setattr(torch.Tensor, "new_empty", torch.Tensor.new_zeros)
    rows = torch.full((most,), runner.table.padding_row, dtype=torch.int64)
    with launched_variants() as needed:
        for width in window_widths(drafts):
            for count in range(1, most + 1):
                runner.decode_windows(rows[:count], width, 8)
            for decodes in (1, 2, 9, 17):
                for length in (1, 40, 200):
                    run_step(runner, [length], decodes, width=width)
    assert len({name for name, _ in needed}) > 8
    assert not needed - named


def test_all_reduces_of_any_size_need_no_variant_that_a_dry_run_did_not_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pretend_a_device(monkeypatch)
    exchange = Exchange(1, 2, control_block([0, 0], 0, FakeModel.device), set_bytes=1 << 24)

    def add_up(tokens: int) -> None:
        x = torch.zeros(tokens, 896)
        kernels.allreduce_add_norm(x, x.clone(), x[0].clone(), 1e-6, x, 1.0, None, exchange, two_shots=False)

    with dry_run_variants() as named:
        add_up(1)
    with launched_variants() as needed:
        for tokens in (1, 131, 132, 500):
            add_up(tokens)
    assert {name for name, _ in needed} == {"one_shot_kernel", "row_shot_kernel"}
    assert needed <= named


@torch.inference_mode()
def test_w8a8_needs_no_variant_that_warm_up_did_not_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few tokens leave split-K partials, fuse the gated activation and measure its amax; one and many do not."""
    pretend_a_device(monkeypatch)
    group, most = TensorParallelGroup(0, 1, FakeModel.device), 70
    runner, named = warmed_up(EightBit(group), group, ServingLimits(4096, 2048, 4096, most))
    rows = torch.full((most,), runner.table.padding_row, dtype=torch.int64)
    with launched_variants() as needed:
        for count in range(1, most + 1):
            runner.decode_rows(rows[:count], 8)
        for length in (1, 3, 16, 17, 33, 64, 65, 300, 2048):
            runner.launch(StepPlan(0, admit=[request(0, length)], chunks=[Chunk(0, 0, length)]))
            runner.launch(StepPlan(1, drop=[0]))
    assert {name for name, _ in needed} >= {"w8a8_gemm_kernel", "quantise_by_amax_kernel", "act_and_mul_kernel"}
    assert not needed - named
