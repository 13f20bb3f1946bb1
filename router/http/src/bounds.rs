//! What a peer may send and hold, where no flag says otherwise. Every fixed bound of the HTTP surface is here.

use std::time::Duration;

/// Headers of a request.
pub const MAX_HEADERS: usize = 100;
/// Largest head of a request, and largest list of HTTP/2 headers, in bytes.
pub const MAX_HEAD_BYTES: u32 = 64 * 1024;
/// Time for the head of a request, and for a connection without one. Above the 60 s for which common load balancers
/// keep an idle connection: they, not we, should close it.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(75);
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
/// Events of a stream are gathered up to about this many bytes before they go to the connection.
pub const EVENT_CHUNK_BYTES: usize = 16 * 1024;
/// Choices of an OpenAI request, over all its prompts.
pub const MAX_CHOICES: u32 = 128;
/// Chats that are rendered at once.
pub const RENDER_THREADS: usize = 4;
/// Messages of a chat.
pub const MAX_MESSAGES: usize = 4096;
/// Longest `model` of an OpenAI request, which every event of a stream repeats, in bytes.
pub const MAX_MODEL_BYTES: usize = 256;
