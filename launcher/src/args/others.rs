//! Flags of vLLM and SGLang: which of ours they are, or what to do instead. `docs/coming-from-vllm.md` is their table.

use super::others::Answer::{Alias, Instead, Needless, Switch};

/// What becomes of a flag of another server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Ours of this name means the same.
    Alias(&'static str),
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
    let found = OTHERS.iter().find(|(names, _)| names.contains(&name));
    found.map(|(_, answer)| *answer)
}

const CHUNKS: (&[&str], &[&str]) = (&["--prefill-chunking=true"], &["--prefill-chunking=false"]);
const PREFIXES: (&[&str], &[&str]) = (&["--prefix-caching=true"], &["--prefix-caching=false"]);
const NO_GRAPHS: &[&str] = &["--cuda-graphs=0"];

const ADAPTERS: &str =
    "there are no LoRA adapters yet: leave it out, and merge the adapter into the model beforehand";
const DRAFTS: &str = "there is no speculative decoding yet: leave it out";
const IMAGES: &str = "there are no images, sounds or videos as inputs: leave it out";
const LOGS: &str = "set LOG_LEVEL (error, warn, info, debug), and --json-output for logs as JSON";
const REPLICAS: &str = "leave it out, start one server for each copy of the model, and put a router before them \
     (docs/routers.md)";
const STAGES: &str = "a model is not cut between its layers: leave it out, spread it over GPUs with --num-shard, and \
     over machines with --nnodes (docs/nodes.md)";
const TLS: &str = "the server speaks HTTP without TLS: leave it out, and put a proxy with the certificate before it";
const TOKENIZER: &str = "the tokenizer is read from the folder of the model: leave it out, or put the files of the other \
     tokenizer there. --tokenizer-config-path names another tokenizer_config.json";
const TEMPLATE: &str = "put the template into the model's folder as chat_template.jinja, or into a tokenizer_config.json \
     as `chat_template`, and name that file with --tokenizer-config-path";
const SEED: &str = "leave it out, and put `seed` into requests; --deterministic makes every answer bitwise the same in \
     every batch";
const SWAP: &str = "nothing is swapped to the memory of the host: leave it out. A request that must make room is computed \
     again later, mostly from the cache";
const POOL: &str = "the cache of keys and values takes the memory that is left: leave it out, limit it in tokens with \
     --max-batch-total-tokens, or all memory with --cuda-memory-fraction";
const STATIC: &str = "--cuda-memory-fraction is the share of a device's memory for everything, weights, cache and \
     intermediate results together; SGLang's is without the last. Leave it out, for what the largest step needs is \
     measured and kept free";
const BLOCKS: &str =
    "the cache has no blocks, each token is kept and found for itself: leave it out";
const COMPILER: &str =
    "nothing is compiled by torch: leave it out. --cuda-graphs says which batch sizes get a graph";
const SCHEDULER: &str =
    "leave it out; docs/operation.md, \"Scheduling\", has the flags that there are";
const EXECUTOR: &str = "the launcher starts the shards itself: leave it out. With Ray: docs/ray.md";
const GRAMMARS: &str =
    "all forms of answers are enforced in one way (docs/structured-output.md): leave it out";
const TASK: &str = "only generation is served: leave it out";
const OVERRIDES: &str = "leave it out, and change config.json or generation_config.json in a copy of the model's folder";
const NAMES: &str = "leave it out; the server has no page or header to change so";

/// Every flag that is not ours, with its other names.
pub const OTHERS: &[(&[&str], Answer)] = &[
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
    (
        &["--enable-auto-tool-choice"],
        Needless("tool calls are read without it, in the format that the model's files show"),
    ),
    (
        &[
            "--disable-log-requests",
            "--no-enable-log-requests",
            "--disable-log-stats",
        ],
        Needless("prompts and answers are never logged, and a request is one line"),
    ),
    (
        &["--enable-metrics"],
        Needless("metrics are at /metrics in any case"),
    ),
    (
        &["--enable-prompt-tokens-details", "--enable-cache-report"],
        Needless("`usage` says in any case how many tokens were cached"),
    ),
    (
        &["--pipeline-parallel-size", "-pp", "--pp-size", "--pp"],
        Instead(STAGES),
    ),
    (
        &[
            "--data-parallel-size",
            "-dp",
            "--dp-size",
            "--dp",
            "--api-server-count",
        ],
        Instead(REPLICAS),
    ),
    (
        &["--expert-parallel-size", "--ep-size", "--ep"],
        Instead("give --enable-expert-parallel, with which all shards share the experts"),
    ),
    (
        &["--dist-init-addr"],
        Instead("give --master-addr and --master-port (docs/nodes.md)"),
    ),
    (
        &["--distributed-executor-backend", "--worker-use-ray"],
        Instead(EXECUTOR),
    ),
    (
        &["--disable-custom-all-reduce"],
        Instead("leave it out, and set the environment variable DISABLE_PEER_MEMORY=true"),
    ),
    (
        &[
            "--tokenizer",
            "--tokenizer-path",
            "--tokenizer-mode",
            "--tokenizer-revision",
            "--skip-tokenizer-init",
        ],
        Instead(TOKENIZER),
    ),
    (
        &["--chat-template", "--chat-template-content-format"],
        Instead(TEMPLATE),
    ),
    (
        &["--hf-token"],
        Instead(
            "leave it out, and set the environment variable HF_TOKEN, which no list of processes shows",
        ),
    ),
    (
        &[
            "--hf-overrides",
            "--hf-config-path",
            "--override-generation-config",
            "--json-model-override-args",
        ],
        Instead(OVERRIDES),
    ),
    (
        &["--code-revision"],
        Instead("leave it out: no code that comes with a model is ever run"),
    ),
    (
        &["--rope-theta"],
        Instead(
            "leave it out; --rope-scaling and --rope-factor stretch positions, all else config.json says",
        ),
    ),
    (&["--swap-space", "--cpu-offload-gb"], Instead(SWAP)),
    (&["--mem-fraction-static"], Instead(STATIC)),
    (
        &["--kv-cache-memory-bytes", "--num-gpu-blocks-override"],
        Instead(POOL),
    ),
    (&["--block-size", "--page-size"], Instead(BLOCKS)),
    (
        &[
            "--compilation-config",
            "-O",
            "-cc",
            "--enable-torch-compile",
            "--max-seq-len-to-capture",
        ],
        Instead(COMPILER),
    ),
    (
        &[
            "--cuda-graph-sizes",
            "--cudagraph-capture-sizes",
            "--cuda-graph-bs",
            "--cuda-graph-max-bs",
        ],
        Instead("give --cuda-graphs the batch sizes, such as --cuda-graphs 1,2,4,8"),
    ),
    (
        &[
            "--scheduling-policy",
            "--schedule-policy",
            "--schedule-conservativeness",
            "--num-scheduler-steps",
            "--async-scheduling",
            "--preemption-mode",
            "--max-num-partial-prefills",
        ],
        Instead(SCHEDULER),
    ),
    (&["--seed", "--random-seed"], Instead(SEED)),
    (
        &[
            "--enable-lora",
            "--lora-modules",
            "--max-loras",
            "--max-lora-rank",
            "--lora-paths",
        ],
        Instead(ADAPTERS),
    ),
    (
        &[
            "--speculative-config",
            "--speculative-model",
            "--num-speculative-tokens",
            "--speculative-algorithm",
            "--speculative-draft-model-path",
            "-sc",
        ],
        Instead(DRAFTS),
    ),
    (
        &[
            "--limit-mm-per-prompt",
            "--mm-processor-kwargs",
            "--allowed-local-media-path",
            "--enable-multimodal",
        ],
        Instead(IMAGES),
    ),
    (
        &[
            "--guided-decoding-backend",
            "--structured-outputs-config",
            "--grammar-backend",
        ],
        Instead(GRAMMARS),
    ),
    (
        &["--enable-reasoning"],
        Instead(
            "leave it out: reasoning is found as the model's files show; --reasoning-parser names another format",
        ),
    ),
    (
        &[
            "--tool-parser-plugin",
            "--reasoning-parser-plugin",
            "--middleware",
            "--logits-processors",
        ],
        Instead(
            "no code of others is loaded: leave it out; --tool-call-parser and --reasoning-parser name formats",
        ),
    ),
    (
        &["--attention-backend"],
        Instead(
            "leave it out: there is --attention triton, the default on GPUs, and --attention torch",
        ),
    ),
    (
        &["--device"],
        Instead(
            "leave it out: GPUs are used where CUDA_VISIBLE_DEVICES or the driver shows some, else the CPU",
        ),
    ),
    (
        &["--task", "--runner", "--convert", "--is-embedding"],
        Instead(TASK),
    ),
    (
        &[
            "--ssl-keyfile",
            "--ssl-certfile",
            "--ssl-ca-certs",
            "--ssl-cert-reqs",
        ],
        Instead(TLS),
    ),
    (
        &[
            "--allowed-origins",
            "--allow-credentials",
            "--allowed-methods",
            "--allowed-headers",
        ],
        Instead("give --cors-allow-origin an origin, once for each"),
    ),
    (
        &[
            "--uvicorn-log-level",
            "--log-level",
            "--log-level-http",
            "--enable-log-requests",
            "--log-requests",
        ],
        Instead(LOGS),
    ),
    (
        &["--config"],
        Instead(
            "give the flags themselves, or set the environment variable of each (--max-total-tokens: MAX_TOTAL_TOKENS)",
        ),
    ),
    (
        &[
            "--root-path",
            "--response-role",
            "--disable-fastapi-docs",
            "--enable-request-id-headers",
        ],
        Instead(NAMES),
    ),
];

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::args::Args;

    const PAGE: &str = include_str!("../../../docs/coming-from-vllm.md");

    /// The cells of the rows of the table of flags.
    fn rows() -> Vec<Vec<&'static str>> {
        let table = PAGE.split("## Environment").next().unwrap();
        let rows = table.lines().filter(|line| line.starts_with("| `-"));
        rows.map(|row| row.split('|').map(str::trim).collect())
            .collect()
    }

    #[test]
    fn the_page_says_of_every_flag_what_the_launcher_does() {
        let mut rows = rows();
        for (names, answer) in OTHERS {
            let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
            let found = rows.iter().position(|cells| cells[1] == names.join(", "));
            let cells = rows.remove(found.unwrap_or_else(|| panic!("no row for {names:?}")));
            let here = match answer {
                Answer::Alias(ours) => format!("`{ours}`"),
                Answer::Switch { on, .. } => format!("`{}`", on.join(" ")),
                Answer::Needless(_) => "no effect".to_owned(),
                Answer::Instead(_) => "refused".to_owned(),
            };
            assert_eq!(cells[2], here, "{names:?}");
        }
        assert!(rows.is_empty(), "{rows:?}");
    }

    #[test]
    fn no_flag_of_ours_is_taken_for_one_of_others() {
        let command = Args::command();
        let ours: Vec<String> = command
            .get_arguments()
            .filter_map(|arg| Some(format!("--{}", arg.get_long()?)))
            .collect();
        for (names, answer) in OTHERS {
            assert!(
                names.iter().all(|name| !ours.iter().any(|own| own == name)),
                "{names:?}"
            );
            let targets: Vec<&str> = match answer {
                Answer::Alias(target) => vec![target],
                Answer::Switch { on, off } => on.iter().chain(*off).copied().collect(),
                _ => Vec::new(),
            };
            for target in targets {
                let flag = target.split('=').next().unwrap();
                assert!(ours.iter().any(|own| own == flag), "{target}");
            }
        }
    }
}
