//! An empty build script: Cargo reads the dependencies of build scripts only where there is one.

fn main() {}
