//! Traces of the launcher for an OpenTelemetry collector: one of the start, and one of each loss of the shards.

use std::fmt::Display;

use opentelemetry::trace::{Status, TraceContextExt, Tracer as _};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::SdkTracer;
use text_generation_traces::{Collector, Traces};

use crate::args::ServerArgs;
use crate::error::LauncherError;

/// Beside TGI's `text-generation-inference.router` and `.server`.
const DEFAULT_SERVICE_NAME: &str = "text-generation-inference.launcher";

/// Makes traces. Without a collector no span is recorded.
#[derive(Clone, Debug)]
pub struct Tracer {
    traces: Traces,
    tracer: SdkTracer,
}

impl Tracer {
    /// Traces for the collector of the flags. Does not wait for it. Needs a tokio runtime, which keeps the connection.
    pub fn start(args: &ServerArgs) -> Result<Self, LauncherError> {
        let traces = match args.otlp() {
            [(flag, Some(endpoint)), (_, service_name)] => {
                let collector = Collector {
                    endpoint,
                    service_name,
                    default_name: DEFAULT_SERVICE_NAME,
                };
                // The log says once that spans are lost.
                Traces::to(collector, |_| ())
                    .map_err(|error| LauncherError::Argument(format!("{flag} {error}")))?
            }
            _ => Traces::off(),
        };
        Ok(Self {
            tracer: traces.tracer("text-generation-launcher"),
            traces,
        })
    }

    /// The first span of a new trace.
    pub fn begin<const N: usize>(&self, name: &'static str, attributes: [KeyValue; N]) -> Span {
        Span::new(&self.tracer, name, attributes, &Context::new())
    }

    /// Sends the spans that have ended, for at most two seconds. Nothing is sent after that.
    pub async fn shutdown(&self) {
        self.traces.shutdown().await;
    }
}

/// Something that takes its time. It lasts until its last clone is dropped.
#[derive(Clone, Debug)]
pub struct Span {
    tracer: SdkTracer,
    context: Context,
}

impl Span {
    fn new<const N: usize>(
        tracer: &SdkTracer,
        name: &'static str,
        attributes: [KeyValue; N],
        parent: &Context,
    ) -> Self {
        let builder = tracer.span_builder(name).with_attributes(attributes);
        let span = builder.start_with_context(tracer, parent);
        Self {
            tracer: tracer.clone(),
            context: Context::new().with_span(span),
        }
    }

    /// A part of it.
    pub fn part<const N: usize>(&self, name: &'static str, attributes: [KeyValue; N]) -> Self {
        Self::new(&self.tracer, name, attributes, &self.context)
    }

    /// It has failed for this reason, which the log has too.
    pub fn fail(&self, reason: impl Display) {
        self.context
            .span()
            .set_status(Status::error(reason.to_string()));
    }

    /// Awaits `work`, which is what takes the time, and fails with it.
    pub async fn during<T>(
        &self,
        work: impl Future<Output = Result<T, LauncherError>>,
    ) -> Result<T, LauncherError> {
        work.await.inspect_err(|error| self.fail(error))
    }
}
