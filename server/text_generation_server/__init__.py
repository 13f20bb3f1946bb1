"""Inference shard: weights, KV pool, forward pass and sampling behind gRPC."""
