"""Helpers of the tests of operators: cases, references, and the compiler without a device."""
