"""All-reduces through memory that all ranks write to, fused with the residual addition and normalisation."""
