//! Settings as the launcher gets them: the command line, in our words, and the environment.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};
use text_generation_process::settings::{ForeignValues, Rules, Settings, StandIn};

use super::others::taken;
use super::words::in_our_words;
use super::{Args, Notes};

/// Serves a large language model over HTTP: downloads the model, starts one shard per GPU and the router, and restarts
/// shards that fail.
///
/// Every flag but --env can be set by an environment variable, which [env: ...] names. LOG_LEVEL sets what is logged:
/// error, warn, info, debug, trace, or a filter such as `info,tonic=debug`.
///
/// Numbers of tokens may have a suffix: 32k is 32,000, and 32K is 32,768.
///
/// Flags of vLLM and SGLang are accepted where they mean the same (docs/coming-from-vllm.md).
#[derive(Debug, Parser)]
#[command(
    args_conflicts_with_subcommands = true,
    override_usage = "text-generation-launcher --model-id <MODEL> [OPTIONS]\n       \
                      text-generation-launcher serve <MODEL> [OPTIONS]\n       \
                      text-generation-launcher doctor [MODEL] [OPTIONS]"
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub args: Args,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Check flags, machine and model: print what a start would do and what would prevent it. Starts and downloads nothing
    Doctor(Box<ModelFirst>),
    /// Start the server, as without a command; the model may be given without --model-id
    Serve(Box<ModelFirst>),
}

/// The flags of a start, and the model by itself.
#[derive(Debug, clap::Args)]
pub struct ModelFirst {
    /// Model to serve, the same as --model-id
    pub model: Option<String>,
    #[command(flatten)]
    pub args: Args,
}

/// SageMaker's variables count before TGI's, as in TGI's container for it. An empty key must not open a server.
const RULES: Rules = Rules {
    stand_ins: &[
        instead("MODEL_ID", "HF_MODEL_ID"),
        instead("REVISION", "HF_MODEL_REVISION"),
        instead("NUM_SHARD", "SM_NUM_GPUS"),
        instead("QUANTIZE", "HF_MODEL_QUANTIZE"),
        instead("TRUST_REMOTE_CODE", "HF_MODEL_TRUST_REMOTE_CODE"),
        StandIn {
            own: "PREFIX_CACHING",
            variable: "USE_PREFIX_CACHING",
            wins: false,
        },
        StandIn {
            own: "API_KEY",
            variable: "VLLM_API_KEY",
            wins: false,
        },
    ],
    never_empty: &["API_KEY"],
    foreign: &[ForeignValues {
        variable: "ATTENTION",
        values: &[
            "default",
            "paged",
            "flashdecoding",
            "flashdecoding-ipex",
            "flashinfer",
        ],
        reason: "it names an attention implementation of TGI, which TGI's images set; set triton, the default on GPUs, \
                 or torch",
    }],
};

const fn instead(own: &'static str, variable: &'static str) -> StandIn {
    StandIn {
        own,
        variable,
        wins: true,
    }
}

/// Reads the words of the command line, of which the first is the name of the program, and the environment.
///
/// # Errors
/// What is wrong with them, as clap says it. Help and version are errors too.
pub fn read(words: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let said = in_our_words(words);
    if !said.refused.is_empty() {
        return Err(refusal(&said.refused));
    }
    let words = without_serve_of_doctor(said.words);
    let settings = Settings::read(with_names_of_others(Cli::command()), &RULES, words)
        .map_err(|error| with_serve(said.spelling.in_error(error)))?;
    let mut cli = Cli::from_arg_matches(&settings.matches)?;
    let args = match &mut cli.command {
        Some(Command::Doctor(given) | Command::Serve(given)) => {
            let inner = settings.matches.subcommand().map(|(_, inner)| inner);
            take_model(given, inner)?;
            &mut given.args
        }
        None => &mut cli.args,
    };
    args.origins = settings.origins;
    args.spelling = said.spelling;
    args.notes = Notes {
        warnings: settings.warnings,
        without_effect: said.notes,
    };
    Ok(cli)
}

/// The command that knows the flags of others too, by which it names the one that a misspelt flag is like. Before it reads
/// words those of others have become ours.
fn with_names_of_others(command: clap::Command) -> clap::Command {
    let args = || taken().map(|name| Arg::new(format!("--{name}")).long(name).hide(true));
    let names = ["doctor", "serve"];
    names
        .into_iter()
        .fold(command.args(args()), |command, name| {
            command.mut_subcommand(name, |inner| inner.args(args()))
        })
}

/// `doctor serve MODEL` is what comes of writing `doctor` before a start that does not work.
fn without_serve_of_doctor(mut words: Vec<OsString>) -> Vec<OsString> {
    if let [_, first, second, ..] = words.as_slice()
        && first == "doctor"
        && second == "serve"
    {
        words.remove(2);
    }
    words
}

/// The model that stands alone counts before a variable, and must not contradict a flag.
fn take_model(given: &mut ModelFirst, matches: Option<&ArgMatches>) -> Result<(), clap::Error> {
    let Some(model) = given.model.take() else {
        return Ok(());
    };
    let typed = matches.and_then(|matches| matches.value_source("model_id"));
    let other = given.args.model.model_id.replace(model);
    if typed == Some(ValueSource::CommandLine) && other != given.args.model.model_id {
        let [one, other] = [&given.args.model.model_id, &other].map(|id| id.as_deref());
        return Err(Cli::command().error(
            ErrorKind::ArgumentConflict,
            format!(
                "two models are given: `{}`, and `{}` by --model-id; leave one of them out",
                one.unwrap_or_default(),
                other.unwrap_or_default()
            ),
        ));
    }
    Ok(())
}

/// A model that stands where a command would, as somebody new may write it.
fn with_serve(error: clap::Error) -> clap::Error {
    match (error.kind(), error.get(ContextKind::InvalidSubcommand)) {
        (ErrorKind::InvalidSubcommand, Some(ContextValue::String(word))) => Cli::command().error(
            ErrorKind::InvalidSubcommand,
            format!(
                "there is no command `{word}`; to serve a model of this name, write `serve {word}` or `--model-id {word}`"
            ),
        ),
        _ => error,
    }
}

/// All flags at once, so that nobody has to try one after the other.
fn refusal(flags: &[String]) -> clap::Error {
    let text = match flags {
        [one] => format!("unsupported flag {one}"),
        several => format!("unsupported flags:\n  {}", several.join("\n  ")),
    };
    Cli::command().error(ErrorKind::UnknownArgument, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::TokenLimit;

    fn given(line: &str) -> Result<Cli, String> {
        let words = line.split(' ').map(OsString::from);
        read(words).map_err(|error| error.to_string())
    }

    fn model(line: &str) -> Option<String> {
        match given(line).unwrap().command {
            Some(Command::Serve(given) | Command::Doctor(given)) => given.args.model.model_id,
            None => None,
        }
    }

    #[test]
    fn the_model_may_stand_behind_serve() {
        assert_eq!(model("l serve a/b --port 8000").as_deref(), Some("a/b"));
        assert_eq!(model("l serve --port 8000 a/b").as_deref(), Some("a/b"));
        assert_eq!(model("l serve --model a/b").as_deref(), Some("a/b"));
        assert_eq!(model("l serve a/b --model a/b").as_deref(), Some("a/b"));
        assert_eq!(model("l doctor serve a/b").as_deref(), Some("a/b"));
        assert_eq!(model("l doctor a/b --port 1").as_deref(), Some("a/b"));
        let both = given("l serve a/b --model-id c/d").unwrap_err();
        assert!(
            both.contains("two models are given: `a/b`, and `c/d` by --model-id"),
            "{both}"
        );
        let bare = given("l a/b").unwrap_err();
        assert!(bare.contains("`serve a/b`"), "{bare}");
    }

    #[test]
    fn flags_of_others_that_are_lacking_are_refused_together() {
        let one = given("l --swap-space 4").unwrap_err();
        assert!(
            one.starts_with("error: unsupported flag --swap-space: "),
            "{one}"
        );
        let two = given("l serve a/b --seed 0 --tokenizer c/d").unwrap_err();
        assert!(
            two.starts_with("error: unsupported flags:\n  --seed: ")
                && two.contains("\n  --tokenizer: "),
            "{two}"
        );
    }

    #[test]
    fn a_misspelt_flag_is_told_the_one_that_it_is_like() {
        for line in ["l", "l serve a/b", "l doctor"] {
            for (misspelt, meant) in [
                ("--enable-chunked-prefil", "'--enable-chunked-prefill'"),
                ("--max-model-length", "'--max-model-len'"),
                ("--num-shards", "'--num-shard'"),
            ] {
                let said = given(&format!("{line} {misspelt}")).unwrap_err();
                assert!(said.contains(meant), "{said}");
            }
            let said = given(&format!("{line} --bogus-flag")).unwrap_err();
            assert!(!said.contains("-- --bogus"), "{said}");
        }
    }

    #[test]
    fn negative_numbers_are_told_what_they_must_be() {
        for (words, expected) in [
            ("--waiting-served-ratio -1", "must be auto or a number >= 0"),
            (
                "--max-token-gap -5",
                "must be a whole number from 0 to 4294967295",
            ),
            ("--port 99999", "must be a whole number from 0 to 65535"),
            ("--step-timeout 0", "must be a whole number from 1 to 600"),
            ("--num-shard -2", "not a whole number"),
            ("--max-batch-size -1", "must be a whole number from 0"),
        ] {
            let said = given(&format!("l serve a/b {words}")).unwrap_err();
            assert!(said.contains(expected), "{said}");
        }
        let args = given("l --model-id a/b --watermark-delta -0.5")
            .unwrap()
            .args;
        assert_eq!(args.model.watermark_delta, Some(-0.5));
        let said = given("l --prefix-caching maybe").unwrap_err();
        assert!(
            said.contains("[possible values: true, false, per-key]"),
            "{said}"
        );
    }

    #[test]
    fn values_are_refused_by_the_name_that_was_typed() {
        let refused = |line: &str| given(line).unwrap_err();
        let said = refused("l serve a/b --tensor-parallel-size two");
        let expected = "invalid value 'two' for '--tensor-parallel-size <SHARDS>' (--num-shard here): not a whole number";
        assert!(said.contains(expected), "{said}");
        let said = refused("l serve a/b --max_model_len=32KB");
        assert!(
            said.contains("'--max_model_len <TOKENS>' (--max-total-tokens here)"),
            "{said}"
        );
        assert!(said.contains("32K (32,768)"), "{said}");
        let said = refused("l serve a/b --num-shard two");
        assert!(said.contains("'--num-shard <SHARDS>': "), "{said}");
        assert!(refused("l --response-memory 100KiB").contains("64MiB or 1GiB"));
        assert!(refused("l --port http").contains("not a whole number"));
    }

    #[test]
    fn values_may_be_written_as_for_vllm() {
        let args = |line: &str| given(line).unwrap().args;
        let total = |value: &str| {
            let limits = args(&format!("l --max-model-len {value}")).limits;
            TokenLimit::tokens(limits.max_total_tokens)
        };
        assert_eq!(total("32K"), Some(32_768));
        assert_eq!(total("1k"), Some(1_000));
        assert_eq!(total("auto"), None);
        assert_eq!(total("-1"), None);
        for share in ["90%", "0.9"] {
            let shards = args(&format!("l --gpu-memory-utilization {share}")).shards;
            assert_eq!(shards.cuda_memory_fraction, 0.9);
        }
        let server = args("l --response-memory 1GiB").server;
        assert_eq!(server.response_memory, Some(1_024));
    }

    #[test]
    fn an_unknown_way_to_quantise_is_refused_with_those_that_there_are() {
        let refused = given("l --model-id a/b --quantize int3").unwrap_err();
        for name in ["fp8", "eetq", "awq", "bitsandbytes-nf4"] {
            assert!(refused.contains(&format!("{name}, ")), "{refused}");
        }
        assert!(!refused.contains("exl2"), "{refused}");
        // The shards say of each what to use instead.
        assert!(given("l --model-id a/b --quantize exl2").is_ok());
    }

    #[test]
    fn a_command_line_of_vllm_is_read() {
        let cli = given(
            "l serve a/b --tensor-parallel-size 2 --max-num-seqs 8 --max-model-len 4096 --dtype half --host localhost \
             --gpu-memory-utilization 0.9 --enable-auto-tool-choice --tool-call-parser hermes --served-model-name m n",
        );
        let Ok(Cli {
            command: Some(Command::Serve(serve)),
            ..
        }) = cli
        else {
            panic!("{cli:?}");
        };
        let args = &serve.args;
        assert_eq!(args.shards.num_shard, Some(2));
        assert_eq!(args.batching.max_batch_size, Some(8));
        assert_eq!(TokenLimit::tokens(args.limits.max_total_tokens), Some(4096));
        assert_eq!(args.model.served_model_name, ["m", "n"]);
        assert_eq!(args.server.hostname.to_string(), "127.0.0.1");
        assert_eq!(args.notes.without_effect.len(), 1);
    }
}
