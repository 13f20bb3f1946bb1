//! One compiled template and how it is rendered.

use std::borrow::Cow;
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, machinery};
use serde_json::{Map, Value};

use super::checks::Code;
use super::engine::Raised;
use super::limits::{self, Limit, Limits};
use super::messages::{Expects, continued, roles};
use super::{ChatInput, ChatTemplateError, Escape, SystemMessages, escaped, source};

/// Variables that a request sets by fields of its own, or may not set.
const RESERVED: [&str; 6] = [
    "messages",
    "tools",
    "add_generation_prompt",
    "continue_final_message",
    "chat_template",
    "tokenize",
];
/// The compiler recurses: the longest chain of operators that a source of the most bytes can hold fits in here.
const COMPILER_STACK: usize = 256 << 20;

/// A template of the environment.
#[derive(Debug)]
pub(super) struct Compiled {
    source: String,
    code: Code,
    /// Variables that the template reads before anything in it sets them.
    variables: HashSet<String>,
    expects: Expects,
}

impl Compiled {
    /// Compiles `text` for `environment`.
    pub(super) fn new(
        environment: &Environment<'static>,
        name: &str,
        text: &str,
        special_tokens: &Map<String, Value>,
        limits: &Limits,
    ) -> Result<Self, ChatTemplateError> {
        if text.len() > limits.source {
            let (max, given) = (limits.source, text.len());
            return Err(ChatTemplateError::Limit(Limit::Source { max, given }));
        }
        let source = source::rewritten(text);
        let compile = || compile(environment, name, source);
        let mut compiled = std::thread::scope(|scope| {
            std::thread::Builder::new()
                .stack_size(COMPILER_STACK)
                .spawn_scoped(scope, compile)
                .map_err(|error| error.to_string())
                .and_then(|thread| {
                    let panicked = |_| "the compiler panicked".to_owned();
                    thread.join().map_err(panicked)?
                })
        })
        .map_err(|reason| ChatTemplateError::Syntax {
            name: name.to_owned(),
            reason,
        })?;
        let quick = limits.of_probes();
        compiled.expects = Expects::find(|input| {
            let messages = input.messages.clone();
            compiled.render_shaped(environment, special_tokens, messages, input, &quick)
        })?;
        Ok(compiled)
    }

    pub(super) fn source(&self) -> &str {
        &self.source
    }

    pub(super) fn render(
        &self,
        environment: &Environment<'static>,
        special_tokens: &Map<String, Value>,
        input: &ChatInput,
        escape: Option<&Escape<'_>>,
        limits: &Limits,
    ) -> Result<String, ChatTemplateError> {
        self.check_kwargs(&input.chat_template_kwargs, special_tokens)?;
        let render = |messages: &[Value]| {
            self.render_messages(environment, special_tokens, messages, input, escape, limits)
        };
        if input.system_messages == SystemMessages::AsGiven {
            return render(&input.messages);
        }
        let messages = roles::joined(&input.messages, self.names("developer"));
        match render(&messages) {
            Err(refused @ ChatTemplateError::Raised(_)) => match roles::folded(&messages) {
                Some(folded) => render(&folded),
                None => Err(refused),
            },
            rendered => rendered,
        }
    }

    /// Renders `messages`, which stand for those of `input`, as the client wrote them.
    fn render_messages(
        &self,
        environment: &Environment<'static>,
        special_tokens: &Map<String, Value>,
        messages: &[Value],
        input: &ChatInput,
        escape: Option<&Escape<'_>>,
        limits: &Limits,
    ) -> Result<String, ChatTemplateError> {
        let mut messages = self
            .expects
            .shape(messages, input.images, |kind| self.names(kind))?;
        let mut input = Cow::Borrowed(input);
        if let Some(escape) = escape {
            // The shape comes first: it reads the JSON text of arguments, which can spell a token in another way.
            escaped::messages(&mut messages, escape, |role| self.names(role))?;
            let input = input.to_mut();
            escaped::object(&mut input.chat_template_kwargs, escape);
            let tools = input.tools.iter_mut().flatten();
            tools.for_each(|tool| escaped::value(tool, escape));
        }
        let input = &*input;
        let tail = self.tail(input, &mut messages)?;
        let prompt = self.render_shaped(environment, special_tokens, messages, input, limits)?;
        match tail {
            Some(tail) => tail.cut(prompt),
            None => Ok(prompt),
        }
    }

    /// Renders `messages`, which stand for those of `input`, in the shape that the template expects.
    fn render_shaped(
        &self,
        environment: &Environment<'static>,
        special_tokens: &Map<String, Value>,
        messages: Vec<Value>,
        input: &ChatInput,
        limits: &Limits,
    ) -> Result<String, ChatTemplateError> {
        let mut context = special_tokens.clone();
        // What every rendering by transformers has.
        context.insert("documents".to_owned(), Value::Null);
        context.extend(input.chat_template_kwargs.clone());
        let tools = input.tools.clone().map_or(Value::Null, Value::Array);
        context.insert("messages".to_owned(), Value::Array(messages));
        context.insert("tools".to_owned(), tools);
        context.insert(
            "add_generation_prompt".to_owned(),
            input.add_generation_prompt.into(),
        );
        self.run(environment, &context, limits)
    }

    /// Whether the template compares something with `word`.
    fn names(&self, word: &str) -> bool {
        ['\'', '"']
            .iter()
            .any(|quote| self.source.contains(&format!("{quote}{word}{quote}")))
    }

    /// Whether it reads the variable `name`, which it does not set itself.
    pub(super) fn reads(&self, name: &str) -> bool {
        self.variables.contains(name)
    }

    /// Whether it reads thoughts as parts of a content.
    pub(super) fn reads_thinking_parts(&self) -> bool {
        self.expects.thinking_parts && self.names("thinking")
    }

    /// Only what the template reads and no other field means may be set.
    fn check_kwargs(
        &self,
        kwargs: &Map<String, Value>,
        special_tokens: &Map<String, Value>,
    ) -> Result<(), ChatTemplateError> {
        let free = |name: &str| {
            !RESERVED.contains(&name)
                && !name.ends_with("_token")
                && !special_tokens.contains_key(name)
        };
        let Some(name) = kwargs
            .keys()
            .find(|name| !free(name) || !self.variables.contains(*name))
        else {
            return Ok(());
        };
        let mut known: Vec<&str> = self
            .variables
            .iter()
            .map(String::as_str)
            .filter(|name| free(name))
            .collect();
        known.sort_unstable();
        let known = match known.as_slice() {
            [] => "it has none to set".to_owned(),
            names => format!("it has `{}`", names.join("`, `")),
        };
        Err(ChatTemplateError::input(
            format!("chat_template_kwargs.{name}"),
            format!(
                "is not a variable of this model's chat template that a request may set: {known}"
            ),
        ))
    }

    /// Marks the end of the last message where the prompt shall end there.
    fn tail(
        &self,
        input: &ChatInput,
        messages: &mut [Value],
    ) -> Result<Option<continued::Tail>, ChatTemplateError> {
        if !input.continue_final_message {
            return Ok(None);
        }
        if input.add_generation_prompt {
            return Err(ChatTemplateError::input(
                "continue_final_message",
                "and `add_generation_prompt` cannot both be true",
            ));
        }
        if !self.source.contains("content") {
            return Err(ChatTemplateError::input(
                "continue_final_message",
                "is not possible: the chat template of this model reads no `content`",
            ));
        }
        continued::mark(messages).map(Some)
    }

    fn run(
        &self,
        environment: &Environment<'static>,
        context: &Map<String, Value>,
        limits: &Limits,
    ) -> Result<String, ChatTemplateError> {
        let mut prompt = String::new();
        let rendered = limits::metered(*limits, || {
            // The engine should not panic, but it runs what came with a download.
            catch_unwind(AssertUnwindSafe(|| {
                let context = minijinja::Value::from(Serde(context));
                let Code {
                    instructions,
                    blocks,
                } = &self.code;
                let mut output = machinery::make_string_output(&mut prompt);
                let escape = AutoEscape::None;
                machinery::eval(
                    environment,
                    instructions,
                    context,
                    blocks,
                    &mut output,
                    escape,
                )
                .map(drop)
            }))
        });
        match rendered {
            Ok(Ok(())) if prompt.len() > limits.output => {
                Err(ChatTemplateError::Limit(Limit::Output(limits.output)))
            }
            Ok(Ok(())) => Ok(prompt),
            Ok(Err(error)) => Err(failure(&error, limits)),
            Err(_) => Err(ChatTemplateError::Render("the engine panicked".to_owned())),
        }
    }
}

/// Compiles `source`, or says what is wrong with it.
fn compile(
    environment: &Environment<'static>,
    name: &str,
    source: String,
) -> Result<Compiled, String> {
    let code = Code::compile(name, &source).map_err(|error| described(&error))?;
    let with_reads = source::with_reads(&source);
    let mut variables = environment
        .template_from_named_str(name, &with_reads)
        .map_err(|error| described(&error))?
        .undeclared_variables(false);
    // Functions, such as `namespace`.
    for (global, _) in environment.globals() {
        variables.remove(global);
    }
    Ok(Compiled {
        source,
        code,
        variables,
        expects: Expects::default(),
    })
}

/// Tells the template's own refusal and limits from other failures.
fn failure(error: &Error, limits: &Limits) -> ChatTemplateError {
    if error.kind() == ErrorKind::OutOfFuel {
        return ChatTemplateError::Limit(Limit::Steps(limits.steps));
    }
    if error.detail() == Some("recursion limit exceeded") {
        return ChatTemplateError::Limit(Limit::Depth);
    }
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(cause) = source {
        if let Some(limit) = cause.downcast_ref::<Limit>() {
            return ChatTemplateError::Limit(*limit);
        }
        if let Some(Raised(message)) = cause.downcast_ref() {
            return ChatTemplateError::Raised(message.clone());
        }
        source = cause.source();
    }
    ChatTemplateError::Render(described(error))
}

/// What is wrong and in which line; never the template's text or the conversation.
fn described(error: &Error) -> String {
    let reason = match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    };
    match error.line() {
        Some(line) => format!("{reason} (line {line})"),
        None => reason,
    }
}
