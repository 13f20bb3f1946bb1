//! Discovery of the server: its model, and where that lies.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use super::api::{Api, Sampling};
use super::args::{PromptForm, ServerArgs};
use super::client::Target;
use super::workload::Form;
use crate::error::{BenchmarkError, Result};
use crate::prompts::{PromptMaker, tokenizer_file};

/// The target with its model's name, and the folder of that model if it is on this machine.
pub async fn target(args: &ServerArgs) -> Result<(Target, Option<PathBuf>)> {
    if !(args.temperature >= 0.0 && args.temperature.is_finite()) {
        return Err(BenchmarkError::argument(
            "--temperature",
            "must be at least 0",
        ));
    }
    let sampling = Sampling {
        model: args.model.clone().unwrap_or_default(),
        temperature: args.temperature,
        ignore_eos: !args.stop_at_eos,
        extra: args.extra_body.clone().unwrap_or_default(),
    };
    let timeout = Duration::from_secs(args.timeout);
    let target = Target::new(&args.url, args.api, sampling, args.api_key.clone(), timeout)?;
    let models = target.get("/v1/models").await?.unwrap_or_default();
    let info = target.get("/info").await?.unwrap_or_default();
    let names = named(&models, &info);
    let folder = names.iter().map(PathBuf::from).find(|name| name.is_dir());
    let model = args.model.clone().or_else(|| names.first().cloned());
    match model {
        Some(model) => Ok((target.with_model(model), folder)),
        // Its requests name no model; the report names the server.
        None if args.api == Api::Tgi => Ok((target.with_model(args.url.clone()), folder)),
        None => Err(BenchmarkError::argument(
            "--model",
            "the server does not say which model it serves (GET /v1/models); name it",
        )),
    }
}

/// Names of the model, the one that requests use first.
fn named(models: &Value, info: &Value) -> Vec<String> {
    let first = &models["data"][0];
    [
        &first["id"],
        &first["root"],
        &info["model_id"],
        &info["model_path"],
    ]
    .into_iter()
    .filter_map(|name| name.as_str().map(str::to_owned))
    .collect()
}

/// Where prompts come from, and their form.
pub fn prompts(args: &ServerArgs, folder: Option<&Path>) -> Result<(PromptMaker, Form)> {
    let form = match (args.prompts, args.api.takes_ids()) {
        (Some(PromptForm::Ids), false) => {
            return Err(BenchmarkError::argument(
                "--prompts",
                "ids need --api openai",
            ));
        }
        // In a conversation answers come back as text.
        (Some(PromptForm::Ids), true) if args.workload.turns > 1 => {
            return Err(BenchmarkError::argument(
                "--prompts",
                "ids cannot be used with --turns",
            ));
        }
        (Some(PromptForm::Ids), true) => Form::Ids,
        (None, true) if args.workload.turns == 1 => Form::Ids,
        // The template of a chat adds tokens that only the server knows.
        _ => Form::Text {
            special: args.api != Api::OpenaiChat,
        },
    };
    let named = args.tokenizer_path.as_deref();
    let found = folder.filter(|folder| tokenizer_file(folder).is_file());
    let maker = match (named.or(found), args.vocab_size) {
        (Some(path), _) => PromptMaker::from_tokenizer(path)?,
        (None, Some(size)) if form == Form::Ids => PromptMaker::from_vocabulary(size)?,
        (None, _) => {
            return Err(BenchmarkError::argument(
                "--tokenizer-path",
                "needed to draw prompts of a given length: pass the model's folder or tokenizer.json (with --api openai, --vocab-size is enough)",
            ));
        }
    };
    Ok((maker, form))
}
