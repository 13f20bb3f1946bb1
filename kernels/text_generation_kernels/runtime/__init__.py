"""What every kernel stands on: Triton and its launches, settings, registration with torch, the device, batches."""
