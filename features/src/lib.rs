//! Without code: `Cargo.toml` makes all builds compile the same dependencies.
