//! Events of OpenAI streams. What is the same in every event of a choice is serialised once.

use serde::Serialize;
use serde_json::{Value, json};
use text_generation_core::error::InferError;
use tower_http::request_id::RequestId;

use super::answer::{Identity, SYSTEM_FINGERPRINT, Usage};
use super::logprobs::ChatLogprobs;
use crate::generations::failure_in_stream;
use crate::sse::EventBuffer;

const DONE: &[u8] = b"data: [DONE]\n\n";

/// Writes the events of one request.
#[derive(Debug)]
pub struct Chunks {
    /// Up to the list of choices.
    head: Vec<u8>,
    /// For each choice, up to the value of its index and the comma after it.
    choices: Vec<Vec<u8>>,
    /// Further keys of the choice in the next event.
    of_choice: Vec<u8>,
    /// Further keys of the next event.
    of_event: Vec<u8>,
}

impl Chunks {
    pub fn new(object: &str, identity: &Identity, choices: usize) -> Self {
        #[derive(Serialize)]
        struct Head<'a> {
            object: &'a str,
            id: &'a str,
            created: u64,
            model: &'a str,
            system_fingerprint: &'a str,
        }
        let mut head = EventBuffer::default();
        head.put(b"data: ");
        head.put_json(&Head {
            object,
            id: &identity.id,
            created: identity.created,
            model: &identity.model,
            system_fingerprint: SYSTEM_FINGERPRINT,
        });
        let mut head = head.take().to_vec();
        // The object goes on where the derived one ends.
        head.pop();
        head.extend_from_slice(br#","choices":["#);
        let choice = |index: usize| {
            let start = format!(r#"{{"index":{index},"#);
            [head.as_slice(), start.as_bytes()].concat()
        };
        Self {
            choices: (0..choices).map(choice).collect(),
            head,
            of_choice: Vec::new(),
            of_event: Vec::new(),
        }
    }

    /// The choice in the next event has this token.
    pub fn tell_token(&mut self, id: u32) {
        add_ids(&mut self.of_choice, "token_ids", &[id]);
    }

    /// The next event has the tokens of a chat's prompt.
    pub fn tell_prompt(&mut self, ids: &[u32]) {
        add_ids(&mut self.of_event, "prompt_token_ids", ids);
    }

    /// The choice in the next event has those of its prompt.
    pub fn tell_prompt_of_choice(&mut self, ids: &[u32]) {
        add_ids(&mut self.of_choice, "prompt_token_ids", ids);
    }

    /// The first chunk of a chat's choice. One that begins with a call has no content.
    pub fn role(&mut self, index: usize, begins_with_call: bool, out: &mut EventBuffer) {
        let content: &[u8] = if begins_with_call { b"null" } else { br#""""# };
        self.begin(index, out);
        out.put(br#""delta":{"role":"assistant","content":"#);
        out.put(content);
        out.put(br#"},"logprobs":null"#);
        self.end(None, out);
    }

    /// Text of a chat's choice; `key` is the key of the delta.
    pub fn text_delta(
        &mut self,
        index: usize,
        key: &'static str,
        text: &str,
        logprobs: Option<&ChatLogprobs>,
        out: &mut EventBuffer,
    ) {
        self.begin(index, out);
        out.put(br#""delta":{""#);
        out.put(key.as_bytes());
        out.put(br#"":"#);
        out.put_json(&text);
        self.end_delta(logprobs, out);
    }

    /// The begin of a call of a chat's choice, which is its call number `call`.
    pub fn call(
        &mut self,
        index: usize,
        call: usize,
        id: &str,
        name: &str,
        logprobs: Option<&ChatLogprobs>,
        out: &mut EventBuffer,
    ) {
        let call = json!({
            "index": call, "id": id, "type": "function", "function": {"name": name, "arguments": ""},
        });
        self.calls(index, &call, logprobs, out);
    }

    /// More of the arguments of a call.
    pub fn arguments(
        &mut self,
        index: usize,
        call: usize,
        fragment: &str,
        logprobs: Option<&ChatLogprobs>,
        out: &mut EventBuffer,
    ) {
        let call = json!({"index": call, "function": {"arguments": fragment}});
        self.calls(index, &call, logprobs, out);
    }

    fn calls(
        &mut self,
        index: usize,
        call: &Value,
        logprobs: Option<&ChatLogprobs>,
        out: &mut EventBuffer,
    ) {
        self.begin(index, out);
        out.put(br#""delta":{"tool_calls":["#);
        out.put_json(call);
        out.put(b"]");
        self.end_delta(logprobs, out);
    }

    fn end_delta(&mut self, logprobs: Option<&ChatLogprobs>, out: &mut EventBuffer) {
        match logprobs {
            // Almost always.
            None => out.put(br#"},"logprobs":null"#),
            Some(logprobs) => {
                out.put(br#"},"logprobs":"#);
                out.put_json(logprobs);
            }
        }
        self.end(None, out);
    }

    /// The last chunk of a chat's choice.
    pub fn finish_chat(&mut self, index: usize, reason: &'static str, out: &mut EventBuffer) {
        self.begin(index, out);
        out.put(br#""delta":{},"logprobs":null"#);
        self.end(Some(reason), out);
    }

    /// Text of a completion's choice, with the reason in its last chunk.
    pub fn text(
        &mut self,
        index: usize,
        text: &str,
        logprobs: Option<&impl Serialize>,
        reason: Option<&'static str>,
        out: &mut EventBuffer,
    ) {
        self.begin(index, out);
        out.put(br#""text":"#);
        out.put_json(&text);
        out.put(br#","logprobs":"#);
        out.put_json(&logprobs);
        self.end(reason, out);
    }

    /// What follows the last choice: the usage where it was asked for, and what ends every stream.
    pub fn last(&self, usage: Option<Usage>, out: &mut EventBuffer) {
        if let Some(usage) = usage {
            self.usage(&usage, out);
        }
        out.put(DONE);
    }

    /// The error that ends the stream of the request `id`.
    pub fn failure(error: &InferError, id: &RequestId, out: &mut EventBuffer) {
        out.push(&failure_in_stream(error, id).openai());
        out.put(DONE);
    }

    /// The chunk without choices.
    fn usage(&self, usage: &Usage, out: &mut EventBuffer) {
        out.put(&self.head);
        out.put(br#"],"usage":"#);
        out.put_json(usage);
        out.put(b"}\n\n");
    }

    fn begin(&self, index: usize, out: &mut EventBuffer) {
        if let Some(choice) = self.choices.get(index) {
            out.put(choice);
        }
    }

    fn end(&mut self, reason: Option<&'static str>, out: &mut EventBuffer) {
        match reason {
            None => out.put(b",\"finish_reason\":null"),
            Some(reason) => {
                out.put(br#","finish_reason":"#);
                out.put_json(&reason);
            }
        }
        out.put(&self.of_choice);
        out.put(b"}],\"usage\":null");
        out.put(&self.of_event);
        out.put(b"}\n\n");
        self.of_choice.clear();
        self.of_event.clear();
    }
}

/// Adds a key with a list of ids to an object.
fn add_ids(keys: &mut Vec<u8>, key: &str, ids: &[u32]) {
    let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
    keys.extend_from_slice(format!(r#","{key}":[{}]"#, ids.join(",")).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headers::Sizes;

    fn chunks() -> Chunks {
        let identity = Identity {
            id: "chatcmpl-1".to_owned(),
            created: 7,
            model: "a \"model\"".to_owned(),
        };
        Chunks::new("chat.completion.chunk", &identity, 2)
    }

    fn usage() -> Usage {
        Sizes {
            prompt_tokens: 1,
            cached_tokens: 0,
            generated_tokens: 2,
            predicted: None,
        }
        .into()
    }

    fn written(write: impl FnOnce(&mut Chunks, &mut EventBuffer)) -> String {
        let mut out = EventBuffer::default();
        write(&mut chunks(), &mut out);
        String::from_utf8(out.take().to_vec()).expect("text")
    }

    #[test]
    fn chunks_are_events_of_json() {
        let head = r#"data: {"object":"chat.completion.chunk","id":"chatcmpl-1","created":7,"model":"a \"model\"","system_fingerprint":"0.1.0-native","choices":["#;
        let cases = [
            (
                written(|chunks, out| chunks.role(0, false, out)),
                r#"{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"usage":null}"#,
            ),
            (
                written(|chunks, out| chunks.role(0, true, out)),
                r#"{"index":0,"delta":{"role":"assistant","content":null},"logprobs":null,"finish_reason":null}],"usage":null}"#,
            ),
            (
                written(|chunks, out| chunks.text_delta(1, "content", "a\n\"", None, out)),
                r#"{"index":1,"delta":{"content":"a\n\""},"logprobs":null,"finish_reason":null}],"usage":null}"#,
            ),
            (
                written(|chunks, out| chunks.call(0, 1, "c", "f", None, out)),
                r#"{"index":0,"delta":{"tool_calls":[{"index":1,"id":"c","type":"function","function":{"name":"f","arguments":""}}]},"logprobs":null,"finish_reason":null}],"usage":null}"#,
            ),
            (
                written(|chunks, out| chunks.arguments(0, 1, "{\"", None, out)),
                r#"{"index":0,"delta":{"tool_calls":[{"index":1,"function":{"arguments":"{\""}}]},"logprobs":null,"finish_reason":null}],"usage":null}"#,
            ),
            (
                written(|chunks, out| chunks.finish_chat(1, "length", out)),
                r#"{"index":1,"delta":{},"logprobs":null,"finish_reason":"length"}],"usage":null}"#,
            ),
            (
                written(|chunks, out| chunks.text(0, "x", None::<&()>, Some("stop"), out)),
                r#"{"index":0,"text":"x","logprobs":null,"finish_reason":"stop"}],"usage":null}"#,
            ),
            (
                written(|chunks, out| {
                    chunks.tell_prompt_of_choice(&[7]);
                    chunks.tell_token(5);
                    chunks.tell_prompt(&[1, 2]);
                    chunks.text(0, "x", None::<&()>, None, out);
                }),
                r#"{"index":0,"text":"x","logprobs":null,"finish_reason":null,"prompt_token_ids":[7],"token_ids":[5]}],"usage":null,"prompt_token_ids":[1,2]}"#,
            ),
            (
                written(|chunks, out| chunks.usage(&usage(), out)),
                r#"],"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3,"prompt_tokens_details":{"cached_tokens":0}}}"#,
            ),
        ];
        for (event, rest) in cases {
            assert_eq!(event, format!("{head}{rest}\n\n"));
            let json = event.trim_start_matches("data: ");
            assert!(
                serde_json::from_str::<serde_json::Value>(json).is_ok(),
                "{json}"
            );
        }
        assert_eq!(
            written(|chunks, out| chunks.last(None, out)),
            "data: [DONE]\n\n"
        );
    }
}
