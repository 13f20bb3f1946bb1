"""Plays the router for an engine: rows, slots and ends are decided here, and plans are sent one or two deep."""

import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from text_generation_server.engine.media_requests import MediaSpan
from text_generation_server.engine.requests import (
    Chunk,
    Grant,
    MaskForm,
    MaskSource,
    MaskWrite,
    NextTokenChooserParameters,
    PromptScores,
    Request,
    RequestFailure,
    ServingLimits,
    SlotRange,
    StepMasks,
    StepPlan,
    StepReply,
    TopTokens,
)

Send = Callable[[StepPlan, MaskSource], Callable[[], StepReply]]
"""Starts a plan; what it returns waits for the reply. The masks are asked for where it has constrained rows: to make
them, replies of the plans before are read.
"""
Allowed = Callable[[Sequence[int]], Sequence[int]]
"""From the tokens so far to those that may come next: a grammar."""

MOST_PAUSES = 3
"""Of one request, so that it ends."""


@dataclass(eq=False)
class Stream:
    """One request, and what it has said so far."""

    id: int
    prompt: list[int]
    max_new_tokens: int
    parameters: NextTokenChooserParameters = field(default_factory=NextTokenChooserParameters)
    top_n_tokens: int = 0
    prefill_logprobs: bool = False
    allowed: Allowed | None = None
    media: tuple[MediaSpan, ...] = ()
    """Whose rows of the media pool are encoded."""
    adapter: int = 0
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    tops: list[TopTokens] = field(default_factory=list)
    scores: list[PromptScores] = field(default_factory=list)
    failure: RequestFailure | None = None
    ended: bool = False
    """No token of it is reported any more."""
    pauses: int = 0
    row: int | None = None
    slots: list[int] = field(default_factory=list)
    shared: int = 0
    """The first slots belong to another request, whose prefix this one has."""
    inputs: int = 0
    """Length of `input_ids` when it was admitted."""
    planned: int = 0
    """Positions computed by plans that were sent."""
    chosen: int = 0
    """Tokens of plans that were sent."""

    @property
    def ids(self) -> list[int]:
        return self.prompt + self.tokens

    @property
    def prompt_logprobs(self) -> list[float]:
        return [value for scores in self.scores for value in scores.logprobs]


def mask_write(slot: int, ids: Iterable[int], form: MaskForm, vocab_size: int = 64) -> MaskWrite:
    """A mask that allows `ids`, in any form."""
    bits = np.zeros(vocab_size, dtype=np.uint8)
    bits[list(ids)] = 1
    contents = {MaskForm.ONLY: bits.nonzero()[0], MaskForm.EXCEPT: (1 - bits).nonzero()[0]}
    return MaskWrite(slot, form, contents.get(form, np.packbits(bits, bitorder="little")))


class Router:
    """`chunk`: prompt tokens of one request in one plan. `depth`: plans under way at once. `pause`: how likely each
    running request is paused in each step. Slots are single, scattered and used again as soon as a plan drops them.
    """

    def __init__(
        self,
        send: Send,
        limits: ServingLimits,
        chunk: int = 64,
        depth: int = 1,
        pause: float = 0.0,
        eos: Sequence[int] = (),
        budget: int = 128,
        seed: int = 0,
        vocab_size: int = 64,
        recurrent: bool = False,
        whole_spans: bool = False,
        number: int = 0,
    ) -> None:
        """`recurrent`: a request that was paused is computed from its first position on. `whole_spans`: no chunk ends
        within a span. `number`: of the next plan.
        """
        self.whole_spans = whole_spans
        self.send = send
        self.vocab_size = vocab_size
        self.recurrent = recurrent
        self.chunk = chunk
        self.depth = depth
        self.pause = pause
        self.eos = frozenset(eos)
        self.budget = budget
        self.random = random.Random(seed)
        self.free_rows = self.random.sample(range(limits.max_batch_size), limits.max_batch_size)
        self.free_slots = self.random.sample(range(limits.max_batch_total_tokens), limits.max_batch_total_tokens)
        self.number = number
        self.waiting: deque[Stream] = deque()
        self.running: list[Stream] = []
        self.leaving: list[Stream] = []
        """To be dropped by the next plan."""
        self.under_way: deque[tuple[Callable[[], StepReply], dict[int, Stream]]] = deque()
        self.paused: list[tuple[Stream, int]] = []
        """With the number of the plan that dropped them: what was sent before may still bring tokens."""
        self.read = number
        self.replies: list[StepReply] = []
        self.mask_slots: dict[frozenset[int], int] = {}
        """What was written to them, ever: there are enough for all."""

    def start(self, *streams: Stream, prefix_of: Stream | None = None, cached: int = 0) -> None:
        """Queues requests. With `prefix_of` they read its first `cached` positions, which stay as they are."""
        for stream in streams:
            if prefix_of is not None:
                stream.slots, stream.shared, stream.planned = prefix_of.slots[:cached], cached, cached
                prefix_of.shared = max(prefix_of.shared, cached)
            self.waiting.append(stream)

    def run(self, *streams: Stream) -> list[list[int]]:
        """Starts requests and steps until nobody is left; returns their tokens."""
        self.start(*streams)
        while self.waiting or self.running or self.paused or self.leaving or self.under_way:
            self.step()
        return [stream.tokens for stream in streams]

    def step(self) -> None:
        """Sends a plan, if there is something to plan, and reads replies so that at most `depth - 1` are under way."""
        if plan := self._plan():
            named = {stream.row: stream for stream in self._named if stream.row is not None}
            wait = self.send(plan, lambda number: self._masks(number, [(row, named[row]) for row in plan.constrained]))
            self.under_way.append((wait, named))
            self.number += 1
        while self.under_way and (len(self.under_way) >= self.depth or not plan):
            self._read()

    def cancel(self, stream: Stream) -> None:
        """Its client is gone."""
        stream.ended = True
        if stream in self.running:
            self._leave(stream)

    def _plan(self) -> StepPlan | None:
        for stream in [s for s in self.running if s.chosen >= s.max_new_tokens]:
            self._leave(stream)
        for stream in [s for s in self.running if s.pauses < MOST_PAUSES and self.random.random() < self.pause]:
            stream.pauses += 1
            self._leave(stream)
            self.paused.append((stream, self.number))
        drop = [stream.row for stream in self.leaving]
        for stream in self.leaving:
            self._release(stream)
        self.leaving.clear()
        self._resume()
        admit = self._admit()
        grants, chunks, decode, constrained = [], [], [], []
        left = self.budget
        self._named = list(self.running)
        for stream in self.running:
            if stream.planned < stream.inputs:
                count = self._cut(stream, min(self.chunk, left, stream.inputs - stream.planned))
                if count:
                    grants += self._grow(stream, stream.planned + count)
                    chunks.append(Chunk(stream.row, stream.planned, count))
                    stream.planned += count
                    stream.chosen += stream.planned == stream.inputs
                    left -= count
                    if stream.allowed and stream.planned == stream.inputs:
                        constrained.append(stream.row)
            elif stream.chosen < stream.max_new_tokens:
                grants += self._grow(stream, stream.planned + 1)
                decode.append(stream.row)
                constrained += [stream.row] if stream.allowed else []
                stream.planned += 1
                stream.chosen += 1
        if not (drop or admit or chunks or decode):
            return None
        self.random.shuffle(decode)
        return StepPlan(self.number, drop, admit, grants, chunks, decode, constrained)

    def _masks(self, number: int, rows: Sequence[tuple[int, Stream]]) -> StepMasks:
        """Masks by what the rows have said up to the plan before; equal ones share a slot."""
        while self.under_way:
            self._read()
        writes, slots = [], []
        for _, stream in rows:
            assert stream.allowed is not None
            ids = frozenset(stream.allowed(stream.tokens))
            if ids not in self.mask_slots:
                self.mask_slots[ids] = len(self.mask_slots) + 1
                form = list(MaskForm)[len(self.mask_slots) % 3]
                writes.append(mask_write(self.mask_slots[ids], ids, form, self.vocab_size))
            slots.append(self.mask_slots[ids])
        return StepMasks(number, writes, [row for row, _ in rows], slots)

    def _admit(self) -> list[Request]:
        admitted: list[Request] = []
        while self.waiting and self.free_rows:
            stream = self.waiting.popleft()
            if stream.ended:
                continue
            stream.row = self.free_rows.pop()
            stream.inputs = len(stream.ids)
            stream.chosen = len(stream.tokens)
            # Slots for the first chunk; the rest is granted as it is needed.
            first = min(stream.inputs, stream.planned + self.chunk)
            self._grow(stream, first)
            request = Request(
                stream.id,
                stream.row,
                np.array(stream.ids, dtype=np.int64),
                stream.parameters,
                tuple(SlotRange(slot, 1) for slot in stream.slots),
                len(stream.tokens),
                stream.planned,
                stream.top_n_tokens,
                stream.prefill_logprobs and not stream.planned and not stream.tokens,
                stream.media,
                stream.adapter,
            )
            admitted.append(request)
            self.running.append(stream)
        return admitted

    def _cut(self, stream: Stream, count: int) -> int:
        """The tokens of a chunk of about `count`."""
        for span in stream.media if self.whole_spans and count else ():
            if span.first < stream.planned + count < span.end:
                return (span.first if span.first > stream.planned else span.end) - stream.planned
        return count

    def _grow(self, stream: Stream, positions: int) -> list[Grant]:
        slots = [self.free_slots.pop() for _ in range(positions - len(stream.slots))]
        stream.slots += slots
        return [Grant(stream.row or 0, tuple(SlotRange(slot, 1) for slot in slots))] if slots else []

    def _leave(self, stream: Stream) -> None:
        self.running.remove(stream)
        self.leaving.append(stream)

    def _release(self, stream: Stream) -> None:
        """Its row is free with this plan, and so are its slots, but for what a paused request keeps."""
        assert stream.row is not None
        self.free_rows.append(stream.row)
        stream.row = None
        kept = stream.shared
        if any(stream is s for s, _ in self.paused) and not self.recurrent:
            kept = self.random.randint(kept, max(kept, stream.planned))
        stream.planned = kept
        self._give_back(stream, kept)

    def _give_back(self, stream: Stream, kept: int) -> None:
        self.free_slots += stream.slots[kept:]
        del stream.slots[kept:]

    def _resume(self) -> None:
        """Paused requests whose last token was read wait again, at the front."""
        for stream, number in [each for each in self.paused if each[1] <= self.read]:
            self.paused.remove((stream, number))
            if not stream.ended and len(stream.tokens) < stream.max_new_tokens:
                stream.planned = min(stream.planned, len(stream.ids) - 1)
                self.waiting.appendleft(stream)
            else:
                self._give_back(stream, stream.shared)

    def _read(self) -> None:
        wait, streams = self.under_way.popleft()
        reply = wait()
        self.replies.append(reply)
        assert reply.number == self.read
        self.read += 1
        for scores in reply.prompt_scores:
            streams[scores.row].scores.append(scores)
        tops = {top.index: top for top in reply.top_tokens}
        for index, (row, token) in enumerate(zip(reply.rows, reply.ids, strict=True)):
            stream = streams[row]
            if stream.ended or len(stream.tokens) >= stream.max_new_tokens:
                continue
            stream.tokens.append(token)
            stream.logprobs += reply.logprobs[index : index + 1]
            stream.tops += [tops[index]] if index in tops else []
            if token in self.eos:
                self.cancel(stream)
        for failure in reply.failures:
            stream = streams[failure.row]
            stream.failure = failure
            self.cancel(stream)
