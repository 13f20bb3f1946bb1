//! Answers in messages with headers, as gpt-oss writes them. The tokens that end a call or the answer end the text.

use super::calls::custom_text;
use super::lark::{Lark, TEXT, string};
use super::{Constraint, arguments_schema};
use crate::error::FormatError;
use crate::format::Format;
use crate::tool::{Tool, ToolKind};

const START: &str = "<|start|>";
const MESSAGE: &str = "<|message|>";
const END: &str = "<|end|>";

impl Format {
    /// Messages of reasoning and to the user, then a call or the final answer.
    pub(super) fn channels_grammar(
        &self,
        lark: &mut Lark,
        request: &Constraint,
        tools: &[&Tool],
        forced: bool,
    ) -> Result<String, FormatError> {
        let channel = lark.literal("<|channel|>");
        let message = lark.literal(MESSAGE);
        let mut last = Vec::new();
        for tool in tools {
            let name = string(&format!("commentary to=functions.{}", tool.name));
            let body = match &tool.kind {
                ToolKind::Function { .. } => lark.json(&arguments_schema(tool), tool.strict),
                ToolKind::Custom { grammar: None } => TEXT.to_owned(),
                ToolKind::Custom {
                    grammar: Some(grammar),
                } => custom_text(grammar),
            };
            let body = lark.rule("arguments", &body);
            let constrain = lark.literal("<|constrain|>");
            let json = format!("( \" \" {constrain} \"json\" )?");
            last.push(lark.rule("call", &format!("{channel} {name} {json} {message} {body}")));
        }
        if !forced {
            let body = self
                .answer(lark, request)
                .unwrap_or_else(|| TEXT.to_owned());
            last.push(lark.rule("final", &format!("{channel} \"final\" {message} {body}")));
        }
        let next = lark.literal(&format!("{END}{START}assistant"));
        let earlier =
            format!("{channel} ( \"analysis\" | \"commentary\" ) {message} {TEXT} {next}");
        let earlier = lark.rule("earlier", &earlier);
        let begun = request
            .prompt_tail
            .rfind(START)
            .map_or("", |at| &request.prompt_tail[at..]);
        let begun = match begun.contains(MESSAGE) && !begun.contains(END) {
            true => format!("{TEXT} {next}"),
            false => String::new(),
        };
        Ok(format!("{begun} {earlier}* ( {} )", last.join(" | ")))
    }
}
