//! Differences between Python's Jinja and the engine that a chat template can tell.

use std::borrow::Cow;

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Environment, Error, State, Value, tests};
use minijinja_contrib::pycompat;

/// Replaces tests.
pub(super) fn install(environment: &mut Environment<'static>) {
    environment.add_test("iterable", |value: &Value| {
        !value.is_none() && tests::is_iterable(value)
    });
    // What has a length and an index, which in Python a text, a dictionary and an undefined value have.
    environment.add_test("sequence", |value: &Value| {
        matches!(
            value.kind(),
            ValueKind::Seq | ValueKind::Map | ValueKind::String | ValueKind::Undefined
        )
    });
    environment.add_test("number", |value: &Value| {
        matches!(value.kind(), ValueKind::Number | ValueKind::Bool)
    });
}

/// Text as it is, anything else as Python prints it.
pub(super) fn string(value: &Value) -> Value {
    match value.as_str() {
        Some(_) => value.clone(),
        None => printable(value).to_string().into(),
    }
}

/// HTML with the references that Python's Jinja chooses.
pub(super) fn escape(value: &Value) -> String {
    let mut escaped = String::new();
    for character in printable(value).to_string().chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '\'' => escaped.push_str("&#39;"),
            '"' => escaped.push_str("&#34;"),
            other => escaped.push(other),
        }
    }
    escaped
}

/// A value that prints as in Python; only floats do not by themselves.
pub(super) fn printable(value: &Value) -> Cow<'_, Value> {
    if value.kind() != ValueKind::Number || value.is_integer() {
        return Cow::Borrowed(value);
    }
    let Ok(float) = f64::try_from(value.clone()) else {
        return Cow::Borrowed(value);
    };
    let scientific = format!("{float:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let text = if float.is_nan() {
        "nan".to_owned()
    } else if (-4..16).contains(&exponent) {
        format!("{float:?}")
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{digits}e{sign}{:02}", exponent.abs())
    };
    Cow::Owned(text.into())
}

/// An argument of a filter by its position or else by its name; None where it is absent or none.
pub(super) fn argument(
    args: &[Value],
    kwargs: &Kwargs,
    index: usize,
    name: &'static str,
) -> Result<Option<Value>, Error> {
    let given = match args.get(index) {
        Some(value) => Some(value.clone()),
        None => kwargs.get::<Option<Value>>(name)?,
    };
    Ok(given.filter(|value| !value.is_none() && !value.is_undefined()))
}

/// `text|indent(width=4, first=false, blank=false)`; the width may be a text.
pub(super) fn indent(text: &str, args: Rest<Value>, kwargs: Kwargs) -> Result<String, Error> {
    let width = argument(&args, &kwargs, 0, "width")?.unwrap_or(Value::from(4));
    let first = argument(&args, &kwargs, 1, "first")?.is_some_and(|first| first.is_true());
    let blank = argument(&args, &kwargs, 2, "blank")?.is_some_and(|blank| blank.is_true());
    kwargs.assert_all_used()?;
    let indentation = match width.as_str() {
        Some(text) => text.to_owned(),
        None => " ".repeat(width.as_usize().unwrap_or(0)),
    };
    let mut indented = String::new();
    for (index, line) in text.split('\n').enumerate() {
        if index > 0 {
            indented.push('\n');
        }
        if if index == 0 {
            first
        } else {
            blank || !line.is_empty()
        } {
            indented.push_str(&indentation);
        }
        indented.push_str(line.strip_suffix('\r').unwrap_or(line));
    }
    Ok(indented)
}

/// Methods of Python's strings, lists and dictionaries.
pub(super) fn method(
    state: &mut State<'_, '_>,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let Some(text) = value.as_str() else {
        return pycompat::unknown_method_callback(state, value, name, args);
    };
    let Some(operand) = args.first().and_then(Value::as_str) else {
        return pycompat::unknown_method_callback(state, value, name, args);
    };
    let list = |parts: Vec<&str>| parts.into_iter().map(Value::from).collect();
    Ok(match name {
        "removeprefix" => text.strip_prefix(operand).unwrap_or(text).into(),
        "removesuffix" => text.strip_suffix(operand).unwrap_or(text).into(),
        "partition" => match text.split_once(operand) {
            Some((before, after)) => list(vec![before, operand, after]),
            None => list(vec![text, "", ""]),
        },
        "rpartition" => match text.rsplit_once(operand) {
            Some((before, after)) => list(vec![before, operand, after]),
            None => list(vec!["", "", text]),
        },
        "rsplit" => {
            let mut parts: Vec<&str> = match args.get(1).and_then(Value::as_usize) {
                Some(most) => text.rsplitn(most.saturating_add(1), operand).collect(),
                None => text.rsplit(operand).collect(),
            };
            parts.reverse();
            list(parts)
        }
        _ => return pycompat::unknown_method_callback(state, value, name, args),
    })
}
