//! The `response_template`s that TRL has for models, read by us and by transformers, over the same answers. Needs Python
//! with transformers and the files of TRL: the interpreter that TEXT_GENERATION_PYTHON names, or python3.

#![allow(clippy::expect_used, reason = "helpers of tests, which may fail")]

mod common;
#[path = "common/transcripts.rs"]
mod transcripts;

use std::env;
use std::io::Write;
use std::process::{Command, Stdio};

use common::{Answer, format, options, parse, tools};
use serde_json::{Map, Value, json};
use text_generation_formats::{Evidence, Format, Found, Tool, probes};
use transcripts::answers;

/// A template, and how a model that has it writes. Those of gpt-oss and LFM2.5 are not among them: they have patterns
/// that are not read, and the formats are known.
struct Family {
    template: &'static str,
    /// Our own format of the calls; none if there are no calls.
    calls: Option<&'static str>,
    /// The end of a prompt.
    prompt: &'static str,
    /// Around reasoning; the prompt may have begun it.
    reasoning: Option<(&'static str, &'static str)>,
    /// Follows an answer, in what transformers is given: for us it is no text.
    end: &'static str,
}

const IM_START: &str = "<|im_start|>assistant\n";

const FAMILIES: &[Family] = &[
    Family {
        template: "qwen3_template",
        calls: Some("hermes"),
        prompt: IM_START,
        reasoning: Some(("<think>\n", "\n</think>\n\n")),
        end: "<|im_end|>",
    },
    Family {
        template: "qwen3_5_template",
        calls: Some("qwen3_coder"),
        prompt: IM_START,
        reasoning: Some(("<think>\n", "\n</think>\n\n")),
        end: "<|im_end|>",
    },
    Family {
        template: "nemotron_3_template",
        calls: Some("qwen3_coder"),
        prompt: "<|im_start|>assistant\n<think>\n",
        reasoning: Some(("", "\n</think>\n")),
        end: "<|im_end|>",
    },
    Family {
        template: "glm4moe_template",
        calls: Some("glm45"),
        prompt: "<|assistant|>",
        reasoning: Some(("\n<think>", "</think>\n")),
        end: "",
    },
    Family {
        template: "llama3_template",
        calls: Some("llama3_json"),
        prompt: "<|start_header_id|>assistant<|end_header_id|>\n\n",
        reasoning: None,
        end: "<|eot_id|>",
    },
    Family {
        template: "gemma4_template",
        calls: Some("gemma4"),
        prompt: "<|turn>model\n",
        reasoning: Some(("<|channel>thought\n", "<channel|>")),
        end: "<turn|>",
    },
    Family {
        template: "deepseek_r1_distill_template",
        calls: None,
        prompt: "<｜Assistant｜><think>\n",
        reasoning: Some(("", "\n</think>\n\n")),
        end: "<｜end▁of▁sentence｜>",
    },
];

/// Where the two differ: templates, answers, and why. The last is a choice of ours.
const DIFFERENCES: &[(&[&str], &[&str], &str)] = &[
    (
        &["qwen3_template", "llama3_template", "gemma4_template"],
        &["nested"],
        "transformers makes null of the text `null` where the schema allows both",
    ),
    (
        &[
            "qwen3_5_template",
            "nemotron_3_template",
            "glm4moe_template",
        ],
        &["types", "nested", "two"],
        "transformers follows no references in schemas, and takes white space from the end of texts",
    ),
    (
        &["llama3_template"],
        &["two"],
        "the template knows one call; we read several as Llama writes them",
    ),
    (
        &["llama3_template"],
        &["content and a call"],
        "without a marker only a whole answer is a call for us",
    ),
];

#[test]
fn answers_are_read_as_transformers_reads_them_with_the_same_template() {
    let texts: Vec<_> = FAMILIES
        .iter()
        .flat_map(|family| family.texts().into_iter().map(move |text| (family, text)))
        .collect();
    let cases = texts.iter().map(|(family, (_, text))| {
        json!({
            "template": family.template,
            "prefix": family.prompt,
            "text": format!("{text}{}", family.end),
            "tools": function_tools(),
        })
    });
    let read = transformers(&cases.collect());
    let messages = read["messages"].as_array().expect("a list");
    for ((family, (name, text)), message) in texts.iter().zip(messages) {
        let format = family.read(&read["templates"][family.template]);
        let answer = parse(&format, family.prompt, text, &options(&tools()));
        let listed = DIFFERENCES.iter().any(|(templates, names, _)| {
            templates.contains(&family.template) && names.contains(name)
        });
        assert_eq!(
            ours(&answer) != theirs(message),
            listed,
            "{} {name}: {text:?}\nours   {answer:?}\ntheirs {message}",
            family.template
        );
    }
}

impl Family {
    /// Answers as this family writes them, with reasoning where it has any.
    fn texts(&self) -> Vec<(&'static str, String)> {
        let write = |calls: &[(&str, &Map<String, Value>)]| match self.calls {
            Some(name) => Some(format(name).write(calls)),
            None => calls.is_empty().then(String::new),
        };
        let mut texts = answers(write);
        let (open, close) = self.reasoning.unwrap_or_default();
        let thought: Vec<_> = texts
            .iter()
            .map(|(name, text)| (*name, format!("{open}Let me see < here.{close}{text}")))
            .collect();
        // What a prompt has begun is not left out.
        if open.is_empty() && self.reasoning.is_some() {
            return thought;
        }
        if self.reasoning.is_some() {
            texts.extend(thought);
        }
        texts
    }

    /// Our reading of the template, which is used only if it reads back a call that the family's own format wrote.
    fn read(&self, template: &Value) -> Format {
        let probe = &probes()[0];
        let call = &probe.messages[1]["tool_calls"][0]["function"];
        let arguments = call["arguments"].as_object().expect("arguments");
        let name = call["name"].as_str().expect("a name");
        let call = self
            .calls
            .map(|format_name| format(format_name).write(&[(name, arguments)]));
        let question = probe.messages[0]["content"].as_str().expect("a question");
        let detected = Format::detect(&Evidence {
            response_template: Some(template.clone()),
            rendered: vec![format!(
                "{question}{}{}",
                self.prompt,
                call.unwrap_or_default()
            )],
            generation_prompt: self.prompt.to_owned(),
            // The markers of reasoning are kept where the chat template has them.
            template: self
                .reasoning
                .map(|(open, close)| format!("<think>{open}{close}"))
                .unwrap_or_default(),
            ..Evidence::default()
        });
        let detected = detected.expect("a format");
        assert_eq!(detected.found, Found::ResponseTemplate, "{}", self.template);
        detected.format
    }
}

/// Reasoning, content and calls.
type Message = (String, String, Vec<(String, Value)>);

fn ours(answer: &Answer) -> Message {
    let calls = answer
        .called()
        .into_iter()
        .map(|(name, arguments)| (name.to_owned(), arguments));
    (
        answer.reasoning.clone(),
        answer.content.trim().to_owned(),
        calls.collect(),
    )
}

/// The message of transformers, which leaves white space around a text.
fn theirs(message: &Value) -> Message {
    let text = |name: &str| message[name].as_str().unwrap_or_default().trim().to_owned();
    let calls = message["tool_calls"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|call| {
            let function = &call["function"];
            (
                function["name"].as_str().unwrap_or_default().to_owned(),
                function["arguments"].clone(),
            )
        });
    (text("reasoning_content"), text("content"), calls.collect())
}

/// What the script beside this test says of the cases.
fn transformers(cases: &Value) -> Value {
    let python = env::var("TEXT_GENERATION_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/response_template.py");
    let mut child = Command::new(&python)
        .arg(script)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("Python starts");
    let mut input = child.stdin.take().expect("a pipe");
    input
        .write_all(cases.to_string().as_bytes())
        .expect("the script reads");
    drop(input);
    let output = child.wait_with_output().expect("the script ends");
    assert!(
        output.status.success(),
        "{python} lacks transformers or TRL; name an interpreter with both in TEXT_GENERATION_PYTHON"
    );
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// The tools as chat templates take them.
fn function_tools() -> Vec<Value> {
    let function = |tool: &Tool| json!({"name": tool.name, "parameters": tool.parameters()});
    tools()
        .iter()
        .map(|tool| json!({"type": "function", "function": function(tool)}))
        .collect()
}
