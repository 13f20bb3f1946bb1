//! What variables of the environment mean, as those who set them see it.

use nix::sys::signal::Signal;

use crate::harness::{Env, Launcher, failed, free_port};

fn arguments_of_router(
    flags: &[&str],
    env: Env<'_>,
) -> (Vec<String>, serde_json::Value, Vec<String>) {
    let launcher = Launcher::start(flags, env);
    launcher.wait_until_ready();
    launcher.signal(Signal::SIGTERM);
    let ended = launcher.end();
    assert_eq!(ended.code, Some(0), "{:#?}", ended.output);
    let start = ended.start_of("router");
    let words = start["argv"].as_array().unwrap().iter();
    let words = words.map(|word| word.as_str().unwrap().to_owned());
    (words.collect(), start["env"].clone(), ended.output.clone())
}

fn value<'a>(arguments: &'a [String], flag: &str) -> Option<&'a str> {
    let place = arguments.iter().position(|word| word == flag)?;
    arguments.get(place + 1).map(String::as_str)
}

#[test]
fn what_services_and_images_set_ends_no_start() {
    let env = [
        ("PROMETHEUS_PORT", "tcp://10.0.0.9:9090"),
        ("MASTER_PORT", "tcp://10.0.0.9:80"),
        ("ATTENTION", "flashinfer"),
        ("USE_PREFIX_CACHING", "0"),
        ("MAX_TOTAL_TOKENS", ""),
        ("QUANTIZE", ""),
        ("SHARDED", "no"),
        ("OPEN_METRICS", "1"),
        ("JSON_OUTPUT", "off"),
        ("ESCAPE_SPECIAL_TOKENS", "0"),
    ];
    let (arguments, seen, output) = arguments_of_router(&[], &env);
    assert_eq!(value(&arguments, "--prefix-caching"), Some("0"));
    assert!(arguments.iter().any(|word| word == "--open-metrics"));
    for absent in [
        "--prometheus-port",
        "--max-total-tokens",
        "--escape-special-tokens",
    ] {
        assert!(
            !arguments.iter().any(|word| word == absent),
            "{arguments:?}"
        );
    }
    assert!(seen.get("PROMETHEUS_PORT").is_none(), "{seen}");
    for name in ["PROMETHEUS_PORT", "MASTER_PORT", "ATTENTION"] {
        let warned = |line: &&String| line.contains("WARN") && line.contains(&format!("{name}="));
        assert_eq!(output.iter().filter(warned).count(), 1, "{output:#?}");
    }
}

#[test]
fn the_variables_of_sagemaker_count_before_ours_and_flags_before_both() {
    let port = free_port().to_string();
    let env = [
        ("HF_MODEL_ID", "org/theirs"),
        ("MODEL_ID", "org/ours"),
        ("HF_MODEL_REVISION", "r1"),
        ("SM_NUM_GPUS", "2"),
        ("NUM_SHARD", "4"),
        ("HF_MODEL_TRUST_REMOTE_CODE", "1"),
        ("PORT", &port),
        ("HF_MODEL_QUANTIZE", "fp8"),
    ];
    let flags = ["serve", "--quantize", "eetq", "--hostname", "localhost"];
    let launcher = Launcher::start_bare(&flags, &env);
    launcher.wait_for_line(&format!("http://127.0.0.1:{port}"));
    launcher.wait_until_ready();
    launcher.signal(Signal::SIGTERM);
    let ended = launcher.end();
    let download = ended.start_of("download")["argv"].to_string();
    for expected in [
        r#""org/theirs""#,
        r#""--revision","r1""#,
        r#""--num-shard","2""#,
        r#""--quantize","eetq""#,
        "--trust-remote-code",
    ] {
        assert!(download.contains(expected), "{expected}: {download}");
    }
}

#[test]
fn a_message_about_a_variable_names_it() {
    let read = |env: Env<'_>| {
        let ended = Launcher::start(&[], env).end();
        assert_eq!(ended.code, Some(2), "{:#?}", ended.output);
        ended.output.join("\n")
    };
    let said = read(&[("SHARD_STARTUP_TIMEOUT", "soon")]);
    assert!(said.contains("invalid value 'soon'"), "{said}");
    assert!(
        said.contains("set in the environment by SHARD_STARTUP_TIMEOUT"),
        "{said}"
    );
    let said = read(&[("HF_MODEL_QUANTIZE", "int3")]);
    assert!(
        said.contains("HF_MODEL_QUANTIZE") && said.contains("fp8, "),
        "{said}"
    );
    let said = read(&[("OPEN_METRICS", "perhaps")]);
    assert!(said.contains("OPEN_METRICS"), "{said}");

    let ended = failed(&[], &[("ROPE_FACTOR", "0.5")]);
    let error = ended.error();
    assert!(
        error.ends_with("(set in the environment: ROPE_FACTOR)"),
        "{error}"
    );
    let ended = failed(
        &[],
        &[
            ("FAKE_CHECK", "refuse"),
            ("REASONING_PARSER", "openai"),
            ("FAKE_DOWNLOAD", "hang"),
        ],
    );
    let error = ended.error();
    assert!(
        error.ends_with("does not fit (set in the environment: REASONING_PARSER)"),
        "{error}"
    );
}

#[test]
fn an_empty_key_reaches_the_router_which_refuses_it() {
    let (_, seen, _) = arguments_of_router(&[], &[("API_KEY", "")]);
    assert_eq!(seen["API_KEY"], "");
    let (_, seen, _) = arguments_of_router(&[], &[("VLLM_API_KEY", "secret")]);
    assert_eq!(seen["API_KEY"], "secret");
}
