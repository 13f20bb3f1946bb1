//! The life of a server: download -> shards ready -> router ready -> running -> draining.

mod fleet;
mod losses;
mod shards;
mod signals;
mod standby;
mod start;

use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;

use opentelemetry::KeyValue;
use tracing::{info, warn};
use uuid::Uuid;

use crate::args::Args;
use crate::error::LauncherError;
use crate::logs::Console;
use crate::management::{ManagementPort, Phase};
use crate::nodes::{Agreement, Ending, Place};
use crate::plan::{self, ProcessSpec, ShardGroup, Surroundings};
use crate::process::Process;
use crate::sockets::Sockets;
use crate::spans::{Span, Tracer};
use crate::supervisor::fleet::Fleet;
use crate::supervisor::shards::Shards;
pub use crate::supervisor::signals::Signals;
use crate::{banner, checks, devices, download, notify, readiness, router_check};

/// Serves until a signal (Ok) or a failure (Err, already logged). No process and no socket outlives this call.
pub async fn run(
    args: &Args,
    console: Console,
    tracer: Tracer,
    mut signals: Signals,
) -> Result<(), LauncherError> {
    let mut fleet = Fleet::new(console, tracer);
    let ending = fleet.nodes.ending();
    let outcome = tokio::select! {
        // Service managers may signal the children too; their end is then no failure.
        biased;
        name = signals.next() => {
            info!("Received {name}, stopping; a second signal stops at once");
            notify::stopping();
            Ok(())
        }
        ending = ending => end_with_others(ending),
        failure = serve(args, &mut fleet) => failure.map(|never| match never {}),
    };
    tokio::select! {
        outcome = end(&mut fleet, outcome, args) => outcome,
        _ = signals.next() => {
            fleet.kill().await;
            tracing::error!("{}", LauncherError::Hurried);
            Err(LauncherError::Hurried)
        }
    }
}

/// How this node ends because of another one.
fn end_with_others(ending: Ending) -> Result<(), LauncherError> {
    match ending {
        Ending::Stop(reason) => {
            info!("Stopping with all nodes: {reason}");
            notify::stopping();
            Ok(())
        }
        Ending::Lost(reason) => Err(LauncherError::Node(reason)),
    }
}

/// Where the router of this node answers.
struct Served {
    address: SocketAddr,
    /// By which it is known.
    instance: String,
}

/// Brings everything up and watches it. Ends only with a failure.
async fn serve(args: &Args, fleet: &mut Fleet) -> Result<Infallible, LauncherError> {
    let model_id = args.model.model_id.clone().unwrap_or_default();
    let start = fleet
        .tracer
        .begin("start", [KeyValue::new("tgi.model_id", model_id)]);
    let served = start.during(bring_up(args, fleet, &start)).await?;
    drop(start);
    let Some(Served { address, instance }) = served else {
        return Err(serve_node_0(fleet, args.nodes.node_rank).await);
    };
    notify::ready();
    tokio::select! {
        reason = fleet.watch() => Err(reason),
        never = notify::keep_alive(async || readiness::router_serves(address, &instance).await) => match never {},
    }
}

/// Checks what can be checked at once, and starts one after the other. None where the router is on another node.
async fn bring_up(
    args: &Args,
    fleet: &mut Fleet,
    start: &Span,
) -> Result<Option<Served>, LauncherError> {
    let management = args.server.management_address();
    fleet.management = management.map(ManagementPort::open).transpose()?;
    let address = SocketAddr::new(args.server.hostname, args.server.port);
    let place = Place::of(&args.nodes)?;
    if args.nodes.node_rank == 0 {
        // Found out now, not after minutes of loading.
        TcpListener::bind(address).map_err(|source| LauncherError::Address { address, source })?;
    }
    if args.logs.env {
        info!("{}", devices::runtime_environment().await);
    }
    let devices = devices::count().await;
    let size = plan::shard_count(args.shards.sharded, args.shards.num_shard, devices)?;
    // For the same reason. A path that was given is kept from other servers from now on; a directory of our own is but
    // tried, and made when shards are there to remove it, however this process ends.
    let reserved = Sockets::prepare(args.shards.shard_uds_path.as_deref(), size)?;
    if let Some(notice) = reserved.notice() {
        warn!("{notice}");
    }
    let reserved = Some(reserved).filter(|sockets| !sockets.directory_owned());
    let surroundings = Surroundings {
        log_level: fleet.console.level_name(),
        hf_token: hub_token(),
    };
    let preparing = async {
        if let Some(place) = place {
            let agreement = Agreement::of(args, size, devices.is_some_and(|count| count > 0));
            let limit = args.shards.shard_startup_timeout;
            let meeting = fleet.nodes.meet(place, agreement, limit);
            start.part("meet nodes", []).during(meeting).await?;
        }
        let preparing = prepare_model(args, &surroundings, fleet, size * args.nodes.nnodes);
        start.part("download", []).during(preparing).await
    };
    let folder = router_check::beside(check_of_router(args, None), preparing).await?;
    let group = load(args, &surroundings, &folder, size, reserved, fleet, start).await?;
    fleet.nodes.ready_together().await;
    if fleet.nodes.is_led() {
        return Ok(None);
    }
    let router = start_router(args, fleet, &folder, &group, address);
    let served = start.part("warm up", []).during(router).await?;
    Ok(Some(served))
}

/// What asks the router whether it could start, on the node that has it.
fn check_of_router(args: &Args, folder: Option<&str>) -> Option<ProcessSpec> {
    (args.nodes.node_rank == 0).then(|| plan::router_check(args, folder))
}

/// Starts the shards of the model in `folder` and waits until they are ready.
async fn load(
    args: &Args,
    surroundings: &Surroundings,
    folder: &str,
    size: usize,
    reserved: Option<Sockets>,
    fleet: &mut Fleet,
    start: &Span,
) -> Result<ShardGroup, LauncherError> {
    let name = fleet.nodes.start_together(Path::new(folder)).await?;
    let sockets = match reserved {
        Some(sockets) => sockets,
        None => Sockets::prepare(None, size)?,
    };
    let group = ShardGroup {
        size,
        uds_prefix: sockets.prefix().to_owned(),
        directory_owned: sockets.directory_owned(),
        node: fleet.nodes.group(size)?,
    };
    if let Some(port) = &fleet.management {
        port.enter(Phase::Loading);
    }
    let specs = (0..size)
        .map(|local_rank| plan::shard(args, surroundings, folder, &group, local_rank))
        .collect();
    let shards = Shards::new(
        fleet.console.clone(),
        fleet.tracer.clone(),
        specs,
        sockets,
        &args.shards,
        fleet.nodes.are_several(),
    );
    let shards = fleet.shards.insert(shards);
    shards.start(&name, start.part("load", [])).await?;
    if let Some(port) = &fleet.management {
        port.follow(shards.processes());
    }
    router_check::beside(check_of_router(args, Some(folder)), shards.ready()).await?;
    Ok(group)
}

/// Starts the router, which warms the shards up, and waits until it answers at `address`.
async fn start_router(
    args: &Args,
    fleet: &mut Fleet,
    folder: &str,
    group: &ShardGroup,
    address: SocketAddr,
) -> Result<Served, LauncherError> {
    let compute_type = match std::env::var_os("COMPUTE_TYPE") {
        Some(_) => None,
        None => Some(devices::compute_type(group.world_size()).await),
    };
    info!("Starting router");
    let instance = Uuid::new_v4().to_string();
    let mut router = plan::router(args, folder, group, compute_type, &instance);
    if let Some(port) = &fleet.management {
        port.enter(Phase::WarmingUp);
        port.share(&mut router)?;
    }
    fleet.router = Some(Process::spawn(router, fleet.console.clone())?);
    let limit = args.shards.shard_startup_timeout;
    fleet.router_ready(address, &instance, limit).await?;
    // From now on the router answers there.
    fleet.management = None;
    banner::show(
        &fleet.console,
        &args.model,
        group.world_size(),
        address,
        &args.server,
    );
    Ok(Served { address, instance })
}

/// Keeps the shards of this node running for the router of node 0. Returns the reason why they cannot be.
async fn serve_node_0(fleet: &mut Fleet, rank: usize) -> LauncherError {
    if let Some(port) = &fleet.management {
        port.enter(Phase::ServingNode0);
    }
    info!("The shards of node {rank} are ready for node 0");
    notify::ready();
    tokio::select! {
        reason = fleet.watch() => reason,
        // Shards that hang, and a node 0 that is gone, end this process in any case.
        never = notify::keep_alive(async || true) => match never {},
    }
}

/// Runs the download step for so many shards, of all nodes, and returns the model's folder.
async fn prepare_model(
    args: &Args,
    surroundings: &Surroundings,
    fleet: &mut Fleet,
    shards: usize,
) -> Result<String, LauncherError> {
    let model_id = args.model.model_id.as_deref().unwrap_or_default();
    info!("Preparing model {model_id}");
    let spec = plan::download(args, surroundings, shards);
    let step = Process::spawn(spec, fleet.console.clone())?;
    if let Some(port) = &fleet.management {
        port.follow([&step]);
    }
    let folder = download::model_folder(fleet.download.insert(step), model_id).await?;
    fleet.download = None;
    Ok(folder)
}

/// Stops everything in order, after a signal (Ok) or a failure, which is logged first. Returns how the server ended.
async fn end(
    fleet: &mut Fleet,
    outcome: Result<(), LauncherError>,
    args: &Args,
) -> Result<(), LauncherError> {
    if let Some(port) = &fleet.management {
        port.enter(Phase::Stopping);
    }
    let outcome = match outcome {
        Ok(()) => fleet.drain(plan::router_grace(&args.server)).await,
        failure => failure,
    };
    let reported = outcome
        .as_ref()
        .err()
        .map(|error| checks::told(args, error))
        .inspect(|error| tracing::error!("{error}"));
    fleet.stop(reported.as_deref()).await;
    outcome
}

/// Token of the hub, under whichever of its names it is set.
pub fn hub_token() -> Option<String> {
    let names = ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_API_TOKEN"];
    names
        .iter()
        .find_map(|name| std::env::var(name).ok().filter(|token| !token.is_empty()))
}
