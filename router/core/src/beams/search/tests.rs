//! The search by itself, over a model that is a table.

use super::*;
use crate::types::EarlyStopping;

const END: u32 = 0;
const TOKENS: u32 = 4;

/// Log-probability of a token behind a text: a table of chance, the same in every run.
fn logprob(text: &[u32], token: u32) -> f32 {
    let weight = |token: u32| {
        let seed = text.iter().chain([&token]);
        let mixed = seed.fold(17u64, |sum, &id| {
            (sum ^ u64::from(id + 1))
                .wrapping_mul(0x9E37_79B9_7F4A_7C15)
                .rotate_left(29)
        });
        1.0 + (mixed % 1000) as f32
    };
    let all: f32 = (0..TOKENS).map(weight).sum();
    (weight(token) / all).ln()
}

fn terms(width: u32, length_penalty: f32, max_tokens: u32) -> Terms {
    Terms {
        beams: Beams {
            width,
            length_penalty,
            early_stopping: EarlyStopping::default(),
        },
        eos: Arc::new([END]),
        stops: Arc::default(),
        min_tokens: 0,
        max_tokens,
        top_n_tokens: 0,
        assembler: None,
    }
}

/// The most likely tokens behind a text.
fn next(text: &[u32], wanted: u32) -> Vec<TokenId> {
    let mut tokens: Vec<TokenId> = (0..TOKENS)
        .map(|id| TokenId {
            id,
            logprob: logprob(text, id),
        })
        .collect();
    tokens.sort_by(|a, b| b.logprob.total_cmp(&a.logprob));
    tokens.truncate(wanted as usize);
    tokens
}

/// Runs a search to its end: its texts and how many steps it took.
fn run(terms: Terms) -> (Vec<Found>, u32) {
    let width = terms.beams.width as usize;
    let mut search = Search::new(terms);
    loop {
        let texts = search.texts();
        let step: Vec<_> = texts
            .iter()
            .map(|text| next(text, search.wanted()))
            .collect();
        if !search.step(&step) {
            return (search.found(width), search.length());
        }
    }
}

fn ids(found: &Found) -> Vec<u32> {
    found.tokens.iter().map(|token| token.id).collect()
}

/// All texts of at most so many tokens, with their scores, the best first.
fn every_text(max_tokens: usize, length_penalty: f32) -> Vec<(Vec<u32>, f32)> {
    let (mut ended, mut growing) = (Vec::new(), vec![(Vec::new(), 0.0f32)]);
    while let Some((text, sum)) = growing.pop() {
        for token in 0..TOKENS {
            let sum = sum + logprob(&text, token);
            let longer = [text.as_slice(), &[token]].concat();
            if token == END || longer.len() == max_tokens {
                let score = sum / (longer.len() as f32).powf(length_penalty);
                ended.push((longer, score));
            } else {
                growing.push((longer, sum));
            }
        }
    }
    ended.sort_by(|a, b| b.1.total_cmp(&a.1));
    ended
}

#[test]
fn beams_enough_for_all_find_the_best_of_all_texts() {
    for length_penalty in [0.0, 0.5, 1.0, 2.0] {
        let mut terms = terms(64, length_penalty, 4);
        terms.beams.early_stopping = serde_json::from_str("\"never\"").unwrap();
        let (found, _) = run(terms);
        let every = every_text(4, length_penalty);
        for (found, (text, score)) in found.iter().zip(&every).take(5) {
            assert_eq!(&ids(found), text, "{length_penalty}");
            assert!((found.score - score).abs() < 1e-5, "{length_penalty}");
        }
    }
}

#[test]
fn one_beam_takes_the_most_likely_token_until_it_ends() {
    let (found, _) = run(terms(1, 1.0, 6));
    let mut text = Vec::new();
    while text.last() != Some(&END) && text.len() < 6 {
        text.push(next(&text, 1)[0].id);
    }
    // The second best may have ended before, and with a better score.
    let best = every_text(6, 1.0)
        .into_iter()
        .find(|(each, _)| *each == text);
    assert!(found[0].score >= best.unwrap().1);
}

#[test]
fn eager_searches_end_first_and_those_that_never_give_up_last() {
    let steps = |early_stopping: &str| {
        let mut terms = terms(2, 1.0, 40);
        terms.beams.early_stopping = serde_json::from_str(early_stopping).unwrap();
        let (found, steps) = run(terms);
        assert!(found[0].score >= found[1].score);
        (steps, found[0].score)
    };
    let (eager, usual, never) = (steps("true"), steps("false"), steps("\"never\""));
    assert!(
        eager.0 <= usual.0 && usual.0 < never.0,
        "{eager:?} {usual:?} {never:?}"
    );
    assert!(eager.1 <= usual.1 && usual.1 <= never.1);
}

#[test]
fn texts_end_where_they_may() {
    let early = Terms {
        min_tokens: 3,
        ..terms(3, 1.0, 5)
    };
    for found in run(early.clone()).0 {
        let ids = ids(&found);
        assert!(!ids[..3].contains(&END) && ids.len() > 3, "{ids:?}");
        let reason = match ids.last() {
            Some(&END) => FinishReason::EosToken,
            _ => FinishReason::Length,
        };
        assert_eq!(found.finish, Some(reason));
    }
    // Other tokens may come before, and end nothing then.
    let stops = Terms {
        eos: Arc::default(),
        stops: Arc::new([1, 2, 3]),
        ..early
    };
    let found = run(stops).0;
    assert_eq!(found.len(), 3);
    assert!(
        found
            .iter()
            .all(|found| ids(found).iter().filter(|&&id| id != END).count() > 0)
    );
    assert!(found.iter().any(|found| found.tokens.len() == 4));
}

#[test]
fn what_is_not_a_number_is_no_candidate() {
    let mut search = Search::new(terms(2, 1.0, 3));
    let tokens = [(1, f32::NAN), (2, -1.0), (3, f32::NEG_INFINITY)];
    let step = tokens.map(|(id, logprob)| TokenId { id, logprob });
    assert!(search.step(&[step.to_vec()]));
    assert_eq!(search.texts(), [[2]]);
    assert!(!search.step(&[Vec::new()]));
    assert!(search.found(2).is_empty());
}
