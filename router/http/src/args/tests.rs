use std::net::IpAddr;
use std::path::Path;

use clap::CommandFactory;

use super::*;

fn config(flags: &[&str]) -> Config {
    let always = ["text-generation-router", "--tokenizer-name", "model"];
    Cli::try_parse_from(always.iter().chain(flags))
        .expect("good flags")
        .config
}

#[test]
fn conflicting_limits_are_refused() {
    let flags = ["--max-input-tokens=8", "--max-total-tokens=8"];
    let error = config(&flags).validate().expect_err("a conflict");
    let expected = "`--max-input-tokens` must be < `--max-total-tokens`. Given: 8 and 8";
    assert_eq!(error.to_string(), expected);
}

/// Flags of TGI's router, each with a value that it takes there.
#[test]
fn features_that_do_not_exist_are_refused() {
    for flag in ["--ngrok", "--ngrok-authtoken=secret"] {
        let error = Cli::try_parse_from(["r", "--tokenizer-name=m", flag]).expect_err(flag);
        let name = flag.split('=').next().unwrap_or_default();
        assert!(error.to_string().contains(name), "{error}");
    }
}

#[test]
fn a_ratio_must_be_a_number() {
    for ratio in ["nan", "inf", "-1", "often"] {
        let flag = format!("--waiting-served-ratio={ratio}");
        let error = Cli::try_parse_from(["r", "--tokenizer-name=m", &flag]).expect_err(ratio);
        assert!(
            error
                .to_string()
                .contains("must be `auto` or a number >= 0"),
            "{error}"
        );
    }
    let ratio = |flags: &[&str]| config(flags).waiting_served_ratio;
    assert_eq!(
        ratio(&["--waiting-served-ratio=0"]),
        WaitingServedRatio::Fixed(0.0)
    );
    assert_eq!(
        ratio(&["--waiting-served-ratio=AUTO"]),
        WaitingServedRatio::Auto
    );
    assert_eq!(ratio(&[]), WaitingServedRatio::Auto);
}

#[test]
fn a_model_is_served_under_the_names_that_it_was_given() {
    let names = |flags: &[&str]| config(flags).model_names(Path::new("/models/m"));
    assert_eq!(names(&[]), ["/models/m"]);
    assert_eq!(names(&["--model-id=org/m"]), ["org/m"]);
    let several = [
        "--model-id=org/m",
        "--served-model-name",
        "a",
        "b",
        "--served-model-name=c,d",
    ];
    assert_eq!(names(&several), ["a", "b", "c", "d"]);
    assert_eq!(names(&["--served-model-name="]), ["/models/m"]);
}

#[test]
fn host_names_of_containers_mean_all_addresses() {
    for loopback in ["::1", "[::1]"] {
        assert_eq!(
            config(&["--hostname", loopback]).address(),
            IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1])
        );
    }
    assert_eq!(
        config(&["--hostname=localhost"]).address(),
        IpAddr::from([127, 0, 0, 1])
    );
    assert_eq!(
        config(&["--hostname=4f1e0c"]).address(),
        IpAddr::from([0, 0, 0, 0])
    );
}

#[test]
fn zero_is_refused_by_name() {
    for flag in [
        "--max-batch-size",
        "--validation-workers",
        "--max-concurrent-requests",
    ] {
        let error = Cli::try_parse_from(["r", "--tokenizer-name=m", flag, "0"])
            .expect_err("zero is no limit");
        assert!(error.to_string().contains(flag), "{error}");
    }
}

#[test]
fn help_opens_with_what_the_command_is() {
    let help = Cli::command().render_help().to_string();
    assert!(
        help.starts_with("HTTP front end of the text generation server."),
        "{help}"
    );
}

#[test]
fn more_alternatives_than_shards_give_are_refused() {
    let parse = |value| Cli::try_parse_from(["r", "--max-top-n-tokens", value]);
    assert!(parse("20").is_ok());
    let error = parse("21").expect_err("too many").to_string();
    assert!(error.contains("--max-top-n-tokens"), "{error}");
}

#[test]
fn the_schema_needs_no_other_flag() {
    let cli = Cli::try_parse_from(["r", "print-schema"]);
    assert!(matches!(
        cli.map(|cli| cli.command),
        Ok(Some(Command::PrintSchema))
    ));
}

#[test]
fn secrets_name_no_tenants() {
    for flag in ["--tenant-header", "--priority-header"] {
        let parse = |name| Cli::try_parse_from(["r", "--tokenizer-name=m", flag, name]);
        assert!(parse("x-gateway-inference-fairness-id").is_ok());
        for wrong in ["Authorization", "x-api-key", "cookie", "no name", ""] {
            let error = parse(wrong).expect_err(wrong);
            assert!(error.to_string().contains(flag), "{error}");
        }
    }
}
