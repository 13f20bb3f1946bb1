"""Recurrent layers: causal convolution, gated delta rule, selective scan (Mamba) and state space duality (Mamba 2)."""
