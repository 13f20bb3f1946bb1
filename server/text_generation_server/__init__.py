"""Inference shard: weights, KV pool, forward pass and sampling behind gRPC."""

__version__ = "0.1.0"
