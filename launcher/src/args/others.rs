//! Flags of vLLM and SGLang: their counterparts here, or what to do instead. `docs/coming-from-vllm.md` is their table.

mod lacking;

use self::Answer::{Alias, Instead, List, Needless, Switch};
use self::lacking::LACKING;

/// What becomes of a flag of another server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Ours of this name means the same.
    Alias(&'static str),
    /// Ours of this name takes its values, with commas between them; here words follow one another.
    List(&'static str),
    /// Without a value. What it means in our words, and what its opposite, with `--no-` before the name or `false` behind
    /// it, means.
    Switch {
        on: &'static [&'static str],
        off: &'static [&'static str],
    },
    /// Without a value, and what it asks for is so in any case. The reason.
    Needless(&'static str),
    /// There is none. What to do.
    Instead(&'static str),
}

/// Of `name`, with its dashes, or nothing where no other server is known to have it.
pub fn answer(name: &str) -> Option<Answer> {
    all()
        .find(|(names, _)| names.contains(&name))
        .map(|(_, answer)| answer)
}

/// Every flag of others that is not ours too, with its other names.
fn all() -> impl Iterator<Item = (&'static [&'static str], Answer)> {
    let lacking = LACKING
        .iter()
        .map(|(names, remedy)| (*names, Instead(remedy)));
    TAKEN.iter().copied().chain(lacking)
}

/// The long names that are taken, without their dashes: what a misspelt flag may have been meant as.
pub fn taken() -> impl Iterator<Item = &'static str> {
    let names = TAKEN.iter().flat_map(|(names, _)| *names);
    names.filter_map(|name| name.strip_prefix("--"))
}

const CHUNKS: (&[&str], &[&str]) = (&["--prefill-chunking=true"], &["--prefill-chunking=false"]);
const PREFIXES: (&[&str], &[&str]) = (&["--prefix-caching=true"], &["--prefix-caching=false"]);
const NO_GRAPHS: &[&str] = &["--cuda-graphs=0"];

/// The flags that are taken, each with its other names.
const TAKEN: &[(&[&str], Answer)] = &[
    (&["--model", "--model-path"], Alias("--model-id")),
    (&["--host"], Alias("--hostname")),
    (
        &["--tensor-parallel-size", "-tp", "--tp", "--tp-size"],
        Alias("--num-shard"),
    ),
    (
        &["--max-model-len", "--context-length", "--max-seq-len"],
        Alias("--max-total-tokens"),
    ),
    (
        &["--max-num-seqs", "--max-running-requests"],
        Alias("--max-batch-size"),
    ),
    (
        &[
            "--max-num-batched-tokens",
            "--chunked-prefill-size",
            "--max-prefill-tokens",
        ],
        Alias("--max-batch-prefill-tokens"),
    ),
    (
        &["--gpu-memory-utilization"],
        Alias("--cuda-memory-fraction"),
    ),
    (&["-sc"], Alias("--speculative-config")),
    (&["--quantization", "-q"], Alias("--quantize")),
    (&["--download-dir"], Alias("--huggingface-hub-cache")),
    (&["--otlp-traces-endpoint"], Alias("--otlp-endpoint")),
    (
        &["--enable-prefix-caching"],
        Switch {
            on: PREFIXES.0,
            off: PREFIXES.1,
        },
    ),
    (
        &["--disable-radix-cache"],
        Switch {
            on: PREFIXES.1,
            off: PREFIXES.0,
        },
    ),
    (
        &["--enable-chunked-prefill"],
        Switch {
            on: CHUNKS.0,
            off: CHUNKS.1,
        },
    ),
    (
        &["--enforce-eager", "--disable-cuda-graph"],
        Switch {
            on: NO_GRAPHS,
            off: &[],
        },
    ),
    (&["--lora-modules", "--lora-paths"], List("--lora-adapters")),
    (
        &["--enable-lora"],
        Needless("the adapters that --lora-adapters names are served in any case"),
    ),
    (
        &["--enable-multimodal"],
        Needless("images are taken in any case where the model sees them"),
    ),
    (
        &["--enable-auto-tool-choice"],
        Needless("tool calls are parsed in any case, in the format that the model's files show"),
    ),
    (
        &[
            "--disable-log-requests",
            "--no-enable-log-requests",
            "--disable-log-stats",
        ],
        Needless("prompts and answers are never logged, and each request is one line"),
    ),
    (
        &["--enable-metrics"],
        Needless("/metrics is there in any case"),
    ),
    (
        &["--enable-prompt-tokens-details", "--enable-cache-report"],
        Needless("`usage` has the number of cached tokens in any case"),
    ),
];

#[cfg(test)]
mod tests;
