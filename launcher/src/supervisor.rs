//! The life of a server: download -> shards ready -> router ready -> running -> draining.

mod fleet;
mod signals;

use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};

use tracing::info;
use uuid::Uuid;

use crate::args::Args;
use crate::error::LauncherError;
use crate::logs::Console;
use crate::management::{ManagementPort, Phase};
use crate::plan::{self, ShardGroup, Surroundings};
use crate::process::Process;
use crate::sockets::Sockets;
use crate::supervisor::fleet::{Fleet, SHORT_GRACE};
pub use crate::supervisor::signals::Signals;
use crate::{banner, devices, download};

/// Serves until a signal (Ok) or a failure (Err, already logged). No process and no socket outlives this call.
pub async fn run(args: &Args, console: Console, mut signals: Signals) -> Result<(), LauncherError> {
    let mut fleet = Fleet {
        console,
        router: None,
        workers: Vec::new(),
        sockets: None,
    };
    let outcome = tokio::select! {
        // Service managers may signal the children too; their end is then no failure.
        biased;
        name = signals.next() => {
            info!("Received {name}, stopping; a second signal stops at once");
            Ok(())
        }
        failure = serve(args, &mut fleet) => failure.map(|never| match never {}),
    };
    let reported = outcome
        .as_ref()
        .err()
        .map(ToString::to_string)
        .inspect(|error| tracing::error!("{error}"))
        .unwrap_or_default();
    let grace = match outcome {
        Ok(()) => plan::router_grace(&args.server),
        Err(_) => SHORT_GRACE,
    };
    tokio::select! {
        () = fleet.stop(grace, &reported) => outcome,
        _ = signals.next() => {
            fleet.kill().await;
            tracing::error!("{}", LauncherError::Hurried);
            outcome.and(Err(LauncherError::Hurried))
        }
    }
}

/// Brings everything up and watches it. Ends only with a failure.
async fn serve(args: &Args, fleet: &mut Fleet) -> Result<Infallible, LauncherError> {
    let management = args.server.management_address();
    let management = management.map(ManagementPort::open).transpose()?;
    let address = SocketAddr::new(args.server.hostname, args.server.port);
    // Found out now, not after minutes of loading.
    TcpListener::bind(address).map_err(|source| LauncherError::Address { address, source })?;
    if args.logs.env {
        info!("{}", devices::runtime_environment().await);
    }
    let shards = plan::shard_count(
        args.shards.sharded,
        args.shards.num_shard,
        devices::count().await,
    )?;
    let surroundings = Surroundings {
        log_level: fleet.console.level_name(),
        hf_token: hub_token(),
    };
    let model_id = args.model.model_id.as_deref().unwrap_or_default();

    info!("Preparing model {model_id}");
    fleet.start_worker(plan::download(args, &surroundings))?;
    let folder = download::model_folder(&fleet.workers[0], model_id).await?;
    fleet.workers.clear();

    let sockets = fleet.sockets.insert(Sockets::prepare(
        args.shards.shard_uds_path.as_deref(),
        shards,
    )?);
    let group = ShardGroup {
        size: shards,
        uds_prefix: sockets.prefix().to_owned(),
        directory_owned: sockets.directory_owned(),
    };
    if let Some(port) = &management {
        port.enter(Phase::Loading);
    }
    let limit = args.shards.shard_startup_timeout;
    for rank in 0..shards {
        info!(rank, "Starting shard {rank}");
        fleet.start_worker(plan::shard(args, &surroundings, &folder, &group, rank))?;
    }
    fleet.shards_ready(&group, limit).await?;

    let compute_type = match std::env::var_os("COMPUTE_TYPE") {
        Some(_) => None,
        None => Some(devices::compute_type(shards).await),
    };
    info!("Starting router");
    let instance = Uuid::new_v4().to_string();
    let mut router = plan::router(args, &folder, &group, compute_type, &instance);
    if let Some(port) = &management {
        port.enter(Phase::WarmingUp);
        port.share(&mut router)?;
    }
    fleet.router = Some(Process::spawn(router, fleet.console.clone())?);
    fleet.router_ready(address, &instance, limit).await?;
    // From now on the router answers there.
    drop(management);
    banner::show(&fleet.console, model_id, shards, address, &args.server);

    let (process, exit) = fleet.first_exit().await;
    Err(LauncherError::Died { process, exit })
}

fn hub_token() -> Option<String> {
    let names = ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_API_TOKEN"];
    names
        .iter()
        .find_map(|name| std::env::var(name).ok().filter(|token| !token.is_empty()))
}
