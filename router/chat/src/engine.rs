//! The Jinja environment of chat templates, as transformers defines it.

use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value, escape_formatter};

use super::limits::{Limits, charge, written};
use super::syntax::syntax;
use super::{bounded, checks, json, python};

/// What `raise_exception` was called with.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub(super) struct Raised(pub String);

/// An environment without templates.
pub(super) fn environment(limits: &Limits) -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_syntax(syntax());
    environment.set_fuel(Some(limits.steps));
    environment.set_recursion_limit(limits.depth);
    environment.set_formatter(|output, state, value| {
        charge(written(value)?)?;
        escape_formatter(output, state, &python::printable(value))
    });
    environment.add_function(
        "raise_exception",
        |message: Value| -> Result<Value, Error> {
            let raised = Raised(message.to_string());
            Err(Error::new(ErrorKind::InvalidOperation, raised.0.clone()).with_source(raised))
        },
    );
    environment.add_function("strftime_now", strftime_now);
    environment.add_filter("tojson", json::tojson);
    python::install(&mut environment);
    bounded::install(&mut environment);
    checks::install(&mut environment);
    environment
}

/// Local time in the format of Python's `strftime`.
fn strftime_now(format: &str) -> Result<String, Error> {
    jiff::fmt::strtime::format(format, &jiff::ZonedDateTime::now()).map_err(|error| {
        Error::new(
            ErrorKind::InvalidOperation,
            format!("strftime_now({format:?}): {error}"),
        )
    })
}
