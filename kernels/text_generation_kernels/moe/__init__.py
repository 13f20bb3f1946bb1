"""Mixtures of experts: routing, grouped GEMMs, and the experts of a single token."""
