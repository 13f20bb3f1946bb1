"""Types of quantised KV caches, for tests that mean those of 8 bits or that of 4."""

from text_generation_kernels import KV_CODES

INT4 = KV_CODES["int4"]
OF_8_BITS = [each for each in KV_CODES.values() if each != INT4]
