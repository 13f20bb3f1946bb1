//! `text-generation-launcher doctor`: what a start with these flags would do, and what would keep it from working.
//!
//! It starts no server and downloads nothing. What only Python knows is asked of `text-generation-server doctor`.

mod host;
mod report;

use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;

use serde_json::Value;
use text_generation_process::settings::mentions;

use crate::args::Args;
use crate::error::LauncherError;
use crate::nodes::{Place, meeting_address};
use crate::plan::{self, ProcessSpec, Surroundings};
use crate::supervisor::hub_token;
use crate::{checks, devices, logs, process, router_check};

/// How a finding bears on a start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// What a start would do.
    Plan,
    Ok,
    /// A start would work, though not as one may expect.
    Warning,
    /// A start would fail.
    Error,
}

/// One line of the report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub subject: String,
    pub status: Status,
    pub text: String,
    /// What to run or change, for warnings and errors.
    pub remedy: Option<String>,
}

impl Finding {
    fn new(subject: &str, status: Status, text: impl Into<String>) -> Self {
        let (subject, text) = (subject.to_owned(), text.into());
        Self {
            subject,
            status,
            text,
            remedy: None,
        }
    }

    fn remedied_by(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// Whether this is what the shards say of a variable that they get from a flag which is refused already.
    fn repeats(&self, known: &Self) -> bool {
        let is_refused = |variable: &str| {
            let flag = format!("--{}", variable.to_lowercase().replace('_', "-"));
            mentions(&known.text, &flag)
        };
        let variable = self.text.split_whitespace().next();
        self.subject == "environment"
            && known.status == Status::Error
            && variable.is_some_and(is_refused)
    }

    /// Reads a record of `text-generation-server doctor`.
    fn from_record(line: &str) -> Option<Self> {
        let record: Value = serde_json::from_str(line).ok()?;
        let text = |key: &str| record.get(key)?.as_str().map(str::to_owned);
        Some(Self {
            subject: text("subject")?,
            status: Status::named(&text("status")?)?,
            text: text("text")?,
            remedy: text("remedy"),
        })
    }
}

impl Status {
    const ALL: [Self; 4] = [Self::Plan, Self::Ok, Self::Warning, Self::Error];

    fn name(self) -> &'static str {
        match self {
            Self::Plan => "plan",
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.name() == name)
    }
}

/// Prints the report. True where nothing would keep a start from working.
pub async fn run(args: &Args) -> bool {
    let findings = examine(args).await;
    let names_model = args.model.model_id.is_some();
    let report = report::text(&findings, names_model, args.logs.json_output);
    // Whoever reads no further, as `head` does, wants no more of it.
    let _ = std::io::stdout().write_all(report.as_bytes());
    findings
        .iter()
        .all(|finding| finding.status != Status::Error)
}

async fn examine(args: &Args) -> Vec<Finding> {
    let visible = devices::count().await;
    let counted = plan::shard_count(args.shards.sharded, args.shards.num_shard, visible);
    let shards = counted.as_ref().copied().unwrap_or(1);
    let place = Place::of(&args.nodes);
    let node_0 = place.as_ref().ok().cloned().flatten();
    let node_0 = node_0.filter(|place| place.rank == 0);
    let flags = logs::level()
        .and_then(|_| checks::check_flags(args))
        .and(place.map(drop))
        .and(counted.map(drop));
    let mut findings = judge_as_router(args, flags).await;
    findings.extend(checks::unreachable_batch(args).map(|text| host::batch(args.as_given(&text))));
    findings.extend(args.notes.warnings.iter().map(|text| host::variable(text)));
    let address = SocketAddr::new(args.server.hostname, args.server.port);
    findings.push(host::address(address));
    let management = args.server.management_address();
    findings.extend(management.map(host::management_address));
    if let Some(place) = node_0 {
        findings.push(host::nodes_address(meeting_address(&place).await));
    }
    findings.extend(host::access(address, &args.server));
    findings.push(host::sockets(args.shards.shard_uds_path.as_deref(), shards));
    findings.extend(host::open_files(args.server.max_connections));
    findings.extend(host::address_space());
    findings.extend(host::shared_memory(shards));
    findings.extend(host::router().await);
    let surroundings = Surroundings {
        log_level: "WARN".to_owned(),
        hf_token: hub_token(),
    };
    let mut of_server = ask_server(plan::doctor(
        args,
        &surroundings,
        shards * args.nodes.nnodes,
    ))
    .await;
    of_server.retain(|found| !findings.iter().any(|known| found.repeats(known)));
    findings.extend(of_server);
    if args.model.model_id.is_none() {
        let finding = Finding::new(
            "model",
            Status::Warning,
            "no model given, so none was checked",
        );
        findings.push(finding.remedied_by("text-generation-launcher doctor <folder or hub id>"));
    }
    for finding in &mut findings {
        if finding.status == Status::Error {
            finding.text = args.as_given(&finding.text);
        }
    }
    findings
}

/// Whether the flags can be served: what the launcher says, and then the router, which looks into a model too that is in a
/// folder of this host.
async fn judge_as_router(args: &Args, flags: Result<(), LauncherError>) -> Vec<Finding> {
    if flags.is_err() || args.nodes.node_rank > 0 {
        return vec![host::flags(flags)];
    }
    let flags = ask_router(args, None).await;
    let model_id = args.model.model_id.as_deref();
    let folder = model_id.filter(|id| flags.is_ok() && Path::new(id).is_dir());
    let mut findings = vec![host::flags(flags)];
    if let Some(folder) = folder {
        findings.push(host::tokenizer(ask_router(args, Some(folder)).await));
    }
    findings
}

/// What the router says. That it cannot be run is a finding of its own.
async fn ask_router(args: &Args, folder: Option<&str>) -> Result<(), LauncherError> {
    match router_check::refusal(&plan::router_check(args, folder)).await {
        None | Some(LauncherError::CannotRun { .. }) => Ok(()),
        Some(refusal) => Err(refusal),
    }
}

/// What the server's own doctor finds.
async fn ask_server(spec: ProcessSpec) -> Vec<Finding> {
    let output = match process::output(&spec).await {
        Ok(output) => output,
        Err(error) => return vec![host::cannot_run(spec.program, &error)],
    };
    let said = String::from_utf8_lossy(&output.stdout);
    let mut findings: Vec<Finding> = said.lines().filter_map(Finding::from_record).collect();
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        let last = errors.lines().rfind(|line| !line.trim().is_empty());
        let reason = last.unwrap_or("it reported no error").trim();
        let text = format!("`{} doctor` failed: {reason}", spec.program);
        let finding = Finding::new("software", Status::Error, text);
        findings.push(
            finding.remedied_by(
                "install text-generation-server again, in the version of the launcher",
            ),
        );
    }
    findings
}
