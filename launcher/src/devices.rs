//! Devices of the machine: visible GPUs and their name.

use std::time::Duration;

use tokio::process::Command;

/// `nvidia-smi` hangs where a driver is broken.
const NVIDIA_SMI_LIMIT: Duration = Duration::from_secs(10);

/// Number of visible devices, or none where nothing says so.
pub async fn count() -> Option<usize> {
    let cuda = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    let nvidia = std::env::var("NVIDIA_VISIBLE_DEVICES").ok();
    match visible(cuda.as_deref(), nvidia.as_deref()) {
        Visible::Count(count) => Some(count),
        Visible::All => nvidia_smi(&["--query-gpu=uuid", "--format=csv,noheader"])
            .await
            .map(|list| list.len()),
        Visible::Unknown => None,
    }
}

/// `<shards>-<GPU name in lower case with dashes>`, or `<shards>-cpu`.
pub async fn compute_type(shards: usize) -> String {
    let names = nvidia_smi(&["--query-gpu=gpu_name", "--format=csv,noheader"]).await;
    let name = names
        .and_then(|names| names.into_iter().next())
        .unwrap_or_else(|| "cpu".to_owned());
    format!("{shards}-{}", name.to_lowercase().replace(' ', "-"))
}

/// Facts for a bug report, one a line.
pub async fn runtime_environment() -> String {
    let gpus = nvidia_smi(&[
        "--query-gpu=name,driver_version,memory.total",
        "--format=csv,noheader",
    ])
    .await;
    format!(
        "Runtime environment:\nVersion: {}\nTarget: {}-{}\nCPUs: {}\nGPUs: {}",
        env!("CARGO_PKG_VERSION"),
        std::env::consts::ARCH,
        std::env::consts::OS,
        std::thread::available_parallelism()
            .map_or_else(|_| "unknown".to_owned(), |count| count.to_string()),
        gpus.map_or_else(|| "none".to_owned(), |gpus| gpus.join("; ")),
    )
}

#[derive(Debug, PartialEq)]
enum Visible {
    Count(usize),
    All,
    Unknown,
}

fn visible(cuda: Option<&str>, nvidia: Option<&str>) -> Visible {
    match (cuda, nvidia) {
        (Some(list), _) => Visible::Count(count_items(list)),
        (None, Some("all" | "void")) => Visible::All,
        (None, Some(list)) => Visible::Count(count_items(list)),
        (None, None) => Visible::Unknown,
    }
}

/// CUDA ignores what follows an invalid entry; `-1` and `none` are the usual ways to say that nothing is visible.
fn count_items(list: &str) -> usize {
    list.split(',')
        .map(str::trim)
        .take_while(|item| !matches!(*item, "" | "-1" | "none"))
        .count()
}

async fn nvidia_smi(arguments: &[&str]) -> Option<Vec<String>> {
    let output = Command::new("nvidia-smi")
        .args(arguments)
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(NVIDIA_SMI_LIMIT, output)
        .await
        .ok()?
        .ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<String> = text
        .lines()
        .map(|line| line.trim().to_owned())
        .filter(|line| !line.is_empty())
        .collect();
    (output.status.success() && !lines.is_empty()).then_some(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_tell_what_is_visible() {
        assert_eq!(visible(Some("0,1,2"), Some("all")), Visible::Count(3));
        assert_eq!(visible(Some("GPU-a, GPU-b"), None), Visible::Count(2));
        assert_eq!(visible(Some(""), None), Visible::Count(0));
        assert_eq!(visible(Some("0,-1,1"), None), Visible::Count(1));
        assert_eq!(visible(None, Some("all")), Visible::All);
        assert_eq!(visible(None, Some("void")), Visible::All);
        assert_eq!(visible(None, Some("none")), Visible::Count(0));
        assert_eq!(visible(None, Some("2,3")), Visible::Count(2));
        assert_eq!(visible(None, None), Visible::Unknown);
    }
}
