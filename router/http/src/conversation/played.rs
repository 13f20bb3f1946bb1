//! Random answers of a model, played to the encoders of an API as a generation would play them.

use proptest::prelude::*;
use text_generation_core::types::{FinishReason, Token};
use text_generation_formats::{Delta, Format, IdSource, ParserOptions, Tool, ToolKind};

use super::answer::merge;
use super::reader::Reader;
use super::{ConversationEvent, End};
use crate::headers::Sizes;
use crate::sse::{Encoder, EventBuffer};

/// Ways in which answers begin and go on, whole and broken.
const PARTS: [&str; 9] = [
    "<think>\nwhy 你\n</think>\n\n",
    "So be it. ",
    "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": \"é\\n\"}}\n</tool_call>",
    "\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n",
    "<tool_call>\n{\"name\": \"g\", \"arguments\": {\"y\": [1, {\"z\": null}]}}\n</tool_call>",
    "<tool_call>\n{\"name\": \"unknown\", \"arguments\": {}}\n</tool_call>",
    "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": [1, ",
    "<tool",
    " </think> 5 < 6 ",
];

/// One answer in both forms.
#[derive(Debug, Clone)]
pub struct Played {
    /// The texts of the tokens that a stream brings.
    pieces: Vec<String>,
    reason: FinishReason,
}

impl Played {
    /// Reasoning, content and calls in any order, cut into tokens anywhere, with any end.
    pub fn any() -> impl Strategy<Value = Self> {
        let parts = prop::collection::vec(0..PARTS.len(), 0..6);
        let cuts = prop::collection::vec(1_usize..9, 1..20);
        let ends = prop_oneof![
            Just(FinishReason::EosToken),
            Just(FinishReason::StopSequence),
            Just(FinishReason::Length),
        ];
        (parts, cuts, 0_usize..40, ends).prop_map(|(parts, cuts, missing, reason)| {
            let text: String = parts.into_iter().map(|part| PARTS[part]).collect();
            let mut rest: Vec<char> = text.chars().collect();
            // `max_tokens` cuts anywhere.
            if reason == FinishReason::Length {
                rest.truncate(rest.len().saturating_sub(missing));
            }
            let mut sizes = cuts.into_iter().cycle();
            let mut pieces = Vec::new();
            while !rest.is_empty() {
                let size = sizes.next().unwrap_or(1).min(rest.len());
                pieces.push(rest.drain(..size).collect());
            }
            // The token that ends the text has none.
            pieces.push(String::new());
            Self { pieces, reason }
        })
    }

    /// What a stream brings, token by token.
    pub fn events(&self) -> Vec<ConversationEvent> {
        self.read(&self.pieces)
    }

    /// The same with each text in one piece, and how it ended.
    pub fn whole(&self) -> (Vec<Delta>, End) {
        let mut deltas = Vec::new();
        let mut end = None;
        for event in self.read(&[self.pieces.concat()]) {
            merge(&mut deltas, event.deltas);
            end = event.end;
        }
        (deltas, end.unwrap())
    }

    fn read(&self, pieces: &[String]) -> Vec<ConversationEvent> {
        let mut reader = reader();
        let last = pieces.len() - 1;
        let event = |(index, piece): (usize, &String)| {
            let mut token = Token {
                id: 0,
                text: piece.clone(),
                logprob: None,
                special: false,
            };
            let deltas = reader.read(&mut token, index == last);
            let end = (index == last).then(|| self.end(&reader));
            ConversationEvent {
                choice: 0,
                deltas,
                token,
                top_tokens: Vec::new(),
                end,
            }
        };
        pieces.iter().enumerate().map(event).collect()
    }

    fn end(&self, reader: &Reader) -> End {
        let reason = reader.reason(self.reason);
        let generated_tokens = self.pieces.len() as u32;
        End {
            reason,
            stop_sequence: (self.reason == FinishReason::StopSequence).then(|| "!".to_owned()),
            generated_tokens,
            reasoning_tokens: reader.reasoning_tokens(),
            request: Some(Sizes {
                prompt_tokens: 7,
                cached_tokens: 3,
                generated_tokens,
                predicted: None,
            }),
        }
    }
}

/// All that an encoder writes of an answer. Nothing may follow what it calls the last event, and without it a stream has
/// no end.
pub fn encoded(
    mut encoder: impl Encoder<Event = ConversationEvent>,
    events: Vec<ConversationEvent>,
) -> String {
    let mut out = EventBuffer::default();
    encoder.begin(&mut out);
    let last = events.len() - 1;
    for (index, event) in events.into_iter().enumerate() {
        let flow = encoder.event(event, &mut out);
        assert_eq!(flow.is_break(), index == last);
    }
    String::from_utf8(out.take().to_vec()).unwrap()
}

fn reader() -> Reader {
    let tool = |name: &str| Tool {
        name: name.to_owned(),
        description: None,
        kind: ToolKind::Function { parameters: None },
        strict: false,
    };
    let options = ParserOptions {
        tools: [tool("f"), tool("g")].into(),
        // The same for both forms, so that they can be compared.
        ids: IdSource::seeded(1),
        ..ParserOptions::default()
    };
    let format = Format::named("hermes").unwrap();
    Reader::new(Some(format.parser("", &options)))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn an_answer_does_not_depend_on_how_its_text_is_cut(played in Played::any()) {
        let mut deltas = Vec::new();
        let mut reason = None;
        for event in played.events() {
            merge(&mut deltas, event.deltas);
            reason = event.end.map(|end| end.reason);
        }
        let (whole, end) = played.whole();
        prop_assert_eq!(deltas, whole);
        prop_assert_eq!(reason, Some(end.reason));
    }
}
