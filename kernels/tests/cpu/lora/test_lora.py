"""The operators in torch, which CPUs run: adapters of several ranks in one step, and what they refuse."""

from collections.abc import Iterator

import pytest
import torch
from kernel_support.adapters import Range, Site

import text_generation_kernels as kernels
from text_generation_kernels import part_of_blocks

RANKS = (16, 8, 40, 1)
GATE_UP: list[Range] = [(first, first + 32, first // 32 % 2) for first in range(0, 128, 32)]
QKV: list[Range] = [(0, 64, 0), (64, 80, 1), (80, 96, 2), (96, 160, 0)]
ONE: list[Range] = [(0, 50, 0)]
ADAPTERS = [2, -1, 0, 3, -1, 2, 1, 2, *[0] * 20]
TOLERANCE = {torch.float32: 1e-5, torch.float16: 1e-4, torch.bfloat16: 1e-4}
CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("ranges", [GATE_UP, QKV, ONE], ids=["gate_up", "qkv", "one"])
@pytest.mark.parametrize(("inputs", "tile_tokens"), [(24, 16), (1100, 64)])
def test_each_token_gets_what_its_own_adapter_adds(
    ranges: list[Range], inputs: int, tile_tokens: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    site = Site.of(RANKS, ranges, inputs, dtype, "cpu")
    x, outputs = torch.randn(len(ADAPTERS), inputs).to(dtype), len(site.b[0])
    partials, base = (
        torch.full((2, len(ADAPTERS), outputs), float("nan")),
        torch.randn(len(ADAPTERS), outputs).to(dtype),
    )
    step = site.step(ADAPTERS, tile_tokens, room=2)
    step.run(x, partials[1])
    torch.testing.assert_close(partials[1].double(), site.delta(x, ADAPTERS), atol=TOLERANCE[dtype], rtol=1e-4)
    assert partials[0].isnan().all()
    added = step.run(x, base.clone(), add=True)
    assert torch.equal(added, (base.float() + partials[1]).to(dtype))


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
def test_neighbours_change_no_bits() -> None:
    torch.manual_seed(0)
    site = Site.of(RANKS, QKV, 1024, torch.float32, "cpu")
    x = torch.randn(len(ADAPTERS), 1024)
    among = site.step(ADAPTERS).run(x, torch.empty(len(ADAPTERS), 160))
    for few in ([2, 0, 6, 9], [2]):
        alone = site.step([ADAPTERS[token] for token in few]).run(x[few], torch.empty(len(few), 160))
        assert torch.equal(alone, among[few])


def test_steps_of_the_base_alone() -> None:
    site = Site.of(RANKS, QKV, 32, torch.float32, "cpu")
    x, base = torch.randn(20, 32), torch.randn(20, 160)
    step = site.step([-1] * 20)
    assert not step.run(x, torch.full_like(base, float("nan"))).any()
    assert torch.equal(step.run(x, base.clone(), add=True), base)
    site.step([]).run(x[:0], base[:0])


def test_ranges_of_parts_cover_the_outputs_once() -> None:
    assert part_of_blocks(QKV, 160, CPU).tolist() == [0, 0, 0, 0, 1, 2, 0, 0, 0, 0]
    assert part_of_blocks([(16, 50, 1), (0, 16, 0)], 50, CPU).tolist() == [0, 1, 1, 1]
    for ranges, words in (
        ([(0, 8, 0), (8, 64, 1)], r"range \(0, 8\) of part 0 must .* multiples of 16"),
        ([(0, 80, 0)], r"range \(0, 80\) .* lie in 64 outputs"),
        ([(0, 32, 0), (16, 64, 1)], "two ranges have output 16"),
        ([(0, 32, 0)], "no range has output 32 of 64"),
    ):
        with pytest.raises(ValueError, match=f"part_of_blocks: {words}"):
            part_of_blocks(ranges, 64, CPU)


def test_splits_follow_from_the_inputs_alone() -> None:
    assert [kernels.shrink_splits(inputs) for inputs in (1, 512, 513, 2048, 4096, 14336)] == [1, 1, 2, 4, 8, 8]


def test_shapes_that_do_not_fit_are_named() -> None:
    site = Site.of((16,), ONE, 32, torch.float32, "cpu")
    step, x = site.step([0, 0]), torch.randn(2, 32)
    tables = (step.order, step.tiles, step.work)
    v = torch.empty(1, 1, 1, 16, 16)
    for wrong in (torch.empty(2, 1, 1, 16, 16), torch.empty(1, 2, 1, 16, 16), torch.empty(1, 1, 1, 16, 8)):
        with pytest.raises(ValueError, match=r"lora_shrink: shapes do not fit: .*v"):
            kernels.lora_shrink(x, site.pool_a, site.pool_scale, *tables, wrong)
    with pytest.raises(ValueError, match="lora_shrink: tiles have 16 or 64 tokens, not 8"):
        kernels.lora_shrink(x, site.pool_a, site.pool_scale, *tables, torch.empty(1, 1, 1, 8, 16))
    with pytest.raises(ValueError, match=r"lora_shrink: x is torch.float16 and a is torch.float32"):
        kernels.lora_shrink(x.half(), site.pool_a, site.pool_scale, *tables, v)
    with pytest.raises(ValueError, match="lora_shrink: tokens of x"):
        kernels.lora_shrink(torch.randn(32, 2).t(), site.pool_a, site.pool_scale, *tables, v)
    with pytest.raises(ValueError, match=r"lora_expand: shapes do not fit: .*part_of_block"):
        kernels.lora_expand(v, site.pool_b, torch.zeros(4, dtype=torch.int32), *tables, torch.empty(2, 50))
    with pytest.raises(ValueError, match="lora_expand: pages of b and tokens of the outputs"):
        kernels.lora_expand(v, site.pool_b, None, *tables, torch.empty(50, 2).t())
    sums, half = torch.empty(2, 50), torch.empty(2, 25)
    with pytest.raises(ValueError, match="lora_expand_gated: unknown activation 'tanh'"):
        kernels.lora_expand_gated(v, site.pool_b, None, *tables, sums, "tanh", half)
    with pytest.raises(ValueError, match=r"lora_expand_gated: shapes do not fit: .*base"):
        kernels.lora_expand_gated(v, site.pool_b, None, *tables, sums, "silu", sums)
    with pytest.raises(ValueError, match="lora_expand: run must be a multiple of 16, not 8"):
        kernels.lora_expand(v, site.pool_b, None, *tables, sums, run=8)
