//! Messages about wrong values in a JSON body, in plain words: those of the JSON library name types of Rust.

use std::fmt;

/// Characters of a text that a message repeats.
const SHOWN_CHARACTERS: usize = 60;

/// What is wrong with the value at `path`; `problem` is what the library says of it. Names the field first.
pub fn described(problem: &str, path: &str) -> String {
    let of_object = |name: &str| match path {
        "." => name.to_owned(),
        _ => format!("{path}.{name}"),
    };
    if let Some(name) = quoted(problem, "missing field `") {
        return format!("`{}` is missing", of_object(name));
    }
    if let Some(name) = quoted(problem, "duplicate field `") {
        return format!("`{}` is there twice: send it once", of_object(name));
    }
    if let Some((name, problem)) = of_field(problem) {
        return described(problem, &of_object(name));
    }
    let subject = match path {
        "." => "the body".to_owned(),
        _ => format!("`{path}`"),
    };
    match wrong(problem) {
        Some((expected, Some(given))) => {
            format!("{subject} must be {expected} (given: {given})")
        }
        Some((expected, None)) => format!("{subject} must be {expected}"),
        None => format!("{subject}: {problem}"),
    }
}

/// What is wrong with the field `name` of an object, for who finds it when the object's reader has left the field.
pub fn wrong_field(name: impl fmt::Display, problem: impl fmt::Display) -> String {
    format!("field `{name}`: {problem}")
}

/// The two of [`wrong_field`].
fn of_field(problem: &str) -> Option<(&str, &str)> {
    problem.strip_prefix("field `")?.split_once("`: ")
}

fn quoted<'a>(problem: &'a str, start: &str) -> Option<&'a str> {
    problem.strip_prefix(start)?.strip_suffix('`')
}

/// What was expected, and what was given where that is said.
fn wrong(problem: &str) -> Option<(String, Option<String>)> {
    if let Some(expected) = problem.strip_prefix("expected ") {
        return Some((kind(expected), None));
    }
    let (given, expected) = problem.rsplit_once(", expected ")?;
    let given = if let Some(length) = given.strip_prefix("invalid length ") {
        format!("{length} entries")
    } else if let Some(name) = quoted(given, "unknown variant `") {
        text(&format!("{name:?}"))
    } else {
        let value = given.strip_prefix("invalid type: ");
        value_given(value.or_else(|| given.strip_prefix("invalid value: "))?)
    };
    Some((kind(expected), Some(given)))
}

/// What the library calls a kind of value.
fn kind(expected: &str) -> String {
    let whole = |least: i128, most: i128| format!("a whole number from {least} to {most}");
    match expected {
        "u8" => whole(0, u8::MAX.into()),
        "u16" => whole(0, u16::MAX.into()),
        "u32" => whole(0, u32::MAX.into()),
        // 64 bits wherever this server runs.
        "u64" | "usize" => whole(0, u64::MAX.into()),
        "i32" => whole(i32::MIN.into(), i32::MAX.into()),
        "i64" | "isize" => whole(i64::MIN.into(), i64::MAX.into()),
        "f32" | "f64" => "a number".to_owned(),
        "a boolean" => "true or false".to_owned(),
        "a sequence" => "a list".to_owned(),
        "a map" => "an object".to_owned(),
        "unit" => "null".to_owned(),
        "variant identifier" => "a string".to_owned(),
        "string or map" => "a string or an object".to_owned(),
        _ if is_object(expected) => "an object".to_owned(),
        _ => expected.to_owned(),
    }
}

/// Whether it is the name of one of our own types.
fn is_object(expected: &str) -> bool {
    [
        "struct ",
        "internally tagged enum ",
        "adjacently tagged enum ",
    ]
    .iter()
    .any(|start| expected.starts_with(start))
}

/// A value, of which the library also says what kind it is.
fn value_given(value: &str) -> String {
    let number = ["integer `", "floating point `", "boolean `"]
        .iter()
        .find_map(|kind| quoted(value, kind));
    match (number, value) {
        (Some(number), _) => number.to_owned(),
        (None, "sequence") => "a list".to_owned(),
        (None, "map") => "an object".to_owned(),
        (None, _) => match value.strip_prefix("string ") {
            Some(quoted) => text(quoted),
            None => value.to_owned(),
        },
    }
}

/// A text between quotes, cut where it is long.
fn text(quoted: &str) -> String {
    if quoted.chars().count() <= SHOWN_CHARACTERS + 2 {
        return format!("the text {quoted}");
    }
    let start: String = quoted.chars().take(SHOWN_CHARACTERS + 1).collect();
    format!("the text {start} [...]\"")
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde::de::DeserializeOwned;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "only read")]
    struct Inner {
        b: bool,
    }

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Choice {
        One,
        Two,
    }

    fn refused<T: DeserializeOwned + std::fmt::Debug>(json: &str) -> String {
        let error = serde_json::from_str::<T>(json).expect_err(json).to_string();
        let (problem, _) = error.rsplit_once(" at line ").expect("a place");
        described(problem, "a[0]")
    }

    #[test]
    fn no_type_of_rust_is_named() {
        let long = format!("{:?}", "é".repeat(100));
        let begins = format!(
            "`a[0]` must be a number (given: the text \"{} [...]\")",
            "é".repeat(60)
        );
        for (said, expected) in [
            (
                refused::<u32>("\"x, expected y\""),
                "`a[0]` must be a whole number from 0 to 4294967295 (given: the text \"x, expected y\")",
            ),
            (
                refused::<u32>("-1"),
                "`a[0]` must be a whole number from 0 to 4294967295 (given: -1)",
            ),
            (
                refused::<i32>("1.5"),
                "`a[0]` must be a whole number from -2147483648 to 2147483647 (given: 1.5)",
            ),
            (
                refused::<usize>("null"),
                "`a[0]` must be a whole number from 0 to 18446744073709551615 (given: null)",
            ),
            (
                refused::<i64>("true"),
                "`a[0]` must be a whole number from -9223372036854775808 to 9223372036854775807 (given: true)",
            ),
            (
                refused::<f32>("[]"),
                "`a[0]` must be a number (given: a list)",
            ),
            (refused::<f32>(&long), begins.as_str()),
            (refused::<String>("5"), "`a[0]` must be a string (given: 5)"),
            (
                refused::<bool>("{}"),
                "`a[0]` must be true or false (given: an object)",
            ),
            (
                refused::<Vec<u32>>("\"a\""),
                "`a[0]` must be a list (given: the text \"a\")",
            ),
            (
                refused::<serde_json::Map<String, serde_json::Value>>("7"),
                "`a[0]` must be an object (given: 7)",
            ),
            (refused::<Inner>("7"), "`a[0]` must be an object (given: 7)"),
            (refused::<Inner>("{}"), "`a[0].b` is missing"),
            (
                refused::<Inner>("{\"b\": true, \"b\": true}"),
                "`a[0].b` is there twice: send it once",
            ),
            (
                refused::<Choice>("\"three\""),
                "`a[0]` must be `one` or `two` (given: the text \"three\")",
            ),
            (
                refused::<[u32; 2]>("[1]"),
                "`a[0]` must be an array of length 2 (given: 1 entries)",
            ),
        ] {
            assert_eq!(said, expected);
        }
    }

    #[test]
    fn what_we_say_ourselves_stays() {
        let problem = "the key `a` is not a token id";
        assert_eq!(
            described(problem, "logit_bias"),
            format!("`logit_bias`: {problem}")
        );
        let problem = "expected a string or a list of strings";
        assert_eq!(
            described(problem, "stop"),
            "`stop` must be a string or a list of strings"
        );
        assert_eq!(
            described("missing field `inputs`", "."),
            "`inputs` is missing"
        );
    }
}
