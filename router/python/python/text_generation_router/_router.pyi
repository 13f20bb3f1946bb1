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
class Action:
    """What the batcher does next."""

    @property
    def kind(self) -> Literal["prefill", "decode", "wait"]: ...
    @property
    def count(self) -> int:
        """How many requests from the head of the queue are prefilled; 0 for the other kinds."""

    @property
    def concat(self) -> Literal["backpressure", "wait_exceeded"] | None:
        """Why running requests are interrupted for the prefill."""

@final
class Scheduler:
    """The batching policy: a pure function of queue, running requests, pool and counters. Holds only its limits.

    Of requests with one sample each, on a shard that answers every decode with a token of every request.
    """

    def __new__(
        cls,
        *,
        max_batch_prefill_tokens: int,
        max_batch_total_tokens: int,
        max_batch_size: int,
        waiting_served_ratio: float = 0.0,
        max_waiting_tokens: int = 20,
    ) -> Scheduler: ...
    def next_action(
        self,
        queue: Sequence[tuple[int, int]],
        running: Sequence[tuple[int, int, int]],
        steps: int,
    ) -> Action:
        """What to do next.

        `queue`: (input_length, max_new_tokens) in order of arrival. `running`: (held, length, remaining): slots held,
        tokens of prompt and answer so far, tokens still to come. `steps`: decode steps since the last prefill.
        """

    def admitted(self, input_length: int, max_new_tokens: int) -> tuple[int, int, int]:
        """The entry for `running` of a request that was just prefilled: (held, length, remaining)."""

    def peak(self, running: Sequence[tuple[int, int, int]]) -> int:
        """The most slots that these requests will ever hold together."""
