"""Helpers of the tests. Nothing here is downloaded: checkpoints and tokenizers are made on the spot."""
