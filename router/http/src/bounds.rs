//! Fixed bounds on what a peer may send and hold, where no flag says otherwise. Every fixed bound of the HTTP surface
//! is here.

use std::time::Duration;

/// Headers of a request.
pub const MAX_HEADERS: usize = 100;
/// Largest head of a request, and largest list of HTTP/2 headers, in bytes.
pub const MAX_HEAD_BYTES: u32 = 64 * 1024;
/// Time for the head of a request, and for a connection without one. Above the 60 s for which common load balancers
/// keep an idle connection: they, not we, should close it.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(75);
/// Connections beside `--max-connections` that may only ask how the server is.
pub const PROBE_CONNECTIONS: usize = 16;
/// Connections of the port for probes and metrics.
pub const MANAGEMENT_CONNECTIONS: usize = 64;
/// Bytes of a body where the operator leaves it open, and where the model takes images too.
pub const PAYLOAD_LIMIT: u32 = 2_000_000;
pub const PAYLOAD_LIMIT_WITH_IMAGES: u32 = 32_000_000;
/// Connections that may wait to be accepted.
pub const BACKLOG: u32 = 1024;
/// How long a connection without a request is let be when its place is needed, or when the server stops.
pub const IDLE_GRACE: Duration = Duration::from_secs(1);
/// Requests of one HTTP/2 connection at once.
pub const HTTP2_MAX_STREAMS: u32 = 256;
/// HTTP/2 streams that a peer may open and reset before they are looked at; more end the connection.
pub const HTTP2_MAX_PENDING_RESETS: usize = 20;
/// Time after which a silent HTTP/2 peer is asked whether it lives, and which it has to answer.
pub const HTTP2_KEEP_ALIVE: Duration = Duration::from_secs(20);
/// Largest `x-request-id` that is taken over, in bytes.
pub const MAX_REQUEST_ID_BYTES: usize = 128;
/// Token ids of one `/detokenize`.
pub const MAX_DETOKENIZE_IDS: usize = 1_000_000;
/// Events of a stream are gathered up to about this many bytes before they go to the connection, and whole answers go
/// there in pieces of as many.
pub const EVENT_CHUNK_BYTES: usize = 16 * 1024;
/// Choices of an OpenAI request, over all its prompts.
pub const MAX_CHOICES: u32 = 128;
/// Chats that are rendered at once.
pub const RENDER_THREADS: usize = 4;
/// Messages of a chat.
pub const MAX_MESSAGES: usize = 4096;
/// Tools of a request: each name is compared with those before it.
pub const MAX_TOOLS: usize = 4096;
/// Longest `model` of an OpenAI request, which every event of a stream repeats, in bytes.
pub const MAX_MODEL_BYTES: usize = 256;
/// Log records that wait to be written; about 400 bytes each.
pub const QUEUED_LOG_RECORDS: usize = 8192;
/// Memory for the bodies of requests, their prompts and large answers, in bytes; more where it could not hold what
/// [`MEMORY_OF_LARGEST_BODY`] asks for.
pub const REQUEST_MEMORY: usize = 512 * 1024 * 1024;
/// Most memory that a byte of a text in a body takes until its request is queued: the body, its fields, the rendered
/// prompt, and a token id of four bytes.
pub const MEMORY_PER_BODY_BYTE: usize = 8;
/// Most lists and objects inside each other in a body: what the JSON library reads.
pub const MAX_JSON_DEPTH: usize = 127;
/// What each bracket, comma and colon of a body takes beside that: an entry of a list or an object, as JSON and as the
/// template has it. Measured: 280 bytes for a number in a list, 670 for a list of one, 1,260 for an object of one, and up
/// to 1.7 times as much where it describes a tool, of which there are two copies.
pub const MEMORY_PER_BODY_MARK: usize = 400;
/// The most that a byte of a body counts with both; lists within lists in a message were measured to take 213.
pub const MAX_MEMORY_PER_BODY_BYTE: usize = 220;
/// The same for `/tokenize` and `/chat_tokenize`, where a token has a place in the text as well.
pub const MEMORY_PER_TOKENIZED_BYTE: usize = 24;
/// Memory that there is at least for each byte that a body may have: what tokenising it takes, and some beside it.
pub const MEMORY_OF_LARGEST_BODY: usize = 32;
/// Memory that an answer takes beside its bytes until its client has it: its head, and what its connection knows of it.
pub const ANSWER_MEMORY: usize = 4 * 1024;
/// Memory that an id of `/detokenize` takes beside its text.
pub const MEMORY_PER_DETOKENIZED_ID: usize = 64;
/// How long an item of a response is remembered.
pub const ITEM_AGE: Duration = Duration::from_secs(24 * 60 * 60);
/// What remembering an item takes beside its text, in bytes.
pub const MEMORY_PER_ITEM: usize = 300;
