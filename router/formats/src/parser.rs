//! Generated text to deltas, as it comes.
//!
//! White space between content and a marker belongs to neither and is dropped, so that the deltas do not depend on how
//! the text was cut. What looked like a call and is none is content, as it was written. A call whose arguments stop
//! being what the format says keeps what it has and gets no [`Delta::ToolEnd`]; the text from there on is content.

mod arguments;
mod calls;
mod channels;
mod content;
mod elements;
mod head;
mod literals;
mod parameters;
mod reasoning;

use std::sync::Arc;

use crate::delta::Delta;
use crate::format::{Calls, Envelope, Format, Layout, Reasoning, Section};
use crate::ids::IdSource;
use crate::tool::Tool;
use arguments::Reader;
use channels::Channels;

/// Undecided text of this length is not read again for every piece that follows it.
const LONG: usize = 4096;

/// What a request asks of the parser.
#[derive(Debug, Clone)]
pub struct ParserOptions {
    /// The tools that were offered. Without any, no calls are looked for, except where every answer has channels.
    pub tools: Arc<[Tool]>,
    /// False: calls after the first are left out.
    pub parallel: bool,
    /// False: reasoning stays in the content, with its markers where the format has them.
    pub separate_reasoning: bool,
    pub ids: IdSource,
}

impl Default for ParserOptions {
    fn default() -> Self {
        Self {
            tools: Arc::default(),
            parallel: true,
            separate_reasoning: true,
            ids: IdSource::default(),
        }
    }
}

/// The parser of one answer.
#[derive(Debug, Clone)]
pub struct OutputParser {
    format: Arc<Format>,
    options: ParserOptions,
    /// The markers of reasoning behind the prompt.
    reasoning: Option<Reasoning>,
    state: State,
    /// Text that is not decided yet. Everything before it is in deltas.
    held: String,
    /// First bytes of the markers that matter in content.
    triggers: Box<[bool; 256]>,
    /// White space is dropped until something else comes.
    drop_space: bool,
    /// At the beginning of a message, which is no content.
    in_header: bool,
    /// No content was delivered yet, so a call without marker may begin.
    fresh: bool,
    /// Calls begun.
    calls: usize,
    /// An undecided head of a call is read again when this much is held.
    retry_at: usize,
    channels: Channels,
}

#[derive(Debug, Clone)]
enum State {
    /// The text may begin with reasoning.
    Start,
    Reasoning,
    Content,
    /// What is held, after white space, is the beginning of a section of this number.
    Section(usize),
    Arguments {
        section: usize,
        reader: Box<Reader>,
    },
    /// After the arguments of a call.
    Tail {
        section: usize,
    },
    /// After a call of a section.
    Between {
        section: usize,
    },
    /// All of it is in messages with headers.
    Channels,
}

/// Whether a step got any further.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Go,
    Wait,
}

/// Whether arguments go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    More,
    Done,
    /// What follows is not what the format says.
    Broken,
}

/// How much a step of reading arguments used, or where and why reading stops.
type Read = Result<usize, (usize, Outcome)>;

/// Reads `text` step by step, until one stops.
fn read_on(text: &str, mut step: impl FnMut(&str) -> Read) -> (usize, Outcome) {
    let mut used = 0;
    loop {
        match step(&text[used..]) {
            Ok(length) => used += length,
            Err((length, outcome)) => return (used + length, outcome),
        }
    }
}

impl Format {
    /// A parser for an answer to a prompt that ends with `prompt_tail`, which may have begun the reasoning. The whole
    /// prompt may be given.
    pub fn parser(&self, prompt_tail: &str, options: &ParserOptions) -> OutputParser {
        OutputParser::new(Arc::new(self.clone()), prompt_tail, options.clone())
    }
}

impl OutputParser {
    fn new(format: Arc<Format>, prompt_tail: &str, options: ParserOptions) -> Self {
        let reasoning = format.reasoning_after(prompt_tail);
        let state = match (&format.layout, &reasoning) {
            (Layout::Channels, _) => State::Channels,
            (_, None) => State::Content,
            (_, Some(reasoning)) if reasoning.is_begun(prompt_tail) => State::Reasoning,
            (_, Some(_)) => State::Start,
        };
        let header = format.envelope.and_then(|envelope| envelope.header);
        let mut parser = Self {
            reasoning,
            in_header: header.is_some_and(|header| header.is_begun(prompt_tail)),
            triggers: Box::new([false; 256]),
            drop_space: matches!(state, State::Reasoning) && options.separate_reasoning,
            state,
            held: String::new(),
            fresh: true,
            calls: 0,
            retry_at: 0,
            channels: Channels::default(),
            format,
            options,
        };
        if matches!(parser.state, State::Channels) {
            parser.begin_channels(prompt_tail);
        }
        let mut triggers = [false; 256];
        if let Some(calls) = parser.active_calls() {
            for section in &calls.sections {
                for trigger in parser.triggers_of(calls, section) {
                    triggers[usize::from(trigger.as_bytes()[0])] = true;
                }
            }
        }
        for marker in parser.envelope_markers() {
            triggers[usize::from(marker.as_bytes()[0])] = true;
        }
        *parser.triggers = triggers;
        parser
    }

    /// Takes the next piece of the text and adds what it brings to `deltas`.
    pub fn push(&mut self, piece: &str, deltas: &mut Vec<Delta>) {
        if self.passes(piece) {
            deltas.push(Delta::Content(piece.to_owned()));
            return;
        }
        // Behind much that is held, white space decides nothing that what follows it would not. To read all again for
        // each piece of a long run of it would take quadratic time.
        let only_space = self.held.len() > LONG && piece.trim_start().is_empty();
        self.held.push_str(piece);
        if !only_space && self.held.len() >= self.retry_at {
            self.retry_at = 0;
            self.run(false, deltas);
        }
    }

    /// The text is over: what was held back is delivered.
    pub fn finish(&mut self, deltas: &mut Vec<Delta>) {
        self.run(true, deltas);
    }

    /// Whether the piece is content and nothing else can become of it.
    fn passes(&self, piece: &str) -> bool {
        matches!(self.state, State::Content)
            && self.held.is_empty()
            && !self.drop_space
            && !self.in_header
            && !self.fresh
            && !piece.is_empty()
            && !piece.ends_with(char::is_whitespace)
            && !piece.bytes().any(|byte| self.triggers[usize::from(byte)])
    }

    fn run(&mut self, end: bool, deltas: &mut Vec<Delta>) {
        loop {
            let step = match &self.state {
                State::Start => self.start(end),
                State::Reasoning => self.reasoning(end, deltas),
                State::Content => self.content(end, deltas),
                State::Section(section) => self.section(*section, end, deltas),
                State::Arguments { .. } => self.arguments(end, deltas),
                State::Tail { section } => self.tail(*section, end),
                State::Between { section } => self.between(*section, end, deltas),
                State::Channels => self.channels(end, deltas),
            };
            if step == Step::Wait {
                return;
            }
        }
    }

    /// The declaration of calls, where calls are looked for.
    fn active_calls(&self) -> Option<&Calls> {
        match &self.format.layout {
            Layout::Calls(calls) if !self.options.tools.is_empty() => Some(calls),
            _ => None,
        }
    }

    /// The texts by which a section is found: its trigger, or where it has none the names of the tools.
    fn triggers_of<'a>(
        &'a self,
        calls: &'a Calls,
        section: &'a Section,
    ) -> impl Iterator<Item = &'a str> {
        let trigger = calls.trigger(section);
        let names = self.options.tools.iter().map(|tool| tool.name.as_str());
        let names = names.filter(move |_| trigger.is_empty() && section.at_start);
        [trigger]
            .into_iter()
            .chain(names)
            .filter(|text| !text.is_empty())
    }

    /// The markers that are dropped from content.
    fn envelope_markers(&self) -> impl Iterator<Item = &'static str> {
        self.format.envelope.into_iter().flat_map(Envelope::markers)
    }

    fn tool(&self, name: &str) -> Option<&Tool> {
        self.options.tools.iter().find(|tool| tool.name == name)
    }

    /// Delivers the first `length` bytes of what is held as content.
    fn deliver(&mut self, length: usize, deltas: &mut Vec<Delta>) {
        if length > 0 {
            self.fresh = false;
            deltas.push(Delta::Content(self.held.drain(..length).collect()));
        }
    }

    fn start_call(&mut self, name: String, id: Option<String>, deltas: &mut Vec<Delta>) {
        let index = self.calls;
        self.calls += 1;
        if self.delivers_calls() {
            let id = id.unwrap_or_else(|| self.options.ids.next(self.format.ids, &name, index));
            deltas.push(Delta::ToolStart { index, id, name });
        }
    }

    fn call_arguments(&self, fragment: String, deltas: &mut Vec<Delta>) {
        if !fragment.is_empty() && self.delivers_calls() {
            let index = self.calls - 1;
            deltas.push(Delta::ToolArguments { index, fragment });
        }
    }

    fn end_call(&self, deltas: &mut Vec<Delta>) {
        if self.delivers_calls() {
            let index = self.calls - 1;
            deltas.push(Delta::ToolEnd { index });
        }
    }

    fn delivers_calls(&self) -> bool {
        self.options.parallel || self.calls <= 1
    }
}
