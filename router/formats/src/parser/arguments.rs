//! The arguments of one call, as JSON text.

use super::Outcome;
use super::elements::ElementReader;
use super::literals::{Dialect, Literals};
use super::parameters::ParameterReader;
use crate::format::{Arguments, Call};
use crate::json::{JsonScanner, Scan};
use crate::tool::Tool;

/// Turns arguments as the format writes them into a JSON object.
#[derive(Debug, Clone)]
pub(super) enum Reader {
    Json(JsonScanner),
    Parameters(ParameterReader),
    Literals(Literals),
    Elements(ElementReader),
}

impl Reader {
    pub fn json() -> Self {
        Self::Json(JsonScanner::new())
    }

    pub fn new(call: &Call, tool: Option<&Tool>) -> Self {
        match &call.arguments {
            Arguments::Json => Self::json(),
            Arguments::Parameters(parameters) => {
                let schema = tool.and_then(Tool::parameters).cloned();
                Self::Parameters(ParameterReader::new(
                    parameters.clone(),
                    call.close.clone(),
                    schema,
                ))
            }
            Arguments::Keywords => Self::Literals(Literals::new(Dialect::Keywords)),
            Arguments::Braces { quote } => {
                Self::Literals(Literals::new(Dialect::Braces(quote.clone())))
            }
            Arguments::Elements { prefix } => {
                let schema = tool.and_then(Tool::parameters).cloned();
                let close = call.close.clone();
                Self::Elements(ElementReader::new(prefix.clone(), close, schema))
            }
        }
    }

    /// Reads on in `text`, appends JSON text to `out`, and returns how many bytes it needs no more. The rest has to be
    /// given again with what follows it.
    pub fn read(&mut self, text: &str, out: &mut String) -> (usize, Outcome) {
        match self {
            Self::Json(scanner) => {
                let (used, outcome) = match scanner.scan(text) {
                    Scan::More => (text.len(), Outcome::More),
                    Scan::Done(used) => (used, Outcome::Done),
                    Scan::Broken(used) => (used, Outcome::Broken),
                };
                out.push_str(&text[..used]);
                (used, outcome)
            }
            Self::Parameters(reader) => reader.read(text, out),
            Self::Literals(reader) => reader.read(text, out),
            Self::Elements(reader) => reader.read(text, out),
        }
    }
}
