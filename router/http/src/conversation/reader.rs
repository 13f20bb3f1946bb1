//! Reads what one generation says.

use text_generation_core::types::{FinishReason, Token};
use text_generation_formats::{Delta, OutputParser};

use super::running::EndReason;

/// Turns the texts of one generation's tokens into deltas.
#[derive(Debug)]
pub(super) struct Reader {
    /// Nothing where all text is content.
    parser: Option<OutputParser>,
    called: bool,
    reasoning_tokens: u32,
}

impl Reader {
    pub fn new(parser: Option<OutputParser>) -> Self {
        Self {
            parser,
            called: false,
            reasoning_tokens: 0,
        }
    }

    /// Takes the text of the next token; with the `last` one also what was held back until now.
    pub fn read(&mut self, token: &mut Token, last: bool) -> Vec<Delta> {
        let text = std::mem::take(&mut token.text);
        let mut deltas = Vec::new();
        match &mut self.parser {
            None if text.is_empty() => {}
            None => deltas.push(Delta::Content(text)),
            Some(parser) => {
                if !text.is_empty() {
                    parser.push(&text, &mut deltas);
                }
                if last {
                    parser.finish(&mut deltas);
                }
            }
        }
        let started = |delta: &Delta| matches!(delta, Delta::ToolStart { .. });
        self.called |= deltas.iter().any(started);
        let reasons = |delta: &Delta| matches!(delta, Delta::Reasoning(_));
        self.reasoning_tokens += u32::from(deltas.iter().any(reasons));
        deltas
    }

    /// Why the generation ended, after all of it was read.
    pub fn reason(&self, reason: FinishReason) -> EndReason {
        match reason {
            FinishReason::Length => EndReason::Length,
            _ if self.called => EndReason::ToolCalls,
            FinishReason::EosToken => EndReason::Stop,
            FinishReason::StopSequence => EndReason::StopSequence,
        }
    }

    /// Tokens that brought reasoning.
    pub fn reasoning_tokens(&self) -> u32 {
        self.reasoning_tokens
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use text_generation_formats::{Format, IdSource, ParserOptions, Tool, ToolKind};

    use super::super::answer::merge;
    use super::*;

    /// Ways in which answers begin and go on, whole and broken.
    const PARTS: [&str; 8] = [
        "<think>\nwhy 你\n</think>\n\n",
        "So be it. ",
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": \"é\\n\"}}\n</tool_call>",
        "\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n",
        "<tool_call>\n{\"name\": \"unknown\", \"arguments\": {}}\n</tool_call>",
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": [1, ",
        "<tool",
        " </think> 5 < 6 ",
    ];

    fn reader() -> Reader {
        let kind = ToolKind::Function { parameters: None };
        let tool = Tool {
            name: "f".to_owned(),
            description: None,
            kind,
            strict: false,
        };
        let options = ParserOptions {
            tools: [tool].into(),
            ids: IdSource::seeded(1),
            ..ParserOptions::default()
        };
        let format = Format::named("hermes").expect("a format");
        Reader::new(Some(format.parser("", &options)))
    }

    /// What a stream of these texts brings, each part in one piece.
    fn folded(pieces: &[String]) -> (Vec<Delta>, EndReason) {
        let mut reader = reader();
        let mut deltas = Vec::new();
        for (index, piece) in pieces.iter().enumerate() {
            let mut token = Token {
                id: 0,
                text: piece.clone(),
                logprob: None,
                special: false,
            };
            let last = index + 1 == pieces.len();
            merge(&mut deltas, reader.read(&mut token, last));
        }
        (deltas, reader.reason(FinishReason::EosToken))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn an_answer_does_not_depend_on_how_its_text_is_cut(
            parts in prop::collection::vec(0..PARTS.len(), 1..5),
            cuts in prop::collection::vec(1_usize..9, 1..20),
        ) {
            let text: String = parts.into_iter().map(|part| PARTS[part]).collect();
            let mut sizes = cuts.into_iter().cycle();
            let mut rest: Vec<char> = text.chars().collect();
            let mut pieces = Vec::new();
            while !rest.is_empty() {
                let size = sizes.next().unwrap_or(1).min(rest.len());
                pieces.push(rest.drain(..size).collect::<String>());
            }
            prop_assert_eq!(folded(&pieces), folded(&[text]));
        }
    }
}
