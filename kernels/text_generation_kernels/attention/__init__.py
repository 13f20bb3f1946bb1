"""Attention over the KV cache, what stands between its GEMMs, and the cache's quantisation."""
