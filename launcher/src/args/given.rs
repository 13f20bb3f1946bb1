//! Settings as the launcher gets them: the command line, in our words, and the environment.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};
use text_generation_process::settings::{ForeignValues, Rules, Settings, StandIn};

use super::words::in_our_words;
use super::{Args, Notes};

/// Starts a text generation server: prepares the model, starts one shard per device and the router, and watches them.
///
/// Every flag can be given by an environment variable of the same name in upper case, for example MODEL_ID.
/// LOG_LEVEL sets what is logged: error, warn, info, debug, trace, or directives such as `info,tonic=debug`.
/// Flags of vLLM and SGLang are taken where they mean the same (docs/coming-from-vllm.md).
#[derive(Debug, Parser)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub args: Args,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Say what a start with the flags that follow would do, and what would keep it from working; nothing is started
    Doctor(Box<Args>),
    /// The same as without a command, with the model as the first word
    Serve(Box<ServeArgs>),
}

#[derive(Debug, clap::Args)]
pub struct ServeArgs {
    /// The same as --model-id
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
        reason: "it names an implementation of TGI, and is what images of TGI set; here there are triton, the default \
                 on GPUs, and torch",
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
    let settings = Settings::read(Cli::command(), &RULES, said.words).map_err(with_serve)?;
    let mut cli = Cli::from_arg_matches(&settings.matches)?;
    if let Some(Command::Serve(serve)) = &mut cli.command {
        let matches = settings.matches.subcommand_matches("serve");
        take_model(serve, matches)?;
    }
    let args = match &mut cli.command {
        Some(Command::Doctor(args)) => args,
        Some(Command::Serve(serve)) => &mut serve.args,
        None => &mut cli.args,
    };
    args.origins = settings.origins;
    args.notes = Notes {
        warnings: settings.warnings,
        without_effect: said.notes,
    };
    Ok(cli)
}

/// The model that stands alone counts before a variable, and must not contradict a flag.
fn take_model(serve: &mut ServeArgs, matches: Option<&ArgMatches>) -> Result<(), clap::Error> {
    let Some(model) = serve.model.take() else {
        return Ok(());
    };
    let typed = matches.and_then(|matches| matches.value_source("model_id"));
    let other = serve.args.model.model_id.replace(model);
    if typed == Some(ValueSource::CommandLine) && other != serve.args.model.model_id {
        return Err(Cli::command().error(
            ErrorKind::ArgumentConflict,
            "two models are named, by `serve` and by --model-id; leave one of them out",
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
                "there is no command `{word}`; a model is named by `serve {word}`, or by `--model-id {word}`"
            ),
        ),
        _ => error,
    }
}

/// All flags at once, so that nobody has to try one after the other.
fn refusal(flags: &[String]) -> clap::Error {
    let text = match flags {
        [one] => format!("there is no flag {one}"),
        several => format!("there are no flags\n  {}", several.join("\n  ")),
    };
    Cli::command().error(ErrorKind::UnknownArgument, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(line: &str) -> Result<Cli, String> {
        let words = line.split(' ').map(OsString::from);
        read(words).map_err(|error| error.to_string())
    }

    fn model(line: &str) -> Option<String> {
        match given(line).unwrap().command {
            Some(Command::Serve(serve)) => serve.args.model.model_id,
            _ => None,
        }
    }

    #[test]
    fn the_model_may_stand_behind_serve() {
        assert_eq!(model("l serve a/b --port 8000").as_deref(), Some("a/b"));
        assert_eq!(model("l serve --port 8000 a/b").as_deref(), Some("a/b"));
        assert_eq!(model("l serve --model a/b").as_deref(), Some("a/b"));
        assert_eq!(model("l serve a/b --model a/b").as_deref(), Some("a/b"));
        let both = given("l serve a/b --model-id c/d").unwrap_err();
        assert!(both.contains("two models are named"), "{both}");
        let bare = given("l a/b").unwrap_err();
        assert!(bare.contains("`serve a/b`"), "{bare}");
    }

    #[test]
    fn flags_of_others_that_are_lacking_are_refused_together() {
        let one = given("l --swap-space 4").unwrap_err();
        assert!(
            one.starts_with("error: there is no flag --swap-space: "),
            "{one}"
        );
        let two = given("l serve a/b --seed 0 --tokenizer c/d").unwrap_err();
        assert!(
            two.contains("\n  --seed: ") && two.contains("\n  --tokenizer: "),
            "{two}"
        );
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
        assert_eq!(args.limits.max_total_tokens, Some(4096));
        assert_eq!(args.model.served_model_name, ["m", "n"]);
        assert_eq!(args.server.hostname.to_string(), "127.0.0.1");
        assert_eq!(args.notes.without_effect.len(), 1);
    }
}
