//! Flags of shard mode. Names and defaults are those of TGI's benchmark.

use std::path::PathBuf;

use clap::value_parser;
use text_generation_client::types::NextTokenChooser;

use crate::error::{BenchmarkError, Result};
use crate::floor::FloorArgs;
use crate::output::OutputArgs;

/// Drive the shards over their sockets, without a router. Also what runs without a subcommand.
#[derive(Debug, Clone, clap::Args)]
pub struct ShardArgs {
    /// Folder of the model. Prompts need no tokenizer: this names the model in the report and finds its config.json.
    #[arg(short, long, env)]
    pub tokenizer_name: Option<PathBuf>,
    /// Accepted for compatibility; a folder has one revision.
    #[arg(long, env, default_value = "main", hide = true)]
    pub revision: String,
    /// Requests at once. Repeat it, or separate with commas; each is a point.
    #[arg(short, long, value_delimiter = ',', default_values_t = [1, 2, 4, 8, 16, 32])]
    pub batch_size: Vec<u32>,
    /// Prompt tokens; a list makes a grid.
    #[arg(short, long, env, value_delimiter = ',', default_value = "10")]
    pub sequence_length: Vec<u32>,
    /// New tokens; a list makes a grid.
    #[arg(short, long, env, value_delimiter = ',', default_value = "8")]
    pub decode_length: Vec<u32>,
    /// Measured runs of each point.
    #[arg(short, long, env, default_value_t = 10, value_parser = value_parser!(u32).range(1..))]
    pub runs: u32,
    /// Runs of each point before them that are not measured.
    #[arg(short, long, env, default_value_t = 1)]
    pub warmups: u32,
    /// Prompt tokens of one step; longer batches are computed in several. All in one when unset. Shards that are warm
    /// already refuse more than they were started with.
    #[arg(long, env, value_parser = value_parser!(u32).range(1..))]
    pub max_batch_prefill_tokens: Option<u32>,
    /// Socket of the first shard.
    #[arg(short, long, env, default_value = "/tmp/text-generation-server-0")]
    pub master_shard_uds_path: PathBuf,
    #[command(flatten)]
    pub choice: ChoiceArgs,
    #[command(flatten)]
    pub floor: FloorArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// How tokens are chosen; greedy when all are unset.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Choice of tokens")]
pub struct ChoiceArgs {
    #[arg(long, env)]
    pub temperature: Option<f32>,
    #[arg(long, env)]
    pub top_k: Option<u32>,
    #[arg(long, env)]
    pub top_p: Option<f32>,
    #[arg(long, env)]
    pub typical_p: Option<f32>,
    #[arg(long, env)]
    pub repetition_penalty: Option<f32>,
    #[arg(long, env)]
    pub frequency_penalty: Option<f32>,
    #[arg(long, env)]
    pub watermark: bool,
    #[arg(long, env)]
    pub do_sample: bool,
    #[arg(long, env)]
    pub top_n_tokens: Option<u32>,
}

/// One place of the grid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub batch_size: u32,
    pub sequence_length: u32,
    pub decode_length: u32,
}

impl Place {
    /// Slots of the whole batch at its end.
    pub fn slots(self) -> u64 {
        u64::from(self.batch_size) * u64::from(self.slots_of_one())
    }

    /// Slots of one request: for each of its tokens, though the last is never fed back and could do without.
    pub fn slots_of_one(self) -> u32 {
        self.sequence_length + self.decode_length
    }

    pub fn label(self) -> String {
        format!(
            "batch {}, {} in, {} out",
            self.batch_size, self.sequence_length, self.decode_length
        )
    }
}

impl ShardArgs {
    /// Every combination, batch sizes innermost.
    pub fn grid(&self) -> Result<Vec<Place>> {
        for (flag, values) in [
            ("--batch-size", &self.batch_size),
            ("--sequence-length", &self.sequence_length),
            ("--decode-length", &self.decode_length),
        ] {
            if values.contains(&0) {
                return Err(BenchmarkError::argument(flag, "must be at least 1"));
            }
        }
        let mut grid = Vec::new();
        for &sequence_length in &self.sequence_length {
            for &decode_length in &self.decode_length {
                grid.extend(self.batch_size.iter().map(|&batch_size| Place {
                    batch_size,
                    sequence_length,
                    decode_length,
                }));
            }
        }
        Ok(grid)
    }
}

impl ChoiceArgs {
    /// The parameters of every request. Shards check their ranges.
    pub fn chooser(&self) -> NextTokenChooser {
        let off = NextTokenChooser::GREEDY;
        NextTokenChooser {
            temperature: self.temperature.unwrap_or(off.temperature),
            top_k: self.top_k.unwrap_or(off.top_k),
            top_p: self.top_p.unwrap_or(off.top_p),
            typical_p: self.typical_p.unwrap_or(off.typical_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(off.repetition_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(off.frequency_penalty),
            watermark: self.watermark,
            do_sample: self.do_sample,
            ..off
        }
    }

    /// Name and value of everything that is set, for the report.
    pub fn named(&self) -> Vec<(&'static str, serde_json::Value)> {
        let mut named = vec![
            ("watermark", self.watermark.into()),
            ("do_sample", self.do_sample.into()),
        ];
        for (name, value) in [
            ("temperature", self.temperature),
            ("top_p", self.top_p),
            ("typical_p", self.typical_p),
            ("repetition_penalty", self.repetition_penalty),
            ("frequency_penalty", self.frequency_penalty),
        ] {
            named.extend(value.map(|value| (name, value.into())));
        }
        for (name, value) in [("top_k", self.top_k), ("top_n_tokens", self.top_n_tokens)] {
            named.extend(value.map(|value| (name, value.into())));
        }
        named
    }
}
