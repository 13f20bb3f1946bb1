//! Calls as a format writes them.

use serde_json::Value;

use super::arguments_schema;
use super::lark::{Lark, escape_regex, nested, regex, string};
use super::values::{Dialect, Values, enforceable_text};
use crate::error::FormatError;
use crate::format::{Arguments, Calls, Format, Head, NameForm, Parameters, Section};
use crate::schema::{self, Types};
use crate::tool::{CUSTOM_INPUT, CustomGrammar, Tool, ToolKind};

impl Format {
    /// A rule for calls only: one, or as many as the model likes.
    pub(super) fn required(
        &self,
        lark: &mut Lark,
        calls: &Calls,
        tools: &[&Tool],
        parallel: bool,
    ) -> Result<String, FormatError> {
        let tools = self.tools(lark, calls, tools)?;
        let section = &calls.sections[0];
        let open = lark.literal(&opening(calls, section));
        let body = in_section(lark, calls, section, &tools, parallel);
        let first = lark.rule("section", &format!("{open} {body}"));
        if calls.several || !parallel {
            return Ok(first);
        }
        let space = lark.space();
        Ok(lark.rule("calls", &format!("{first} ( {space}? {first} )*")))
    }

    /// A rule for text in which calls may stand.
    pub(super) fn free(
        &self,
        lark: &mut Lark,
        calls: &Calls,
        tools: &[&Tool],
        parallel: bool,
    ) -> Result<String, FormatError> {
        let tools = self.tools(lark, calls, tools)?;
        let text = text_without(calls);
        let mut alternatives = Vec::new();
        let mut inside = Vec::new();
        for section in &calls.sections {
            let body = in_section(lark, calls, section, &tools, parallel);
            let opening = opening(calls, section);
            if section.at_start {
                let open = lark.literal(&opening);
                alternatives.push(lark.rule("bare", &format!("{open} {body}")));
                continue;
            }
            let (trigger, rest) = opening.split_at(calls.trigger(section).len());
            let until = lark.text_until(&text, trigger);
            let rest = lark.literal(rest);
            inside.push(lark.rule("inside", &format!("{until} {rest} {body}")));
        }
        let text = regex(&text);
        match (inside.is_empty(), parallel) {
            (true, _) => alternatives.push(text),
            (false, true) => alternatives.push(format!("( {} )* {text}", inside.join(" | "))),
            // The answer ends with its call: text after it could hold another one.
            (false, false) => {
                alternatives.extend(inside);
                alternatives.push(text);
            }
        }
        Ok(lark.rule("body", &alternatives.join(" | ")))
    }

    /// A call of any of the tools, without what stands before its name.
    fn tools(
        &self,
        lark: &mut Lark,
        calls: &Calls,
        tools: &[&Tool],
    ) -> Result<String, FormatError> {
        let mut alternatives = Vec::new();
        for tool in tools {
            let arguments = self.arguments(lark, &calls.call.arguments, tool)?;
            let close = lark.literal(&calls.call.close);
            let mut name = String::new();
            let head = match &calls.call.head {
                Head::Object {
                    name: key,
                    arguments,
                } => {
                    crate::json::quote(&tool.name, &mut name);
                    string(&format!("{{\"{key}\": {name}, \"{}\": ", arguments[0]))
                }
                Head::Named { end, form, .. } => {
                    // White space before the arguments belongs to each of them.
                    let end = match &calls.call.arguments {
                        Arguments::Parameters(_) => end.trim_end(),
                        _ => end,
                    };
                    let end = lark.literal(end);
                    match form {
                        NameForm::Numbered => {
                            let name = string(&format!("functions.{}:", tool.name));
                            format!("{name} /[0-9]{{1,3}}/ {end}")
                        }
                        NameForm::Plain | NameForm::WithId(_) => {
                            format!("{} {end}", string(&tool.name))
                        }
                    }
                }
            };
            alternatives.push(lark.rule("tool", &format!("{head} {arguments} {close}")));
        }
        Ok(lark.rule("tools", &alternatives.join(" | ")))
    }

    fn arguments(
        &self,
        lark: &mut Lark,
        arguments: &Arguments,
        tool: &Tool,
    ) -> Result<String, FormatError> {
        let schema = arguments_schema(tool);
        let custom = match &tool.kind {
            ToolKind::Custom { grammar } => grammar.as_ref(),
            ToolKind::Function { .. } => None,
        };
        match (arguments, custom) {
            (Arguments::Parameters(parameters), _) => {
                self.parameters(lark, parameters, tool, &schema, custom)
            }
            // Text between markers stands there as it is.
            (Arguments::Braces { quote }, Some(grammar)) => {
                let open = lark.literal(&format!("{{{CUSTOM_INPUT}:{quote}"));
                let text = lark.rule("input", &custom_text(grammar));
                let close = lark.literal(&format!("{quote}}}"));
                Ok(format!("{open} {text} {close}"))
            }
            // Escaped, a text can be read in terminals only with a look ahead: `\` begins many of them.
            (Arguments::Json | Arguments::Keywords, Some(CustomGrammar::Lark(_))) => {
                Err(self.not_enforceable(tool, "the Lark grammar"))
            }
            (Arguments::Json, _) => Ok(lark.json(&schema, tool.strict)),
            (Arguments::Keywords, Some(CustomGrammar::Regex(_))) => {
                let text = lark.json(&schema["properties"][CUSTOM_INPUT], tool.strict);
                Ok(format!("\"{CUSTOM_INPUT}=\" {text} \")\""))
            }
            (Arguments::Keywords, None) => {
                Ok(self.values(lark, Dialect::Keywords, tool, &schema)?)
            }
            (Arguments::Braces { quote }, None) => {
                let dialect = Dialect::Braces(quote.clone());
                let object = self.values(lark, dialect, tool, &schema)?;
                Ok(format!("\"{{\" {object} \"}}\""))
            }
        }
    }

    /// The members of the arguments, and in the case of keywords the parenthesis after them.
    fn values(
        &self,
        lark: &mut Lark,
        dialect: Dialect,
        tool: &Tool,
        schema: &Value,
    ) -> Result<String, FormatError> {
        let keywords = dialect == Dialect::Keywords;
        let mut values = Values::new(lark, dialect, schema);
        let members = values.members(schema, keywords);
        let missed = values.missed.clone();
        if let (true, Some(part)) = (tool.strict, missed) {
            return Err(self.not_enforceable(tool, &part));
        }
        Ok(if keywords {
            format!("{members} \")\"")
        } else {
            members
        })
    }

    fn not_enforceable(&self, tool: &Tool, part: &str) -> FormatError {
        FormatError::NotEnforceable {
            tool: tool.name.clone(),
            part: part.to_owned(),
            format: self.name.to_string(),
        }
    }

    /// The elements of the arguments in the order of the schema; those that are not required may be missing.
    fn parameters(
        &self,
        lark: &mut Lark,
        parameters: &Parameters,
        tool: &Tool,
        root: &Value,
        custom: Option<&CustomGrammar>,
    ) -> Result<String, FormatError> {
        let object = schema::resolve(root, root, 0);
        let properties = object.get("properties").and_then(Value::as_object);
        let required = object.get("required").and_then(Value::as_array);
        let mut parts = Vec::new();
        for (key, schema) in properties.into_iter().flatten() {
            if lark.is_full() {
                break;
            }
            let value = match custom {
                Some(grammar) if key == CUSTOM_INPUT => custom_value(lark, parameters, grammar),
                _ => self.parameter(lark, parameters, tool, root, schema)?,
            };
            let open = lark.literal(&format!("{}{}", parameters.separator, parameters.open));
            let end = lark.literal(&parameters.key_end);
            let name = lark.rule("argument", &format!("{open} {} {end} {value}", string(key)));
            let is_required =
                required.is_some_and(|keys| keys.iter().any(|required| required == key));
            parts.push(if is_required {
                name
            } else {
                format!("{name}?")
            });
        }
        let open_ended = object.get("additionalProperties") != Some(&Value::Bool(false));
        if properties.is_none_or(serde_json::Map::is_empty) && open_ended {
            let open = lark.literal(&format!("{}{}", parameters.separator, parameters.open));
            let end = lark.literal(&parameters.key_end);
            let attribute = attribute(lark, parameters, true);
            let value = lark.until(&parameters.close);
            let any = format!("{open} /[A-Za-z0-9_.-]{{1,64}}/ {end} {attribute} {value}");
            let any = lark.rule("argument", &any);
            parts.push(format!("{any}*"));
        }
        Ok(parts.join(" "))
    }

    /// The value of an element and what closes it.
    fn parameter(
        &self,
        lark: &mut Lark,
        parameters: &Parameters,
        tool: &Tool,
        root: &Value,
        schema: &Value,
    ) -> Result<String, FormatError> {
        let close = format!("{}{}", parameters.padding, parameters.close);
        let types = schema::types(schema, root);
        let is_text = types == Types::TEXT || types.is_unknown();
        let before = format!(
            "{} {}",
            attribute(lark, parameters, is_text),
            lark.literal(parameters.padding)
        );
        if let Some(values) = schema::finite(schema, root) {
            let values: Vec<String> = values
                .iter()
                .map(|value| match value {
                    Value::String(text) => string(text),
                    other => string(&other.to_string()),
                })
                .collect();
            let values = lark.rule("values", &values.join(" | "));
            return Ok(format!("{before} {values} {}", lark.literal(&close)));
        }
        if types.has(Types::TEXT) || types.is_unknown() {
            let (text, missed) = enforceable_text(schema::resolve(schema, root, 0));
            if let (true, Some(part)) = (tool.strict, missed) {
                return Err(self.not_enforceable(tool, &part));
            }
            // Padding before the marker belongs to the text here, as the parser finds the marker without it too.
            let value = lark.text_until(
                &format!("{text}{}", optional(parameters.padding)),
                &parameters.close,
            );
            return Ok(format!("{before} {value}"));
        }
        let value = lark.json(&schema::with_definitions(schema, root), tool.strict);
        Ok(format!("{before} {value} {}", lark.literal(&close)))
    }
}

/// The regex of text that does not begin as a call without marker does.
fn text_without(calls: &Calls) -> String {
    let brackets: String = calls
        .sections
        .iter()
        .filter(|section| section.at_start)
        .map(|section| escape_regex(calls.trigger(section)))
        .collect();
    if brackets.is_empty() {
        "(?s:.*)".to_owned()
    } else {
        format!("(?s:([^{brackets}\\s].*)?)")
    }
}

/// A regex for this text or nothing.
fn optional(text: &str) -> String {
    if text.is_empty() {
        return String::new();
    }
    format!("(?:{})?", escape_regex(text))
}

/// What stands before the first name of a section.
fn opening(calls: &Calls, section: &Section) -> String {
    format!("{}{}", section.open, calls.before_name())
}

/// Calls after the opening of a section, and its end.
fn in_section(
    lark: &mut Lark,
    calls: &Calls,
    section: &Section,
    tools: &str,
    parallel: bool,
) -> String {
    let close = lark.literal(&section.close);
    if !calls.several || !parallel {
        return format!("{tools} {close}");
    }
    // One literal, as a lexeme that begins another one would be cut off from it.
    let next = lark.literal(&format!("{}{}", calls.separator, calls.before_name()));
    format!("{tools} ( {next} {tools} )* {close}")
}

/// What says whether a value is a text, in formats that say so.
fn attribute(lark: &Lark, parameters: &Parameters, is_text: bool) -> String {
    match parameters.attribute_end {
        Some(end) => lark.literal(&format!("{is_text}{end}")),
        None => String::new(),
    }
}

/// The input of a custom tool and what closes it.
fn custom_value(lark: &mut Lark, parameters: &Parameters, grammar: &CustomGrammar) -> String {
    let before = format!(
        "{} {}",
        attribute(lark, parameters, true),
        lark.literal(parameters.padding)
    );
    let value = lark.rule("input", &custom_text(grammar));
    let close = lark.literal(&format!("{}{}", parameters.padding, parameters.close));
    format!("{before} {value} {close}")
}

/// The text of a custom tool, as it is.
pub(super) fn custom_text(grammar: &CustomGrammar) -> String {
    match grammar {
        CustomGrammar::Lark(grammar) => nested(grammar),
        CustomGrammar::Regex(pattern) => regex(pattern),
    }
}
