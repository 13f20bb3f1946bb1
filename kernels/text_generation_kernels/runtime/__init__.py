"""Runtime of all kernels: Triton and its launches, tuned settings, registration with torch, device, batches."""
