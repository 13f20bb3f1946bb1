//! What reads the answers to a prepared conversation.

use super::reader::Reader;
use super::reads::Reads;

/// What the answer needs beside its generations.
#[derive(Debug)]
pub struct Reading {
    /// Characters of the prompt.
    pub characters: usize,
    /// Fields of the request that come to nothing with this model.
    pub ignored: Vec<&'static str>,
    /// How text is told from reasoning and calls; nothing where all of it is content.
    pub(super) reads: Option<Reads>,
    /// The prompt, which may have begun the reasoning.
    pub(super) prompt: String,
}

impl Reading {
    /// For one choice.
    pub(super) fn reader(&self) -> Reader {
        let parser = self.reads.as_ref().map(|reads| reads.parser(&self.prompt));
        Reader::new(parser)
    }
}
