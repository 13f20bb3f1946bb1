//! The flags of other servers that have no counterpart here, and what to do instead.

const ADAPTERS: &str = "LoRA adapters of any number and rank are served side by side; --adapter-pages and --adapter-host-mib say \
     how much memory they get (docs/adapters.md)";
const DRAFTS: &str = "set --speculate N, which drafts from the text of each request, or say more in --speculative-config, \
                      such as '{\"method\": \"eagle3\", \"model\": \"...\", \"num_speculative_tokens\": 3}' \
                      (docs/speculation.md)";
const IMAGES: &str = "--max-images-per-request and its like bound the images of a request, and --allowed-image-domains opens \
     links (docs/images.md): leave it out";
const LOGS: &str = "set LOG_LEVEL (error, warn, info, debug), and --json-output for logs as JSON";
const REPLICAS: &str = "data parallelism is not built in: leave it out, start one server per replica of the model, and put \
     a router in front of them (docs/routers.md)";
const STAGES: &str = "pipeline parallelism is not supported: leave it out; split the model over GPUs with --num-shard \
     (tensor parallelism), and over machines with --nnodes (docs/nodes.md)";
const TLS: &str = "the server speaks plain HTTP: leave it out, and put a proxy with the certificate in front of it";
const TOKENIZER: &str = "the tokenizer is read from the folder of the model: leave it out, or put the files of the other \
     tokenizer there. --tokenizer-config-path names another tokenizer_config.json";
const TEMPLATE: &str = "put the template into the folder of the model as chat_template.jinja, or into a \
     tokenizer_config.json as `chat_template`, and name that file with --tokenizer-config-path";
const SEED: &str = "leave it out, and put `seed` into requests; --deterministic makes every answer bitwise the same in \
     every batch";
const SWAP: &str = "nothing is offloaded to host memory: leave it out. A request that has to make room is computed again \
     later, mostly from the prefix cache";
const POOL: &str = "the KV cache takes the GPU memory that is left: leave it out, or limit the cache in tokens with \
     --max-batch-total-tokens, or all memory with --cuda-memory-fraction";
const STATIC: &str = "--cuda-memory-fraction is the share of GPU memory for weights, KV cache and activations together; \
     SGLang's excludes activations. Leave it out: the server measures what the largest step needs and keeps it free";
const BLOCKS: &str =
    "the KV cache has no blocks, it stores and finds each token by itself: leave it out";
const COMPILER: &str = "torch.compile is not used: leave it out. --cuda-graphs sets the batch sizes that get a CUDA graph";
const SCHEDULER: &str =
    "leave it out; docs/operation.md, \"Scheduling\", lists the flags for scheduling";
const EXECUTOR: &str = "the launcher starts the shards itself: leave it out. With Ray: docs/ray.md";
const GRAMMARS: &str =
    "structured output has one backend (docs/structured-output.md): leave it out";
const TASK: &str = "the checkpoint says whether it generates or classifies, and nothing makes embeddings: leave it out";
const OVERRIDES: &str = "leave it out, and change config.json or generation_config.json in a copy of the model's folder";
const NAMES: &str = "paths, pages and headers are fixed: leave it out";

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
        "give --enable-expert-parallel, which distributes the experts over all shards",
    ),
    (
        &[
            "--decode-context-parallel-size",
            "-dcp",
            "--dcp-size",
            "--prefill-context-parallel-size",
            "-pcp",
        ],
        "give --enable-context-parallel, which distributes the positions of latent attention over all shards",
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
        "leave it out, and set the environment variable HF_TOKEN, which process lists do not show",
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
        "code that comes with a model is never run: leave it out",
    ),
    (
        &["--rope-theta"],
        "leave it out; --rope-scaling and --rope-factor set RoPE scaling, and config.json everything else",
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
            "--max-loras",
            "--max-lora-rank",
            "--max-cpu-loras",
            "--max-loras-per-batch",
            "--max-loaded-loras",
        ],
        ADAPTERS,
    ),
    (
        &[
            "--speculative-model",
            "--num-speculative-tokens",
            "--speculative-algorithm",
            "--speculative-draft-model-path",
        ],
        DRAFTS,
    ),
    (
        &[
            "--limit-mm-per-prompt",
            "--mm-processor-kwargs",
            "--allowed-local-media-path",
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
        "leave it out: the format of reasoning is detected from the model's files; --reasoning-parser names another",
    ),
    (
        &[
            "--tool-parser-plugin",
            "--reasoning-parser-plugin",
            "--middleware",
            "--logits-processors",
        ],
        "plugins are not supported: leave it out; --tool-call-parser and --reasoning-parser name formats",
    ),
    (
        &["--attention-backend"],
        "leave it out, or give --attention triton (the default on GPUs) or --attention torch",
    ),
    (
        &["--device"],
        "leave it out: the server uses the GPUs that CUDA_VISIBLE_DEVICES or the driver shows, else the CPU",
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
        "give --cors-allow-origin, once for each origin",
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
