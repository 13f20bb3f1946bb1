//! The body of a stream, read frame by frame.

use futures::channel::mpsc;
use hyper::body::Body as _;
use text_generation_core::types::{StreamEvent, Token};

use super::*;

struct Plain;

impl Encoder for Plain {
    type Event = StreamEvent;

    fn event(&mut self, event: StreamEvent, out: &mut EventBuffer) -> ControlFlow<()> {
        if let StreamEvent::Token { token, .. } = event {
            out.push(&token.text);
        }
        ControlFlow::Continue(())
    }

    fn failure(&mut self, error: &InferError, out: &mut EventBuffer) {
        out.push(&error.error_type());
    }
}

fn token(text: &str) -> Result<StreamEvent, InferError> {
    let token = Token {
        id: 0,
        text: text.to_owned(),
        logprob: None,
        special: false,
    };
    Ok(StreamEvent::Token {
        token,
        top_tokens: Vec::new(),
    })
}

async fn next<S>(body: &mut EventBody<S, Plain>) -> Option<Bytes>
where
    S: Stream<Item = Result<StreamEvent, InferError>> + Unpin,
{
    let frame = futures::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context));
    frame.await.map(|frame| match frame {
        Ok(frame) => frame.into_data().unwrap_or_default(),
        Err(never) => match never {},
    })
}

#[tokio::test]
async fn ready_events_share_a_chunk_and_a_lost_end_is_told() {
    let events = futures::stream::iter([token("a"), token("b\n")]);
    let mut body = EventBody::new(Ok(events), Plain, Duration::from_secs(15));
    let expected = "data: \"a\"\n\ndata: \"b\\n\"\n\ndata: \"incomplete_generation_stream\"\n\n";
    assert_eq!(next(&mut body).await, Some(Bytes::from(expected)));
    assert!(body.is_end_stream());
    assert_eq!(next(&mut body).await, None);
}

#[tokio::test]
async fn chunks_are_bounded() {
    let long = "x".repeat(EVENT_CHUNK_BYTES / 2);
    let events = futures::stream::iter((0..10).map(move |_| token(&long)));
    let mut body = EventBody::new(Ok(events), Plain, Duration::from_secs(15));
    let chunk = next(&mut body).await.expect("a chunk");
    assert!(chunk.len() < 2 * EVENT_CHUNK_BYTES);
}

/// What a client makes of a stream that strips each read of its white space, passes over what is then empty, and
/// takes a message to end at an empty line or where its JSON is whole. So does the one of vLLM's benchmark.
fn as_stripped(reads: &[Bytes]) -> Vec<String> {
    let (mut buffer, mut messages) = (String::new(), Vec::new());
    for read in reads {
        buffer += String::from_utf8_lossy(read).trim();
        while let Some((message, rest)) = buffer.clone().split_once("\n\n") {
            messages.push(message.trim().to_owned());
            buffer = rest.to_owned();
        }
        let json = buffer.strip_prefix("data: ").unwrap_or_default();
        if serde_json::from_str::<serde_json::Value>(json).is_ok() {
            messages.push(std::mem::take(&mut buffer));
        }
    }
    messages
}

#[tokio::test]
async fn clients_that_strip_each_read_lose_no_event_to_the_keep_alive() {
    let (events, generation) = mpsc::unbounded();
    let mut body = EventBody::new(Ok(generation), Plain, Duration::from_millis(2));
    let mut reads = Vec::new();
    for text in ["a", "b"] {
        for _ in 0..2 {
            reads.push(next(&mut body).await.expect("a sign of life"));
        }
        events.unbounded_send(token(text)).expect("an open stream");
        reads.push(next(&mut body).await.expect("an event"));
    }
    assert_eq!(as_stripped(&reads), [r#"data: "a""#, r#"data: "b""#]);
}

#[tokio::test]
async fn idle_streams_are_kept_alive_and_go_on() {
    let (events, generation) = mpsc::unbounded();
    let mut body = EventBody::new(Ok(generation), Plain, Duration::from_millis(2));
    for _ in 0..2 {
        assert_eq!(next(&mut body).await, Some(Bytes::from("\n\n")));
    }
    events.unbounded_send(token("a")).expect("an open stream");
    assert_eq!(next(&mut body).await, Some(Bytes::from("data: \"a\"\n\n")));
}
