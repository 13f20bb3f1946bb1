//! Load metrics under the names of other servers, for routers that know no others.

use std::fmt::Write;
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

use text_generation_core::metrics::{
    ADAPTER_REQUESTS_RUNNING, ADAPTER_REQUESTS_WAITING, BATCH_CURRENT_SIZE, CACHE_CONFIG_INFO,
    KV_CACHE_USAGE, PREFIX_CACHE_HIT_TOKENS, PREFIX_CACHE_QUERY_TOKENS, QUEUE_SIZE,
    SPECULATION_ACCEPTED, SPECULATION_ACCEPTED_PER_POSITION, SPECULATION_DRAFTS,
    SPECULATION_WINDOWS,
};

/// Whose names `/metrics` has beside ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricsAliases {
    Vllm,
}

impl FromStr for MetricsAliases {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "vllm" => Ok(Self::Vllm),
            _ => Err("must be vllm".to_owned()),
        }
    }
}

/// Our name, vLLM's, and its type. vLLM 0.9 renamed `gpu_cache_usage_perc`; many readers know the old name alone.
const VLLM: [(&str, &str, &str); 11] = [
    (QUEUE_SIZE, "vllm:num_requests_waiting", "gauge"),
    (BATCH_CURRENT_SIZE, "vllm:num_requests_running", "gauge"),
    (KV_CACHE_USAGE, "vllm:kv_cache_usage_perc", "gauge"),
    (KV_CACHE_USAGE, "vllm:gpu_cache_usage_perc", "gauge"),
    (CACHE_CONFIG_INFO, "vllm:cache_config_info", "gauge"),
    (
        PREFIX_CACHE_QUERY_TOKENS,
        "vllm:prefix_cache_queries_total",
        "counter",
    ),
    (
        PREFIX_CACHE_HIT_TOKENS,
        "vllm:prefix_cache_hits_total",
        "counter",
    ),
    (
        SPECULATION_WINDOWS,
        "vllm:spec_decode_num_drafts_total",
        "counter",
    ),
    (
        SPECULATION_DRAFTS,
        "vllm:spec_decode_num_draft_tokens_total",
        "counter",
    ),
    (
        SPECULATION_ACCEPTED,
        "vllm:spec_decode_num_accepted_tokens_total",
        "counter",
    ),
    (
        SPECULATION_ACCEPTED_PER_POSITION,
        "vllm:spec_decode_num_accepted_tokens_per_pos_total",
        "counter",
    ),
];

/// vLLM's gauge of adapters. Its labels list them with commas between, and its value is when they were so.
const LORA_REQUESTS: &str = "vllm:lora_requests_info";

impl MetricsAliases {
    /// Adds to a page in Prometheus' text format, as it is `now`, its own values under the other names, each with the
    /// label `model_name`.
    pub fn append(self, page: &mut String, model_name: &str, now: SystemTime) {
        let Self::Vllm = self;
        let model_name = escaped(model_name);
        let mut added = String::new();
        for (ours, theirs, kind) in VLLM {
            let mut found = samples(page, ours).peekable();
            if found.peek().is_none() {
                continue;
            }
            // Writing to a string cannot fail.
            let _ = writeln!(added, "# TYPE {theirs} {kind}");
            for (labels, value) in found {
                let comma = if labels.is_empty() { "" } else { "," };
                let _ = writeln!(
                    added,
                    "{theirs}{{model_name=\"{model_name}\"{comma}{labels}}} {value}"
                );
            }
            added.push('\n');
        }
        added.extend(lora_requests(page, &model_name, now));
        page.push_str(&added);
    }
}

/// The gauge of adapters, where there are any.
fn lora_requests(page: &str, model_name: &str, now: SystemTime) -> Option<String> {
    let count = samples(page, ADAPTER_REQUESTS_RUNNING).count();
    let (running, waiting) = (
        adapters(page, ADAPTER_REQUESTS_RUNNING),
        adapters(page, ADAPTER_REQUESTS_WAITING),
    );
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = now.as_secs_f64();
    (count > 0).then(|| {
        format!(
            "# TYPE {LORA_REQUESTS} gauge\n{LORA_REQUESTS}{{model_name=\"{model_name}\",max_lora=\"{count}\",\
             running_lora_adapters=\"{running}\",waiting_lora_adapters=\"{waiting}\"}} {now}\n\n"
        )
    })
}

/// Names of the adapters of which this metric counts requests, as a label's value.
fn adapters(page: &str, name: &str) -> String {
    let counted = samples(page, name).filter(|&(_, value)| value != "0");
    let names =
        counted.filter_map(|(labels, _)| labels.strip_prefix("adapter=\"")?.strip_suffix('"'));
    let mut names: Vec<&str> = names.collect();
    names.sort_unstable();
    names.join(",")
}

/// Labels and value of each sample of a metric.
fn samples<'a>(page: &'a str, name: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
    page.lines().filter_map(move |line| {
        let rest = line.strip_prefix(name)?;
        match rest.strip_prefix('{') {
            Some(labelled) => labelled.rsplit_once("} "),
            None => Some(("", rest.strip_prefix(' ')?)),
        }
    })
}

/// A label's value, as the text format writes it.
fn escaped(value: &str) -> String {
    value
        .replace('\\', r"\\")
        .replace('"', r#"\""#)
        .replace('\n', r"\n")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn values_come_under_the_other_names_too() {
        let ours = "# TYPE tgi_queue_size gauge\ntgi_queue_size_other 7\ntgi_queue_size 3\n\
            tgi_cache_config_info{block_size=\"1\",num_gpu_blocks=\"64\"} 1\n";
        let mut page = ours.to_owned();
        MetricsAliases::Vllm.append(&mut page, "org/\"m\"", UNIX_EPOCH);
        let added = page.strip_prefix(ours).expect("ours stay as they are");
        assert_eq!(
            added,
            "# TYPE vllm:num_requests_waiting gauge\n\
             vllm:num_requests_waiting{model_name=\"org/\\\"m\\\"\"} 3\n\n\
             # TYPE vllm:cache_config_info gauge\n\
             vllm:cache_config_info{model_name=\"org/\\\"m\\\"\",block_size=\"1\",num_gpu_blocks=\"64\"} 1\n\n"
        );
    }

    #[test]
    fn adapters_are_listed_by_what_their_requests_do() {
        let mut page = "tgi_adapter_requests_running{adapter=\"sums\"} 2\n\
            tgi_adapter_requests_running{adapter=\"a \\\"b\\\"\"} 1\n\
            tgi_adapter_requests_running{adapter=\"idle\"} 0\n\
            tgi_adapter_requests_waiting{adapter=\"sums\"} 1\n\
            tgi_adapter_requests_waiting{adapter=\"idle\"} 0\n"
            .to_owned();
        let now = UNIX_EPOCH + Duration::from_millis(1500);
        MetricsAliases::Vllm.append(&mut page, "m", now);
        let expected = "# TYPE vllm:lora_requests_info gauge\n\
            vllm:lora_requests_info{model_name=\"m\",max_lora=\"3\",\
            running_lora_adapters=\"a \\\"b\\\",sums\",waiting_lora_adapters=\"sums\"} 1.5\n\n";
        assert!(page.ends_with(expected), "{page}");
    }
}
