"""Sampling: from logits to the next token, and the embeddings with which the next step begins."""
