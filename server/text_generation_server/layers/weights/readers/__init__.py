"""Readers of stored matrices, one for each kind of scheme; `reader_of` chooses among them."""

from .choice import reader_of
from .codes import Codes, packed_scales
from .reader import QuantisedReader, Reader, Single

__all__ = ["Codes", "QuantisedReader", "Reader", "Single", "packed_scales", "reader_of"]
