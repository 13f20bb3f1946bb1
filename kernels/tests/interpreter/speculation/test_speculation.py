"""The Triton kernels of speculation in Triton's interpreter: run with TRITON_INTERPRET=1."""

import pytest
import torch
from torch import Tensor

from text_generation_kernels import (
    Drafts,
    Flags,
    Floats,
    Hints,
    Ints,
    SampledTokens,
    SamplingColumns,
    Sequences,
    WindowInputs,
    Windows,
)
from text_generation_kernels.sampling.gumbel import gumbel_noise
from text_generation_kernels.speculation.accept_tokens import accept_tokens_torch, accept_tokens_triton
from text_generation_kernels.speculation.choose_draft import choose_draft_torch, choose_draft_triton
from text_generation_kernels.speculation.hint_draft import hint_draft_torch, hint_draft_triton
from text_generation_kernels.speculation.ngram_draft import ngram_draft_torch, ngram_draft_triton
from text_generation_kernels.speculation.window_tokens import window_tokens_torch, window_tokens_triton

ROWS, POSITIONS, VOCAB, MAX_HINT = 7, 48, 5, 64
PADDING = ROWS - 1
LENGTHS = [1, 2, 9, 30, 47, 12, 0]


def sequences() -> Sequences:
    generator = torch.Generator().manual_seed(5)
    table = torch.randperm(ROWS * POSITIONS, generator=generator).to(torch.int32).view(ROWS, POSITIONS)
    last = torch.randint(VOCAB, (ROWS,), generator=generator)
    return Sequences(last, torch.tensor(LENGTHS), torch.arange(ROWS), table)


def drafts(most: int) -> Drafts:
    generator = torch.Generator().manual_seed(most)
    return Drafts(
        tokens=torch.randint(VOCAB, (ROWS, POSITIONS), generator=generator, dtype=torch.int32),
        ids=torch.randint(VOCAB, (ROWS, most), generator=generator),
        counts=torch.tensor([most, 0, most, 1, most, most, most]),
        # Row 4 ends with its next token, and row 5 has ended.
        limits=torch.tensor([40, 40, 40, 40, 48, 12, 40]),
        hinted=torch.tensor([0, 1, 1, 0, 1, 1, 0]),
    )


def hints(of_drafts: Drafts) -> Hints:
    """Of row 0 one that begins with its next token, of row 1 none, of row 2 one that fits after 4 tokens, of row 3 one
    with another token since, of row 4 one that fits and has no more tokens, of row 5, which has ended, one that fits,
    and of row 6, the padding, anything.
    """
    firsts, counts = [1, 0, 5, 20, 40, 8, 0], [7, 0, MAX_HINT, 30, 7, 30, 3]
    ids = torch.randint(VOCAB, (ROWS, MAX_HINT), generator=torch.Generator().manual_seed(1), dtype=torch.int32)
    for row, (first, length) in enumerate(zip(firsts, LENGTHS, strict=True)):
        ids[row, : max(0, length - first)] = of_drafts.tokens[row, first:length]
    ids[3, 4] = (ids[3, 4] + 1) % VOCAB
    return Hints(ids, torch.tensor(firsts), torch.tensor(counts))


def windows(width: int) -> Windows:
    rows = torch.tensor([3, 0, PADDING, 4, 5, 1, 2, PADDING])
    return Windows(rows, torch.tensor([width, width, 1, width, width, 1, width, 1]), width)


def copies(values: tuple[Tensor, ...]) -> list[Tensor]:
    return [each.clone() for each in values]


@pytest.mark.parametrize("width", [1, 2, 4])
def test_windows_are_those_of_torch(width: int) -> None:
    found: list[list[Tensor]] = []
    for operator in (window_tokens_torch, window_tokens_triton):
        number = 8 * width
        rows, ids, positions, slots = (torch.full((number,), -7) for _ in range(4))
        inputs = WindowInputs(rows, ids, positions, slots, torch.full((number,), -7, dtype=torch.int32))
        operator(windows(width), sequences(), drafts(4), 999, inputs)
        found.append(list(inputs))
    for ours, expected in zip(found[1], found[0], strict=True):
        assert torch.equal(ours, expected)
    _, _, positions, slots, kv_lens = found[1]
    # Row 3 has one draft, and row 5 has ended.
    assert kv_lens[:width].tolist() == [30, 31, 0, 0][:width]
    assert positions[:width].tolist() == [29, 30, 0, 0][:width]
    assert (kv_lens[4 * width : 5 * width] == 0).all()
    assert (slots[4 * width : 5 * width] == 999).all()


@pytest.mark.parametrize("width", [1, 2, 4])
def test_accepted_tokens_are_those_of_torch(width: int) -> None:
    generator = torch.Generator().manual_seed(width)
    of_windows = windows(width)
    chosen = torch.randint(VOCAB, (8, width), generator=generator)
    # Some choices are those of the drafts.
    right = drafts(4).ids[of_windows.rows][:, :width]
    chosen = torch.where(torch.rand((8, width), generator=generator) < 0.7, right, chosen)
    found: list[list[Tensor]] = []
    for operator in (accept_tokens_torch, accept_tokens_triton):
        sampled = SampledTokens.empty(8 * width, torch.device("cpu"))
        sampled.tokens.copy_(chosen.flatten())
        sampled.valid.fill_(1)
        sampled.valid[3] = 0
        state, of_drafts = Sequences(*copies(sequences())), Drafts(*copies(drafts(4)))
        ints = torch.zeros(ROWS, int(Ints.WIDTH), dtype=torch.int32)
        ints[::2, Ints.FLAGS] = int(Flags.PENALTIES)
        one = torch.zeros(0)
        columns = SamplingColumns(one, ints, one, one, one, torch.zeros(ROWS, VOCAB, dtype=torch.int32))
        outcome = torch.full((8, 4), -7)
        operator(of_windows, sampled, state, of_drafts, columns, outcome)
        found.append([*state, of_drafts.tokens, of_drafts.hinted, columns.counts, outcome])
    for ours, expected in zip(found[1], found[0], strict=True):
        assert torch.equal(ours, expected)
    counts = found[1][-1][:, 0].tolist()
    # Padding and the row that has ended get nothing, the row at its end one token.
    assert [counts[i] for i in (2, 3, 4, 7)] == [0, 1, 0, 0]
    assert max(counts) <= width
    # Of rows 4, 1 and 2 hints were used, and are used up.
    assert found[1][-1][:, 3].tolist() == [0, 0, 0, 1, 0, 1, 1, 0]
    assert found[1][-3].tolist() == [0, 0, 0, 0, 0, 1, 0]


@pytest.mark.parametrize("most", [1, 3, 15])
def test_hints_are_those_of_torch(most: int) -> None:
    before, found = drafts(most), list[Drafts]()
    before.hinted.zero_()
    for operator in (hint_draft_torch, hint_draft_triton):
        of_drafts = Drafts(*copies(before))
        operator(windows(1), sequences(), hints(before), of_drafts)
        found.append(of_drafts)
    for ours, expected in zip(found[1], found[0], strict=True):
        assert torch.equal(ours, expected)
    # Others keep the drafts that they have.
    assert found[1].hinted.tolist() == [1, 0, 1, 0, 0, 0, 0]
    assert found[1].counts.tolist() == [min(most, 7), 0, most, 1, most, most, most]
    ids = hints(before).ids
    assert found[1].ids[0, : min(most, 7)].tolist() == ids[0, : min(most, 7)].tolist()
    assert found[1].ids[2].tolist() == ids[2, 4 : 4 + most].tolist()
    others = [1, 3, 4, 5, 6]
    assert torch.equal(found[1].ids[others], before.ids[others])


@pytest.mark.parametrize(("least", "keeps"), [(2, False), (3, True)])
@pytest.mark.parametrize("most", [1, 3, 15])
def test_drafts_are_those_of_torch(most: int, least: int, keeps: bool) -> None:
    found: list[list[Tensor]] = []
    for operator in (ngram_draft_torch, ngram_draft_triton):
        of_drafts = Drafts(*copies(drafts(most)))
        operator(windows(1), sequences(), of_drafts, least, keeps)
        found.append([of_drafts.ids, of_drafts.counts])
    assert torch.equal(found[1][1], found[0][1])
    drafted = found[0][1] > 0
    assert drafted.any()
    assert torch.equal(found[1][0][drafted], found[0][0][drafted])


def test_drafts_are_what_followed_the_longest_match_and_of_several_the_latest() -> None:
    text = [1, 2, 3, 9, 8, 1, 2, 3, 7, 6, 2, 3, 4, 4, 1, 2, 3]
    tokens = torch.zeros(1, 32, dtype=torch.int32)
    tokens[0, : len(text)] = torch.tensor(text)
    of_drafts = Drafts(
        tokens,
        torch.zeros(1, 4, dtype=torch.int64),
        torch.zeros(1, dtype=torch.int64),
        torch.tensor([32]),
        torch.zeros(1, dtype=torch.int64),
    )
    length = torch.tensor([len(text)])
    state = Sequences(length, length, length, tokens)
    of_one = Windows(torch.tensor([0]), torch.tensor([1]), 1)
    for operator in (ngram_draft_torch, ngram_draft_triton):
        operator(of_one, state, of_drafts)
        assert of_drafts.ids.tolist() == [[7, 6, 2, 3]]
    # A longer match than there is leaves drafts as they are.
    for operator in (ngram_draft_torch, ngram_draft_triton):
        of_drafts.ids.fill_(9)
        operator(of_one, state, of_drafts, 4, True)
        assert of_drafts.ids.tolist() == [[9, 9, 9, 9]]
        assert of_drafts.counts.tolist() == [4]
    # What reaches the end of the text goes on as if it repeated itself.
    tokens[0, : len(text)] = torch.tensor([5, 6] * 8 + [5])
    for operator in (ngram_draft_torch, ngram_draft_triton):
        operator(of_one, state, of_drafts)
        assert of_drafts.ids.tolist() == [[6, 5, 6, 5]]


def sampling_columns() -> SamplingColumns:
    """Every other row samples, each at a temperature of its own."""
    floats, ints = torch.zeros(ROWS, int(Floats.WIDTH)), torch.zeros(ROWS, int(Ints.WIDTH), dtype=torch.int32)
    floats[:, Floats.TEMPERATURE] = torch.linspace(0.3, 1.7, ROWS)
    ints[::2, Ints.FLAGS] = int(Flags.SAMPLE)
    seed = torch.arange(ROWS) * 123_456_789_123 - 2**40
    one = torch.zeros(0)
    return SamplingColumns(floats, ints, seed, one, one, torch.zeros(ROWS, 4096, dtype=torch.int32))


@pytest.mark.parametrize("number", [3, 1024, 1500])
@pytest.mark.parametrize("offset", [0, 2])
def test_choices_of_a_drafter_are_those_of_torch(number: int, offset: int) -> None:
    generator = torch.Generator().manual_seed(number)
    rows = torch.tensor([3, 0, PADDING, 4, 5, 2])
    logits = torch.randn(len(rows), number, generator=generator).bfloat16()
    # Of equal scores the first counts.
    logits[3, number // 2 :] = logits[3].max()
    ids = torch.randperm(4096, generator=generator)[:number].sort().values
    columns, generated = sampling_columns(), torch.arange(ROWS) * 11
    found: list[list[Tensor]] = []
    for operator in (choose_draft_torch, choose_draft_triton):
        of_drafts, tokens = Drafts(*copies(drafts(4))), torch.full((len(rows),), -7)
        operator(logits, ids, rows, generated, offset, columns, of_drafts, tokens)
        found.append([tokens, of_drafts.ids])
    assert torch.equal(found[1][0], found[0][0])
    assert torch.equal(found[1][1], found[0][1])
    assert torch.equal(found[0][1][rows, offset], found[0][0])


def test_a_drafter_with_the_logits_of_its_model_makes_the_same_choices() -> None:
    rows = torch.tensor([0, 2, 4, 1])
    logits = torch.randn(4, 4096, generator=torch.Generator().manual_seed(1))
    columns, generated, offset = sampling_columns(), torch.arange(ROWS) * 11, 3
    noise = gumbel_noise(columns.seed[rows], generated[rows] + offset, 4096)
    scores = torch.where(
        (columns.ints[rows, Ints.FLAGS] != 0)[:, None],
        logits / columns.floats[rows, Floats.TEMPERATURE][:, None] + noise,
        logits,
    )
    tokens = torch.zeros(4, dtype=torch.int64)
    choose_draft_triton(logits, torch.arange(4096), rows, generated, offset, columns, drafts(4), tokens)
    assert torch.equal(tokens, scores.argmax(dim=1))
    # Ids of a smaller vocabulary have the noise that they have in the model.
    ids = torch.arange(1, 4096, 3)
    choose_draft_triton(logits[:, ids], ids, rows, generated, offset, columns, drafts(4), tokens)
    assert torch.equal(tokens, ids[scores[:, ids].argmax(dim=1)])
