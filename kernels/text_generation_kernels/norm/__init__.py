"""Operators on rows of activations: normalisation, activations, and their quantisation to 8 bits."""
