//! How a model sees, from the files in its folder.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use serde_json::Value;
use text_generation_client::types::{ShardInfo, Warmup};
use text_generation_core::infer::MediaShards;
use text_generation_core::media::{Vision, VisionLimits};
use text_generation_core::tokenize::TextTokenizer;
use text_generation_images::{
    Domains, FetchOptions, Fetcher, ImageSpec, Limits, Pool, PoolOptions,
};

use crate::args::Config;
use crate::schema::ImageInfo;

/// Rows of the media pool when the operator leaves it open; more where one image may take more.
const DEFAULT_ROWS: u32 = 16_384;
/// All of a fetch, from the wait for its turn to the last byte.
const FETCH_TIME: Duration = Duration::from_secs(10);
const FETCHES_AT_ONCE: usize = 64;
/// Memory of the images that are decoded at a time.
const DECODE_MEMORY: u64 = 1 << 30;
/// Memory of their files, and that of pixels which wait for their turn.
const MEMORY: usize = 1 << 30;

/// What the files of a model and the flags say of its images.
#[derive(Debug, Clone)]
pub(super) struct Sight {
    spec: ImageSpec,
    limits: Limits,
    pub rows: u32,
    /// Of all views of the largest image.
    pub max_pixels: u32,
    /// Rows of the largest image.
    longest: u32,
}

impl Sight {
    /// `None` where the shards have no encoder, or where images cannot be prepared for it: then the text of the model is
    /// served alone, and the log says why.
    pub(super) fn find(config: &Config, folder: &Path, shard: &ShardInfo) -> Option<Self> {
        shard.media?;
        let spec = match spec(folder) {
            Ok(Some(spec)) => spec,
            Ok(None) => {
                tracing::warn!("images are refused: those of this model cannot be prepared here");
                return None;
            }
            Err(error) => {
                tracing::warn!("images are refused: {error:#}");
                return None;
            }
        };
        let limits = Limits {
            max_bytes: config.max_image_bytes as usize,
            max_pixels: config.max_image_pixels.into(),
        };
        let (pixels, rows) = spec.largest(limits.max_pixels);
        Some(Self {
            rows: config.media_rows.unwrap_or(DEFAULT_ROWS.max(rows)),
            max_pixels: u32::try_from(pixels).unwrap_or(u32::MAX),
            longest: rows,
            spec,
            limits,
        })
    }

    /// Tokens that stand for images, which are text where clients write them.
    pub(super) fn tokens(&self) -> Vec<&'static str> {
        let spec = &self.spec;
        let around = spec.tokens();
        around
            .chain([spec.placeholder, spec.marker, spec.before, spec.after])
            .collect()
    }

    /// What clients are told.
    pub(super) fn info(&self, config: &Config) -> ImageInfo {
        ImageInfo {
            max_image_bytes: config.max_image_bytes,
            max_image_pixels: config.max_image_pixels,
            max_images_per_request: config.max_images_per_request,
            allowed_image_domains: config.allowed_image_domains.clone(),
            media_rows: self.rows,
        }
    }

    /// What the batcher has to know.
    pub(super) fn media(&self, shard: &ShardInfo, warmed: &Warmup) -> Option<MediaShards> {
        Some(MediaShards {
            info: shard.media?,
            cost: warmed.media_cost.clone(),
            rows: self.rows,
            max_pixels: self.max_pixels,
            longest: self.longest,
        })
    }

    /// # Errors
    /// Where the tokenizer has no token that stands for an image, an image does not fit into a step that must compute it
    /// whole, or no thread can be started.
    pub(super) fn vision(
        &self,
        config: &Config,
        tokenizer: &TextTokenizer,
        shard: &ShardInfo,
        max_batch_prefill_tokens: u32,
    ) -> anyhow::Result<Vision> {
        let whole = shard.media.is_some_and(|media| media.whole_spans);
        anyhow::ensure!(
            !whole || max_batch_prefill_tokens / 2 >= self.longest,
            "an image of this model is computed in one step, with {} tokens: set `--max-batch-prefill-tokens` to at least {}",
            self.longest,
            2 * u64::from(self.longest)
        );
        let limits = VisionLimits {
            file: self.limits,
            max_images: config.max_images_per_request.map(|most| most as usize),
            rows: self.rows,
            memory: MEMORY,
        };
        let options = PoolOptions {
            threads: config.validation_workers as usize,
            memory: DECODE_MEMORY,
        };
        let pool = Pool::new(options);
        let vision = Vision::new(self.spec.clone(), tokenizer, limits, pool, fetcher(config)?);
        let vision = vision.map_err(|token| {
            anyhow::anyhow!(
                "the tokenizer of this model has no token `{token}`, which stands for images"
            )
        })?;
        let expected = shard.media.map(|media| media.token_id);
        anyhow::ensure!(
            expected == Some(vision.placeholder()),
            "the shards expect token {expected:?} for images, and the tokenizer has {}",
            vision.placeholder()
        );
        Ok(vision)
    }
}

/// Fetches images from the domains that the operator allows; `None` where there are none.
fn fetcher(config: &Config) -> anyhow::Result<Option<Fetcher>> {
    let Some(domains) = domains(config)? else {
        return Ok(None);
    };
    let options = FetchOptions {
        domains,
        max_bytes: config.max_image_bytes as usize,
        timeout: FETCH_TIME,
        at_once: FETCHES_AT_ONCE,
    };
    let fetcher = Fetcher::new(options);
    Ok(Some(
        fetcher.context("`--allowed-image-domains` cannot be obeyed")?,
    ))
}

/// The domains that images may be fetched from, if any.
///
/// # Errors
/// What is wrong with one of them.
pub(super) fn domains(config: &Config) -> anyhow::Result<Option<Domains>> {
    if config.allowed_image_domains.is_empty() {
        return Ok(None);
    }
    let given = config.allowed_image_domains.iter().map(String::as_str);
    let domains = Domains::parse(given).context("`--allowed-image-domains`")?;
    Ok(Some(domains))
}

fn spec(folder: &Path) -> anyhow::Result<Option<ImageSpec>> {
    let config = read(&folder.join("config.json"))?;
    let optional = |name: &str| {
        let file = folder.join(name);
        file.is_file().then(|| read(&file)).transpose()
    };
    let preprocessor = optional("preprocessor_config.json")?.unwrap_or_default();
    let processor = optional("processor_config.json")?;
    Ok(ImageSpec::read(&config, &preprocessor, processor.as_ref())?)
}

fn read(file: &Path) -> anyhow::Result<Value> {
    let text = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("{} is not JSON", file.display()))
}
