"""Adapters (LoRA, Hu et al., 2021) of any rank beside one base: shrink and expand over rank pages, and their tables."""
