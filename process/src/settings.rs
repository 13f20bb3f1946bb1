//! Flags from the command line and the environment, and where each value comes from.
//!
//! An empty variable is as good as none, switches take `1`, `yes` and `on` as well as `true`, and what is wrong with a
//! variable is said of the variable.

use std::ffi::OsString;

use clap::builder::{BoolishValueParser, Resettable};
use clap::error::{ContextKind, ContextValue, Error, ErrorKind};
use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, Command};

use crate::variables::Counts;
pub use crate::variables::{ForeignValues, Rules, StandIn, is_service_link};

/// What a command was told.
#[derive(Debug)]
pub struct Settings {
    pub matches: ArgMatches,
    pub origins: Origins,
    /// What is to be logged about variables, once there is a log.
    pub warnings: Vec<String>,
}

impl Settings {
    /// Reads the words of the command line, of which the first is the name of the program, and the environment.
    ///
    /// # Errors
    /// What is wrong with a flag, or with a variable, which is then named. Help and version are errors too, as clap has it.
    pub fn read<Word>(
        command: Command,
        rules: &Rules,
        words: impl IntoIterator<Item = Word>,
    ) -> Result<Self, Error>
    where
        Word: Into<OsString> + Clone,
    {
        let words: Vec<OsString> = words.into_iter().map(Into::into).collect();
        let mut warnings = Vec::new();
        let command = with_variables(command, rules, &mut warnings);
        match command.clone().try_get_matches_from(&words) {
            Ok(matches) => Ok(Self {
                origins: Origins::of(&command, &matches),
                matches,
                warnings,
            }),
            Err(error) => {
                let error = with_short_value(error);
                let error = without_dashes_tip(about_variable(error, command, &words));
                Err(in_plain_words(error))
            }
        }
    }
}

/// The flags whose values come from the environment, and the variable of each.
#[derive(Debug, Clone, Default)]
pub struct Origins(Vec<(String, String)>);

impl Origins {
    fn of(command: &Command, matches: &ArgMatches) -> Self {
        let (command, matches) = match matches.subcommand() {
            Some((name, inner)) => (command.find_subcommand(name).unwrap_or(command), inner),
            None => (command, matches),
        };
        let variables = command.get_arguments().filter_map(|arg| {
            let id = arg.get_id().as_str();
            let is_set = matches.try_contains_id(id).is_ok()
                && matches.value_source(id) == Some(ValueSource::EnvVariable);
            let variable = arg.get_env().filter(|_| is_set)?;
            let flag = format!("--{}", arg.get_long()?);
            Some((flag, variable.to_string_lossy().into_owned()))
        });
        Self(variables.collect())
    }

    /// A message, and behind it the variables from which the flags that it names have their values.
    pub fn named_in(&self, message: &str) -> String {
        let variables: Vec<&str> = self
            .0
            .iter()
            .filter(|(flag, variable)| mentions(message, flag) && !mentions(message, variable))
            .map(|(_, variable)| variable.as_str())
            .collect();
        if variables.is_empty() {
            return message.to_owned();
        }
        let variables = variables.join(", ");
        format!("{message} (set in the environment: {variables})")
    }
}

/// Whether a text has this name as a whole, and not as a part of a longer one.
pub fn mentions(text: &str, name: &str) -> bool {
    let is_part = |character: char| character.is_ascii_alphanumeric() || "-_".contains(character);
    text.match_indices(name).any(|(start, _)| {
        let before = text[..start].chars().next_back();
        let after = text[start + name.len()..].chars().next();
        !before.is_some_and(is_part) && !after.is_some_and(is_part)
    })
}

/// The command with the variable that counts for each flag.
fn with_variables(command: Command, rules: &Rules, warnings: &mut Vec<String>) -> Command {
    let mut command = command.mut_args(|arg| {
        let arg = match arg.get_action() {
            ArgAction::SetTrue => arg.value_parser(BoolishValueParser::new()),
            // A negative number is a wrong value, of which the message can say what it must be, and no unknown flag.
            action if action.takes_values() && !arg.is_positional() => {
                arg.allow_negative_numbers(true)
            }
            _ => arg,
        };
        let Some(own) = arg.get_env().and_then(|name| name.to_str()) else {
            return arg;
        };
        match rules.judge(own, |name| std::env::var_os(name)) {
            Counts::Own => arg,
            Counts::Another(variable) => arg.env(variable),
            Counts::Nothing(warning) => {
                // Commands have the same flags.
                warnings.extend(warning.filter(|text| !warnings.contains(text)));
                arg.env(Resettable::Reset)
            }
        }
    });
    let names: Vec<String> = command
        .get_subcommands()
        .map(|inner| inner.get_name().to_owned())
        .collect();
    for name in names {
        command = command.mut_subcommand(name, |inner| with_variables(inner, rules, warnings));
    }
    command
}

/// The error, with the name of the variable where that has the value which is wrong.
fn about_variable(error: Error, mut command: Command, words: &[OsString]) -> Error {
    let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg) else {
        return error;
    };
    let flag = flag.clone();
    let without = without_variables(command.clone()).try_get_matches_from(words);
    let is_typed = without.is_err_and(|other| {
        other.get(ContextKind::InvalidArg) == Some(&ContextValue::String(flag.clone()))
    });
    // Before that flags cannot be written as errors name them.
    command.build();
    let named = command.get_arguments().find(|arg| arg.to_string() == flag);
    let variable = named.and_then(|arg| arg.get_env());
    match (is_typed, variable) {
        (false, Some(variable)) => {
            let variable = variable.to_string_lossy();
            let said = error.to_string();
            let said = said.strip_prefix("error: ").unwrap_or(&said);
            let named = format!("'{flag}', set in the environment by {variable}");
            let text = said.replacen(&format!("'{flag}'"), &named, 1);
            Error::raw(error.kind(), text)
        }
        _ => error,
    }
}

/// What Rust's parsers of numbers say, and what a person would.
const PARSERS: [(&str, &str); 4] = [
    ("invalid digit found in string", "not a whole number"),
    (
        "number too large to fit in target type",
        "the number is too large",
    ),
    (
        "cannot parse integer from empty string",
        "the value is empty",
    ),
    ("invalid float literal", "not a number"),
];

/// The error without the words of Rust's parsers.
fn in_plain_words(error: Error) -> Error {
    let said = error.to_string();
    let ranged = range_in_plain_words(&said).unwrap_or_else(|| said.clone());
    let told = PARSERS
        .into_iter()
        .fold(ranged, |text, (theirs, ours)| text.replace(theirs, ours));
    if error.kind() != ErrorKind::ValueValidation || told == said {
        return error;
    }
    let mut plain = Error::raw(error.kind(), told.strip_prefix("error: ").unwrap_or(&told));
    if let Some(flag) = error.get(ContextKind::InvalidArg) {
        plain.insert(ContextKind::InvalidArg, flag.clone());
    }
    plain
}

/// What clap says as "0 is not in 1..=600", as a person would.
fn range_in_plain_words(said: &str) -> Option<String> {
    let (before, after) = said.rsplit_once(" is not in ")?;
    let (about, _value) = before.rsplit_once(": ")?;
    let (range, rest) = after.split_once('\n').unwrap_or((after, ""));
    let (low, high) = range.split_once("..=")?;
    Some(format!(
        "{about}: must be a whole number from {low} to {high}\n{rest}"
    ))
}

/// The error without the tip to write a misspelt flag behind `--`, where it would be the name of a model or of a file.
fn without_dashes_tip(mut error: Error) -> Error {
    if error.kind() == ErrorKind::UnknownArgument
        && let Some(ContextValue::StyledStrs(tips)) = error.remove(ContextKind::Suggested)
    {
        let useful = tips
            .into_iter()
            .filter(|tip| !tip.to_string().contains("as a value, use '-- "));
        let useful: Vec<_> = useful.collect();
        if !useful.is_empty() {
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(useful));
        }
    }
    error
}

/// Characters of a wrong value that an error repeats.
const SHOWN_CHARACTERS: usize = 200;

/// The error with the beginning of a value that is long, as a file's contents in place of its path are.
fn with_short_value(mut error: Error) -> Error {
    if let Some(ContextValue::String(value)) = error.get(ContextKind::InvalidValue)
        && let Some((end, _)) = value.char_indices().nth(SHOWN_CHARACTERS)
    {
        let short = format!("{}...", &value[..end]);
        error.insert(ContextKind::InvalidValue, ContextValue::String(short));
    }
    error
}

fn without_variables(command: Command) -> Command {
    let mut command = command.mut_args(|arg| arg.env(Resettable::Reset));
    let names: Vec<String> = command
        .get_subcommands()
        .map(|inner| inner.get_name().to_owned())
        .collect();
    for name in names {
        command = command.mut_subcommand(name, without_variables);
    }
    command
}

#[cfg(test)]
mod tests {
    use clap::Arg;

    use super::*;

    #[test]
    fn messages_name_the_variables_behind_the_flags_that_they_name() {
        let pair = |flag: &str, variable: &str| (flag.to_owned(), variable.to_owned());
        let origins = Origins(vec![
            pair("--port", "PORT"),
            pair("--speculate", "SPECULATE"),
        ]);
        let cases = [
            (
                "--port must not be 0",
                "--port must not be 0 (set in the environment: PORT)",
            ),
            (
                "`--port 0` and --speculate",
                "`--port 0` and --speculate (set in the environment: PORT, SPECULATE)",
            ),
            (
                "--speculate (or SPECULATE) is not there",
                "--speculate (or SPECULATE) is not there",
            ),
            ("--port-range is wrong", "--port-range is wrong"),
            ("a port is taken", "a port is taken"),
        ];
        for (message, expected) in cases {
            assert_eq!(origins.named_in(message), expected);
        }
    }

    #[test]
    fn what_is_wrong_with_a_number_is_said_in_plain_words() {
        let tries = Arg::new("tries")
            .long("tries")
            .value_parser(clap::value_parser!(u32).range(1..));
        let command = Command::new("c").arg(tries).arg(Arg::new("file"));
        let refused = |words: &[&str]| {
            Settings::read(command.clone(), &Rules::default(), words.iter().copied())
                .unwrap_err()
                .to_string()
        };
        for value in ["0", "-1", "4294967296"] {
            let said = refused(&["c", "--tries", value]);
            let expected = format!(
                "error: invalid value '{value}' for '--tries <tries>': must be a whole number from 1 to 4294967295\n"
            );
            assert!(said.starts_with(&expected), "{said}");
        }
        let said = refused(&["c", "--tries", &"x".repeat(100_000)]);
        assert!(said.len() < 400, "{said}");
        let said = refused(&["c", "--tires", "1"]);
        assert!(said.contains("'--tries'"), "{said}");
        let said = refused(&["c", "--bogus"]);
        assert!(
            said.contains("'--bogus' found") && !said.contains("-- --"),
            "{said}"
        );
    }

    #[test]
    fn what_is_typed_is_not_blamed_on_a_variable() {
        let port = Arg::new("port")
            .long("port")
            .env("PATH")
            .value_parser(clap::value_parser!(u16));
        let command = Command::new("c").arg(port);
        let read = |words: &[&str]| {
            let outcome = Settings::read(command.clone(), &Rules::default(), words.iter().copied());
            outcome.map(|_| ()).map_err(|error| error.to_string())
        };
        let typed = read(&["c", "--port", "x"]).unwrap_err();
        assert!(
            typed.contains("'x' for '--port <port>': not a whole number")
                && !typed.contains("PATH"),
            "{typed}"
        );
        let set = read(&["c"]).unwrap_err();
        assert!(set.starts_with("error: invalid value"), "{set}");
        assert!(
            set.contains("'--port <port>', set in the environment by PATH"),
            "{set}"
        );
        assert_eq!(read(&["c", "--port", "1"]), Ok(()));
    }
}
