//! Assembly of command lines from flags.

use clap::ValueEnum;

/// The name of a choice, as on the command line.
pub fn name_of(choice: impl ValueEnum) -> String {
    choice
        .to_possible_value()
        .map(|value| value.get_name().to_owned())
        .unwrap_or_default()
}

/// Builds a command line.
pub struct Flags(pub Vec<String>);

impl Flags {
    /// A flag with its value.
    pub fn value(&mut self, flag: &str, value: impl ToString) {
        self.0.extend([flag.to_owned(), value.to_string()]);
    }

    /// The same, where there is a value.
    pub fn optional(&mut self, flag: &str, value: Option<impl ToString>) {
        if let Some(value) = value {
            self.value(flag, value);
        }
    }

    /// A flag without a value, where it is on.
    pub fn switch(&mut self, flag: &str, on: bool) {
        if on {
            self.0.push(flag.to_owned());
        }
    }
}
