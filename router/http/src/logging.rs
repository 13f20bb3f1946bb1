//! Log records on standard output: one JSON object a line for the launcher, or text for people.

use std::io::{self, IsTerminal};

use anyhow::Context;
use tracing_subscriber::EnvFilter;

/// Crates of ours, which a bare level word in `LOG_LEVEL` is about.
const OURS: [&str; 4] = [
    "text_generation_client",
    "text_generation_core",
    "text_generation_http",
    "text_generation_router",
];

/// Starts logging. A second call in one process changes nothing.
///
/// # Errors
/// When `level`, the value of `LOG_LEVEL`, is neither a level nor a filter.
pub fn init(json: bool, level: &str) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(directives(level))
        .with_context(|| format!("`LOG_LEVEL` is neither a level nor a filter: {level}"))?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(!json && io::stdout().is_terminal());
    let installed = if json {
        builder
            .json()
            .flatten_event(true)
            .with_current_span(false)
            .with_span_list(false)
            .try_init()
    } else {
        builder.compact().try_init()
    };
    if installed.is_err() {
        tracing::debug!("logging was already set up");
    }
    Ok(())
}

/// A level word is for our crates; the others only warn, as their details are rarely what one looks for.
fn directives(level: &str) -> String {
    let word = level.trim().to_ascii_lowercase();
    match word.as_str() {
        "" => directives("info"),
        "error" | "off" => word,
        "trace" | "debug" | "info" | "warn" => {
            OURS.iter().fold("warn".to_owned(), |filter, target| {
                format!("{filter},{target}={word}")
            })
        }
        _ => level.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::directives;

    #[test]
    fn a_level_is_for_our_crates() {
        assert!(directives("DEBUG").starts_with("warn,text_generation_client=debug,"));
        assert_eq!(directives(""), directives("info"));
        assert_eq!(directives("error"), "error");
        assert_eq!(directives("hyper=trace,info"), "hyper=trace,info");
    }
}
