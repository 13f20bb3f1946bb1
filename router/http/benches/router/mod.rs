//! A router in a process of its own before a mock group of shards, and streams of its answers.

use std::io::{self, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;
use tempfile::TempDir;
use text_generation_mock_shard::MockShard;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};

const AS_ROUTER: &str = "as-router";
const EVENT: &[u8] = b"data:";
pub const VOCAB_SIZE: u32 = 4096;
const IMAGE: &str = "<image>";

pub type BenchResult<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Makes this process a router where `Router::start` has started it as one; does not return then.
pub fn run_if_asked() {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments
        .get(1)
        .is_some_and(|argument| argument == AS_ROUTER)
    {
        let argv = std::iter::once("text-generation-router".to_owned())
            .chain(arguments.into_iter().skip(2));
        let no_tokenizer =
            Box::new(|_: &Path| Err("the benchmark brings its own tokenizer".to_owned()));
        std::process::exit(text_generation_http::main_from_args(argv, no_tokenizer));
    }
}

/// Id of a word, different in each place of each stream; the first 256 ids are bytes.
pub fn word(seed: u64, place: u32) -> u32 {
    256 + (seed as u32 * 31 + place * 7) % (VOCAB_SIZE - 256 - 1)
}

/// A runtime of so many threads.
pub fn runtime(threads: usize) -> io::Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .build()
}

/// The streams that are measured.
#[derive(Debug, Clone, Copy)]
pub enum Api {
    #[allow(dead_code, reason = "not every benchmark has all")]
    Raw,
    Chat,
}

impl Api {
    pub fn path(self) -> &'static str {
        match self {
            Self::Raw => "/generate_stream",
            Self::Chat => "/v1/chat/completions",
        }
    }

    fn body(self, seed: usize, tokens: u32) -> String {
        let body = match self {
            Self::Raw => json!({
                "inputs": "a b c",
                "parameters": { "do_sample": true, "seed": seed, "max_new_tokens": tokens },
            }),
            Self::Chat => json!({
                "messages": [{ "role": "user", "content": "a b c" }],
                "seed": seed,
                "max_tokens": tokens,
                "stream": true,
            }),
        };
        body.to_string()
    }

    /// Events before the first token and after the last: the role; the reason of the end and `[DONE]`.
    fn around(self) -> (usize, usize) {
        match self {
            Self::Raw => (0, 0),
            Self::Chat => (1, 2),
        }
    }
}

/// A byte-level tokenizer with words of two to five letters beside the bytes, as decoding cost depends on its kind.
///
/// Behind them comes [`IMAGE`], which stands for images.
fn write_tokenizer(folder: &Path) -> io::Result<()> {
    let bytes = (0u32..256).map(|byte| {
        let shift = match byte {
            0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => {
                return char::from_u32(byte).unwrap_or(' ').to_string();
            }
            0..=0x20 => 0x100 + byte,
            0x7f..=0xa0 => 0x121 + byte - 0x7f,
            _ => 0x143,
        };
        char::from_u32(shift).unwrap_or(' ').to_string()
    });
    let letters: Vec<char> = ('a'..='z').collect();
    let words = (256..VOCAB_SIZE).map(|id| {
        let letter = |n: u32| letters[(id / 26u32.pow(n) % 26) as usize];
        format!("Ġ{}{}{}", letter(2), letter(1), letter(0))
    });
    let vocab: serde_json::Map<String, serde_json::Value> = bytes
        .chain(words)
        .enumerate()
        .map(|(id, token)| (token, json!(id)))
        .collect();
    let byte_level = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true });
    let image = json!({
        "id": VOCAB_SIZE, "content": IMAGE, "special": true,
        "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
    });
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [image], "normalizer": null,
        "pre_tokenizer": byte_level, "post_processor": null, "decoder": byte_level,
        "model": { "type": "BPE", "vocab": vocab, "merges": [] },
    });
    std::fs::write(folder.join("tokenizer.json"), tokenizer.to_string())
}

/// The router in a process of its own, of the command in `ROUTER` where that is set; killed on drop.
pub struct Router {
    child: Child,
    pub port: u16,
    _folder: TempDir,
}

impl Router {
    /// Returns when it listens. `flags`: others than every run needs.
    pub async fn start(mock: &MockShard, streams: usize, flags: &[&str]) -> BenchResult<Self> {
        let folder = tempfile::tempdir()?;
        write_tokenizer(folder.path())?;
        // Of the size of a picture, which shards without an encoder do not look at.
        for (name, content) in [
            ("chat_template.jinja", "{{ messages[0].content }}"),
            (
                "config.json",
                r#"{"model_type": "llava", "vision_config": {"patch_size": 2}}"#,
            ),
            (
                "preprocessor_config.json",
                r#"{"size": {"shortest_edge": 8}, "crop_size": 8}"#,
            ),
        ] {
            std::fs::write(folder.path().join(name), content)?;
        }
        let port = std::net::TcpListener::bind("127.0.0.1:0")?
            .local_addr()?
            .port();
        let mut command = match std::env::var_os("ROUTER") {
            Some(installed) => Command::new(installed),
            None => {
                let mut own = Command::new(std::env::current_exe()?);
                own.arg(AS_ROUTER);
                own
            }
        };
        let child = command
            .args([
                "--master-shard-uds-path",
                &mock.path().display().to_string(),
            ])
            .args(["--tokenizer-name", &folder.path().display().to_string()])
            .args(["--hostname", "127.0.0.1", "--port", &port.to_string()])
            .args(["--max-concurrent-requests", &streams.to_string()])
            .args(["--max-waiting-tokens", "1", "--waiting-served-ratio", "0"])
            .args(flags)
            .env("LOG_LEVEL", "warn")
            .stdout(Stdio::null())
            .spawn()?;
        let router = Self {
            child,
            port,
            _folder: folder,
        };
        router.wait_ready().await?;
        Ok(router)
    }

    async fn wait_ready(&self) -> BenchResult<()> {
        let end = Instant::now() + Duration::from_secs(30);
        while TcpStream::connect(("127.0.0.1", self.port)).await.is_err() {
            if Instant::now() > end {
                return Err("the router did not start within 30 s".into());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    /// Most memory that it had, in bytes.
    #[allow(dead_code, reason = "not every benchmark asks for it")]
    pub fn peak_memory(&self) -> BenchResult<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let peak = peak.and_then(|line| line.trim().strip_suffix(" kB"));
        Ok(peak.ok_or("no VmHWM")?.parse::<u64>()? << 10)
    }

    /// User and system time so far (proc(5), fields 14 and 15, in ticks of 10 ms).
    pub fn cpu_time(&self) -> BenchResult<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let (_, fields) = stat.rsplit_once(") ").ok_or("unexpected /proc stat")?;
        let ticks = fields
            .split(' ')
            .skip(11)
            .take(2)
            .map(str::parse::<u64>)
            .sum::<Result<u64, _>>()?;
        Ok(Duration::from_millis(ticks * 10))
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads one stream to its end; returns when each token arrived.
pub async fn stream(api: Api, port: u16, seed: usize, tokens: u32) -> BenchResult<Vec<Instant>> {
    let body = api.body(seed, tokens);
    let mut request = Vec::new();
    write!(
        request,
        "POST {} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        api.path(),
        body.len()
    )?;
    let mut socket = TcpStream::connect(("127.0.0.1", port)).await?;
    socket.write_all(&request).await?;
    let mut arrivals = Vec::with_capacity(tokens as usize);
    let mut buffer = vec![0; 1 << 16];
    let mut kept = 0;
    loop {
        let read = socket.read(&mut buffer[kept..]).await?;
        let now = Instant::now();
        if read == 0 {
            break;
        }
        let end = kept + read;
        arrivals.extend(
            buffer[..end]
                .windows(EVENT.len())
                .filter(|window| *window == EVENT)
                .map(|_| now),
        );
        // An event's mark may be cut by the end of the buffer.
        kept = (EVENT.len() - 1).min(end);
        buffer.copy_within(end - kept..end, 0);
    }
    let (before, after) = api.around();
    let expected = before + tokens as usize + after;
    if arrivals.len() != expected {
        let got = arrivals.len();
        return Err(format!("stream {seed}: {got} events instead of {expected}").into());
    }
    Ok(arrivals[before..expected - after].to_vec())
}
