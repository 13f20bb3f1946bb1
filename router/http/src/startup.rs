//! Start-up of the router, from flags to a server that can answer, step by step. Every failure is one line that says
//! what to change.

mod model;
mod shards;
mod tokenizer_info;
mod vision;

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use text_generation_client::ClusterTls;
use text_generation_core::infer::{Infer, KvEventFeed, Shards};
use text_generation_core::policy::cost::StepCost;
use text_generation_core::policy::windows::Windows;
use text_generation_core::tokenize::{TextTokenizer, TokenizerPool};
use text_generation_core::validation::Validator;
use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::Handle;

use self::model::ModelFiles;
use self::shards::WarmShards;
use self::tokenizer_info::tokenizer_info;
use crate::access::Access;
use crate::api_keys::ApiKeys;
use crate::args::Config;
use crate::bounds::{
    BACKLOG, MEMORY_OF_LARGEST_BODY, PAYLOAD_LIMIT, PAYLOAD_LIMIT_WITH_IMAGES, REQUEST_MEMORY,
};
use crate::extract::BodyLimits;
use crate::limits::{batch_limits, prefix_caching, validation_limits};
use crate::memory::MemoryBudget;
use crate::metrics;
use crate::middleware::HttpOptions;
use crate::state::{AnswerOptions, AppState};
use crate::telemetry::{self, Tracer};
use crate::tenant::PrefixCaching;

/// Makes the text of a `tokenizer.json` for a folder that has none, or says why it cannot. Runs on a thread that may block.
pub trait SlowTokenizer: FnOnce(&Path) -> Result<String, String> + Send + 'static {}

impl<F: FnOnce(&Path) -> Result<String, String> + Send + 'static> SlowTokenizer for F {}

/// Starts everything but the connection loop. The listener refuses connections until this returns. The batching task
/// and the connections to the shards live on the runtime `stepping`.
pub async fn start(
    config: &Config,
    slow_tokenizer: impl SlowTokenizer,
    stepping: &Handle,
) -> anyhow::Result<(TcpListener, Arc<AppState>)> {
    // What is wrong, and a port in use, should not be found out after a long warm-up.
    let settings = Settings::of(config)?;
    let address = SocketAddr::new(config.address(), config.port);
    let socket = bind(address).with_context(|| cannot_listen(config))?;
    let folder = config.tokenizer_folder()?;
    let model_names = config.model_names(folder);
    let kv_events = config.kv_events_config.as_ref();
    let kv_events =
        kv_events.map(|events| events.start(model_names.first().map_or("", String::as_str)));
    let kv_events = kv_events.transpose()?.flatten();
    let mut model = ModelFiles::read(config, folder, slow_tokenizer).await?;
    let shards = WarmShards::start(config, folder, settings.tls, stepping).await?;
    let limits = &shards.limits;
    let metrics = metrics::install(limits.max_input_tokens, limits.max_total_tokens)?;
    if let Some(sight) = &shards.sight {
        model.tokenizer = model.tokenizer.escaping_tokens(&sight.tokens());
    }
    let infer = infer(
        config,
        model.tokenizer.clone(),
        &shards,
        kv_events,
        stepping,
    )?;
    if let Some(vision) = infer.vision() {
        let (marker, tokenizer) = (vision.marker(), model.tokenizer);
        model.chats = model.chats.seeing(marker, tokenizer).await;
    }
    let shard = &shards.info;
    let sharing = prefix_caching(config, shard);
    let tracer = tracer(config, &model_names)?;
    let options = http_options(
        config,
        settings.api_keys,
        sharing,
        tracer,
        infer.vision().is_some(),
    );
    let format = model.format.within(shard.vocab_size);
    let sight = shards.sight.as_ref();
    let info = model::info(config, &model_names, folder, shard, limits, &format, sight);
    let answers = AnswerOptions {
        compute_type: model::compute_type(config, shard)?,
        model_names,
        remembered: (config.response_memory as usize).saturating_mul(MEBIBYTE),
        sse_keep_alive: Duration::from_secs(config.sse_keep_alive.into()),
        metrics_aliases: config.metrics_aliases,
        loads_adapters: config.adapters.allow_adapter_loading,
    };
    let eos = shard.eos_token_ids.first().map(|&id| infer.token(id));
    let given = config.tokenizer_config_path.as_deref();
    let tokenizer = tokenizer_info(folder, given, model.chats.source(), eos);
    let state = AppState::new(infer, model.chats, format, info, answers, metrics, options)
        .named(config.router_instance.clone())
        .describing(tokenizer);
    let listener = socket
        .listen(BACKLOG)
        .with_context(|| cannot_listen(config))?;
    Ok((listener, Arc::new(state)))
}

/// What flags and the files that they name say, as far as it shows before anything is opened.
struct Settings {
    api_keys: Keys,
    tls: Option<ClusterTls>,
}

/// Who may call, and who may change the server.
struct Keys {
    keys: ApiKeys,
    admin: ApiKeys,
}

impl Settings {
    fn of(config: &Config) -> anyhow::Result<Self> {
        config.validate()?;
        vision::domains(config)?;
        if let Some(endpoint) = config.collector() {
            telemetry::check(endpoint)?;
        }
        let api_keys = config.api_keys()?;
        anyhow::ensure!(
            config.prefix_caching != PrefixCaching::PerKey || !api_keys.is_empty(),
            "`--prefix-caching per-key` needs keys to keep apart: set `--api-key-file` (or API_KEY), or leave it out"
        );
        let admin = config.admin_key()?;
        Ok(Self {
            api_keys: Keys {
                keys: api_keys,
                admin,
            },
            tls: config.cluster_tls()?,
        })
    }
}

/// Says whether [`start`] would work, as far as that can be told without shards and without opening a port. The files of
/// the model count where its folder is named.
///
/// # Errors
/// As those of [`start`].
pub async fn check(config: &Config, slow_tokenizer: impl SlowTokenizer) -> anyhow::Result<()> {
    Settings::of(config)?;
    if let Some(events) = &config.kv_events_config {
        events.check()?;
    }
    if config.tokenizer_name.is_none() {
        return model::check_tokenizer_config(config);
    }
    let folder = config.tokenizer_folder()?;
    let files = ModelFiles::read(config, folder, slow_tokenizer).await;
    files.map(drop)
}

/// Starts the batching task, on the runtime `stepping`, and the threads that tokenise.
fn infer(
    config: &Config,
    tokenizer: TextTokenizer,
    shards: &WarmShards,
    kv_events: Option<KvEventFeed>,
    stepping: &Handle,
) -> anyhow::Result<Infer> {
    let WarmShards {
        client,
        info,
        limits,
        warmed,
        sight,
        adapters,
    } = shards;
    let cost = StepCost::from(&warmed.cost);
    let vision = sight.as_ref();
    let vision =
        vision.map(|sight| sight.vision(config, &tokenizer, info, limits.max_batch_prefill_tokens));
    let vision = vision.transpose()?;
    let pool = TokenizerPool::new(tokenizer, config.validation_workers as usize)?;
    let mut validator = Validator::new(pool, validation_limits(config, info, limits))
        .with_adapters(adapters.clone())
        .with_classes(info.classes > 0);
    if let Some(vision) = vision {
        validator = validator.with_vision(vision);
    }
    let of_batcher = Shards {
        client: client.clone(),
        cost: cost.clone(),
        windows: Windows::new(&info.widths, info.max_window_tokens),
        answer_bytes: (config.answer_index_mib as usize).saturating_mul(MEBIBYTE),
        eos_token_ids: info.eos_token_ids.clone(),
        kv_cache_dtype: info.kv_cache_dtype.clone(),
        max_masks: warmed.max_masks,
        overlapped_halves: warmed.overlapped_halves,
        step_timeout: Duration::from_secs(config.step_timeout.into()),
        kv_events,
        media: sight.as_ref().and_then(|sight| sight.media(info, warmed)),
        adapters: adapters.clone(),
    };
    let _entered = stepping.enter();
    Ok(Infer::new(
        validator,
        of_batcher,
        batch_limits(config, info, limits, &cost),
        config.max_concurrent_requests as usize,
    ))
}

const MEBIBYTE: usize = 1 << 20;

fn http_options(
    config: &Config,
    api_keys: Keys,
    prefix_caching: PrefixCaching,
    tracer: Option<Arc<Tracer>>,
    sees: bool,
) -> HttpOptions {
    let payload_limit = match (config.payload_limit, sees) {
        (Some(limit), _) => limit,
        (None, true) => PAYLOAD_LIMIT_WITH_IMAGES,
        (None, false) => PAYLOAD_LIMIT,
    };
    HttpOptions {
        body: BodyLimits {
            bytes: payload_limit as usize,
            time: Duration::from_secs(config.client_timeout.into()),
        },
        memory: MemoryBudget::new(request_memory(payload_limit as usize)),
        access: Access {
            keys: api_keys.keys,
            admin: api_keys.admin,
            prefix_caching,
            open_metrics: config.open_metrics,
            tenant_header: config.tenant_header.clone(),
            priority_header: config.priority_header.clone(),
        },
        cors_allow_origin: config.cors_allow_origin.clone(),
        tracer,
    }
}

/// Traces requests, where a collector is named. Steps are traced too where the log shows details.
fn tracer(config: &Config, model_names: &[String]) -> anyhow::Result<Option<Arc<Tracer>>> {
    let Some(endpoint) = config.collector() else {
        return Ok(None);
    };
    let service_name = config.otlp_service_name.as_deref();
    let tracer = Tracer::start(telemetry::Settings {
        endpoint,
        service_name: service_name.filter(|name| !name.is_empty()),
        model: model_names.first().map_or("", String::as_str),
        every_step: config.logs_details(),
    })?;
    tracing::info!("traces go to {endpoint}");
    Ok(Some(Arc::new(tracer)))
}

/// The largest body must fit alone.
fn request_memory(payload_limit: usize) -> usize {
    REQUEST_MEMORY.max(payload_limit.saturating_mul(MEMORY_OF_LARGEST_BODY))
}

fn cannot_listen(config: &Config) -> String {
    format!(
        "cannot listen on {}; choose another address with `--hostname` and `--port`",
        SocketAddr::new(config.address(), config.port)
    )
}

/// A socket that has the address and refuses connections until it listens.
pub fn bind(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}
