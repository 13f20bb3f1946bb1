//! Errors of a grammar that cannot be used, or of a generation under one that cannot go on.

use std::time::Duration;

/// Every one of these belongs to one request (or, `Vocabulary`, to the model's files); none of them harms another.
/// `part` names the source: "the JSON schema", "the regex", "the list of choices", "the Lark grammar", "the EBNF
/// grammar" or "the grammar of the tools".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// The source is wrong, or nothing can match it.
    #[error("{part} cannot be used: {reason}")]
    Invalid { part: &'static str, reason: String },
    /// A limit of [`crate::CompilerLimits`].
    #[error("{part} has {found} {unit}, and at most {limit} are allowed: make it smaller")]
    TooLarge {
        part: &'static str,
        unit: &'static str,
        found: usize,
        limit: usize,
    },
    /// The grammar costs more to compile than the limits allow.
    #[error(
        "{part} is too complex ({reason}): use fewer alternatives, smaller repetitions and shorter patterns"
    )]
    TooComplex { part: &'static str, reason: String },
    /// Only with `strict`.
    #[error(
        "{part} uses what cannot be enforced: {feature}. Leave it out, or set `strict` to false to have the rest enforced"
    )]
    NotEnforceable { part: &'static str, feature: String },
    /// Compilation took longer than [`crate::CompilerLimits::time`].
    #[error("{part} was not compiled within {} ms: simplify it", limit.as_millis())]
    TooSlow { part: &'static str, limit: Duration },
    /// Every worker is busy, and the queue is full.
    #[error("too many grammars are waiting to be compiled: try again")]
    Overloaded,
    /// Every worker was busy for all of [`crate::CompilerLimits::time`].
    #[error(
        "this grammar waited {} ms for others to be compiled, and its turn did not come: try again",
        limit.as_millis()
    )]
    WaitedTooLong { limit: Duration },
    /// As many grammars as there are threads, and more that took their places, have been compiled for too long.
    #[error(
        "every thread that compiles grammars is stuck: use a grammar that was used before, or try again later"
    )]
    Stuck,
    /// The next token cannot be found within the limits of a step.
    #[error(
        "the grammar of this request is too complex to be followed here ({reason}): simplify it"
    )]
    OutOfFuel { reason: String },
    /// The vocabulary has no token that the grammar allows next.
    #[error(
        "the grammar allows no token of this model here: check that it can be written with the model's characters"
    )]
    DeadEnd,
    /// What the grammar allows next is forbidden beside it.
    #[error(
        "`bad_words` forbids every token that may come next: take words out of it, or let the grammar write others"
    )]
    AllForbidden,
    /// A token was accepted that the mask does not have.
    #[error("token {id} is not allowed by the grammar here")]
    Rejected { id: u32 },
    /// The vocabulary of the model cannot be used with grammars.
    #[error("the model's vocabulary cannot be used with grammars: {reason}")]
    Vocabulary { reason: String },
    /// A defect, here or in the library below.
    #[error("the grammar failed: {reason}")]
    Internal { reason: String },
}
