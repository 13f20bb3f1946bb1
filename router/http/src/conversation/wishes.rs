//! What clients of newer APIs always say of reasoning, for templates that can do something about it.

use super::Conversation;
use crate::renderer::ChatRenderer;

/// The names by which templates read whether the model shall reason.
const SWITCHES: [&str; 2] = ["enable_thinking", "thinking"];

impl Conversation {
    /// Tells the template how much the model shall reason, where it reads that. What a client has set itself stays.
    pub fn wish_effort(&mut self, effort: Option<String>, chats: &ChatRenderer) {
        if let Some(effort) = effort {
            self.wish("reasoning_effort", effort.into(), chats);
        }
    }

    /// Tells the template whether the model shall reason, where it reads that. What a client has set itself stays.
    pub fn wish_reasoning(&mut self, reasons: bool, chats: &ChatRenderer) {
        for switch in SWITCHES {
            self.wish(switch, reasons.into(), chats);
        }
    }

    fn wish(&mut self, variable: &str, value: serde_json::Value, chats: &ChatRenderer) {
        if chats.reads(variable, self.tools.wanted()) {
            let variables = &mut self.input.chat_template_kwargs;
            variables.entry(variable).or_insert(value);
        }
    }
}
