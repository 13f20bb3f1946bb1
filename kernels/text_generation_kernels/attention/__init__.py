"""Attention over the KV pool, the kernels between QKV GEMM and attention, and KV-cache quantisation."""
