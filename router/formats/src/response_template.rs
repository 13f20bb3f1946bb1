//! The `response_template` of transformers (`utils/chat_parsing`, version 1) as a declaration.
//!
//! A template says by regexes what stands around reasoning, calls and content. Templates in use need few forms of them:
//! literal text, optional white space, and named groups for what varies. Those are read; anything else is refused by
//! name, and the format is found in another way.

use serde_json::{Map, Value};
use thiserror::Error;

use crate::format::{
    Arguments, Call, Calls, Format, Head, Ids, Layout, NameForm, Parameters, Reasoning, Section,
    Text, text,
};

/// What a template has that is not read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`response_template` has {0}, which is not supported")]
pub(crate) struct Unsupported(String);

fn unsupported<T>(what: impl Into<String>) -> Result<T, Unsupported> {
    Err(Unsupported(what.into()))
}

/// A regex as literal texts around named groups.
#[derive(Debug, Default, PartialEq)]
struct Pattern {
    /// One more than there are groups.
    literals: Vec<String>,
    groups: Vec<String>,
}

/// Bytes of one pattern. To read it takes time by the square of its groups.
const MOST_BYTES: usize = 4096;

/// What a format is called that the model brings along.
pub(crate) const NAME: &str = "response_template";

pub(crate) fn read(template: &Value) -> Result<Format, Unsupported> {
    if template.get("version").is_some_and(|version| *version != 1) {
        return unsupported("another `version` than 1");
    }
    let Some(fields) = template.get("fields").and_then(Value::as_object) else {
        return unsupported("no `fields`");
    };
    let mut format = Format {
        name: text(NAME),
        aliases: &[],
        reasoning: None,
        envelope: None,
        layout: Layout::Plain,
        ids: Ids::Call,
        special: true,
    };
    for (name, field) in fields {
        let Some(field) = field.as_object() else {
            return unsupported(format!("`{name}` that is no object"));
        };
        match name.as_str() {
            "reasoning_content" | "reasoning" | "thinking" => {
                format.reasoning = Some(reasoning(field)?)
            }
            "tool_calls" => format.layout = Layout::Calls(calls(field)?),
            "content" if field.contains_key("open") || field.contains_key("open_pattern") => {
                return unsupported("`content` with an opening");
            }
            "content" => {}
            other => return unsupported(format!("the field `{other}`")),
        }
    }
    Ok(format)
}

fn reasoning(field: &Map<String, Value>) -> Result<Reasoning, Unsupported> {
    let open = match field.get("open_pattern").and_then(Value::as_str) {
        // The prompt has begun it, and the pattern only looks ahead for its end.
        Some(ahead) if ahead.starts_with("(?=") => "<think>".to_owned(),
        _ => literal(field, "open")?,
    };
    Ok(Reasoning {
        open: open.trim().to_owned().into(),
        close: literal(field, "close")?.trim().to_owned().into(),
        ended_by_calls: false,
        others: &[],
    })
}

fn calls(field: &Map<String, Value>) -> Result<Calls, Unsupported> {
    if field
        .get("transform_each")
        .is_some_and(|each| *each != false)
    {
        return unsupported("`transform_each`");
    }
    let open = pattern(field, "open")?;
    let close = pattern(field, "close")?;
    let ([close], []) = (close.literals.as_slice(), close.groups.as_slice()) else {
        return unsupported("a group in `close_pattern`");
    };
    let function = field
        .get("transform")
        .and_then(|transform| transform.get("function"));
    let arguments = function.and_then(|function| function.get("arguments"));
    let content = field
        .get("content")
        .and_then(Value::as_str)
        .unwrap_or("text");
    let (section, call) = match (open.groups.as_slice(), function.and_then(Value::as_str)) {
        ([], Some("{content}")) if content == "json" => {
            let call = Call::object(&["arguments", "parameters"]);
            (section(&open.literals[0], close), call)
        }
        ([group], _)
            if group == "name" && arguments.and_then(Value::as_str) == Some("{content}") =>
        {
            if open.literals[0].starts_with('{') {
                return llama(field, &open);
            }
            named(field, content, &open, close)?
        }
        _ => return unsupported("another `transform` of `tool_calls`"),
    };
    Ok(Calls {
        sections: vec![section],
        separator: text(""),
        several: false,
        call,
    })
}

fn section(open: &str, close: &str) -> Section {
    Section {
        open: open.to_owned().into(),
        close: close.to_owned().into(),
        at_start: false,
    }
}

/// The call of Llama is an object that has its name first. The template knows one such call; our own declaration has
/// several.
fn llama(field: &Map<String, Value>, open: &Pattern) -> Result<Calls, Unsupported> {
    let is_llama = open.literals[1].contains("\"parameters\":")
        && field
            .get("content")
            .is_some_and(|content| content == "json")
        && !field.contains_key("content_args");
    match Format::named("llama3_json").map(|format| &format.layout) {
        Some(Layout::Calls(calls)) if is_llama => Ok(calls.clone()),
        _ => unsupported("an object in `open_pattern` that is not Llama's"),
    }
}

/// A call with its name in the opening.
fn named(
    field: &Map<String, Value>,
    content: &str,
    open: &Pattern,
    close: &str,
) -> Result<(Section, Call), Unsupported> {
    let (before, after) = (&open.literals[0], &open.literals[1]);
    let none = Map::new();
    let options = field
        .get("content_args")
        .and_then(Value::as_object)
        .unwrap_or(&none);
    let arguments = match content {
        "json" if options.is_empty() => Arguments::Json,
        "json" => Arguments::Braces {
            quote: quote(options)?,
        },
        "xml-inline" => Arguments::Parameters(parameters(options)?),
        other => return unsupported(format!("`content` of the kind `{other}` in `tool_calls`")),
    };
    let (section_close, close) = match &arguments {
        // The body runs up to the closing pattern, so what stands before it belongs to the elements.
        Arguments::Parameters(_) => ("", function_end(before, close)),
        _ => ("", close.to_owned()),
    };
    let call = Call {
        head: Head::Named {
            open: text(""),
            end: after.clone().into(),
            form: NameForm::Plain,
        },
        arguments,
        close: close.into(),
    };
    Ok((section(before, section_close), call))
}

/// The end of a call whose elements stand in a `<function=...>` of their own, which the pattern leaves to the body.
fn function_end(open: &str, close: &str) -> String {
    if open.contains("<function=") {
        format!("\n</function>\n{close}")
    } else {
        close.to_owned()
    }
}

fn quote(options: &Map<String, Value>) -> Result<Text, Unsupported> {
    let delimiters = options.get("string_delims").and_then(Value::as_array);
    let pair = match delimiters.map(Vec::as_slice) {
        Some([pair]) if options.get("unquoted_keys") == Some(&Value::Bool(true)) => pair,
        _ => return unsupported("a dialect of JSON other than Gemma's"),
    };
    match (
        pair.get(0).and_then(Value::as_str),
        pair.get(1).and_then(Value::as_str),
    ) {
        (Some(open), Some(close)) if open == close && !open.is_empty() => {
            Ok(open.to_owned().into())
        }
        _ => unsupported("strings that end with another marker than they begin with"),
    }
}

fn parameters(options: &Map<String, Value>) -> Result<Parameters, Unsupported> {
    let Some(tag) = options.get("tag_pattern").and_then(Value::as_str) else {
        return unsupported("`xml-inline` without a `tag_pattern`");
    };
    if options
        .get("merge_duplicates")
        .is_some_and(|merge| *merge != false)
    {
        return unsupported("`merge_duplicates`");
    }
    if tag.len() > MOST_BYTES {
        return unsupported(format!("a `tag_pattern` of more than {MOST_BYTES} bytes"));
    }
    let tag = read_pattern(tag)?;
    if tag.groups != ["key", "value"] {
        return unsupported("a `tag_pattern` without key and value");
    }
    let padded = tag.literals[1].ends_with('\n');
    Ok(Parameters {
        open: tag.literals[0].clone().into(),
        key_end: tag.literals[1].trim_end().to_owned().into(),
        close: tag.literals[2].trim().to_owned().into(),
        padding: if padded { "\n" } else { "" },
        separator: "\n",
        attribute: None,
        cdata: false,
    })
}

/// A text of `key`, or of a pattern without groups.
fn literal(field: &Map<String, Value>, key: &str) -> Result<String, Unsupported> {
    let pattern = pattern(field, key)?;
    match (pattern.literals.as_slice(), pattern.groups.as_slice()) {
        ([literal], []) if !literal.trim().is_empty() => Ok(literal.clone()),
        _ => unsupported(format!("a `{key}_pattern` that is no text")),
    }
}

/// What stands under `key` or `key_pattern`.
fn pattern(field: &Map<String, Value>, key: &str) -> Result<Pattern, Unsupported> {
    match (field.get(key), field.get(&format!("{key}_pattern"))) {
        (Some(Value::String(literal)), None) => Ok(Pattern {
            literals: vec![literal.clone()],
            groups: Vec::new(),
        }),
        (None, Some(Value::String(pattern))) if pattern.len() > MOST_BYTES => {
            unsupported(format!("a `{key}_pattern` of more than {MOST_BYTES} bytes"))
        }
        (None, Some(Value::String(pattern))) => read_pattern(pattern),
        _ => unsupported(format!("no single `{key}` or `{key}_pattern`")),
    }
}

/// Literal text, `\s` and `\n` with quantifiers as white space, and named groups of any inside.
fn read_pattern(pattern: &str) -> Result<Pattern, Unsupported> {
    let refuse = || unsupported(format!("the regex `{pattern}`"));
    let mut read = Pattern {
        literals: vec![String::new()],
        groups: Vec::new(),
    };
    let mut rest = pattern;
    while let Some(next) = rest.chars().next() {
        let literal = match read.literals.last_mut() {
            Some(literal) => literal,
            None => return refuse(),
        };
        if let Some(group) = rest.strip_prefix("(?P<") {
            let (Some((name, _)), Some(length)) = (group.split_once('>'), group_length(rest))
            else {
                return refuse();
            };
            read.groups.push(name.to_owned());
            read.literals.push(String::new());
            rest = &rest[length..];
            continue;
        }
        let mut length = next.len_utf8();
        if next == '\\' {
            let Some(escaped) = rest[1..].chars().next() else {
                return refuse();
            };
            length += escaped.len_utf8();
            match escaped {
                's' | 'n' => literal.push('\n'),
                't' => literal.push('\t'),
                other if other.is_alphanumeric() => return refuse(),
                other => literal.push(other),
            }
        } else if "()[]|^$.*+?".contains(next)
            || (next == '{' && rest[1..].starts_with(|c: char| c.is_ascii_digit()))
        {
            return refuse();
        } else {
            literal.push(next);
        }
        rest = &rest[length..];
        if let Some(quantifier) = rest.chars().next().filter(|c| "*+?".contains(*c)) {
            // What a quantifier leaves open has to be white space.
            if !literal.ends_with(char::is_whitespace) {
                return refuse();
            }
            rest = &rest[quantifier.len_utf8()..];
        }
    }
    Ok(read)
}

/// The length of a group with its brackets.
fn group_length(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    let mut escaped = false;
    let mut class = false;
    for (at, character) in text.char_indices() {
        match character {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '[' => class = true,
            ']' => class = false,
            '(' if !class => depth += 1,
            ')' if !class => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            _ => {}
        }
    }
    None
}
