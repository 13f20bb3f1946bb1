use clap::Parser;

use super::*;

fn verdict(flags: &[&str]) -> Result<(), String> {
    let model = ["text-generation-launcher", "--model-id", "m"];
    let args = Args::try_parse_from(model.iter().chain(flags)).unwrap();
    check(&args).map_err(|error| error.to_string())
}

#[test]
fn the_flags_of_tgi_that_exist_pass() {
    let flags = [
        "--sharded=true --num-shard=2 --dtype=float32 --trust-remote-code --max-input-tokens=10 -p=8080 -g=5 -e",
        "--max-total-tokens=20 --max-batch-total-tokens=20 --max-batch-prefill-tokens=20 --hostname=::1",
        "--speculate=0 --cuda-graphs=1,2,4 --rope-scaling=dynamic --rope-factor=2 --watermark-delta=2 --payload-limit=1",
        "--prometheus-port=9000 --prometheus-hostname=127.0.0.1 --drain-delay=5 --open-metrics --metrics-aliases=vllm",
        "--kv-cache-dtype=fp8_e4m3fn --usage-stats=no-stack --disable-grammar-support --disable-custom-kernels --quantize=fp8",
    ];
    let flags: Vec<&str> = flags.iter().flat_map(|line| line.split(' ')).collect();
    assert_eq!(verdict(&flags), Ok(()));
}

#[test]
fn a_tokenizer_config_must_be_a_file() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let flag = |path: &str| format!("--tokenizer-config-path={path}");
    let path = file.path().to_str().unwrap();
    assert_eq!(verdict(&[&flag(path)]), Ok(()));
    let message = verdict(&[&flag("/no/such/file")]).unwrap_err();
    assert!(
        message.starts_with("--tokenizer-config-path ") && message.contains("/no/such/file"),
        "{message}"
    );
}

#[test]
fn flags_of_missing_features_are_refused_by_name() {
    let refused = [
        "--speculate=2",
        "--lora-adapters=a,b",
        "--ngrok",
        "--ngrok-authtoken=t",
        "--ngrok-edge=e",
    ];
    for flag in refused {
        let name = flag.split('=').next().unwrap();
        let message = verdict(&[flag]).unwrap_err();
        assert!(
            message.starts_with(&format!("{name} (or ")) && message.contains("leave it out"),
            "{message}"
        );
    }
}

#[test]
fn nodes_need_an_address_a_rank_and_certificates_or_none_by_name() {
    let verdict = |flags: &str| verdict(&flags.split(' ').collect::<Vec<_>>());
    let two = "--nnodes=2 --node-rank=1 --master-addr=a";
    let files = "--cluster-cert=a --cluster-key=b --cluster-ca=c";
    assert_eq!(verdict(&format!("{two} {files}")), Ok(()));
    assert_eq!(verdict(&format!("{two} --cluster-insecure")), Ok(()));
    assert_eq!(verdict("--master-addr=a --master-port=7"), Ok(()));
    for (flags, said) in [
        (
            "--node-rank=1",
            "--node-rank (1) must be below --nnodes (1)",
        ),
        ("--nnodes=2 --cluster-insecure", "needs --master-addr"),
        (two, "needs --cluster-cert, --cluster-key and --cluster-ca"),
        (&format!("{two} --cluster-cert=a"), "together or not at all"),
        (
            &format!("{two} {files} --cluster-insecure"),
            "--cluster-insecure contradicts",
        ),
    ] {
        let message = verdict(flags).unwrap_err();
        assert!(message.contains(said), "{message}");
    }
}

#[test]
fn values_that_cannot_work_are_refused() {
    let cases = [
        (
            "--max-input-tokens=10 --max-total-tokens=10",
            "`--max-input-tokens` must be < `--max-total-tokens`. Given: 10 and 10",
        ),
        (
            "--max-input-length=11 --max-total-tokens=10",
            "`--max-input-tokens` must be < `--max-total-tokens`. Given: 11 and 10",
        ),
        (
            "--max-input-length=1 --max-input-tokens=1",
            "give only --max-input-tokens",
        ),
        (
            "--prefix-caching=per-key",
            "--prefix-caching per-key needs keys to keep apart",
        ),
        (
            "--max-total-tokens=11 --max-batch-total-tokens=10",
            "`--max-total-tokens` must be <= `--max-batch-total-tokens`. Given: 11 and 10",
        ),
        (
            "--max-batch-prefill-tokens=11 --max-batch-total-tokens=10",
            "`--max-batch-prefill-tokens` must be <= `--max-batch-total-tokens`. Given: 11 and 10",
        ),
        (
            "--max-input-tokens=11 --max-batch-prefill-tokens=10 --prefill-chunking=false",
            "`--max-input-tokens` must be <= `--max-batch-prefill-tokens`. Given: 11 and 10",
        ),
        (
            "--validation-workers=0",
            "--validation-workers must not be 0",
        ),
        (
            "--max-top-n-tokens=21",
            "--max-top-n-tokens (21) must be at most 20",
        ),
        ("--num-shard=0", "--num-shard must not be 0"),
        ("--port=0", "--port must not be 0"),
        (
            "--max-batch-total-tokens=0",
            "--max-batch-total-tokens must not be 0",
        ),
        (
            "--max-total-tokens=1",
            "--max-total-tokens must be at least 2",
        ),
        (
            "--cuda-memory-fraction=1.5",
            "--cuda-memory-fraction must be above 0",
        ),
        (
            "--cuda-memory-fraction=NaN",
            "--cuda-memory-fraction must be above 0",
        ),
        (
            "--waiting-served-ratio=inf",
            "--waiting-served-ratio must be 0 or more",
        ),
        ("--max-queue-time=0", "--max-queue-time must be above 0"),
        ("--rope-factor=0.5", "--rope-factor must be 1 or more"),
        ("--watermark-gamma=1", "--watermark-gamma must be between"),
        ("--api-key=", "--api-key (or API_KEY) must not be empty"),
        (
            "--api-key-file=/nonexistent/keys",
            "--api-key-file (or API_KEY_FILE) is not a file: /nonexistent/keys",
        ),
        (
            "--kv-events-config=true",
            "--kv-events-config (or KV_EVENTS_CONFIG) must be a JSON object",
        ),
        (
            "--otlp-endpoint=collector:4317",
            "--otlp-endpoint (or OTLP_ENDPOINT) must be an address such as http://localhost:4317",
        ),
        ("--max-connections=0", "--max-connections must not be 0"),
        ("--client-timeout=0", "--client-timeout must not be 0"),
        (
            "--model-id=",
            "--model-id is required, for example: text-generation-launcher --model-id",
        ),
        ("--model-id=-x", "looks like a flag"),
    ];
    for (flags, expected) in cases {
        let flags: Vec<&str> = flags.split(' ').collect();
        // A later --model-id replaces the one every case starts with.
        let own_model = flags[0].starts_with("--model-id");
        let message = if own_model {
            let args = Args::try_parse_from(["launcher"].iter().chain(&flags)).unwrap();
            check(&args).unwrap_err().to_string()
        } else {
            verdict(&flags).unwrap_err()
        };
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn times_that_no_clock_can_count_are_refused() {
    for flag in [
        "--shard-startup-timeout",
        "--drain-delay",
        "--graceful-termination-timeout",
    ] {
        let with = |seconds: u64| format!("{flag}={seconds}");
        let longest = with(u32::MAX.into());
        assert!(Args::try_parse_from(["launcher", &longest]).is_ok());
        let refused = Args::try_parse_from(["launcher", &with(u64::MAX)]).unwrap_err();
        assert!(refused.to_string().contains(flag), "{refused}");
    }
}

#[test]
fn secrets_are_not_in_debug_output() {
    let args = Args::try_parse_from(["launcher", "--api-key=hunter2", "--ngrok-authtoken=hunter2"])
        .unwrap();
    assert!(!format!("{args:?}").contains("hunter2"));
}
