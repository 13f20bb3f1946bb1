//! `text-generation-benchmark`: parse, run, map the error to an exit code.

use std::process::ExitCode;

use clap::Parser;
use text_generation_benchmark::args::Cli;
use text_generation_benchmark::error::BenchmarkError;
use text_generation_benchmark::run::run;

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            match error {
                BenchmarkError::Interrupted => ExitCode::from(130),
                BenchmarkError::Argument { .. } => ExitCode::from(2),
                _ => ExitCode::FAILURE,
            }
        }
    }
}
