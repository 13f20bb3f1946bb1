//! Streams of `/v1/responses`.

use std::ops::ControlFlow;

use bytes::Bytes;
use serde_json::{Value, json};
use text_generation_core::error::InferError;
use tower_http::request_id::RequestId;

use super::output::{Numbered, Output};
use super::response::ResponseHead;
use crate::conversation::ConversationEvent;
use crate::error::ApiError;
use crate::generations::failure_in_stream;
use crate::sse::{Encoder, EventBuffer, Events};
use crate::timings::request_id;

/// Events of one response.
#[derive(Debug)]
pub struct ResponseEvents {
    head: ResponseHead,
    output: Output,
    id: RequestId,
    sequence_number: u64,
}

impl ResponseEvents {
    pub fn new(head: ResponseHead, output: Output, id: RequestId) -> Self {
        Self {
            head,
            output,
            id,
            sequence_number: 0,
        }
    }

    /// The whole stream of a request that was refused when it should begin.
    pub fn refusal(&mut self, mut error: ApiError) -> Bytes {
        let id = request_id(&self.id).to_owned();
        error.log_in_stream(&id);
        error.body.request_id = Some(id);
        let mut out = EventBuffer::default();
        self.begin(&mut out);
        self.fail(&error, &mut out);
        out.take()
    }

    fn fail(&mut self, error: &ApiError, out: &mut EventBuffer) {
        let failed = self.head.failed(error, self.output.items());
        self.say("response.failed", failed, out);
    }

    fn say(&mut self, kind: &'static str, response: Value, out: &mut EventBuffer) {
        let mut events = Numbered {
            sequence_number: &mut self.sequence_number,
            out,
        };
        events.push(kind, &json!({ "response": response }));
    }
}

impl Encoder for ResponseEvents {
    type Event = ConversationEvent;

    fn begin(&mut self, out: &mut EventBuffer) {
        let response = self.head.running();
        self.say("response.created", response.clone(), out);
        self.say("response.in_progress", response, out);
    }

    fn event(&mut self, event: ConversationEvent, out: &mut EventBuffer) -> ControlFlow<()> {
        let mut events = Numbered {
            sequence_number: &mut self.sequence_number,
            out,
        };
        for delta in event.deltas {
            self.output.delta(delta, &mut events);
        }
        let Some(end) = event.end else {
            return ControlFlow::Continue(());
        };
        let status = self.head.item_status(&end);
        self.output.end(status, &mut events);
        let kind = match status {
            "incomplete" => "response.incomplete",
            _ => "response.completed",
        };
        self.say(kind, self.head.ended(&end, self.output.items()), out);
        ControlFlow::Break(())
    }

    fn failure(&mut self, error: &InferError, out: &mut EventBuffer) {
        self.fail(&failure_in_stream(error, &self.id), out);
    }
}

#[cfg(test)]
mod tests;
