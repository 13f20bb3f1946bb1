//! The connection loop: limits on what a peer may do, and an orderly end.

use std::sync::Arc;
use std::time::Duration;

use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::acceptor::{Acceptor, watch};
use super::limits::ServerLimits;
use super::peers::{Connections, Order};
use crate::state::AppState;
use crate::{logging, routes};

/// Histograms keep single values until they are sorted into buckets, which happens here or when the page is read.
const METRICS_UPKEEP: Duration = Duration::from_secs(5);

/// What can end a server, whoever gives the order.
#[derive(Debug, Clone, Default)]
pub struct StopOrders {
    /// Running requests may finish.
    pub drain: CancellationToken,
    /// They are ended, also where they had time to finish: nobody is left who could compute them.
    pub cut: CancellationToken,
}

/// Serves until `orders.drain` and running requests have finished, or `limits.graceful` is over, or `orders.cut`.
///
/// While requests finish, new connections are still accepted and new requests get 503, so that a load balancer sees
/// an answer and not a refused connection. Streams that have not finished in time get an event that says so.
pub async fn serve(
    listener: TcpListener,
    state: Arc<AppState>,
    limits: ServerLimits,
    orders: StopOrders,
) {
    let _upkeep = AbortOnDropHandle::new(tokio::spawn(keep_metrics(state.metrics.clone())));
    let acceptor = Acceptor::new(routes::router(state.clone()), limits, state.leaving());
    let deadline = tokio::select! {
        deadline = stop(&orders, &state, limits) => deadline,
        never = acceptor.run(&listener) => match never {},
    };
    if let Err(error) = acceptor.close(listener) {
        tracing::warn!("connections that were not accepted yet are reset: {error}");
    }
    let connections = &acceptor.connections;
    let closed = async {
        tokio::select! {
            biased;
            () = orders.cut.cancelled() => close_soon(connections, limits).await,
            () = close(connections, limits, deadline) => {}
        }
    };
    tokio::select! {
        () = closed => {}
        never = watch(connections, limits) => match never {},
    }
}

/// Waits for an order to stop and until no request runs. Returns when connections must be closed.
async fn stop(orders: &StopOrders, state: &AppState, limits: ServerLimits) -> Instant {
    let drain = async {
        orders.drain.cancelled().await;
        drain(state, limits).await
    };
    tokio::select! {
        biased;
        () = orders.cut.cancelled() => {
            tracing::warn!("stopping: requests that still run are ended");
            state.stop();
            state.infer.cut();
            Instant::now()
        }
        deadline = drain => deadline,
    }
}

/// Waits for the running requests. Returns when connections must be closed.
async fn drain(state: &AppState, limits: ServerLimits) -> Instant {
    let delay = limits.drain_delay;
    if !delay.is_zero() {
        tracing::info!(
            "not ready any more: requests are taken for another {} s",
            delay.as_secs_f32()
        );
        state.leave();
        sleep(delay).await;
    }
    let graceful = limits.graceful;
    let deadline = Instant::now() + graceful;
    tracing::info!(
        "stopping: running requests have {} s to finish",
        graceful.as_secs()
    );
    state.stop();
    if timeout_at(deadline, state.infer.drained()).await.is_err() {
        tracing::warn!(
            "requests that still run are ended: the graceful termination timeout is over"
        );
        state.infer.cut();
    }
    deadline
}

/// Lets the connections end in order: those without a request when nothing has come for `limits.idle`, the others have
/// until the deadline to take what they were sent.
///
/// A connection in use may be in the middle of getting its next request; that is refused, with word that it was the last.
async fn close(connections: &Connections, limits: ServerLimits, deadline: Instant) {
    let close_idle = async {
        loop {
            connections.order(Order::Finish, Some(limits.idle));
            connections.order(Order::Close, Some(2 * limits.idle));
            sleep(limits.tick()).await;
        }
    };
    let last = deadline.max(Instant::now() + limits.idle);
    tokio::select! {
        () = connections.all_closed() => return,
        () = close_idle => {}
        () = sleep_until(last) => {}
    }
    let open = connections.count();
    tracing::warn!("stopped with {open} connections that had not taken their answers");
    connections.order(Order::Close, None);
}

/// The same where all has to be over within [`ServerLimits::idle`]: there is time to read a last word, and no more.
async fn close_soon(connections: &Connections, limits: ServerLimits) {
    let idle = limits.idle / 4;
    close(
        connections,
        ServerLimits { idle, ..limits },
        Instant::now() + 2 * idle,
    )
    .await;
}

async fn keep_metrics(metrics: PrometheusHandle) {
    let mut upkeep = interval(METRICS_UPKEEP);
    upkeep.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        upkeep.tick().await;
        logging::count_dropped();
        metrics.run_upkeep();
    }
}
