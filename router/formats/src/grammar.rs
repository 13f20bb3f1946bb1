//! The grammar that holds an answer to the tools and the form that a request asks for, in Lark as llguidance reads it.
//!
//! Reasoning is part of the grammar: it may come first, and what is asked for begins after it.

mod calls;
mod channels;
mod elements;
mod lark;
mod parameters;
mod values;

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::error::FormatError;
use crate::format::{Envelope, Format, Layout};
use crate::tool::{CustomGrammar, Tool, ToolChoice, ToolKind};
use lark::Lark;

/// Ids of the tokens that may stand only where a grammar names them, by their text.
pub type SpecialTokens = HashMap<String, u32>;

/// The name of the grammar that the form of an answer is, which stands in the grammar of a request as `@answer`.
pub const ANSWER: &str = "answer";

/// What an answer must be.
#[derive(Debug, Clone)]
pub struct Constraint<'a> {
    pub tools: &'a [Tool],
    pub choice: &'a ToolChoice,
    /// False: one call at most.
    pub parallel: bool,
    /// Whether an answer that calls nothing has a form. It is a grammar of its own, for which [`ANSWER`] stands in this
    /// one.
    pub has_form: bool,
    /// The end of the prompt, or all of it, as the parser is given it.
    pub prompt_tail: &'a str,
    pub special_tokens: &'a SpecialTokens,
}

impl Format {
    /// The grammar for a request, or `None` where there is nothing to enforce: the model may write what it likes, and
    /// no tool is strict and no custom tool has a grammar.
    ///
    /// # Errors
    /// If a call is required that the tools or the format do not have, a strict tool or the grammar of a custom one asks
    /// for something that the format cannot express, or the grammar becomes too large.
    pub fn grammar(&self, request: &Constraint) -> Result<Option<String>, FormatError> {
        let tools = chosen(request)?;
        let forced = request.choice.demands_call();
        if forced && !self.has_calls() {
            return Err(FormatError::NoCalls {
                format: self.name.to_string(),
            });
        }
        let tools = if self.has_calls() { tools } else { Vec::new() };
        if !forced && !request.has_form && !tools.iter().any(|tool| is_enforced(tool)) {
            return Ok(None);
        }
        let mut lark = Lark::new(request.special_tokens);
        let start = match &self.layout {
            Layout::Channels => self.channels_grammar(&mut lark, request, &tools, forced)?,
            Layout::Calls(calls) if forced => {
                let body = self.required(&mut lark, calls, &tools, request.parallel)?;
                let body = self.after_empty_envelope(&mut lark, &body);
                self.after_reasoning(&mut lark, request.prompt_tail, &body)
            }
            Layout::Calls(calls) if !tools.is_empty() => {
                let body = match self.answer(&mut lark, request) {
                    None => self.free(&mut lark, calls, &tools, request.parallel)?,
                    Some(answer) => {
                        let calls = self.required(&mut lark, calls, &tools, request.parallel)?;
                        let calls = self.after_empty_envelope(&mut lark, &calls);
                        lark.rule("body", &format!("{calls} | {answer}"))
                    }
                };
                self.after_reasoning(&mut lark, request.prompt_tail, &body)
            }
            Layout::Calls(_) | Layout::Plain => match self.answer(&mut lark, request) {
                None => return Ok(None),
                Some(answer) => self.after_reasoning(&mut lark, request.prompt_tail, &answer),
            },
        };
        if lark.is_full() {
            return Err(FormatError::TooLarge {
                format: self.name.to_string(),
                limit: lark::MAX_BYTES,
            });
        }
        Ok(Some(lark.finish(&start)))
    }

    /// `body` after reasoning, which the prompt may have begun.
    fn after_reasoning(&self, lark: &mut Lark, prompt: &str, body: &str) -> String {
        let Some(reasoning) = self.reasoning_after(prompt) else {
            return body.to_owned();
        };
        let close = lark.until(reasoning.close.trim());
        let space = lark.space();
        if reasoning.is_begun(prompt) {
            return format!("{close} {space}? {body}");
        }
        let open = lark.literal(&reasoning.open);
        let reasoning = lark.rule("reasoning", &format!("{space}? {open} {close} {space}?"));
        format!("{reasoning}? {body}")
    }

    /// `body` after markers of content without any between them, which some models write before calls.
    fn after_empty_envelope(&self, lark: &mut Lark, body: &str) -> String {
        let Some(envelope) = self.envelope else {
            return body.to_owned();
        };
        let open = lark.literal(envelope.open);
        let close = lark.literal(envelope.close);
        let space = lark.space();
        let before = before(lark, envelope);
        let after = each_may_come(lark, envelope.after);
        let empty = format!("( ( {open} )? {space}? {close} {space}? {before} )?");
        lark.rule("body", &format!("{before} {empty} {body} {after}"))
    }

    /// What may stand between two sections of calls.
    fn between_messages(&self, lark: &mut Lark) -> String {
        let after = self.after(lark);
        self.envelope.map_or(after.clone(), |envelope| {
            format!("{after} {}", before(lark, envelope))
        })
    }

    /// The markers that may end an answer.
    fn after(&self, lark: &Lark) -> String {
        let envelope = self.envelope;
        envelope.map_or(String::new(), |envelope| {
            each_may_come(lark, envelope.after)
        })
    }

    /// The rule for an answer that has a form, with the markers that the model writes around content.
    fn answer(&self, lark: &mut Lark, request: &Constraint) -> Option<String> {
        let form = request.has_form.then(|| format!("@{ANSWER}"))?;
        let answer = lark.rule("answer", &form);
        let Some(envelope) = self.envelope else {
            return Some(answer);
        };
        let open = lark.literal(envelope.open);
        let close = lark.literal(envelope.close);
        let space = lark.space();
        let before = before(lark, envelope);
        let after = each_may_come(lark, envelope.after);
        let body = format!("( {open} {space}? )? {answer} ( {space}? {close} {after} )?");
        Some(lark.rule("body", &format!("{before} {body}")))
    }
}

/// What may stand before content and calls: the beginning of a message, with a name, and further markers.
fn before(lark: &mut Lark, envelope: Envelope) -> String {
    let markers = each_may_come(lark, envelope.before);
    match envelope.header {
        Some(header) => {
            let open = lark.literal(header.open);
            format!("( {open} )? /[A-Za-z0-9_.:=\\/ \\-]{{0,80}}/ {markers}")
        }
        None => markers,
    }
}

/// Each of these markers in turn, or none.
fn each_may_come(lark: &Lark, markers: &[&str]) -> String {
    let markers: Vec<String> = markers
        .iter()
        .map(|marker| format!("( {} )?", lark.literal(marker)))
        .collect();
    markers.join(" ")
}

/// The tools that may be called.
fn chosen<'a>(request: &Constraint<'a>) -> Result<Vec<&'a Tool>, FormatError> {
    match request.choice {
        ToolChoice::None => Ok(Vec::new()),
        ToolChoice::Auto => Ok(request.tools.iter().collect()),
        ToolChoice::Required if request.tools.is_empty() => Err(FormatError::NoTools),
        ToolChoice::Required => Ok(request.tools.iter().collect()),
        ToolChoice::Named(name) => match request.tools.iter().find(|tool| tool.name == *name) {
            Some(tool) => Ok(vec![tool]),
            None => Err(FormatError::UnknownTool { name: name.clone() }),
        },
    }
}

/// Whether calls of this tool are held to a form also where the model is free to call or not.
fn is_enforced(tool: &Tool) -> bool {
    tool.strict || matches!(tool.kind, ToolKind::Custom { grammar: Some(_) })
}

/// The schema of a tool's arguments as far as it is enforced: whole for strict tools and where a call is forced.
fn arguments_schema(tool: &Tool) -> Value {
    match &tool.kind {
        ToolKind::Function { parameters } => match parameters {
            Some(schema) if schema.is_object() => {
                let mut schema = schema.clone();
                // Arguments are an object whatever a schema leaves unsaid.
                if let Some(schema) = schema.as_object_mut()
                    && !schema.contains_key("$ref")
                {
                    schema.insert("type".to_owned(), json!("object"));
                }
                schema
            }
            _ => json!({"type": "object"}),
        },
        ToolKind::Custom { grammar } => {
            let input = match grammar {
                Some(CustomGrammar::Regex(regex)) => {
                    json!({"type": "string", "pattern": format!("^(?:{regex})$")})
                }
                _ => json!({"type": "string"}),
            };
            json!({
                "type": "object",
                "properties": {crate::tool::CUSTOM_INPUT: input},
                "required": [crate::tool::CUSTOM_INPUT],
                "additionalProperties": false,
            })
        }
    }
}
