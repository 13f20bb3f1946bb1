//! The flags of other servers that have no counterpart here, and what to do instead.

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
const NAMES: &str = "leave it out: paths, pages and headers are the same in every server";

/// Each flag with its other names.
pub const LACKING: &[(&[&str], &str)] = &[
    (
        &["--pipeline-parallel-size", "-pp", "--pp-size", "--pp"],
        STAGES,
    ),
    (
        &[
            "--data-parallel-size",
            "-dp",
            "--dp-size",
            "--dp",
            "--api-server-count",
        ],
        REPLICAS,
    ),
    (
        &["--expert-parallel-size", "--ep-size", "--ep"],
        "give --enable-expert-parallel, with which all shards share the experts",
    ),
    (
        &["--dist-init-addr"],
        "give --master-addr and --master-port (docs/nodes.md)",
    ),
    (
        &["--distributed-executor-backend", "--worker-use-ray"],
        EXECUTOR,
    ),
    (
        &["--disable-custom-all-reduce"],
        "leave it out, and set the environment variable DISABLE_PEER_MEMORY=true",
    ),
    (
        &[
            "--tokenizer",
            "--tokenizer-path",
            "--tokenizer-mode",
            "--tokenizer-revision",
            "--skip-tokenizer-init",
        ],
        TOKENIZER,
    ),
    (
        &["--chat-template", "--chat-template-content-format"],
        TEMPLATE,
    ),
    (
        &["--hf-token"],
        "leave it out, and set the environment variable HF_TOKEN, which no list of processes shows",
    ),
    (
        &[
            "--hf-overrides",
            "--hf-config-path",
            "--override-generation-config",
            "--json-model-override-args",
        ],
        OVERRIDES,
    ),
    (
        &["--code-revision"],
        "leave it out: no code that comes with a model is ever run",
    ),
    (
        &["--rope-theta"],
        "leave it out; --rope-scaling and --rope-factor stretch positions, all else config.json says",
    ),
    (&["--swap-space", "--cpu-offload-gb"], SWAP),
    (&["--mem-fraction-static"], STATIC),
    (
        &["--kv-cache-memory-bytes", "--num-gpu-blocks-override"],
        POOL,
    ),
    (&["--block-size", "--page-size"], BLOCKS),
    (
        &[
            "--compilation-config",
            "-O",
            "-cc",
            "--enable-torch-compile",
            "--max-seq-len-to-capture",
        ],
        COMPILER,
    ),
    (
        &[
            "--cuda-graph-sizes",
            "--cudagraph-capture-sizes",
            "--cuda-graph-bs",
            "--cuda-graph-max-bs",
        ],
        "give --cuda-graphs the batch sizes, such as --cuda-graphs 1,2,4,8",
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
        SCHEDULER,
    ),
    (&["--seed", "--random-seed"], SEED),
    (
        &[
            "--enable-lora",
            "--lora-modules",
            "--max-loras",
            "--max-lora-rank",
            "--lora-paths",
        ],
        ADAPTERS,
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
        DRAFTS,
    ),
    (
        &[
            "--limit-mm-per-prompt",
            "--mm-processor-kwargs",
            "--allowed-local-media-path",
            "--enable-multimodal",
        ],
        IMAGES,
    ),
    (
        &[
            "--guided-decoding-backend",
            "--structured-outputs-config",
            "--grammar-backend",
        ],
        GRAMMARS,
    ),
    (
        &["--enable-reasoning"],
        "leave it out: reasoning is found as the model's files show; --reasoning-parser names another format",
    ),
    (
        &[
            "--tool-parser-plugin",
            "--reasoning-parser-plugin",
            "--middleware",
            "--logits-processors",
        ],
        "no code of others is loaded: leave it out; --tool-call-parser and --reasoning-parser name formats",
    ),
    (
        &["--attention-backend"],
        "leave it out: there is --attention triton, the default on GPUs, and --attention torch",
    ),
    (
        &["--device"],
        "leave it out: GPUs are used where CUDA_VISIBLE_DEVICES or the driver shows some, else the CPU",
    ),
    (&["--task", "--runner", "--convert", "--is-embedding"], TASK),
    (
        &[
            "--ssl-keyfile",
            "--ssl-certfile",
            "--ssl-ca-certs",
            "--ssl-cert-reqs",
        ],
        TLS,
    ),
    (
        &[
            "--allowed-origins",
            "--allow-credentials",
            "--allowed-methods",
            "--allowed-headers",
        ],
        "give --cors-allow-origin an origin, once for each",
    ),
    (
        &[
            "--uvicorn-log-level",
            "--log-level",
            "--log-level-http",
            "--enable-log-requests",
            "--log-requests",
        ],
        LOGS,
    ),
    (
        &["--config"],
        "give the flags themselves, or set the environment variable of each (--max-total-tokens: MAX_TOTAL_TOKENS)",
    ),
    (
        &[
            "--root-path",
            "--response-role",
            "--disable-fastapi-docs",
            "--enable-request-id-headers",
        ],
        NAMES,
    ),
];
