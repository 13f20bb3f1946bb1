//! `text-generation-benchmark`: parse, run, map the error to an exit code.

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};
use text_generation_benchmark::args::Cli;
use text_generation_benchmark::error::BenchmarkError;
use text_generation_benchmark::run::run;
use text_generation_process::settings::{Rules, Settings};

fn main() -> ExitCode {
    let told = Settings::read(Cli::command(), &Rules::default(), std::env::args_os());
    let cli = match told.and_then(|told| Cli::from_arg_matches(&told.matches)) {
        Ok(cli) => cli,
        Err(error) => error.exit(),
    };
    match run(cli) {
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
