"""The gRPC front end of a shard. Imports no torch."""
