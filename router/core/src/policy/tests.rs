//! The rules of one step.
