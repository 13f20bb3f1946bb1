#![allow(clippy::unwrap_used, reason = "a helper of tests may panic as they do")]

use std::num::NonZero;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::sleep;

use super::*;
use crate::TokenEntry;

fn vocabulary() -> Vocabulary {
    let entry = |bytes: &[u8], special| TokenEntry {
        bytes: bytes.to_vec(),
        special,
    };
    Vocabulary::new(vec![entry(b"a", false), entry(b"</s>", true)], &[1]).unwrap()
}

fn regex(regex: &str) -> GrammarSource {
    GrammarSource::Regex(regex.into())
}

/// A compiler with one thread, of which compilations of `b` go on until what it returns is dropped, and a channel that
/// tells how many threads are stuck.
fn compiler(limits: CompilerLimits) -> (Compiler, Sender<()>, Receiver<usize>) {
    let limits = CompilerLimits {
        threads: NonZero::<usize>::MIN,
        ..limits
    };
    let (release, held) = channel::<()>();
    let held = Mutex::new(held);
    let engine = Engine::new(vocabulary(), limits.clone());
    let compile = move |source: GrammarSource| {
        if source.key().contains('b') {
            let _ = held.lock().unwrap_or_else(PoisonError::into_inner).recv();
        }
        engine.compile(source)
    };
    let (told, stuck) = channel();
    let on_stuck = Box::new(move |count| {
        let _ = told.send(count);
    });
    let compiler = Compiler::with(vocabulary(), limits, on_stuck, Box::new(compile));
    (compiler, release, stuck)
}

#[tokio::test]
async fn a_compilation_that_never_ends_is_its_own_request_s_error_alone() {
    let limits = CompilerLimits {
        time: Duration::from_secs(1),
        ..CompilerLimits::default()
    };
    let (compiler, release, stuck) = compiler(limits);
    let error = compiler.compile(regex("b")).await.unwrap_err();
    assert!(matches!(error, GrammarError::TooSlow { .. }), "{error}");
    assert_eq!(stuck.recv(), Ok(1));
    compiler.compile(regex("a")).await.unwrap();
    // Asked for again it takes no further thread.
    let error = compiler.compile(regex("b")).await.unwrap_err();
    assert!(matches!(error, GrammarError::TooSlow { .. }), "{error}");
    assert!(stuck.try_recv().is_err());
    drop(release);
    assert_eq!(stuck.recv(), Ok(0));
    compiler.compile(regex("b")).await.unwrap();
}

#[tokio::test]
async fn where_every_thread_is_stuck_only_new_grammars_are_refused() {
    let limits = CompilerLimits {
        time: Duration::from_secs(1),
        replaced_threads: 1,
        ..CompilerLimits::default()
    };
    let (compiler, release, stuck) = compiler(limits);
    compiler.compile(regex("a")).await.unwrap();
    for (source, count) in [("b", 1), ("bb", 2)] {
        compiler.compile(regex(source)).await.unwrap_err();
        assert_eq!(stuck.recv(), Ok(count));
    }
    let refused = compiler.compile(regex("aa")).await.unwrap_err();
    assert_eq!(refused, GrammarError::Stuck);
    compiler.compile(regex("a")).await.unwrap();
    drop(release);
    assert_eq!(stuck.iter().nth(1), Some(0));
    compiler.compile(regex("aa")).await.unwrap();
}

#[tokio::test]
async fn a_grammar_whose_turn_does_not_come_is_not_called_slow() {
    let limits = CompilerLimits {
        time: Duration::from_millis(100),
        replaced_threads: 0,
        ..CompilerLimits::default()
    };
    let (compiler, _release, _stuck) = compiler(limits);
    let compile = |source| compiler.compile(regex(source));
    let (slow, waiting) = tokio::join!(compile("b"), compile("a"));
    assert!(matches!(slow, Err(GrammarError::TooSlow { .. })));
    let error = waiting.unwrap_err();
    assert!(
        matches!(error, GrammarError::WaitedTooLong { .. }),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn time_in_the_queue_is_not_time_of_a_compilation() {
    let limit = CompilerLimits::default().time;
    let (sender, job) = watch::channel(Progress::Waits);
    let turns = async {
        sleep(limit * 9 / 10).await;
        sender.send_replace(Progress::Runs);
        sleep(limit * 9 / 10).await;
        sender.send_replace(Progress::Ended(Err(GrammarError::Stuck)));
    };
    let (outcome, ()) = tokio::join!(outcome(job, "the regex", limit), turns);
    // What the compilation itself says.
    assert_eq!(outcome.unwrap_err(), GrammarError::Stuck);
}
