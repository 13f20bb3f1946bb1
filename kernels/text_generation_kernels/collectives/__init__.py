"""All-reduces over peer memory, fused with residual add and RMSNorm."""
