//! Streams of `/v1/messages`.

use std::ops::ControlFlow;

use serde_json::json;
use text_generation_core::error::InferError;
use tower_http::request_id::RequestId;

use super::answer::{MessageHead, stop};
use super::blocks::Blocks;
use crate::conversation::ConversationEvent;
use crate::error::anthropic;
use crate::generations::failure_in_stream;
use crate::sse::{Encoder, EventBuffer};

/// Events of one message.
#[derive(Debug)]
pub struct MessageEvents {
    head: MessageHead,
    blocks: Blocks,
    id: RequestId,
}

impl MessageEvents {
    pub fn new(head: MessageHead, id: RequestId) -> Self {
        Self {
            head,
            blocks: Blocks::default(),
            id,
        }
    }
}

impl Encoder for MessageEvents {
    type Event = ConversationEvent;

    fn begin(&mut self, out: &mut EventBuffer) {
        let start = json!({"type": "message_start", "message": self.head.begun()});
        out.named("message_start", &start);
    }

    fn event(&mut self, event: ConversationEvent, out: &mut EventBuffer) -> ControlFlow<()> {
        for delta in event.deltas {
            self.blocks.delta(delta, out);
        }
        let Some(end) = event.end else {
            return ControlFlow::Continue(());
        };
        self.blocks.end(out);
        let (stop_reason, stop_sequence) = stop(&end);
        let delta = json!({
            "type": "message_delta",
            "delta": {"stop_reason": stop_reason, "stop_sequence": stop_sequence},
            "usage": self.head.usage(&end),
        });
        out.named("message_delta", &delta);
        out.named("message_stop", &json!({"type": "message_stop"}));
        ControlFlow::Break(())
    }

    fn failure(&mut self, error: &InferError, out: &mut EventBuffer) {
        let error = failure_in_stream(error, &self.id);
        out.named("error", &anthropic(&error));
    }
}

#[cfg(test)]
mod tests;
