//! A whole answer, folded from the deltas of a stream.

use text_generation_formats::Delta;

/// A call of a tool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Call {
    pub id: String,
    pub name: String,
    /// JSON of an object, or the input of a custom tool. Cut off where the answer was.
    pub arguments: String,
}

/// What the model said. APIs that keep the order of its parts fold [`merge`]d deltas themselves.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answer {
    pub reasoning: String,
    pub content: String,
    pub calls: Vec<Call>,
}

impl Answer {
    /// Adds what a delta brings.
    pub fn push(&mut self, delta: Delta) {
        match delta {
            Delta::Reasoning(text) => self.reasoning.push_str(&text),
            Delta::Content(text) => self.content.push_str(&text),
            Delta::ToolStart { index, id, name } => {
                if self.calls.len() <= index {
                    self.calls.resize(index + 1, Call::default());
                }
                self.calls[index].id = id;
                self.calls[index].name = name;
            }
            Delta::ToolArguments { index, fragment } => {
                if let Some(call) = self.calls.get_mut(index) {
                    call.arguments.push_str(&fragment);
                }
            }
            Delta::ToolEnd { .. } => {}
        }
    }
}

impl FromIterator<Delta> for Answer {
    fn from_iter<I: IntoIterator<Item = Delta>>(deltas: I) -> Self {
        let mut answer = Self::default();
        deltas.into_iter().for_each(|delta| answer.push(delta));
        answer
    }
}

/// Appends `new` to `deltas`; texts of one part that follow each other become one.
pub(super) fn merge(deltas: &mut Vec<Delta>, new: impl IntoIterator<Item = Delta>) {
    for delta in new {
        match (deltas.last_mut(), delta) {
            (Some(Delta::Reasoning(text)), Delta::Reasoning(more))
            | (Some(Delta::Content(text)), Delta::Content(more)) => text.push_str(&more),
            (
                Some(Delta::ToolArguments { index, fragment }),
                Delta::ToolArguments {
                    index: same,
                    fragment: more,
                },
            ) if *index == same => fragment.push_str(&more),
            (_, delta) => deltas.push(delta),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_that_follow_each_other_become_one() {
        let start = |index: usize| Delta::ToolStart {
            index,
            id: index.to_string(),
            name: "f".to_owned(),
        };
        let arguments = |index, fragment: &str| Delta::ToolArguments {
            index,
            fragment: fragment.to_owned(),
        };
        let content = |text: &str| Delta::Content(text.to_owned());
        let deltas = [
            content("a"),
            content("b"),
            start(0),
            arguments(0, "{"),
            arguments(0, "}"),
            start(1),
            arguments(1, "{}"),
        ];
        let mut merged = Vec::new();
        merge(&mut merged, deltas.clone());
        let expected = [
            content("ab"),
            start(0),
            arguments(0, "{}"),
            start(1),
            arguments(1, "{}"),
        ];
        assert_eq!(merged, expected);
        assert_eq!(Answer::from_iter(merged), Answer::from_iter(deltas));
    }
}
