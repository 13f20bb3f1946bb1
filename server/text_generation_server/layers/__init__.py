"""Layers, in two halves: `weights` says what a layer holds and how ranks share it, `infer` what it computes."""
