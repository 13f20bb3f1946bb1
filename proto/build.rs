//! Compiles the shard contract with protox, a compiler in Rust, so that no system `protoc` is needed.

const PROTO: &str = "text_generation_server/pb/generate.proto";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed={PROTO}");
    let files = protox::compile([PROTO], ["."])?;
    tonic_prost_build::configure().compile_fds(files)?;
    Ok(())
}
