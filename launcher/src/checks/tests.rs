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
        "--speculate=3 --cuda-graphs=1,2,4 --rope-scaling=dynamic --rope-factor=2 --watermark-delta=2 --payload-limit=1",
        "--prometheus-port=9000 --prometheus-hostname=127.0.0.1 --drain-delay=5 --open-metrics --metrics-aliases=vllm",
        "--kv-cache-dtype=fp8_e4m3fn --usage-stats=no-stack --disable-grammar-support --disable-custom-kernels --quantize=fp8",
    ];
    let flags: Vec<&str> = flags.iter().flat_map(|line| line.split(' ')).collect();
    assert_eq!(verdict(&flags), Ok(()));
}

#[test]
fn flags_of_missing_features_are_refused_by_name() {
    let refused = ["--ngrok", "--ngrok-authtoken=t", "--ngrok-edge=e"];
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
fn how_many_tokens_are_drafted_is_said_once_or_twice_the_same() {
    let ngram = r#"--speculative-config={"method": "ngram", "num_speculative_tokens": 3}"#;
    let no_number = r#"--speculative-config={"method": "ngram"}"#;
    for flags in [
        &[ngram][..],
        &[ngram, "--speculate=3"],
        &[no_number, "--speculate=4"],
    ] {
        assert_eq!(verdict(flags), Ok(()), "{flags:?}");
    }
    let message = verdict(&[ngram, "--speculate=4"]).unwrap_err();
    assert!(
        message.starts_with("--speculate 4 contradicts --speculative-config"),
        "{message}"
    );
    for config in [ngram, no_number] {
        let message = verdict(&[config, "--speculate=0"]).unwrap_err();
        assert!(
            message.starts_with("--speculate 0 contradicts --speculative-config"),
            "{message}"
        );
    }
    let message = verdict(&[no_number]).unwrap_err();
    assert!(
        message.contains("add `num_speculative_tokens`, such as 3"),
        "{message}"
    );
}

#[test]
fn answers_are_kept_where_they_are_drafted_from() {
    let suffix = r#"--speculative-config={"method": "suffix", "num_speculative_tokens": 3}"#;
    for flags in [
        &["--answer-index-mib=0"][..],
        &["--answer-index-mib=9", "--speculate=3"],
        &["--answer-index-mib=0", "--speculate=3"],
        &["--answer-index-mib=9", suffix],
    ] {
        assert_eq!(verdict(flags), Ok(()), "{flags:?}");
    }
    for (flags, said) in [
        (
            &["--answer-index-mib=0", suffix][..],
            "--answer-index-mib 0 contradicts the method \"suffix\" of --speculative-config",
        ),
        (
            &["--answer-index-mib=9"],
            "--answer-index-mib 9 keeps earlier answers to draft from, and nothing is drafted; add --speculate N",
        ),
        (
            &["--answer-index-mib=9", "--speculate=0"],
            "--answer-index-mib 9 keeps earlier answers",
        ),
    ] {
        let message = verdict(flags).unwrap_err();
        assert!(message.starts_with(said), "{message}");
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
        (files, "are for several nodes; add --nnodes"),
        ("--cluster-cert=a", "are for several nodes"),
        ("--cluster-insecure", "are for several nodes"),
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
            "--max-input-length=1 --max-input-tokens=1",
            "give only --max-input-tokens",
        ),
        ("--num-shard=0", "--num-shard must not be 0"),
        ("--port=0", "--port must not be 0"),
        (
            "--cuda-memory-fraction=1.5",
            "--cuda-memory-fraction must be between 0.01 and 1, not 1.5",
        ),
        (
            "--cuda-memory-fraction=0.005",
            "--cuda-memory-fraction must be between",
        ),
        (
            "--cuda-memory-fraction=NaN",
            "--cuda-memory-fraction must be between",
        ),
        (
            "--rope-factor=0.5",
            "--rope-factor must be between 1 and 10000",
        ),
        ("--rope-factor=10001", "--rope-factor must be between"),
        ("--watermark-gamma=1.5", "--watermark-gamma must be between"),
        ("--watermark-delta=inf", "--watermark-delta must be between"),
        ("--model-id=", "no model is given: name one with --model-id"),
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
