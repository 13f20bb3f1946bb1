"""Low-rank matrices beside those of a layer that tokens of images alone pass: `y = W x + B A x` (partial LoRA, Dong et
al., 2024).

A step in which no token reads an image never comes here. Nothing compiles: the matrices are torch's.
"""

from torch import Tensor
from torch.nn import functional

from ...errors import ModelFilesError
from .activations import Activations
from .adapted import Adapting
from .adapted_experts import ExpertSite
from .checkpoint import Checkpoint, NormWeights
from .current_adapters import CurrentAdapters
from .linear import Linear, LinearOver, total_bytes
from .sites import Site

_Part = tuple[int, int, Tensor, Tensor]
"""First output, end, A [rank, inputs] and B [end - first, rank]."""


class ImageTokens:
    """The tokens of the step that runs through such layers. The engine thread alone sets and reads them."""

    def __init__(self) -> None:
        self.present: Tensor | None = None
        """[T, 1] bool: whether a token is of an image."""


class ImageLinear(LinearOver):
    """A linear layer, and what its low-rank matrices add to the outputs of tokens of images. Those of other tokens keep
    their bits.
    """

    def __init__(self, base: Linear, parts: list[_Part], tokens: ImageTokens) -> None:
        super().__init__(base)
        self._parts = parts
        self._tokens = tokens

    @property
    def nbytes(self) -> int:
        """The bytes of the low-rank matrices: those of the matrix are the base's."""
        return total_bytes(*(tensor for _, _, a, b in self._parts for tensor in (a, b)))

    def apply(self, x: Activations, block: int | None = None) -> Tensor:
        """See `Linear`."""
        return self._added(self._base.apply(x, block), x)

    def matmul(self, x: Activations, block: int | None = None) -> Tensor:
        """See `Linear`."""
        return self._added(self._base.matmul(x, block), x)

    def _added(self, out: Tensor, x: Activations) -> Tensor:
        if (present := self._tokens.present) is None:
            raise ValueError("a layer for tokens of images runs in a step without any")
        # The GEMV of one token has normalised `x` by now, and 8-bit inputs are kept in 16 bits beside the codes.
        for first, end, a, b in self._parts:
            low = functional.linear(x.x, a).masked_fill_(~present, 0.0)
            out[:, first:end].addmm_(low, b.t())
        return out


class ImageMatrices(Adapting):
    """Reads the low-rank matrices of layers, and makes layers with them. It is for one use, as it holds the files."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.current = CurrentAdapters()
        self.tokens = ImageTokens()
        self._checkpoint = checkpoint

    def linear(self, linear: Linear) -> Linear:
        """See `Adapting`. Raises ModelFilesError."""
        if linear.site is None:
            raise ModelFilesError("a matrix of a layer is stored in a form that has no such matrices beside it")
        return ImageLinear(linear, self._parts(linear.site), self.tokens)

    def norm(self, weights: NormWeights) -> None:
        """See `Adapting`."""

    def experts(self, site: ExpertSite) -> None:
        """See `Adapting`."""

    def _parts(self, site: Site) -> list[_Part]:
        source, rank = self._checkpoint.source, self._checkpoint.spec.image_rank
        down, up = self._checkpoint.names.image_low_rank
        first = [
            site.columns_of(source.read(f"{name}.{down}.weight", (rank, site.inputs))).to(self._checkpoint.dtype)
            for name in site.modules
        ]
        sizes = {block.name: block.size for block in site.blocks}
        second = {name: source.read(f"{name}.{up}.weight", (size, rank)) for name, size in sizes.items()}
        rows = site.rows_of(second[block.name] for block in site.blocks)
        return [
            (start, end, first[part].contiguous(), rows[start:end].contiguous()) for start, end, part in site.ranges()
        ]
