"""Choice of the reader of a matrix."""

from ....config.quantisation import Packed
from ..checkpoint import Matrices
from .online import OnlineReader
from .packed import PackedReader
from .plain import PlainReader
from .reader import Reader
from .w8 import W8Reader


def reader_of(checkpoint: Matrices, name: str) -> Reader:
    """The reader of the module `name`: the only place that asks how a matrix is quantised, and who quantises it."""
    schemes, online = checkpoint.schemes, checkpoint.makes_quantised
    scheme = schemes.of(name) if online else schemes.among(name, checkpoint.source.has)
    if scheme is None:
        return PlainReader(checkpoint)
    reader = PackedReader(checkpoint, scheme) if isinstance(scheme, Packed) else W8Reader(checkpoint, scheme)
    return OnlineReader(checkpoint, reader) if online else reader
