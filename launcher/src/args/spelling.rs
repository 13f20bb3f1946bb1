//! How flags were typed that are ours under another name, so that messages name what stands on the command line.

use clap::error::{ContextKind, ContextValue, Error};
use text_generation_process::settings::mentions;

/// Our names of flags that were typed as another server's, and those as they were typed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Spelling(Vec<(String, String)>);

impl Spelling {
    /// A flag of ours, or one with its value, was typed like this.
    pub fn add(&mut self, ours: &str, typed: &str) {
        let (flag, _) = ours.split_once('=').unwrap_or((ours, ""));
        self.0.push((flag.to_owned(), typed.to_owned()));
    }

    /// A message, and behind it how the flags were typed that it names.
    pub fn named_in(&self, message: &str) -> String {
        let typed: Vec<&str> = self
            .0
            .iter()
            .filter(|(ours, typed)| mentions(message, ours) && !mentions(message, typed))
            .map(|(_, typed)| typed.as_str())
            .collect();
        if typed.is_empty() {
            return message.to_owned();
        }
        format!("{message} (given as {})", typed.join(", "))
    }

    /// An error about a flag, with the name that was typed.
    pub fn in_error(&self, error: Error) -> Error {
        let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg) else {
            return error;
        };
        let (ours, value) = flag.split_once(' ').unwrap_or((flag, ""));
        let Some((_, typed)) = self.0.iter().rfind(|(known, _)| known == ours) else {
            return error;
        };
        let named = format!("'{}' ({ours} here)", format!("{typed} {value}").trim_end());
        let said = error.to_string().replacen(&format!("'{flag}'"), &named, 1);
        Error::raw(error.kind(), said.strip_prefix("error: ").unwrap_or(&said))
    }
}
