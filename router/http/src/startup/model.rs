//! The model's files, and what the server says of the model.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use axum::http::HeaderValue;
use text_generation_chat::{ChatTemplate, ChatTemplateError, Limit};
use text_generation_client::types::ShardInfo;
use text_generation_core::policy::WaitingServedRatio;
use text_generation_core::tokenize::TextTokenizer;
use tokio::time::timeout;

use super::SlowTokenizer;
use super::vision::Sight;
use crate::args::Config;
use crate::classifier::Classifier;
use crate::generation_config::{GenerationConfig, SamplingDefaults};
use crate::limits::{Limits, prefix_caching};
use crate::model_format::ModelFormat;
use crate::renderer::ChatRenderer;
use crate::schema::{Info, SpeculationInfo};

/// Time to compile the templates of a model, and to ask them what they can do.
const TEMPLATE_TIME: Duration = Duration::from_secs(30);

/// What the folder of the model has for this server.
pub(super) struct ModelFiles {
    pub tokenizer: TextTokenizer,
    pub chats: ChatRenderer,
    pub format: ModelFormat,
}

impl ModelFiles {
    /// Reads `folder`.
    ///
    /// # Errors
    /// When a file cannot be used without which nothing can be served, or a flag does not fit the model.
    pub async fn read(
        config: &Config,
        folder: &Path,
        slow_tokenizer: impl SlowTokenizer,
    ) -> anyhow::Result<Self> {
        let tokenizer = tokenizer(config, folder, slow_tokenizer).await?;
        let template = chat_template(config, folder).await?;
        let most_requests = config.max_concurrent_requests as usize;
        let chats = ChatRenderer::new(template, tokenizer.clone(), most_requests);
        let format = format(config, folder, &chats).await?;
        Ok(Self {
            tokenizer,
            chats,
            format,
        })
    }
}

/// The tokenizer, which makes text of the special tokens of clients where that is asked for.
async fn tokenizer(
    config: &Config,
    folder: &Path,
    slow_tokenizer: impl SlowTokenizer,
) -> anyhow::Result<TextTokenizer> {
    let folder = folder.to_owned();
    let load =
        move || {
            let file = folder.join("tokenizer.json");
            if file.is_file() {
                return TextTokenizer::from_file(&file)
                    .with_context(|| format!("cannot load {}", file.display()));
            }
            tracing::info!(
                "{} does not exist: converting the slow tokenizer",
                file.display()
            );
            let json = slow_tokenizer(&folder).map_err(anyhow::Error::msg).with_context(|| {
            format!(
                "there is no tokenizer.json in {} and the slow tokenizer cannot be converted",
                folder.display()
            )
        })?;
            TextTokenizer::from_json(&json).context("the converted tokenizer cannot be loaded")
        };
    let tokenizer = tokio::task::spawn_blocking(load).await??;
    Ok(match config.escape_special_tokens {
        true => tokenizer.escaping_special_tokens(),
        false => tokenizer,
    })
}

/// A template of the model that cannot be used is no reason not to serve prompts; one that was asked for is.
async fn chat_template(
    config: &Config,
    folder: &Path,
) -> anyhow::Result<Result<ChatTemplate, ChatTemplateError>> {
    let given = config.tokenizer_config_path.as_deref();
    let (path, folder) = (given.map(Path::to_owned), folder.to_owned());
    // A template is asked what it makes of some conversations. Whatever it does then, signals are heard.
    let load = tokio::task::spawn_blocking(move || ChatTemplate::load(&folder, path.as_deref()));
    let loaded = match timeout(TEMPLATE_TIME, load).await {
        Ok(loaded) => loaded?,
        Err(_) => Err(ChatTemplateError::Limit(Limit::Time(TEMPLATE_TIME))),
    };
    let template = loaded.and_then(|template| template.ok_or(ChatTemplateError::Missing));
    match (&template, given) {
        (Ok(template), _) => {
            if let Some(family) = template.builtin() {
                tracing::info!(
                    "the model has no chat template: chats use the built-in one of {family}"
                );
            }
        }
        (Err(ChatTemplateError::Missing), _) => {
            tracing::info!("the model has no chat template: chats are refused");
        }
        (Err(error), Some(path)) => return Err(unusable(path, error)),
        (Err(error), None) => tracing::warn!("chats are refused: {error}"),
    }
    Ok(template)
}

/// Says whether the file of `--tokenizer-config-path` can be used, as far as that can be told without the model.
pub(super) fn check_tokenizer_config(config: &Config) -> anyhow::Result<()> {
    let Some(path) = &config.tokenizer_config_path else {
        return Ok(());
    };
    let loaded = ChatTemplate::from_config(path).map(drop);
    loaded.map_err(|error| unusable(path, &error))
}

fn unusable(path: &Path, error: &ChatTemplateError) -> anyhow::Error {
    anyhow::anyhow!(
        "`--tokenizer-config-path {}`: {error}; give a tokenizer_config.json, or leave it out to use the model's",
        path.display()
    )
}

/// How the model writes calls and reasoning.
async fn format(
    config: &Config,
    folder: &Path,
    chats: &ChatRenderer,
) -> anyhow::Result<ModelFormat> {
    let (calls, reasoning) = (&config.tool_call_parser, &config.reasoning_parser);
    let format = ModelFormat::find(calls, reasoning, folder, chats).await;
    let format = format.map_err(anyhow::Error::msg)?;
    tracing::info!(
        tool_call_parser = format.tool_call_parser(),
        reasoning_parser = format.reasoning_parser(),
        "how the model writes tool calls and reasoning"
    );
    Ok(format)
}

/// What `/info` shows.
pub(super) fn info(
    config: &Config,
    model_names: &[String],
    folder: &Path,
    shard: &ShardInfo,
    limits: &Limits,
    format: &ModelFormat,
    sight: Option<&Sight>,
) -> Info {
    Info {
        model_id: model_names.first().cloned().unwrap_or_default(),
        model_sha: commit(folder).or_else(|| config.revision.clone()),
        model_dtype: shard.dtype.clone(),
        model_device_type: shard.device_type.clone(),
        kv_cache_dtype: shard.kv_cache_dtype.clone(),
        model_pipeline_tag: (shard.classes > 0).then(|| "text-classification".to_owned()),
        max_concurrent_requests: config.max_concurrent_requests,
        max_best_of: config.max_best_of,
        max_stop_sequences: config.max_stop_sequences,
        max_input_tokens: limits.max_input_tokens,
        max_input_length: limits.max_input_tokens,
        max_total_tokens: limits.max_total_tokens,
        waiting_served_ratio: config.waiting_served_ratio.initial(),
        waiting_served_ratio_auto: config.waiting_served_ratio == WaitingServedRatio::Auto,
        max_batch_prefill_tokens: limits.max_batch_prefill_tokens,
        max_batch_total_tokens: limits.max_batch_total_tokens,
        max_waiting_tokens: config.max_waiting_tokens,
        max_batch_size: limits.max_batch_size,
        validation_workers: config.validation_workers,
        max_client_batch_size: config.max_client_batch_size,
        tool_call_parser: format.tool_call_parser().map(str::to_owned),
        reasoning_parser: format.reasoning_parser().map(str::to_owned),
        grammar_support: !config.disable_grammar_support,
        speculate: shard.widths.last().map_or(0, |widest| widest - 1),
        speculation: shard.widths.last().map(|_| SpeculationInfo {
            method: match (shard.drafter.as_str(), config.answer_index_mib) {
                ("ngram", 1..) => "suffix".to_owned(),
                (drafter, _) => drafter.to_owned(),
            },
            widths: shard.widths.clone(),
            answer_index_mib: config.answer_index_mib,
        }),
        images: sight.map(|sight| sight.info(config)),
        classifier: (shard.classes > 0).then(|| Classifier::load(folder, shard.classes as usize)),
        adapters: Vec::new(),
        sampling_defaults: (config.generation_config == GenerationConfig::Auto)
            .then(|| SamplingDefaults::load(folder)),
        served_model_names: model_names.to_vec(),
        prefix_caching: prefix_caching(config, shard).to_string(),
        prefill_chunking: config.prefill_chunking,
        router: "text-generation-router",
        version: env!("CARGO_PKG_VERSION"),
        sha: option_env!("VERGEN_GIT_SHA"),
        docker_label: option_env!("DOCKER_LABEL"),
    }
}

/// The hub keeps a model under `snapshots/<commit>`.
fn commit(folder: &Path) -> Option<String> {
    let in_snapshots = folder.parent()?.file_name()? == "snapshots";
    let name = folder.file_name()?.to_str()?;
    in_snapshots.then(|| name.to_owned())
}

/// The header `x-compute-type` of answers.
pub(super) fn compute_type(config: &Config, shard: &ShardInfo) -> anyhow::Result<HeaderValue> {
    match &config.compute_type {
        Some(given) => Ok(given.clone()),
        None => Ok(format!("{}-{}", shard.world_size, shard.device_type).try_into()?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commit_is_in_the_path_of_the_hub_cache() {
        let path = Path::new("/cache/models--a--b/snapshots/0f1e2d");
        assert_eq!(commit(path), Some("0f1e2d".to_owned()));
        assert_eq!(commit(Path::new("/models/0f1e2d")), None);
    }
}
