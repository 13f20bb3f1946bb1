//! Answers that a test writes down before it asks.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use crate::config::{MockRow, TokenSource};
use crate::lock::lock;

/// Plays written tokens: a test gives what the model answers, as token ids, and uses [`Script::tokens`] in its
/// [`MockConfig`](crate::MockConfig). Clones share the answers, so more can be added while the mock runs.
///
/// A request keeps its answer over pauses and on every rank. Where its answer is over, or it has none, the text ends.
#[derive(Debug, Clone, Default)]
pub struct Script(Arc<Mutex<Answers>>);

#[derive(Debug, Default)]
struct Answers {
    /// For prompts that contain the ids of the first.
    to: Vec<(Vec<u32>, Arc<[u32]>)>,
    next: VecDeque<Arc<[u32]>>,
    /// By request id.
    given: BTreeMap<u64, Arc<[u32]>>,
}

impl Script {
    /// The answer to the next request that has none by its prompt; answers are given in the order of these calls.
    pub fn answer(&self, ids: impl Into<Arc<[u32]>>) {
        lock(&self.0).next.push_back(ids.into());
    }

    /// The answer to every request whose prompt contains `part`; of several that fit, the one that was added first.
    pub fn answer_to(&self, part: impl Into<Vec<u32>>, ids: impl Into<Arc<[u32]>>) {
        lock(&self.0).to.push((part.into(), ids.into()));
    }

    /// What rows choose; `end` is the token that ends a text.
    pub fn tokens(&self, end: u32) -> TokenSource {
        let script = self.clone();
        Arc::new(move |row| script.token(row).unwrap_or(end))
    }

    fn token(&self, row: &MockRow) -> Option<u32> {
        let mut answers = lock(&self.0);
        let answer = match answers.given.get(&row.request_id) {
            Some(answer) => answer.clone(),
            None => {
                let answer = answers.of(&row.input_ids);
                answers.given.insert(row.request_id, answer.clone());
                answer
            }
        };
        answer.get(row.generated as usize).copied()
    }
}

impl Answers {
    fn of(&mut self, prompt: &[u32]) -> Arc<[u32]> {
        let fits = |part: &[u32]| {
            part.is_empty() || prompt.windows(part.len()).any(|window| window == part)
        };
        let by_prompt = self.to.iter().find(|(part, _)| fits(part));
        match by_prompt {
            Some((_, answer)) => answer.clone(),
            None => self.next.pop_front().unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use text_generation_proto::v1::NextTokenChooserParameters;

    use super::*;

    const END: u32 = 2;

    /// The tokens of one request up to the end.
    fn play(source: &TokenSource, request_id: u64, prompt: &[u32]) -> Vec<u32> {
        let row = |generated| MockRow {
            request_id,
            input_ids: prompt.to_vec(),
            ids: prompt.to_vec(),
            generated,
            seed: 0,
            content: 0,
            adapter: 0,
            parameters: NextTokenChooserParameters::default(),
        };
        let tokens = (0..).map(|generated| source(&row(generated)));
        tokens.take_while(|&token| token != END).collect()
    }

    #[test]
    fn answers_follow_the_prompt_or_else_the_order() {
        let script = Script::default();
        let source = script.tokens(END);
        script.answer([10, 11]);
        script.answer_to([7, 8], [20, 21, 22]);
        script.answer([30]);
        assert_eq!(play(&source, 0, &[6, 7, 8, 9]), [20, 21, 22]);
        assert_eq!(play(&source, 1, &[7, 9, 8]), [10, 11]);
        // Another rank, or after a pause.
        assert_eq!(play(&source, 1, &[7, 9, 8]), [10, 11]);
        assert_eq!(play(&source, 2, &[1]), [30]);
        assert!(play(&source, 3, &[1]).is_empty());
        script.answer([40]);
        assert!(
            play(&source, 3, &[1]).is_empty(),
            "it had none when it began"
        );
        assert_eq!(play(&source, 4, &[1]), [40]);
    }
}
