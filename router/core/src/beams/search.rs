//! The search itself: a pure state machine from the most likely next tokens of each beam to the best texts.
//!
//! It is the one of transformers (`num_beams`), whose scores it has: a text's log-probabilities are added up in float32,
//! its end-of-sequence token among them, and divided by its number of tokens to the power of `length_penalty`. Of all
//! texts that are one token longer, the best that have not ended go on, as many as there are beams; one that has ended is
//! kept where it is among as many of the best. transformers looks at `(1 + ends) * width` candidates of all beams
//! together. Here each beam brings its best `width + ends`, which the same ones are among.

use std::sync::Arc;

use text_generation_client::types::TokenId;

use crate::assemble::TextAssembler;
use crate::types::{Beams, FinishReason};

/// What a search is told at its beginning.
#[derive(Debug, Clone)]
pub(super) struct Terms {
    pub(super) beams: Beams,
    /// End-of-sequence tokens: none of them comes before `min_tokens` tokens.
    pub(super) eos: Arc<[u32]>,
    /// Other tokens that end a text, but not before as many.
    pub(super) stops: Arc<[u32]>,
    pub(super) min_tokens: u32,
    pub(super) max_tokens: u32,
    /// Alternatives of each token that its text comes with.
    pub(super) top_n_tokens: u32,
    /// Finds stop strings, where there are any.
    pub(super) assembler: Option<TextAssembler>,
}

/// A text as it was found.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Found {
    pub(super) tokens: Vec<TokenId>,
    /// One list for each token, or empty.
    pub(super) top_tokens: Vec<Vec<TokenId>>,
    pub(super) score: f32,
    /// None where a stop string ended it.
    pub(super) finish: Option<FinishReason>,
}

/// A token that some text has, with all before it: texts share what they begin with.
#[derive(Debug)]
struct Node {
    before: Option<usize>,
    token: TokenId,
    top_tokens: Vec<TokenId>,
}

/// A text that is being written.
#[derive(Debug, Clone)]
struct Beam {
    last: Option<usize>,
    /// Sum of its log-probabilities.
    sum: f32,
    assembler: Option<TextAssembler>,
}

/// A text that has ended.
#[derive(Debug)]
struct Ended {
    last: usize,
    score: f32,
    finish: Option<FinishReason>,
}

/// A beam and a token behind it.
#[derive(Debug)]
struct Candidate {
    beam: usize,
    token: TokenId,
    sum: f32,
}

#[derive(Debug)]
pub(super) struct Search {
    terms: Terms,
    nodes: Vec<Node>,
    /// The best first.
    running: Vec<Beam>,
    /// The best first, at most as many as there are beams.
    ended: Vec<Ended>,
    /// Tokens that each running text has.
    length: u32,
}

impl Search {
    pub(super) fn new(terms: Terms) -> Self {
        let first = Beam {
            last: None,
            sum: 0.0,
            assembler: terms.assembler.clone(),
        };
        Self {
            terms,
            nodes: Vec::new(),
            running: vec![first],
            ended: Vec::new(),
            length: 0,
        }
    }

    /// How many of the most likely next tokens it must know of each running text.
    pub(super) fn wanted(&self) -> u32 {
        let ends = self.terms.eos.len() + self.terms.stops.len();
        wanted(self.terms.beams.width, ends).max(self.terms.top_n_tokens)
    }

    /// Tokens of each running text.
    pub(super) fn length(&self) -> u32 {
        self.length
    }

    /// The running texts, as ids.
    pub(super) fn texts(&self) -> Vec<Vec<u32>> {
        let ids = |beam: &Beam| self.path(beam.last).map(|node| node.token.id);
        let forward = |beam| {
            let mut ids: Vec<u32> = ids(beam).collect();
            ids.reverse();
            ids
        };
        self.running.iter().map(forward).collect()
    }

    /// Takes the most likely next tokens of each running text, the likeliest first. Returns whether the search goes on.
    pub(super) fn step(&mut self, next: &[Vec<TokenId>]) -> bool {
        let candidates = self.candidates(next);
        self.length += 1;
        let width = self.terms.beams.width as usize;
        let mut running = Vec::with_capacity(width);
        for (rank, candidate) in candidates.into_iter().enumerate() {
            if running.len() == width && rank >= width {
                break;
            }
            let (finish, assembler) = self.look(&candidate);
            let ends = finish.is_some() || assembler.as_ref().is_some_and(|(_, stopped)| *stopped);
            if (ends && rank >= width) || (!ends && running.len() == width) {
                continue;
            }
            let last = self.add(&candidate, next);
            if ends {
                let score = self.score(candidate.sum, self.length);
                self.ended.push(Ended {
                    last,
                    score,
                    finish,
                });
            } else {
                running.push(Beam {
                    last: Some(last),
                    sum: candidate.sum,
                    assembler: assembler.map(|(assembler, _)| assembler),
                });
            }
        }
        // Where scores are equal, the one that was found first stays.
        self.ended.sort_by(|a, b| b.score.total_cmp(&a.score));
        self.ended.truncate(width);
        self.running = running;
        self.goes_on()
    }

    /// The best texts, the best first.
    pub(super) fn found(&self, count: usize) -> Vec<Found> {
        let kept = self.terms.top_n_tokens > 0;
        let found = |ended: &Ended| {
            let mut nodes: Vec<&Node> = self.path(Some(ended.last)).collect();
            nodes.reverse();
            let tops = nodes.iter().filter(|_| kept);
            Found {
                top_tokens: tops.map(|node| node.top_tokens.clone()).collect(),
                tokens: nodes.iter().map(|node| node.token).collect(),
                score: ended.score,
                finish: ended.finish,
            }
        };
        self.ended.iter().take(count).map(found).collect()
    }

    /// All texts that are one token longer, the best first.
    fn candidates(&self, next: &[Vec<TokenId>]) -> Vec<Candidate> {
        let mut candidates = Vec::new();
        for (beam, (text, tokens)) in self.running.iter().zip(next).enumerate() {
            let tokens = tokens.iter();
            let possible = tokens.filter(|token| {
                let too_early = self.length < self.terms.min_tokens;
                let comes = !(too_early && self.terms.eos.contains(&token.id));
                comes && token.logprob.is_finite()
            });
            candidates.extend(possible.map(|&token| Candidate {
                beam,
                token,
                sum: text.sum + token.logprob,
            }));
        }
        candidates.sort_by(|a, b| b.sum.total_cmp(&a.sum));
        candidates
    }

    /// Whether a token, the last of as many as all texts have now, ends its text.
    fn is_end(&self, id: u32) -> bool {
        let terms = &self.terms;
        terms.eos.contains(&id) || (terms.stops.contains(&id) && self.length > terms.min_tokens)
    }

    /// Why a candidate is the end of its text, and what has assembled it, with whether a stop string ended in it.
    fn look(&self, candidate: &Candidate) -> (Option<FinishReason>, Option<(TextAssembler, bool)>) {
        if self.is_end(candidate.token.id) {
            return (Some(FinishReason::EosToken), None);
        }
        let finish = (self.length >= self.terms.max_tokens).then_some(FinishReason::Length);
        let assembler = self.running[candidate.beam].assembler.clone();
        let assembled = assembler.filter(|_| finish.is_none()).map(|mut assembler| {
            let stopped = assembler.push(candidate.token).stopped;
            (assembler, stopped)
        });
        (finish, assembled)
    }

    /// Keeps the token of a candidate, as the last of its text.
    fn add(&mut self, candidate: &Candidate, next: &[Vec<TokenId>]) -> usize {
        let alternatives = &next[candidate.beam];
        let top = (self.terms.top_n_tokens as usize).min(alternatives.len());
        self.nodes.push(Node {
            before: self.running[candidate.beam].last,
            token: candidate.token,
            top_tokens: alternatives[..top].to_vec(),
        });
        self.nodes.len() - 1
    }

    fn score(&self, sum: f32, length: u32) -> f32 {
        let penalty = f64::from(self.terms.beams.length_penalty);
        sum / f64::from(length).powf(penalty) as f32
    }

    fn goes_on(&self) -> bool {
        let beams = &self.terms.beams;
        let Some(best) = self.running.first() else {
            return false;
        };
        let worst = self
            .ended
            .last()
            .filter(|_| self.ended.len() == beams.width as usize);
        let Some(worst) = worst else {
            return true;
        };
        let length = match beams.early_stopping.is_never() && beams.length_penalty > 0.0 {
            true => self.terms.max_tokens,
            false => self.length,
        };
        !beams.early_stopping.is_eager() && self.score(best.sum, length) > worst.score
    }

    /// The tokens of a text from its last to its first.
    fn path(&self, last: Option<usize>) -> impl Iterator<Item = &Node> {
        std::iter::successors(last.map(|last| &self.nodes[last]), |node| {
            node.before.map(|before| &self.nodes[before])
        })
    }
}

/// How many of the most likely next tokens of a text a search must know: were all that end a text among them, as many
/// would be left as there are beams.
pub(crate) fn wanted(width: u32, ends: usize) -> u32 {
    width.saturating_add(u32::try_from(ends).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests;
