//! Structured output: which tokens a JSON schema, a regular expression or a grammar allows next.
//!
//! A [`Compiler`] turns a [`GrammarSource`] into a [`Grammar`], once for equal sources. Each sample of a request has a
//! [`Matcher`] of its own: `mask` says which tokens may come, `accept` takes the one that came. The engine below is
//! llguidance (Earley's parser over derivatives of regular expressions); nothing of it is visible outside this crate.

mod ahead;
mod budget;
mod cache;
mod clock;
mod compiler;
mod engine;
mod error;
mod grammar;
mod limits;
mod lower;
mod mask;
mod matcher;
mod places;
mod source;
mod text;
mod vocabulary;
mod workers;

pub use ahead::Ahead;
pub use compiler::Compiler;
pub use error::GrammarError;
pub use grammar::Grammar;
pub use limits::CompilerLimits;
pub use lower::check_types;
pub use mask::{Mask, MaskForm};
pub use matcher::Matcher;
pub use source::GrammarSource;
pub use vocabulary::{TokenEntry, Vocabulary};
pub use workers::StuckThreads;
