//! Splits a generated text at `<think>` and `</think>` as it comes.

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

/// What one piece of text added to either part.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Split {
    pub reasoning: String,
    pub content: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// The text may still begin with `<think>`.
    Start,
    Reasoning,
    Content,
}

/// Only a `<think>` at the start of the text counts, and only the first `</think>` after it. White space around both
/// parts next to a tag is dropped, so that the parts do not depend on how the text was cut.
#[derive(Debug, Clone)]
pub struct ReasoningSplitter {
    part: Part,
    /// Text that may belong to a tag or to the white space before one.
    held: String,
    /// White space at the start of a part is dropped.
    at_start: bool,
}

impl ReasoningSplitter {
    /// `prompt` tells where the text starts: templates of models that always reason end with `<think>`.
    pub fn new(prompt: &str) -> Self {
        let part = if prompt.trim_end().ends_with(OPEN) {
            Part::Reasoning
        } else {
            Part::Start
        };
        Self {
            part,
            held: String::new(),
            at_start: true,
        }
    }

    /// Takes the next piece of text.
    pub fn push(&mut self, piece: &str) -> Split {
        let mut split = Split::default();
        if self.part == Part::Content && !self.at_start {
            split.content.push_str(piece);
            return split;
        }
        self.held.push_str(piece);
        if self.part == Part::Start {
            self.open();
        }
        if self.part == Part::Reasoning {
            self.reason(&mut split);
        }
        if self.part == Part::Content {
            self.conclude(&mut split);
        }
        split
    }

    /// What was held back when the text ends.
    pub fn finish(&mut self) -> Split {
        let mut split = Split::default();
        let held = std::mem::take(&mut self.held);
        match self.part {
            Part::Reasoning => split.reasoning.push_str(held.trim_end()),
            // White space alone is the content when nothing else comes.
            Part::Start => split.content = held,
            Part::Content => {}
        }
        split
    }

    /// Decides whether the text begins with the tag, once that can be known.
    fn open(&mut self) {
        let text = self.held.trim_start();
        if let Some(rest) = text.strip_prefix(OPEN) {
            self.held = rest.to_owned();
            self.part = Part::Reasoning;
        } else if !OPEN.starts_with(text) {
            // No reasoning: the text stays as it is, white space included.
            self.part = Part::Content;
            self.at_start = false;
        }
    }

    /// Passes on reasoning up to the closing tag, or to where it, with white space before, may have begun.
    fn reason(&mut self, split: &mut Split) {
        if self.at_start {
            let text = self.held.trim_start();
            self.held.drain(..self.held.len() - text.len());
            self.at_start = self.held.is_empty();
        }
        if let Some(end) = self.held.find(CLOSE) {
            split.reasoning.push_str(self.held[..end].trim_end());
            self.held.drain(..end + CLOSE.len());
            self.part = Part::Content;
            self.at_start = true;
            return;
        }
        let tag = (1..CLOSE.len())
            .rev()
            .find(|&length| self.held.ends_with(&CLOSE[..length]));
        let before = &self.held[..self.held.len() - tag.unwrap_or(0)];
        let sure = before.trim_end().len();
        split.reasoning.extend(self.held.drain(..sure));
    }

    fn conclude(&mut self, split: &mut Split) {
        let held = std::mem::take(&mut self.held);
        let text = if self.at_start {
            held.trim_start()
        } else {
            &held
        };
        self.at_start = self.at_start && text.is_empty();
        split.content.push_str(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both parts of `text` when it comes in pieces of `size` characters.
    fn split(prompt: &str, text: &str, size: usize) -> (String, String) {
        let mut splitter = ReasoningSplitter::new(prompt);
        let characters: Vec<char> = text.chars().collect();
        let mut parts = (String::new(), String::new());
        let mut add = |split: Split| {
            parts.0.push_str(&split.reasoning);
            parts.1.push_str(&split.content);
        };
        for piece in characters.chunks(size) {
            add(splitter.push(&piece.iter().collect::<String>()));
        }
        add(splitter.finish());
        parts
    }

    #[test]
    fn parts_do_not_depend_on_how_the_text_is_cut() {
        for (prompt, text, reasoning, content) in [
            ("", "<think>\nwhy 你\n</think>\n\nso", "why 你", "so"),
            ("", " \n<think>why</think>so\n", "why", "so\n"),
            ("<think>\n", "why\n\n</think> so ", "why", "so "),
            ("", "<think></think>so", "", "so"),
            ("", "<think>a < b </th </think>c", "a < b </th", "c"),
            ("", "<think>never ends \n", "never ends", ""),
            ("", "<think>never ends </thin", "never ends </thin", ""),
            (
                "",
                "  plain <think>text</think>",
                "",
                "  plain <think>text</think>",
            ),
            ("", "<thin", "", "<thin"),
            ("", " ", "", " "),
            ("", "<think>a</think>b</think>c", "a", "b</think>c"),
            ("", "", "", ""),
        ] {
            for size in 1..=text.len().max(1) {
                let expected = (reasoning.to_owned(), content.to_owned());
                assert_eq!(split(prompt, text, size), expected, "{text:?} by {size}");
            }
        }
    }

    #[test]
    fn text_is_passed_on_as_soon_as_it_is_sure() {
        let mut splitter = ReasoningSplitter::new("");
        assert_eq!(splitter.push("<think>one two ").reasoning, "one two");
        assert_eq!(splitter.push("three").reasoning, " three");
        assert_eq!(splitter.push("</think>done").content, "done");
        assert_eq!(splitter.push(" now").content, " now");
    }
}
