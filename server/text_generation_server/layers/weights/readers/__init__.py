"""Readers of stored matrices, one for each kind of scheme; `reader_of` chooses among them."""

from .choice import reader_of
from .codes import Codes
from .reader import QuantisedReader, Reader, Single

__all__ = ["Codes", "QuantisedReader", "Reader", "Single", "reader_of"]
