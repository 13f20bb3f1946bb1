//! Calls as a format writes them.

use serde_json::Value;

use super::arguments_schema;
use super::elements::Elements;
use super::lark::{Lark, escape_regex, nested, regex, string};
use super::values::{Dialect, Values};
use crate::error::FormatError;
use crate::format::{Arguments, Calls, Envelope, Format, Head, NameForm, Section};
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
        let between = self.between_messages(lark);
        Ok(lark.rule("calls", &format!("{first} ( {space}? {between} {first} )*")))
    }

    /// A rule for text in which calls may stand.
    pub(super) fn free(
        &self,
        lark: &mut Lark,
        calls: &Calls,
        tools: &[&Tool],
        parallel: bool,
    ) -> Result<String, FormatError> {
        let unmarked = calls.is_unmarked().then(|| names(tools));
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
        let dropped: Vec<String> = self
            .envelope
            .into_iter()
            .flat_map(Envelope::markers)
            .map(|marker| lark.text_until(&text, marker))
            .collect();
        let text = match unmarked {
            // Its first word is none of the names, which a call would begin with.
            Some(names) => {
                let word = format!("(?s:\\s*(?:{names})(?:[^{NAME_CHARACTERS}].*)?)");
                lark.except(&text, &word)
            }
            None => regex(&text),
        };
        // Markers of content may stand anywhere in it.
        let before = match dropped.is_empty() {
            true => String::new(),
            false => format!("( {} )*", dropped.join(" | ")),
        };
        match (inside.is_empty(), parallel) {
            (true, _) => alternatives.push(format!("{before} {text}")),
            (false, true) => {
                inside.extend(dropped);
                alternatives.push(format!("( {} )* {text}", inside.join(" | ")));
            }
            // The answer ends with its call: text after it could hold another one.
            (false, false) => {
                let after = self.after(lark);
                alternatives.extend(inside.iter().map(|way| format!("{before} {way} {after}")));
                alternatives.push(format!("{before} {text}"));
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
                    number,
                    name: key,
                    arguments,
                } => {
                    crate::json::quote(&tool.name, &mut name);
                    let named = format!("\"{key}\": {name}, \"{}\": ", arguments[0]);
                    match number {
                        Some(number) => {
                            let before = string(&format!("{{\"{number}\": \""));
                            let after = string(&format!("\", {named}"));
                            format!("{before} /[0-9]{{1,3}}/ {after}")
                        }
                        None => string(&format!("{{{named}")),
                    }
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
                        NameForm::AfterId(marker) => {
                            let marker = lark.literal(marker);
                            format!("/[a-z0-9]{{10}}/ {marker} {} {end}", string(&tool.name))
                        }
                        NameForm::Counted(marker) => {
                            let marker = lark.literal(marker);
                            format!("{} {marker} /[0-9]{{1,3}}/ {end}", string(&tool.name))
                        }
                        NameForm::Plain | NameForm::WithId(_) | NameForm::Doubled => {
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
            (Arguments::Elements { prefix }, None) => {
                let mut elements = Elements::new(lark, prefix, &schema, tool.strict);
                let members = elements.members(&schema);
                let missed = elements.missed.take();
                match missed.filter(|_| tool.strict) {
                    Some(part) => Err(self.not_enforceable(tool, &part)),
                    None => Ok(members),
                }
            }
            (Arguments::Elements { prefix }, Some(grammar)) => {
                let open = lark.literal(&format!("{prefix}<{CUSTOM_INPUT}>"));
                let text = lark.rule("input", &custom_text(grammar));
                let close = lark.literal(&format!("{prefix}</{CUSTOM_INPUT}>"));
                Ok(format!("{open} {text} {close}"))
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

    pub(super) fn not_enforceable(&self, tool: &Tool, part: &str) -> FormatError {
        FormatError::NotEnforceable {
            tool: tool.name.clone(),
            part: part.to_owned(),
            format: self.name.to_string(),
        }
    }
}

/// Those of a tool's name, in a set of a regex.
const NAME_CHARACTERS: &str = r"A-Za-z0-9_\-.:\/";

/// A regex for the names of these tools.
fn names(tools: &[&Tool]) -> String {
    let names: Vec<String> = tools.iter().map(|tool| escape_regex(&tool.name)).collect();
    names.join("|")
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

/// The text of a custom tool, as it is.
pub(super) fn custom_text(grammar: &CustomGrammar) -> String {
    match grammar {
        CustomGrammar::Lark(grammar) => nested(grammar),
        CustomGrammar::Regex(pattern) => regex(pattern),
    }
}
