"""Code generated from `proto/text_generation_server/pb/generate.proto`; only this file is in git."""
