"""The engine: everything between a call of the contract and the model's forward pass. Imports no gRPC."""
