//! Roofline of a step on a machine: bytes that must be read over its bandwidth, operations that must be done over its
//! matrix rate. Kernels run one after another; nothing but weights, KV and matrix work is counted (roofline model:
//! Williams, Waterman and Patterson, 2009).

mod shape;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use self::shape::Shape;
use crate::error::{BenchmarkError, Result};
use crate::report::{FloorFigure, Point};

/// Flags about the floor.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Floor")]
pub struct FloorArgs {
    /// Print figures as a fraction of what the machine could do; needs --bandwidth and --matrix-rate.
    #[arg(long, requires = "bandwidth", requires = "matrix_rate")]
    pub floor: bool,
    /// config.json of the model, or its folder; the folder of the tokenizer when unset.
    #[arg(long, value_name = "PATH")]
    pub model_config: Option<PathBuf>,
    /// Measured memory bandwidth of one device in TB/s.
    #[arg(long, value_name = "TB/S")]
    pub bandwidth: Option<f64>,
    /// Measured matrix rate of one device in TFLOP/s, in the type of the weights.
    #[arg(long, value_name = "TFLOP/S")]
    pub matrix_rate: Option<f64>,
    /// Devices that share each step.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub devices: u16,
}

impl FloorArgs {
    /// `None` without --floor. `folder` is where the model lies as far as is known.
    pub fn floor(&self, folder: Option<&Path>) -> Result<Option<Floor>> {
        let (true, Some(bandwidth), Some(rate)) = (self.floor, self.bandwidth, self.matrix_rate)
        else {
            return Ok(None);
        };
        for (flag, value) in [("--bandwidth", bandwidth), ("--matrix-rate", rate)] {
            if !(value > 0.0 && value.is_finite()) {
                return Err(BenchmarkError::argument(flag, "must be above 0"));
            }
        }
        let path = self.model_config.as_deref().or(folder).ok_or_else(|| {
            BenchmarkError::argument(
                "--model-config",
                "--floor needs the model's config.json; pass it or its folder",
            )
        })?;
        let devices = f64::from(self.devices);
        Ok(Some(Floor {
            shape: Shape::read(path)?,
            bandwidth: bandwidth * 1e12 * devices,
            rate: rate * 1e12 * devices,
        }))
    }
}

/// A model on a machine; bandwidth and rate are those of all devices together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Floor {
    shape: Shape,
    bandwidth: f64,
    rate: f64,
}

impl Floor {
    /// Seconds of one decode step of `batch` sequences with `context` tokens each.
    pub fn decode(&self, batch: f64, context: f64) -> f64 {
        let shape = &self.shape;
        let read = shape.weight_bytes(batch) / self.bandwidth;
        let work = 2.0 * (shape.active_weights() + shape.head_weights()) * batch / self.rate;
        read.max(work) + shape.kv_bytes_per_token() * batch * context / self.bandwidth
    }

    /// Seconds to the first token of `batch` prompts of `tokens` tokens that are computed together.
    pub fn prefill(&self, batch: f64, tokens: f64) -> f64 {
        let shape = &self.shape;
        let work = batch
            * (2.0 * shape.active_weights() * tokens
                + 2.0 * shape.head_weights()
                + shape.prompt_attention(tokens));
        let read = shape.weight_bytes(batch * tokens) / self.bandwidth;
        (work / self.rate).max(read)
    }

    /// Output tokens per second at best when `running` requests of `input` and `output` tokens run at any time and a
    /// new one takes the place of each that ends.
    pub fn throughput(&self, running: f64, input: f64, output: f64) -> f64 {
        let shape = &self.shape;
        let admitted = running / output;
        let tokens = running + admitted * input;
        let read = shape.weight_bytes(tokens) / self.bandwidth;
        let work = 2.0 * shape.active_weights() * tokens
            + 2.0 * shape.head_weights() * (running + admitted);
        let kv = shape.kv_bytes_per_token() * running * (input + output / 2.0) / self.bandwidth;
        let prompts = admitted * shape.prompt_attention(input) / self.rate;
        running / (read.max(work / self.rate) + kv + prompts)
    }

    /// What a point of server mode is measured against: an idle machine for the first token, the mean number of
    /// running requests for the others. Prompts count as computed in full: a prefix cache may beat this floor.
    pub fn of_server(&self, point: &Point) -> BTreeMap<String, FloorFigure> {
        let rate = |name: &str| point.rates.get(name).copied();
        let latency = |name: &str| point.latency_ms.get(name).map(|latency| latency.p50);
        let (Some(input), Some(output), Some(running)) = (
            rate("prompt_tokens_per_request"),
            rate("output_tokens_per_request"),
            rate("concurrency").map(|running| running.max(1.0)),
        ) else {
            return BTreeMap::new();
        };
        let context = input + output / 2.0;
        let times = [
            ("ttft_p50_ms", latency("ttft"), self.prefill(1.0, input)),
            (
                "tpot_p50_ms",
                latency("tpot"),
                self.decode(running, context),
            ),
        ];
        let times = times.into_iter().filter_map(|(name, measured, floor)| {
            let measured = measured.filter(|time| *time > 0.0)?;
            Some((name.to_owned(), time_figure(measured, floor * 1e3)))
        });
        let best = self.throughput(running, input, output);
        let throughput = rate("output_tokens_per_s").map(|measured| {
            let fraction = measured / best;
            (
                "output_tokens_per_s".to_owned(),
                FloorFigure {
                    measured,
                    floor: best,
                    fraction,
                },
            )
        });
        times.chain(throughput).collect()
    }
}

/// A time beside its floor, both in the same unit.
pub fn time_figure(measured: f64, floor: f64) -> FloorFigure {
    FloorFigure {
        measured,
        floor,
        fraction: floor / measured,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Distribution;

    const LLAMA_8B: &str = r#"{"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "torch_dtype": "bfloat16"}"#;
    const MIXTRAL: &str = r#"{"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32000, "num_local_experts": 8,
        "num_experts_per_tok": 2}"#;

    /// On machines with 4.3 TB/s and 788 TFLOP/s each.
    fn floor(config: &str, devices: f64) -> Floor {
        let shape = Shape::parse(config).unwrap();
        Floor {
            shape,
            bandwidth: 4.3e12 * devices,
            rate: 788e12 * devices,
        }
    }

    fn near(value: f64, expected: f64) {
        assert!(
            (value / expected - 1.0).abs() < 2e-3,
            "{value} is not {expected}"
        );
    }

    #[test]
    fn dense_floors_agree_with_arithmetic_done_elsewhere() {
        let floor = floor(LLAMA_8B, 1.0);
        near(floor.shape.kv_bytes_per_token(), 131_072.0);
        near(floor.decode(1.0, 1024.0) * 1e3, 3.521);
        near(floor.decode(64.0, 1024.0) * 1e3, 5.488);
        near(floor.prefill(1.0, 8192.0) * 1e3, 167.4);
        near(floor.throughput(256.0, 1024.0, 1024.0), 11_916.0);
    }

    #[test]
    fn experts_without_a_token_are_not_read() {
        let floor = floor(MIXTRAL, 2.0);
        near(floor.decode(1.0, 1024.0) * 1e3, 2.98);
        near(floor.decode(256.0, 1024.0) * 1e3, 14.826);
    }

    #[test]
    fn experts_have_a_size_of_their_own_and_some_layers_none() {
        let qwen3_30b = r#"{"num_hidden_layers": 48, "hidden_size": 2048, "num_attention_heads": 32,
            "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144, "moe_intermediate_size": 768,
            "vocab_size": 151936, "num_experts": 128, "num_experts_per_tok": 8, "mlp_only_layers": []}"#;
        near(
            floor(qwen3_30b, 1.0).shape.weight_bytes(1.0) / 4.3e12 * 1e3,
            1.413,
        );
        // GLM-4.5 Air: 106 billion parameters, of which 12 billion are active, as its authors say.
        let glm_air = r#"{"num_hidden_layers": 46, "hidden_size": 4096, "num_attention_heads": 96,
            "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 10944, "moe_intermediate_size": 1408,
            "vocab_size": 151552, "n_routed_experts": 128, "num_experts_per_tok": 8, "n_shared_experts": 1,
            "first_k_dense_replace": 1}"#;
        let shape = floor(glm_air, 1.0).shape;
        assert!((11.5e9..12.5e9).contains(&shape.active_weights()));
        assert!((105e9..108e9).contains(&(shape.weight_bytes(1e6) / 2.0)));
    }

    #[test]
    fn a_point_is_measured_against_its_own_load() {
        let floor = floor(LLAMA_8B, 1.0);
        let mut point = Point::default();
        assert!(floor.of_server(&point).is_empty());
        for (name, value) in [
            ("prompt_tokens_per_request", 1024.0),
            ("output_tokens_per_request", 1024.0),
            ("concurrency", 256.0),
            ("output_tokens_per_s", 5_958.0),
        ] {
            point.rates.insert(name.to_owned(), value);
        }
        let ttft = Distribution::of(vec![37.0]).unwrap();
        point.latency_ms.insert("ttft".to_owned(), ttft);
        let figures = floor.of_server(&point);
        near(figures["output_tokens_per_s"].fraction, 0.5);
        assert!((0.45..0.55).contains(&figures["ttft_p50_ms"].fraction));
        assert!(!figures.contains_key("tpot_p50_ms"));
    }

    #[test]
    fn configs_without_a_known_floor_are_refused() {
        let latent = LLAMA_8B.replacen('{', r#"{"kv_lora_rank": 512, "#, 1);
        assert!(Shape::parse(&latent).unwrap_err().contains("latent"));
        let quantized = LLAMA_8B.replacen('{', r#"{"quantization_config": {"bits": 4}, "#, 1);
        assert!(Shape::parse(&quantized).unwrap_err().contains("quantized"));
        assert!(
            Shape::parse("{}")
                .unwrap_err()
                .contains("num_hidden_layers")
        );
    }
}
