use std::time::Duration;

use clap::Parser;

use super::*;
use crate::args::Args;

fn args(flags: &str) -> Args {
    let flags = flags.split_whitespace();
    Args::try_parse_from(
        ["launcher", "--model-id", "org/model"]
            .into_iter()
            .chain(flags),
    )
    .unwrap()
}

fn surroundings() -> Surroundings {
    Surroundings {
        log_level: "INFO".to_owned(),
        hf_token: Some("hf_1".to_owned()),
    }
}

fn group(size: usize, directory_owned: bool) -> ShardGroup {
    ShardGroup {
        size,
        uds_prefix: "/run/tgi-x/shard".to_owned(),
        directory_owned,
        node: None,
    }
}

/// One line for the command, one for what its environment adds, one for what it lacks.
fn render(spec: &ProcessSpec) -> String {
    let env: Vec<String> = spec
        .env
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    let mut lines = vec![format!("{} {}", spec.program, spec.args.join(" "))];
    lines.extend((!env.is_empty()).then(|| format!("with {}", env.join(" "))));
    lines.extend(
        (!spec.env_remove.is_empty()).then(|| format!("without {}", spec.env_remove.join(" "))),
    );
    lines.join("\n")
}

#[test]
fn shards_are_counted_as_documented() {
    let count = |sharded, num_shard, devices| shard_count(sharded, num_shard, devices).ok();
    assert_eq!(count(Some(true), None, Some(4)), Some(4));
    assert_eq!(count(Some(true), None, Some(1)), None);
    assert_eq!(count(Some(true), None, None), None);
    assert_eq!(count(Some(true), Some(2), None), Some(2));
    assert_eq!(count(Some(true), Some(1), Some(4)), None);
    assert_eq!(count(Some(false), Some(3), None), Some(3));
    assert_eq!(count(Some(false), None, Some(4)), Some(1));
    assert_eq!(count(None, Some(2), None), Some(2));
    assert_eq!(count(None, None, Some(4)), Some(4));
    assert_eq!(count(None, None, Some(0)), Some(1));
    assert_eq!(count(None, None, None), Some(1));
}

#[test]
fn a_refused_shard_count_says_what_to_do() {
    let message = |num_shard, devices| {
        shard_count(Some(true), num_shard, devices)
            .unwrap_err()
            .to_string()
    };
    assert!(message(None, Some(1)).contains("the launcher sees 1; set CUDA_VISIBLE_DEVICES"));
    assert!(message(None, None).contains("unknown; set CUDA_VISIBLE_DEVICES"));
    assert!(message(Some(1), None).contains("use --sharded false"));
}

#[test]
fn the_download_step_gets_the_model() {
    insta::assert_snapshot!(render(&download(&args(""), &surroundings(), 1)), @r"
    text-generation-server download-weights org/model --load-format auto --kv-cache-dtype auto --dequantised-copies auto --num-shard 1 --exit-on-stdin-eof --logger-level INFO --json-output
    with HF_HUB_DISABLE_PROGRESS_BARS=1 CUDA_MEMORY_FRACTION=1 HF_TOKEN=hf_1
    without LOG_LEVEL API_KEY ADMIN_API_KEY RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT
    ");
    let flags = "--revision r1 --load-format safetensors --model-impl native --quantize fp8 --auto-convert --trust-remote-code \
                 --huggingface-hub-cache /cache --weights-cache-override /weights --api-key secret \
                 --max-input-length 7 --max-total-tokens 9 --enable-expert-parallel --enable-context-parallel --rope-scaling linear --rope-factor 2 \
                 --attention torch --cuda-graphs 1,2 --deterministic --speculate 3 --dequantised-copies off --merge-adapter /adapters/pirate \
                 --lora-adapters b=org/b@v1,/c \
                 --cuda-memory-fraction 0.5";
    insta::assert_snapshot!(render(&download(&args(flags), &surroundings(), 4)), @r"
    text-generation-server download-weights org/model --revision r1 --load-format safetensors --model-impl native --quantize fp8 --kv-cache-dtype auto --dequantised-copies off --merge-adapter /adapters/pirate --attention torch --cuda-graphs 1,2 --deterministic --speculate 3 --enable-expert-parallel --enable-context-parallel --lora-adapters b=org/b@v1,/c --auto-convert --max-input-tokens 7 --max-total-tokens 9 --num-shard 4 --trust-remote-code --exit-on-stdin-eof --logger-level INFO --json-output
    with HF_HUB_DISABLE_PROGRESS_BARS=1 CUDA_MEMORY_FRACTION=0.5 HF_TOKEN=hf_1 HUGGINGFACE_HUB_CACHE=/cache WEIGHTS_CACHE_OVERRIDE=/weights ROPE_SCALING=linear ROPE_FACTOR=2
    without LOG_LEVEL API_KEY ADMIN_API_KEY RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT
    ");
}

#[test]
fn the_router_keeps_answers_where_they_are_asked_for() {
    let flag = |flags: &str, method: Option<&str>| {
        let mut args = args(flags);
        args.shards.speculative_config = method.map(|method| {
            format!(r#"{{"method": "{method}", "num_speculative_tokens": 3}}"#)
                .parse()
                .unwrap()
        });
        let words = router_check(&args, None).args;
        let place = words.iter().position(|word| word == "--answer-index-mib");
        place.map(|place| words[place + 1].clone())
    };
    assert_eq!(flag("", None), None);
    assert_eq!(flag("", Some("ngram")), None);
    assert_eq!(flag("", Some("suffix")), Some("64".to_owned()));
    assert_eq!(
        flag("--answer-index-mib 9", Some("suffix")),
        Some("9".to_owned())
    );
    assert_eq!(flag("--answer-index-mib 7", None), Some("7".to_owned()));
}

#[test]
fn every_step_learns_of_the_drafter() {
    let mut args = args("");
    args.shards.speculative_config = Some(
        r#"{"method": "eagle3", "model": "org/head", "revision": "v2", "num_speculative_tokens": 5}"#
            .parse()
            .unwrap(),
    );
    let flags = "--speculate 5 --drafter org/head --drafter-revision v2 --drafter-method eagle3";
    for process in [
        download(&args, &surroundings(), 1),
        doctor(&args, &surroundings(), 1),
        shard(&args, &surroundings(), "/models/m", &group(1, true), 0),
    ] {
        assert!(render(&process).contains(flags), "{}", render(&process));
    }
    args.model.revision = Some("r1".to_owned());
    let own = r#"{"method": "mtp", "num_speculative_tokens": 1}"#;
    args.shards.speculative_config = Some(own.parse().unwrap());
    let shard = render(&shard(
        &args,
        &surroundings(),
        "/models/m",
        &group(1, true),
        0,
    ));
    let flags = "--speculate 1 --drafter org/model --drafter-revision r1 --drafter-method mtp";
    assert!(shard.contains(flags), "{shard}");
}

#[test]
fn a_shard_gets_its_place_in_the_group() {
    let lone = shard(&args(""), &surroundings(), "/models/m", &group(1, true), 0);
    assert_eq!((lone.name.as_str(), lone.rank), ("shard 0", Some(0)));
    insta::assert_snapshot!(render(&lone), @r"
    text-generation-server serve /models/m --uds-path /run/tgi-x/shard --socket-dir-owned --exit-on-stdin-eof --load-format auto --kv-cache-dtype auto --dequantised-copies auto --logger-level INFO --json-output
    with HF_HUB_DISABLE_PROGRESS_BARS=1 CUDA_MEMORY_FRACTION=1 HF_TOKEN=hf_1 HF_HUB_OFFLINE=1 RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1
    without LOG_LEVEL API_KEY ADMIN_API_KEY RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT
    ");
    let flags = "--dtype bfloat16 --load-format dummy --model-impl transformers --quantize eetq --kv-cache-dtype triton_int8kv --trust-remote-code \
                 --cuda-memory-fraction 0.5 --rope-factor 2 --watermark-gamma 0.25 --watermark-delta 2 \
                 --attention torch --cuda-graphs 1,2 --deterministic --enable-expert-parallel --disable-custom-kernels --api-key secret";
    let second = shard(
        &args(flags),
        &surroundings(),
        "/models/m",
        &group(2, false),
        1,
    );
    insta::assert_snapshot!(render(&second), @r"
    text-generation-server serve /models/m --uds-path /run/tgi-x/shard --exit-on-stdin-eof --sharded --dtype bfloat16 --load-format dummy --model-impl transformers --quantize eetq --kv-cache-dtype int8 --dequantised-copies auto --attention torch --cuda-graphs 1,2 --deterministic --enable-expert-parallel --trust-remote-code --logger-level INFO --json-output
    with HF_HUB_DISABLE_PROGRESS_BARS=1 CUDA_MEMORY_FRACTION=0.5 HF_TOKEN=hf_1 HF_HUB_OFFLINE=1 RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 ROPE_SCALING=linear ROPE_FACTOR=2 WATERMARK_GAMMA=0.25 WATERMARK_DELTA=2 DISABLE_CUSTOM_KERNELS=True
    without LOG_LEVEL API_KEY ADMIN_API_KEY RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT
    ");
}

#[test]
fn what_is_asked_before_a_download_is_what_shards_are_told() {
    let args = args(
        "--dtype float16 --kv-cache-dtype ppl_int4kv --merge-adapter a --lora-adapters b,c --attention triton --cuda-graphs x --deterministic",
    );
    let shard = shard(&args, &surroundings(), "/m", &group(1, true), 0);
    let told = "--dtype float16 --load-format auto --kv-cache-dtype int4 --dequantised-copies auto --merge-adapter a \
                --attention triton --cuda-graphs x --deterministic";
    // The router names adapters to the shards.
    let adapters = "--lora-adapters b,c";
    assert!(!render(&shard).contains(adapters), "{}", render(&shard));
    let before = [
        download(&args, &surroundings(), 1),
        doctor(&args, &surroundings(), 1),
    ];
    for spec in &before {
        assert!(render(spec).contains(adapters), "{}", render(spec));
    }
    for spec in before.iter().chain([&shard]) {
        assert!(render(spec).contains(told), "{}", render(spec));
        assert!(spec.env.contains(&("CUDA_MEMORY_FRACTION", "1".to_owned())));
    }
}

#[test]
fn a_scaling_alone_has_factor_one() {
    let spec = shard(
        &args("--rope-scaling dynamic"),
        &surroundings(),
        "/m",
        &group(1, true),
        0,
    );
    assert!(render(&spec).contains("ROPE_SCALING=dynamic ROPE_FACTOR=1"));
}

#[test]
fn the_router_is_told_what_to_remember() {
    let args = args("--response-memory 3");
    let spec = router(&args, "/models/m", &group(1, true), None, "i1");
    assert!(render(&spec).contains(" --response-memory 3 "));
}

#[test]
fn the_router_gets_limits_and_address() {
    let plain = router(
        &args(""),
        "/models/m",
        &group(1, true),
        Some("1-cpu".to_owned()),
        "i1",
    );
    insta::assert_snapshot!(render(&plain), @r"
    text-generation-router --master-shard-uds-path /run/tgi-x/shard-0 --tokenizer-name /models/m --model-id org/model --max-concurrent-requests 128 --max-best-of 2 --max-beam-width 8 --max-stop-sequences 4 --max-top-n-tokens 5 --max-logprobs 20 --max-client-batch-size 32 --waiting-served-ratio auto --prefill-chunking true --prefix-caching true --max-waiting-tokens 20 --step-timeout 60 --hostname 0.0.0.0 --port 3000 --validation-workers 2 --max-connections 4096 --client-timeout 60 --sse-keep-alive 15 --drain-delay 0 --graceful-termination-timeout 90 --json-output --exit-on-stdin-eof
    with ROUTER_INSTANCE=i1 COMPUTE_TYPE=1-cpu
    without MAX_INPUT_TOKENS MAX_TOTAL_TOKENS MAX_BATCH_PREFILL_TOKENS MAX_BATCH_TOTAL_TOKENS
    ");
    let flags = "--revision r1 --tokenizer-config-path /t.json --escape-special-tokens --tool-call-parser hermes --reasoning-parser none --generation-config none --disable-grammar-support --hostname ::1 -p 8080 --max-input-length 7 \
                 --max-total-tokens 9 --enable-prefill-logprobs --max-batch-prefill-tokens 8 \
                 --max-batch-total-tokens 10 --max-batch-size 3 --max-queue-time 1.5 --cors-allow-origin a --cors-allow-origin b -g 5 \
                 --api-key-file /keys --tenant-header x-t --priority-header x-p --max-connections 7 --client-timeout 8 \
                 --served-model-name a b --sse-keep-alive 9 --step-timeout 7 --prometheus-port 9 --prometheus-hostname ::2 \
                 --open-metrics --metrics-aliases vllm --drain-delay 4 --kv-events-config {}";
    insta::assert_snapshot!(render(&router(&args(flags), "/models/m", &group(2, true), None, "i1")), @r"
    text-generation-router --master-shard-uds-path /run/tgi-x/shard-0 --tokenizer-name /models/m --model-id org/model --served-model-name a --served-model-name b --revision r1 --tokenizer-config-path /t.json --escape-special-tokens --tool-call-parser hermes --reasoning-parser none --generation-config none --disable-grammar-support --max-concurrent-requests 128 --max-best-of 2 --max-beam-width 8 --max-stop-sequences 4 --max-top-n-tokens 5 --max-logprobs 20 --max-input-tokens 7 --max-total-tokens 9 --max-client-batch-size 32 --enable-prefill-logprobs --waiting-served-ratio auto --max-batch-prefill-tokens 8 --max-batch-total-tokens 10 --prefill-chunking true --prefix-caching true --max-waiting-tokens 20 --max-batch-size 3 --max-queue-time 1.5 --step-timeout 7 --hostname ::1 --port 8080 --validation-workers 2 --max-connections 7 --client-timeout 8 --sse-keep-alive 9 --prometheus-port 9 --prometheus-hostname ::2 --open-metrics --metrics-aliases vllm --kv-events-config {} --drain-delay 4 --graceful-termination-timeout 5 --cors-allow-origin a --cors-allow-origin b --api-key-file /keys --tenant-header x-t --priority-header x-p --json-output --exit-on-stdin-eof
    with ROUTER_INSTANCE=i1
    without MAX_INPUT_TOKENS MAX_TOTAL_TOKENS MAX_BATCH_PREFILL_TOKENS MAX_BATCH_TOTAL_TOKENS
    ");
}

#[test]
fn the_check_of_the_router_gets_what_the_router_gets() {
    let args = args("--max-best-of 3 --tool-call-parser hermes --kv-events-config {}");
    let router = router(&args, "/m", &group(1, true), None, "i1");
    let of_start = [
        "--master-shard-uds-path",
        "/run/tgi-x/shard-0",
        "--exit-on-stdin-eof",
    ];
    let mut expected = router.args;
    expected.retain(|word| !of_start.contains(&word.as_str()));
    expected.insert(0, "check".to_owned());
    assert_eq!(router_check(&args, Some("/m")).args, expected);
    expected.drain(1..3);
    let without_model = router_check(&args, None);
    assert_eq!(without_model.args, expected);
    for variable in ["TOKENIZER_NAME", "MAX_TOTAL_TOKENS"] {
        assert!(without_model.env_remove.contains(&variable));
    }
}

#[test]
fn router_and_shards_send_traces_to_the_same_collector() {
    let given = args("--otlp-endpoint http://c:4317 --otlp-service-name s");
    let specs = |args: &Args| {
        [
            router(args, "/m", &group(1, true), None, "i1"),
            shard(args, &surroundings(), "/m", &group(1, true), 0),
        ]
    };
    let named = "--otlp-endpoint http://c:4317 --otlp-service-name s";
    for spec in specs(&given) {
        assert!(render(&spec).contains(named), "{}", render(&spec));
    }
    for spec in specs(&args("--otlp-endpoint= --kv-events-config=")) {
        assert!(!render(&spec).contains("--otlp"), "{}", render(&spec));
        assert!(!render(&spec).contains("--kv-events"), "{}", render(&spec));
    }
}

#[test]
fn the_key_goes_to_the_router_alone_and_by_environment() {
    let args = args("--api-key secret");
    let router = router(&args, "/m", &group(1, true), None, "i1");
    for spec in [router, router_check(&args, None)] {
        assert!(spec.env.contains(&("API_KEY", "secret".to_owned())));
        assert!(!spec.args.iter().any(|argument| argument.contains("secret")));
    }
    for other in [
        download(&args, &surroundings(), 1),
        shard(&args, &surroundings(), "/m", &group(1, true), 0),
    ] {
        assert!(!render(&other).contains("secret"));
        assert!(other.env_remove.contains(&"API_KEY"));
    }
}

#[test]
fn the_router_has_the_time_of_its_drain_and_of_its_requests() {
    let args = args("--drain-delay 5 --graceful-termination-timeout 10");
    assert_eq!(router_grace(&args.server), Duration::from_secs(17));
}

#[test]
fn the_port_for_metrics_has_the_address_of_the_server_unless_it_has_its_own() {
    let address = |flags| {
        let address = args(flags).server.management_address();
        address.map(|address| address.to_string())
    };
    assert_eq!(address("--hostname 127.0.0.1"), None);
    let shared = address("--hostname 127.0.0.1 --prometheus-port 9000");
    assert_eq!(shared.as_deref(), Some("127.0.0.1:9000"));
    let own = address("--hostname 127.0.0.1 --prometheus-port 9000 --prometheus-hostname ::");
    assert_eq!(own.as_deref(), Some("[::]:9000"));
}
