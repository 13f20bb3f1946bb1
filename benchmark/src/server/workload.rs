//! The workload: sessions of one or more turns, all drawn before the clock starts.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Exp1};

use super::api::Prompt;
use super::lengths::Lengths;
use crate::error::{BenchmarkError, Result};
use crate::prompts::PromptMaker;

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
                let prefix = prefix.filter(|_| first);
                let shared = if prefix.is_some() {
                    self.prefix_length()
                } else {
                    0
                };
                let (input, output_tokens) = self.lengths(shared, input, rng)?;
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

    /// Tokens of the prompt after the `shared` ones, and of the answer.
    fn lengths(&self, shared: u32, input: Lengths, rng: &mut impl RngExt) -> Result<(u32, u32)> {
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
            if shared.saturating_add(pair.0).saturating_add(pair.1) <= bound {
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

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::prompts::tests::{count, maker};

    fn workload() -> Workload {
        Workload {
            input: "uniform:8-12".parse().unwrap(),
            output: Lengths::Fixed(5),
            max_total: None,
            prefixes: None,
            turns: 1,
            turn_input: Lengths::Fixed(3),
            think_time: Duration::from_secs(2),
        }
    }

    fn ids(session: &Session) -> &[u32] {
        match &session.turns[0].prompt {
            Prompt::Ids(ids) => ids,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_same_seed_asks_the_same_and_no_two_prompts_are_alike() {
        let maker = maker();
        let draw = |seed| workload().sessions(&maker, Form::Ids, 40, seed).unwrap();
        assert_eq!(draw(1), draw(1));
        let (one, two) = (draw(1), draw(2));
        let starts: HashSet<&[u32]> = one
            .iter()
            .chain(&two)
            .map(|session| &ids(session)[..4])
            .collect();
        assert_eq!(starts.len(), 80);
    }

    #[test]
    fn sessions_of_a_group_share_their_beginning_and_nothing_more() {
        let maker = maker();
        let workload = Workload {
            prefixes: Some((2, 20)),
            ..workload()
        };
        let sessions = workload.sessions(&maker, Form::Ids, 4, 1).unwrap();
        let [a, b, c, d] = [0, 1, 2, 3].map(|index| ids(&sessions[index]));
        assert_eq!((&a[..20], &b[..20]), (&c[..20], &d[..20]));
        assert_ne!(a[..20], b[..20]);
        assert_ne!(a[20..24], c[20..24]);
        assert!((28..=32).contains(&a.len()));

        let sessions = workload
            .sessions(&maker, Form::Text { special: true }, 2, 1)
            .unwrap();
        let Prompt::Text(text) = &sessions[0].turns[0].prompt else {
            panic!("not a text")
        };
        assert!((28..=32).contains(&count(&maker, text, true)));
    }

    #[test]
    fn turns_after_the_first_are_short_and_wait() {
        let workload = Workload {
            turns: 3,
            ..workload()
        };
        let maker = maker();
        let sessions = workload
            .sessions(&maker, Form::Text { special: false }, 200, 1)
            .unwrap();
        let turns = &sessions[0].turns;
        assert_eq!((turns.len(), turns[0].think), (3, Duration::ZERO));
        let Prompt::Text(text) = &turns[1].prompt else {
            panic!("not a text")
        };
        assert_eq!(count(&maker, text, false), 3);
        let waits = sessions.iter().flat_map(|session| &session.turns[1..]);
        let mean = waits.map(|turn| turn.think.as_secs_f64()).sum::<f64>() / 400.0;
        assert!((1.6..2.4).contains(&mean), "mean {mean}");
    }

    #[test]
    fn pairs_above_the_bound_are_drawn_again() {
        let maker = maker();
        let bounded = |bound| Workload {
            max_total: Some(bound),
            ..workload()
        };
        let sessions = bounded(14).sessions(&maker, Form::Ids, 30, 1).unwrap();
        assert!(sessions.iter().all(|session| ids(session).len() <= 9));
        let shared = Workload {
            prefixes: Some((1, 8)),
            ..bounded(22)
        };
        let sessions = shared.sessions(&maker, Form::Ids, 30, 1).unwrap();
        assert!(sessions.iter().all(|session| ids(session).len() <= 17));
        let error = bounded(12).sessions(&maker, Form::Ids, 1, 1).unwrap_err();
        assert!(error.to_string().contains("--max-total-length"));
    }
}
