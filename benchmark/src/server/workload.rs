//! Who asks what: sessions of one or more turns, all drawn before the clock starts.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, Exp1};

use super::api::Prompt;
use super::lengths::Lengths;
use super::prompts::PromptMaker;
use crate::error::{BenchmarkError, Result};

/// A client that sends its turns one after another.
#[derive(Debug, Clone, PartialEq)]
pub struct Session {
    pub turns: Vec<Turn>,
}

/// One request of a session.
#[derive(Debug, Clone, PartialEq)]
pub struct Turn {
    pub prompt: Prompt,
    pub output_tokens: u32,
    /// Between the end of the turn before and this one.
    pub think: Duration,
}

/// How prompts go over the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Ids,
    /// `special`: the server adds the tokenizer's special tokens, and they count.
    Text {
        special: bool,
    },
}

/// What sessions are drawn from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Workload {
    pub input: Lengths,
    pub output: Lengths,
    /// Pairs of prompt and answer above it are drawn again.
    pub max_total: Option<u32>,
    /// Groups of sessions with the same beginning, and its length in tokens.
    pub prefixes: Option<(usize, u32)>,
    pub turns: usize,
    /// Prompt tokens of the turns after the first.
    pub turn_input: Lengths,
    /// Mean of an exponential distribution.
    pub think_time: Duration,
}

/// Draws of a pair of lengths before the bound counts as impossible.
const MAX_DRAWS: usize = 10_000;

impl Workload {
    /// `count` sessions. The same seed gives the same sessions.
    pub fn sessions(
        &self,
        maker: &PromptMaker,
        form: Form,
        count: usize,
        seed: u64,
    ) -> Result<Vec<Session>> {
        let mut rng = StdRng::seed_from_u64(seed);
        let prefixes = self.draw_prefixes(maker, form, &mut rng)?;
        (0..count)
            .map(|index| {
                let prefix = prefixes.get(index % prefixes.len().max(1));
                self.session(maker, form, prefix, &mut rng)
            })
            .collect()
    }

    fn draw_prefixes(
        &self,
        maker: &PromptMaker,
        form: Form,
        rng: &mut StdRng,
    ) -> Result<Vec<Prompt>> {
        let (groups, length) = self.prefixes.unwrap_or((0, 0));
        (0..groups)
            .map(|_| prompt(maker, form, None, length, rng))
            .collect()
    }

    fn session(
        &self,
        maker: &PromptMaker,
        form: Form,
        prefix: Option<&Prompt>,
        rng: &mut StdRng,
    ) -> Result<Session> {
        let turns = (0..self.turns)
            .map(|index| {
                let first = index == 0;
                let input = if first { self.input } else { self.turn_input };
                let (input, output_tokens) = self.lengths(input, rng)?;
                let prefix = prefix.filter(|_| first);
                let shared = if prefix.is_some() {
                    self.prefix_length()
                } else {
                    0
                };
                let gap: f64 = Exp1.sample(rng);
                Ok(Turn {
                    prompt: prompt(maker, form, prefix, shared + input, rng)?,
                    output_tokens,
                    think: if first {
                        Duration::ZERO
                    } else {
                        self.think_time.mul_f64(gap)
                    },
                })
            })
            .collect::<Result<_>>()?;
        Ok(Session { turns })
    }

    fn prefix_length(&self) -> u32 {
        self.prefixes.map_or(0, |(_, length)| length)
    }

    fn lengths(&self, input: Lengths, rng: &mut impl Rng) -> Result<(u32, u32)> {
        let bound = self.max_total.unwrap_or(u32::MAX);
        for _ in 0..MAX_DRAWS {
            let drawn = |flag, lengths: Lengths, rng: &mut _| {
                lengths.draw(rng).ok_or_else(|| {
                    BenchmarkError::argument(
                        flag,
                        format!("{lengths}: nothing lies in these bounds"),
                    )
                })
            };
            let pair = (
                drawn("--input-length", input, rng)?,
                drawn("--output-length", self.output, rng)?,
            );
            if pair.0.saturating_add(pair.1) <= bound {
                return Ok(pair);
            }
        }
        Err(BenchmarkError::argument(
            "--max-total-length",
            format!("no prompt and answer together have at most {bound} tokens"),
        ))
    }
}

/// A prompt of `length` tokens, its prefix included.
fn prompt(
    maker: &PromptMaker,
    form: Form,
    prefix: Option<&Prompt>,
    length: u32,
    rng: &mut StdRng,
) -> Result<Prompt> {
    match form {
        Form::Ids => {
            let mut ids = match prefix {
                Some(Prompt::Ids(ids)) => ids.clone(),
                _ => Vec::new(),
            };
            let own = length.saturating_sub(ids.len() as u32);
            ids.extend(maker.ids(rng, own));
            Ok(Prompt::Ids(ids))
        }
        Form::Text { special } => {
            let prefix = match prefix {
                Some(Prompt::Text(text)) => text,
                _ => "",
            };
            Ok(Prompt::Text(maker.text(rng, prefix, length, special)?))
        }
    }
}
