//! A crate without code: its `Cargo.toml` makes all builds compile the same dependencies.
