//! Processes for the next start of the shards, which load their code while the present shards serve.
//!
//! Python and torch take seconds to load: on an H200 some 4 of the 11 after which a shard of an 8B model computes its
//! first step, its kernels being compiled before. A process on standby holds no device, no socket and no weights; it
//! waits on its standard input.

use tracing::warn;
use uuid::Uuid;

use crate::error::LauncherError;
use crate::logs::Console;
use crate::plan::ProcessSpec;
use crate::process::Process;

/// One process for each rank, in rank order.
#[derive(Debug)]
pub struct Standby(Vec<Process>);

impl Standby {
    /// Starts the processes that wait. `specs` in rank order.
    pub fn prepare(specs: &[ProcessSpec], console: &Console) -> Result<Self, LauncherError> {
        let waiting = |spec: &ProcessSpec| {
            let mut spec = spec.clone();
            spec.args.push("--standby".to_owned());
            spec
        };
        start(
            specs.iter().map(waiting),
            &Uuid::new_v4().to_string(),
            console,
        )
        .map(Self)
    }

    pub fn processes(&self) -> &[Process] {
        &self.0
    }

    /// Lets them go on as the shards of a group. None where one has ended meanwhile; the others end then too, before they
    /// have begun where that is known.
    pub async fn begin(mut self) -> Option<Vec<Process>> {
        if let Some(process) = self.0.iter().find(|process| process.has_ended()) {
            warn!(
                "the standby process of {} has ended, so a new one starts",
                process.name
            );
            return None;
        }
        for process in &mut self.0 {
            if let Err(error) = process.release().await {
                warn!(
                    "the standby process of {} cannot take over, so a new one starts: {error}",
                    process.name
                );
                return None;
            }
        }
        Some(self.0)
    }
}

/// Starts every rank, all with one name of the group.
pub fn start(
    specs: impl IntoIterator<Item = ProcessSpec>,
    name: &str,
    console: &Console,
) -> Result<Vec<Process>, LauncherError> {
    let spawn = |mut spec: ProcessSpec| {
        spec.env.push(("SHARD_GROUP", name.to_owned()));
        Process::spawn(spec, console.clone())
    };
    specs.into_iter().map(spawn).collect()
}
