//! A real server on a free port over a mock shard, and what tests need around it.

#![allow(dead_code, reason = "every test file uses a part of it")]
#![allow(clippy::expect_used, reason = "helpers of tests, which may fail")]

pub mod log;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use reqwest::{RequestBuilder, Response};
use serde_json::{Map, Value, json};
use tempfile::TempDir;
use text_generation_http::args::Cli;
use text_generation_http::connection::{ServerLimits, StopOrders, serve};
use text_generation_http::startup::start;
use text_generation_http::state::AppState;
use text_generation_mock_shard::{AdapterSource, MockConfig, MockShard};
use text_generation_proto::v1::LoadAdapterResponse;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// Ids below are special tokens; id `BYTES + b` is the byte `b`.
pub const BYTES: u32 = 3;
/// Far longer than anything takes that a test waits for.
pub const LONG: Duration = Duration::from_secs(60);
/// Ends a text.
pub const EOS: u32 = 2;

/// What mock shards find at `/srv/<name>`, for each of these names: adapters with the generations 1, 2 and so on.
pub fn adapters(names: &'static [&'static str]) -> AdapterSource {
    Arc::new(|load| {
        let source = &load.request.source;
        let place = names
            .iter()
            .position(|name| source.strip_prefix("/srv/") == Some(name));
        let missing = || ("adapter_not_found", format!("{source} is not a folder"));
        Ok(LoadAdapterResponse {
            generation: place.ok_or_else(missing)? as u64 + 1,
            rank: 16,
            pages: 1,
            bytes: 1 << 20,
        })
    })
}

/// The flag that names them.
pub fn lora_adapters(names: &[&str]) -> String {
    let named: Vec<String> = names
        .iter()
        .map(|name| format!("{name}=/srv/{name}"))
        .collect();
    format!("--lora-adapters={}", named.join(","))
}

pub struct Server {
    pub mock: MockShard,
    pub state: Arc<AppState>,
    pub url: String,
    pub http: reqwest::Client,
    orders: StopOrders,
    served: JoinHandle<()>,
    _folder: TempDir,
}

impl Server {
    /// A server with default flags.
    pub async fn start() -> Self {
        Self::with_flags(&[]).await
    }

    pub async fn with_flags(flags: &[&str]) -> Self {
        Self::with(flags, ServerLimits::default()).await
    }

    pub async fn with(flags: &[&str], limits: ServerLimits) -> Self {
        Self::over(alphabet(), flags, limits).await
    }

    /// A server whose model has a chat template: roles and contents one after the other.
    pub async fn that_chats() -> Self {
        let template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<answer>";
        Self::with_template(template, alphabet(), &[]).await
    }

    /// A server whose model has this chat template.
    pub async fn with_template(template: &str, model: MockConfig, flags: &[&str]) -> Self {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let config = json!({"chat_template": template, "bos_token": "<s>", "eos_token": "</s>"});
        std::fs::write(file.path(), config.to_string()).expect("written");
        let path = file.path().display().to_string();
        let named = ["--tokenizer-config-path", &path];
        let flags: Vec<&str> = named.into_iter().chain(flags.iter().copied()).collect();
        Self::over(model, &flags, ServerLimits::default()).await
    }

    /// A server that takes requests for long after the order to stop.
    pub async fn with_long_drain() -> Self {
        let limits = ServerLimits {
            drain_delay: LONG,
            ..ServerLimits::default()
        };
        Self::with(&[], limits).await
    }

    /// A server over a mock model of the test's own.
    pub async fn over(model: MockConfig, flags: &[&str], limits: ServerLimits) -> Self {
        Self::in_folder(model, model_folder(), flags, limits).await
    }

    /// A server whose model has one more file.
    pub async fn with_model_file(model: MockConfig, name: &str, content: &Value) -> Self {
        let folder = model_folder();
        std::fs::write(folder.path().join(name), content.to_string()).expect("written");
        Self::in_folder(model, folder, &[], ServerLimits::default()).await
    }

    /// A server whose model sees, with these files, and with `tokens` behind all others.
    pub async fn that_sees(
        model: MockConfig,
        template: &str,
        files: &[(&str, &Value)],
        tokens: &[&str],
        flags: &[&str],
    ) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, content: &Value| {
            std::fs::write(folder.path().join(name), content.to_string()).expect("written");
        };
        write("tokenizer.json", &tokenizer(tokens));
        write("tokenizer_config.json", &json!({"chat_template": template}));
        for (name, content) in files {
            write(name, content);
        }
        Self::in_folder(model, folder, flags, ServerLimits::default()).await
    }

    async fn in_folder(
        model: MockConfig,
        folder: TempDir,
        flags: &[&str],
        limits: ServerLimits,
    ) -> Self {
        let mock = MockShard::start(model).expect("a mock shard");
        let argv = argv(&mock.path(), folder.path(), flags);
        let config = Cli::try_parse_from(argv).expect("good flags").config;
        let no_tokenizer = |_: &Path| Err("not needed".to_owned());
        let (listener, state) = start(&config, no_tokenizer, &Handle::current())
            .await
            .expect("a started server");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let orders = StopOrders::default();
        let serving = serve(listener, state.clone(), limits, orders.clone());
        Self {
            mock,
            state,
            url,
            http: reqwest::Client::new(),
            orders,
            served: tokio::spawn(serving),
            _folder: folder,
        }
    }

    pub fn get(&self, path: &str) -> RequestBuilder {
        self.http.get(format!("{}{path}", self.url))
    }

    pub fn post(&self, path: &str) -> RequestBuilder {
        self.http.post(format!("{}{path}", self.url))
    }

    pub async fn post_json(&self, path: &str, body: &Value) -> Response {
        let sent = self.post(path).json(body).send().await;
        sent.expect("an answer")
    }

    /// Status and JSON body.
    pub async fn ask(&self, path: &str, body: &Value) -> (u16, Value) {
        answer(self.post_json(path, body).await).await
    }

    /// The JSON of an answer that must be a good one.
    pub async fn good(&self, path: &str, body: &Value) -> Value {
        let (status, answer) = self.ask(path, body).await;
        assert_eq!(status, 200, "{answer}");
        answer
    }

    /// Posts raw bytes as JSON.
    pub async fn ask_raw(&self, path: &str, body: impl Into<reqwest::Body>) -> (u16, Value) {
        let request = self
            .post(path)
            .header("content-type", "application/json")
            .body(body);
        answer(request.send().await.expect("an answer")).await
    }

    /// Host and port.
    pub fn address(&self) -> &str {
        self.url.trim_start_matches("http://")
    }

    /// A connection to the server.
    pub async fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address()).await;
        stream.expect("a connection")
    }

    /// Sends bytes on a connection of their own and reads the answer to its end.
    pub async fn ask_bytes(&self, request: &[u8]) -> String {
        let mut stream = self.connect().await;
        // The server may have closed before it has read everything.
        let _ = stream.write_all(request).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// Waits until all adapters are on the device.
    pub async fn until_adapters_are_there(&self) {
        until("adapters are on the device", async || {
            let (_, info) = answer(self.get("/info").send().await.expect("sent")).await;
            let adapters = info["adapters"].as_array().expect("a list").clone();
            adapters.iter().all(|adapter| adapter["state"] == "device")
        })
        .await;
    }

    /// Waits until no request runs or waits and the pool is empty.
    pub async fn idle(&self) {
        until("everything is given back", async || {
            let gauges = self.state.infer.snapshot();
            let permits = self.state.info.max_concurrent_requests as usize;
            gauges.permits_available == permits && gauges.running == 0 && gauges.slots_used == 0
        })
        .await;
        assert_eq!(self.mock.violations(), Vec::<String>::new());
    }

    /// Gives the order to stop, as a signal would.
    pub fn order_stop(&self) {
        self.orders.drain.cancel();
    }

    /// Gives the order to end every request at once.
    pub fn order_cut(&self) {
        self.orders.cut.cancel();
    }

    /// Gives the order to stop, and waits until load balancers are told to send no more.
    pub async fn leave(&self) {
        self.order_stop();
        until("the order is seen", async || self.state.is_leaving()).await;
    }

    /// Waits until the connection loop has ended.
    pub async fn stopped(self) {
        self.served.await.expect("the connection loop");
    }

    pub fn has_stopped(&self) -> bool {
        self.served.is_finished()
    }
}

pub async fn answer(response: Response) -> (u16, Value) {
    let status = response.status().as_u16();
    let content_type = response.headers().get("content-type").cloned();
    assert!(
        content_type.is_some_and(|value| value == "application/json"),
        "status {status} without JSON"
    );
    (status, response.json().await.expect("a JSON body"))
}

/// `body` with these keys, in place of its own where it has them.
pub fn with(mut body: Value, keys: Value) -> Value {
    let keys = keys.as_object().cloned().expect("an object");
    body.as_object_mut().expect("an object").extend(keys);
    body
}

/// Text of a header.
pub fn header<'a>(response: &'a Response, name: &str) -> &'a str {
    let value = response.headers().get(name);
    value.map_or("", |value| value.to_str().expect("printable"))
}

/// Waits until `condition` holds, for at most ten seconds.
pub async fn until(what: &str, condition: impl AsyncFn() -> bool) {
    let waiting = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(10), waiting).await;
    assert!(waited.is_ok(), "still waiting until {what}");
}

/// Reads until the peer closes or resets; fails when it does neither.
pub async fn read_to_close(stream: &mut TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    let ended = tokio::time::timeout(LONG, stream.read_to_end(&mut all)).await;
    assert!(ended.is_ok(), "the connection is still open");
    all
}

/// Flags of the command.
pub fn argv(socket: &Path, folder: &Path, flags: &[&str]) -> Vec<String> {
    let socket = socket.display().to_string();
    let folder = folder.display().to_string();
    let always = [
        "text-generation-router",
        "--master-shard-uds-path",
        &socket,
        "--tokenizer-name",
        &folder,
        "--model-id",
        "test/model",
        "--hostname",
        "127.0.0.1",
    ];
    let port: &[&str] = if flags.contains(&"--port") {
        &[]
    } else {
        &["--port", "0"]
    };
    always
        .iter()
        .chain(port)
        .chain(flags)
        .map(|&flag| flag.into())
        .collect()
}

/// A mock model that says the alphabet; after a prompt that ends with `!` it says three letters and ends.
pub fn alphabet() -> MockConfig {
    MockConfig {
        tokens: Arc::new(|row| {
            let prompt_end = row.input_ids.last().copied();
            if prompt_end == Some(BYTES + u32::from(b'!')) && row.generated == 3 {
                EOS
            } else {
                BYTES + u32::from(b'a') + row.generated % 26
            }
        }),
        ..MockConfig::default()
    }
}

/// A mock model that says `text` and ends.
pub fn saying(text: &'static str) -> MockConfig {
    MockConfig {
        tokens: Arc::new(move |row| byte(text.as_bytes(), row.generated)),
        ..MockConfig::default()
    }
}

/// A mock model that repeats its prompt and ends.
pub fn repeating() -> MockConfig {
    MockConfig {
        tokens: Arc::new(|row| {
            let id = row.input_ids.get(row.generated as usize);
            id.copied().unwrap_or(EOS)
        }),
        ..MockConfig::default()
    }
}

/// The token of a byte of `text`; after them the end.
pub fn byte(text: &[u8], index: u32) -> u32 {
    text.get(index as usize)
        .map_or(EOS, |&byte| BYTES + u32::from(byte))
}

/// A folder with a tokenizer of single bytes.
pub fn model_folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("tokenizer.json");
    std::fs::write(file, tokenizer(&[]).to_string()).expect("a tokenizer file");
    folder
}

/// Tokens of single bytes and some words, and behind them `more` special ones.
fn tokenizer(more: &[&str]) -> Value {
    let specials = ["<unk>", "<s>", "</s>"];
    let words = (BYTES + 256..512).map(|id| format!("Ġw{id}"));
    let vocab: Map<String, Value> = specials
        .map(str::to_owned)
        .into_iter()
        .chain((0..=255).map(|byte| byte_level(byte).to_string()))
        .chain(words)
        .enumerate()
        .map(|(id, token)| (token, json!(id)))
        .collect();
    let added: Vec<Value> = (0..)
        .zip(specials)
        .chain((vocab.len()..).zip(more.iter().copied()))
        .map(|(id, content)| {
            json!({"id": id, "content": content, "special": true, "single_word": false, "lstrip": false,
                   "rstrip": false, "normalized": false})
        })
        .collect();
    let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": bytes, "post_processor": null, "decoder": bytes,
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    })
}

/// GPT-2 writes bytes as characters: printable ones stand for themselves, the others follow from U+0100 on.
fn byte_level(byte: u8) -> char {
    let printable = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..);
    if printable(&byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|byte| !printable(byte)).count();
    char::from_u32(0x100 + before as u32).expect("a character")
}
