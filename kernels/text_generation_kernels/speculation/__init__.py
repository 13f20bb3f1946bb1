"""Operators of speculative decoding: windows of drafted tokens, their acceptance, and drafts from the text itself."""
