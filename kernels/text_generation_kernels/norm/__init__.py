"""Elementwise and row operators on hidden states: norms, activations, gates, and quantisation to 8 bits."""
