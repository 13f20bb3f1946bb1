"""The compiled part. What is public is re-exported by the package."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, final

__version__: str

def main(argv: list[str], convert: Callable[[str], str]) -> int:
    """Run the command; `convert` makes a tokenizer.json for a folder that has none. Releases the interpreter lock."""

@final
class ChatTemplate:
    """The chat templates of a model, compiled. Threads may share it."""

    def __new__(cls, templates: Mapping[str, str], special_tokens: Mapping[str, str] = ...) -> ChatTemplate:
        """Compile templates by name: `default`, and `tool_use` where tools have one of their own. Raises ValueError."""

    @staticmethod
    def load(folder: str, tokenizer_config_path: str | None = None) -> ChatTemplate | None:
        """Read the chat template of the model in `folder`; None when it has none. Raises ValueError."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> str:
        """The prompt for a conversation; `kwargs` are variables that the template reads. Raises ValueError."""

@final
class Tokenizer:
    """A loaded `tokenizer.json`, without truncation and padding. Threads may share it."""

    def __new__(cls, json: str) -> Tokenizer:
        """Load the text of a `tokenizer.json`. Raises ValueError."""

    @staticmethod
    def from_file(path: str) -> Tokenizer:
        """Load a `tokenizer.json` file. Raises ValueError."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of `text`. Raises ValueError."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of `ids` as a whole. Raises ValueError."""

    def detokenizer(self) -> Detokenizer:
        """Start a text that is decoded token by token."""

@final
class Detokenizer:
    """The text of one request as its tokens come. Pieces never end inside a character."""

    def push(self, id: int) -> str:
        """Text that `id` completes; empty inside a character."""

    def flush(self) -> str:
        """What is left at the end: U+FFFD for a character that was never completed."""

@final
class SlotAllocator:
    """Owner of the KV slots `0 .. capacity-1`; ranges are `(start, length)`."""

    def __new__(cls, capacity: int) -> SlotAllocator: ...
    @property
    def capacity(self) -> int: ...
    @property
    def available(self) -> int: ...
    def allocate(self, count: int) -> list[tuple[int, int]] | None:
        """Take `count` slots, in one range where possible; None when fewer are free."""

    def free(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Give slots back. Raises ValueError, with nothing freed, when one of them is not allocated."""

@final
class StepCost:
    """What steps take, as a shard measures it at warm-up; straight lines between its points."""

    def __new__(
        cls,
        tokens: Sequence[int],
        times_ms: Sequence[float],
        *,
        pair_ns: float = 0.0,
        context_ns: float = 0.0,
        graph_tokens: Sequence[int] = ...,
    ) -> StepCost:
        """A step of `tokens[i]` tokens, of decodes and chunks together, takes `times_ms[i]` milliseconds.

        `pair_ns` is added for each pair of a token of a prompt and a position that it attends to, `context_ns` for
        each position that a decode attends to. A step with chunks takes as long as one of the next larger of
        `graph_tokens`. Raises ValueError when the lists differ in length.
        """

@final
class Queued:
    """A request that waits, as the policy sees it."""

    def __new__(
        cls,
        length: int,
        left: int,
        *,
        generated: int = 0,
        cached: int = 0,
        unlocked: int = 0,
        follows: bool = False,
    ) -> Queued: ...
    @property
    def length(self) -> int:
        """Its tokens: the prompt and, when it was paused, what it has generated."""

    @property
    def left(self) -> int:
        """The most tokens that it may generate yet."""

    @property
    def generated(self) -> int:
        """Tokens that it has generated."""

    @property
    def cached(self) -> int:
        """Of its tokens, from the first on, those whose K and V others have computed. The last is never one."""

    @property
    def unlocked(self) -> int:
        """Of the cached ones, those that nobody uses now: their slots count as free until it starts."""

    @property
    def follows(self) -> bool:
        """Another request is just computing more of what both begin with, so this one waits for it."""

@final
class Running:
    """A request that owns a row, as the policy sees it. It decodes when nothing is left of its prompt."""

    def __new__(
        cls,
        computed: int,
        slots: int,
        left: int,
        *,
        prompt_left: int = 0,
        generated: int = 0,
        cached: int = 0,
    ) -> Running: ...
    @property
    def computed(self) -> int:
        """Positions, from the first on, whose K and V are computed."""

    @property
    def slots(self) -> int:
        """Slots of its own, which become free when it ends. Each position has one, here or among the cached."""

    @property
    def left(self) -> int:
        """The most tokens that it may generate yet."""

    @property
    def prompt_left(self) -> int:
        """Positions of its prompt that are not computed."""

    @property
    def generated(self) -> int:
        """Tokens that it has generated."""

    @property
    def cached(self) -> int:
        """Positions whose slots it shares with others."""

@final
class Plan:
    """What the next step computes. Numbers of requests are places in the lists that the plan was made from."""

    @property
    def decode(self) -> list[int]:
        """Running requests that get one more token."""

    @property
    def chunks(self) -> list[tuple[int, int]]:
        """Running requests whose prompt is continued, and by how many tokens."""

    @property
    def admit(self) -> list[tuple[int, int]]:
        """Queued requests that start, in order, and how many tokens of their prompt are computed.

        Each takes a row, and a slot for each token of its prompt that is not cached and for its first new one.
        """

    @property
    def pause(self) -> list[int]:
        """Running requests that leave and wait in the queue, because slots run short."""

    @property
    def joined(self) -> Literal["backpressure", "wait_exceeded"] | None:
        """Why requests start while others decode: enough of them wait, or they have waited long enough."""

@final
class Scheduler:
    """The router's policy. It holds its limits and what it has learnt of the lengths of outputs; it knows no clock.

    Of a router that waits for the reply to each step before it plans the next. Belongs to one thread at a time.
    """

    def __new__(
        cls,
        *,
        max_batch_prefill_tokens: int,
        max_batch_total_tokens: int,
        waiting_served_ratio: float = 0.0,
        max_waiting_tokens: int = 20,
        prefill_chunking: bool = True,
        max_token_gap: float | None = None,
        cost: StepCost | None = None,
    ) -> Scheduler:
        """Limits have the names of the router's flags, which `--help` explains.

        `max_token_gap`, in milliseconds, keeps chunks so small that steps with decodes take no longer, as predicted by
        `cost`; without either chunks have up to `max_batch_prefill_tokens`. Raises ValueError for numbers out of range.
        """

    def observe(self, tokens: int, *, cut: bool = False) -> None:
        """An output ended after `tokens`; `cut` when it might have become longer. Later admissions expect the like."""

    def plan(
        self,
        queue: Sequence[Queued],
        running: Sequence[Running],
        free: int,
        rows: int,
        decodes_since_joining: int = 0,
    ) -> Plan:
        """Decide the next step.

        `queue` and `running` are in order: who comes first starts first, and pauses last. `free`: slots, with cached
        ones that nobody uses. `rows`: how many more requests can run. `decodes_since_joining`: tokens that
        the running ones got since others last joined them.
        """
