"""Layers with a recurrent state in place of keys and values: convolution, gated delta net, Mamba and Mamba 2."""
