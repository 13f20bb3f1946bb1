//! Constrained decoding: grammars of requests become masks of their next tokens.
//!
//! A grammar is compiled while its request is validated. Each generation follows it with a matcher of its own, on
//! worker threads, while the shards already run the next forward pass. Equal masks share a slot of the device.

mod bad_words;
mod constraint;
pub(crate) mod mask_pool;
mod workers;

use std::sync::Arc;
use std::time::Instant;

use text_generation_grammar::{
    Compiler, CompilerLimits, Grammar, GrammarError, GrammarSource, Mask, MaskForm, TokenEntry,
    Vocabulary,
};
use tokio::sync::OnceCell;

pub(crate) use self::bad_words::BadWords;
pub(crate) use self::constraint::{Arrival, Constraint, Look};
pub(crate) use self::workers::Workers;
use crate::metrics::GrammarMetrics;
use crate::tokenize::TextTokenizer;

/// What a request's outputs follow: shared by its samples.
#[derive(Debug, Clone)]
pub struct ValidGrammar {
    pub grammar: Arc<Grammar>,
    /// Of the first token.
    pub(crate) first: Mask,
    /// The tokens that must come first.
    pub(crate) forced: Arc<[u32]>,
    /// Its only text is the empty one.
    pub(crate) only_ends: bool,
}

/// Compiles the grammars of requests. Clones share threads, cache and vocabulary.
#[derive(Debug, Clone)]
pub(crate) struct Grammars {
    shared: Arc<Shared>,
    pub(crate) workers: Workers,
}

#[derive(Debug)]
struct Shared {
    tokenizer: TextTokenizer,
    vocab_size: u32,
    eos_token_ids: Vec<u32>,
    /// Made from the vocabulary, which takes up to a second.
    compiler: OnceCell<Result<Compiler, GrammarError>>,
    metrics: GrammarMetrics,
}

impl Grammars {
    /// For a model whose logits have `vocab_size` entries. Makes the vocabulary on a thread of its own: nobody waits for
    /// it but grammars that come before it is there.
    pub(crate) fn new(tokenizer: TextTokenizer, vocab_size: u32, eos_token_ids: &[u32]) -> Self {
        let metrics = GrammarMetrics::new();
        let grammars = Self {
            workers: Workers::new(metrics.mask.clone()),
            shared: Arc::new(Shared {
                tokenizer,
                vocab_size,
                eos_token_ids: eos_token_ids.to_vec(),
                compiler: OnceCell::new(),
                metrics,
            }),
        };
        let shared = grammars.shared.clone();
        tokio::spawn(async move { shared.compiler().await.map(drop) });
        grammars
    }

    /// Compiles `source`, and computes the mask of its first token.
    ///
    /// # Errors
    /// What is wrong with the grammar, or `Vocabulary` where this model can follow none.
    pub(crate) async fn compile(
        &self,
        source: GrammarSource,
    ) -> Result<ValidGrammar, GrammarError> {
        let compiler = self.shared.compiler().await?;
        let began = Instant::now();
        let grammar = compiler.compile(source).await?;
        let (first, forced) = self.workers.first_mask(grammar.clone()).await?;
        self.shared.metrics.compile.record(began.elapsed());
        let ends = &self.shared.eos_token_ids;
        let only_ends = match first.form() {
            MaskForm::Only(ids) => ids.iter().all(|id| ends.contains(id)),
            _ => false,
        };
        Ok(ValidGrammar {
            grammar,
            first,
            forced,
            only_ends,
        })
    }
}

impl Shared {
    async fn compiler(self: &Arc<Self>) -> Result<Compiler, GrammarError> {
        let make = async {
            let shared = self.clone();
            let made = tokio::task::spawn_blocking(move || {
                let vocabulary = shared.vocabulary()?;
                let stuck_threads = shared.metrics.stuck_threads.clone();
                let on_stuck = move |stuck| {
                    stuck_threads.set(f64::from(u32::try_from(stuck).unwrap_or(u32::MAX)));
                    if stuck == 0 {
                        tracing::info!("no thread that compiles grammars is stuck any more");
                        return;
                    }
                    tracing::error!(stuck, "threads that compile grammars are stuck");
                };
                let limits = CompilerLimits::default();
                Ok(Compiler::watched(vocabulary, limits, Box::new(on_stuck)))
            });
            made.await.unwrap_or_else(|error| {
                Err(GrammarError::Internal {
                    reason: error.to_string(),
                })
            })
        };
        self.compiler.get_or_init(|| make).await.clone()
    }

    /// The tokens of the model: where the tokenizer knows more of them, those cannot be chosen; where it knows fewer, the
    /// others are in no text.
    fn vocabulary(&self) -> Result<Vocabulary, GrammarError> {
        let entry = |id| TokenEntry {
            bytes: self.tokenizer.bytes(id).to_vec(),
            special: self.tokenizer.is_special(id),
        };
        let tokens = (0..self.vocab_size).map(entry).collect();
        Vocabulary::new(tokens, &self.eos_token_ids)
    }
}
