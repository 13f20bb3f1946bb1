//! Detection of the format that a model has.
//!
//! In this order: the `response_template` that the model brings along; the format whose form of a call stands in a
//! conversation that the chat template rendered; a built-in format that the tokens of the vocabulary or the chat template
//! name. The first two are accepted only if the format reads the call of the probe back as it was.

use std::collections::HashSet;

use serde_json::{Value, json};

use crate::builtin::reasonings;
use crate::delta::Delta;
use crate::format::{Envelope, Format, Layout};
use crate::ids::IdSource;
use crate::parser::ParserOptions;
use crate::probe;
use crate::response_template;
use crate::tool::{Tool, ToolKind};

/// What is known of a model.
#[derive(Debug, Clone, Default)]
pub struct Evidence {
    /// The `response_template` of `tokenizer_config.json`.
    pub response_template: Option<Value>,
    /// What the chat template made of the conversations of `probes`, those that it did not refuse.
    pub rendered: Vec<String>,
    /// The end of a prompt for an answer.
    pub generation_prompt: String,
    /// Added tokens of the vocabulary.
    pub tokens: HashSet<String>,
    /// The source of the chat template.
    pub template: String,
}

/// By what a format was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    ResponseTemplate,
    RenderedCall,
    Vocabulary,
    /// Only the markers of reasoning were found.
    Reasoning,
}

/// A format and how it was found.
#[derive(Debug, Clone, PartialEq)]
pub struct Detected {
    pub format: Format,
    pub found: Found,
}

/// Tokens or parts of a template that only one family has, for templates that render no calls. A sign of several lines is
/// there where each of them is.
const SIGNS: &[(&str, &str)] = &[
    ("<|constrain|>", "openai"),
    ("[ARGS]", "mistral"),
    ("<|tool_call_argument_begin|>", "kimi_k2"),
    ("<|tool_call_start|>", "lfm2"),
    ("<|tool_call>", "gemma4"),
    ("<start_function_call>", "functiongemma"),
    ("<minimax:tool_call>", "minimax_m2"),
    ("<longcat_arg_key>", "longcat_elements"),
    ("<longcat_tool_call>", "longcat"),
    ("<seed:tool_call>", "seed_oss"),
    ("<steptml:invoke", "step3"),
    ("<dots_function_call>", "dots"),
    ("<|tools_prefix|>", "apertus"),
    ("<|function_call|>", "gigachat3"),
    ("<tool_calls:opensource>", "hy_v3"),
    ("<TOOLCALL>", "nemotron_json"),
    ("<｜DSML｜ calls>", "deepseek_v41"),
    ("｜DSML｜", "deepseek_v32"),
    ("]<]minimax[>[", "minimax_m3"),
    ("<|open|>", "kimi_k3"),
    ("<|content_invoke_tool_json|>", "inkling"),
    ("<atem:function_calls>", "muse_glimmer"),
    ("<|START_TEXT|>", "cohere_command4"),
    ("<|START_ACTION|>", "cohere_command3"),
    ("<tool_calls:", "hy_v4"),
    ("<|plamo:begin_", "plamo3"),
    ("<ifm|tool_calls>", "k2_horizon"),
    ("<|tool_call:start|>", "solar_open2"),
    ("<param name=", "minicpm5"),
    ("<|action_start|>", "internlm"),
    ("<|tool_call:args|>", "solar_open"),
    ("<functions>\n<function_calls>", "olmo3"),
    ("<|/tool_call|>", "phi4_mini_json"),
    ("<|tool_call|>", "granite"),
    ("<|python_start|>", "llama4_pythonic"),
    ("[TOOL_CALLS]", "mistral_v3"),
];

impl Format {
    /// The format of a model, or `None` if nothing is known that fits.
    pub fn detect(evidence: &Evidence) -> Option<Detected> {
        by_response_template(evidence)
            .or_else(|| by_rendered_call(evidence))
            .or_else(|| by_signs(evidence))
            .map(|detected| Detected {
                format: complete_reasoning(detected.format, evidence),
                ..detected
            })
            .or_else(|| by_reasoning(evidence))
    }
}

fn by_response_template(evidence: &Evidence) -> Option<Detected> {
    let format = response_template::read(evidence.response_template.as_ref()?).ok()?;
    let accepted = !format.has_calls()
        || evidence
            .rendered
            .iter()
            .any(|text| reads(&format, after_question(text)).is_some());
    accepted.then_some(Detected {
        format,
        found: Found::ResponseTemplate,
    })
}

fn by_rendered_call(evidence: &Evidence) -> Option<Detected> {
    let arguments = probe::arguments();
    let mut readers = Vec::new();
    for format in Format::all() {
        let format = format.for_vocabulary(&evidence.tokens);
        let envelope = format.envelope;
        if envelope.is_some_and(|envelope| !evidence.shows_envelope(envelope)) {
            continue;
        }
        let written = format.write(&[(probe::NAME, &arguments)]);
        let texts = evidence.rendered.iter().map(|text| after_question(text));
        // Among formats that read the call, the one that would have written it so, that finds it by a marker, and that
        // has the same markers of content.
        let ranks = texts.filter_map(|text| {
            let by = reads(&format, text)?;
            Some((!text.contains(&written), by, envelope.is_none()))
        });
        if let Some(rank) = ranks.min() {
            readers.push((rank, format));
        }
    }
    let (_, format) = readers.into_iter().min_by_key(|(rank, _)| *rank)?;
    Some(Detected {
        format,
        found: Found::RenderedCall,
    })
}

fn by_signs(evidence: &Evidence) -> Option<Detected> {
    let shown = |part: &str| evidence.tokens.contains(part) || evidence.template.contains(part);
    let (_, name) = SIGNS.iter().find(|(sign, _)| sign.lines().all(shown))?;
    Some(Detected {
        format: Format::named(name)?.for_vocabulary(&evidence.tokens),
        found: Found::Vocabulary,
    })
}

fn by_reasoning(evidence: &Evidence) -> Option<Detected> {
    let format = complete_reasoning(Format::plain(), evidence);
    format.has_reasoning().then_some(Detected {
        format,
        found: Found::Reasoning,
    })
}

/// The format with the reasoning that template, prompt and vocabulary show; without any if they show none.
fn complete_reasoning(mut format: Format, evidence: &Evidence) -> Format {
    if format.layout == Layout::Channels {
        return format;
    }
    let own = format.reasoning.take();
    format.reasoning = own
        .into_iter()
        .chain(reasonings())
        .find(|reasoning| evidence.shows(&reasoning.close) && evidence.shows(&reasoning.open));
    format
}

impl Evidence {
    /// Whether template, vocabulary or prompts have this marker.
    fn shows(&self, marker: &str) -> bool {
        let marker = marker.trim();
        self.template.contains(marker)
            || self.tokens.contains(marker)
            || self.generation_prompt.contains(marker)
            || self.rendered.iter().any(|text| text.contains(marker))
    }

    fn shows_envelope(&self, envelope: Envelope) -> bool {
        match envelope.header {
            // The kind of a message may be put together by the template.
            Some(header) => self.shows(header.open),
            None => self.shows(envelope.open) && self.shows(envelope.close),
        }
    }
}

/// What follows the question in a rendered conversation.
fn after_question(text: &str) -> &str {
    text.rsplit_once(probe::QUESTION)
        .map_or(text, |(_, after)| after)
}

/// By what a format finds a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum By {
    Marker,
    /// It stands at the start.
    Place,
}

/// By what the format finds the call of the probe, and only this one, in a rendered answer.
fn reads(format: &Format, text: &str) -> Option<By> {
    // A call without marker counts only where an answer begins, and channels begin with a header.
    let starts = match &format.layout {
        Layout::Plain => return None,
        Layout::Channels => vec![("<|start|>assistant", By::Marker)],
        Layout::Calls(calls) => calls
            .sections
            .iter()
            .map(|section| match (section.at_start, calls.trigger(section)) {
                (true, "") => (probe::NAME, By::Place),
                (true, trigger) => (trigger, By::Place),
                (false, _) => ("", By::Marker),
            })
            .collect(),
    };
    starts
        .into_iter()
        .filter(|(start, _)| {
            text.find(start)
                .is_some_and(|at| is_call(&format_deltas(format, &text[at..])))
        })
        .map(|(_, by)| by)
        .min()
}

fn format_deltas(format: &Format, text: &str) -> Vec<Delta> {
    let parameters = json!({
        "type": "object",
        "properties": {"place": {"type": "string"}, "days": {"type": "integer"}},
    });
    let tool = Tool {
        name: probe::NAME.to_owned(),
        description: None,
        kind: ToolKind::Function {
            parameters: Some(parameters),
        },
        strict: false,
    };
    let options = ParserOptions {
        tools: [tool].into(),
        ids: IdSource::seeded(0),
        ..ParserOptions::default()
    };
    let mut deltas = Vec::new();
    // The template writes its own markers of reasoning around the call.
    let mut parser = format.without_reasoning().parser("", &options);
    parser.push(text, &mut deltas);
    parser.finish(&mut deltas);
    deltas
}

/// Whether the only call among these is the probe's.
fn is_call(deltas: &[Delta]) -> bool {
    let mut names = Vec::new();
    let mut arguments = String::new();
    let mut ended = false;
    for delta in deltas {
        match delta {
            Delta::ToolStart { name, .. } => names.push(name.as_str()),
            Delta::ToolArguments { fragment, .. } => arguments.push_str(fragment),
            Delta::ToolEnd { .. } => ended = true,
            Delta::Reasoning(_) | Delta::Content(_) => {}
        }
    }
    let read: Option<Value> = serde_json::from_str(&arguments).ok();
    ended && names == [probe::NAME] && read == Some(Value::Object(probe::arguments()))
}
