//! Load metrics under the names of other servers, for routers that know no others.

use std::fmt::Write;
use std::str::FromStr;

use text_generation_core::metrics::{
    BATCH_CURRENT_SIZE, CACHE_CONFIG_INFO, KV_CACHE_USAGE, PREFIX_CACHE_HIT_TOKENS,
    PREFIX_CACHE_QUERY_TOKENS, QUEUE_SIZE,
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
const VLLM: [(&str, &str, &str); 7] = [
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
];

impl MetricsAliases {
    /// Adds to a page in Prometheus' text format its own values under the other names, each with the label `model_name`.
    pub fn append(self, page: &mut String, model_name: &str) {
        let Self::Vllm = self;
        let model_name = escaped(model_name);
        let mut added = String::new();
        for (ours, theirs, kind) in VLLM {
            let Some((labels, value)) = sample(page, ours) else {
                continue;
            };
            let comma = if labels.is_empty() { "" } else { "," };
            // Writing to a string cannot fail.
            let _ = write!(
                added,
                "# TYPE {theirs} {kind}\n{theirs}{{model_name=\"{model_name}\"{comma}{labels}}} {value}\n\n"
            );
        }
        page.push_str(&added);
    }
}

/// Labels and value of the first sample of a metric.
fn sample<'a>(page: &'a str, name: &str) -> Option<(&'a str, &'a str)> {
    page.lines().find_map(|line| {
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
    use super::*;

    #[test]
    fn values_come_under_the_other_names_too() {
        let ours = "# TYPE tgi_queue_size gauge\ntgi_queue_size_other 7\ntgi_queue_size 3\n\
            tgi_cache_config_info{block_size=\"1\",num_gpu_blocks=\"64\"} 1\n";
        let mut page = ours.to_owned();
        MetricsAliases::Vllm.append(&mut page, "org/\"m\"");
        let added = page.strip_prefix(ours).expect("ours stay as they are");
        assert_eq!(
            added,
            "# TYPE vllm:num_requests_waiting gauge\n\
             vllm:num_requests_waiting{model_name=\"org/\\\"m\\\"\"} 3\n\n\
             # TYPE vllm:cache_config_info gauge\n\
             vllm:cache_config_info{model_name=\"org/\\\"m\\\"\",block_size=\"1\",num_gpu_blocks=\"64\"} 1\n\n"
        );
    }
}
