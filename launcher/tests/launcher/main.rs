//! The real launcher with fake shards and a fake router, seen from outside.

// The exemption of tests in clippy.toml covers functions marked as tests, not their helpers.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod doctor;
mod environment;
mod failures;
mod harness;
mod lifecycle;
mod logs;
mod management;
mod nodes;
mod notify;
mod recovery;
mod router_check;
mod traces;
