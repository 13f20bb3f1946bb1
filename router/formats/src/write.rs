//! Calls written out as a format has them.

use serde_json::{Map, Value};

use crate::format::{Arguments, Calls, Format, Head, Header, ITEM, Layout, NameForm, Parameters};
use crate::json;
use crate::schema::Types;

impl Format {
    /// Calls, each a name and its arguments, as this format writes them after the content of an answer.
    pub fn write(&self, calls: &[(&str, &Map<String, Value>)]) -> String {
        match &self.layout {
            Layout::Plain => String::new(),
            Layout::Channels => calls
                .iter()
                .map(|(name, arguments)| {
                    let arguments = spaced(&Value::Object((*arguments).clone()));
                    format!("<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}")
                })
                .collect::<Vec<_>>()
                .join("<|call|><|start|>assistant"),
            Layout::Calls(layout) => match self.envelope.and_then(|envelope| envelope.header) {
                Some(header) => calls
                    .iter()
                    .map(|call| header.write(call.0, &layout.write(&[*call])))
                    .collect(),
                None => layout.write(calls),
            },
        }
    }
}

impl Header {
    /// A message with a call of this name.
    fn write(&self, name: &str, call: &str) -> String {
        let [before, after] = self.name;
        format!("{}{before}{name}{after}{call}{}", self.open, self.close)
    }
}

impl Calls {
    fn write(&self, calls: &[(&str, &Map<String, Value>)]) -> String {
        let section = &self.sections[0];
        let calls: Vec<String> = calls
            .iter()
            .enumerate()
            .map(|(index, (name, arguments))| self.call(index, name, arguments))
            .collect();
        if self.several {
            return format!(
                "{}{}{}",
                section.open,
                calls.join(&self.separator),
                section.close
            );
        }
        calls
            .iter()
            .map(|call| format!("{}{call}{}", section.open, section.close))
            .collect::<Vec<_>>()
            .join(if section.close.is_empty() { "" } else { "\n" })
    }

    fn call(&self, index: usize, name: &str, arguments: &Map<String, Value>) -> String {
        let object = || spaced(&Value::Object(arguments.clone()));
        let head = match &self.call.head {
            Head::Object {
                number,
                name: key,
                arguments,
            } => {
                let number = number.map(|number| format!("\"{number}\": \"{index}\", "));
                format!(
                    "{{{}\"{key}\": {}, \"{}\": ",
                    number.unwrap_or_default(),
                    spaced(&name.into()),
                    arguments[0]
                )
            }
            Head::Named { open, end, form } => {
                let end = match &self.call.arguments {
                    Arguments::Parameters(_) => end.trim_end(),
                    _ => end,
                };
                match form {
                    NameForm::Numbered => format!("{open}functions.{name}:{index}{end}"),
                    NameForm::AfterId(marker) => format!("{open}{index:010}{marker}{name}{end}"),
                    NameForm::Counted(marker) => {
                        format!("{open}{name}{marker}{}{end}", index + 1)
                    }
                    NameForm::Plain | NameForm::WithId(_) | NameForm::Doubled => {
                        format!("{open}{name}{end}")
                    }
                }
            }
        };
        let body = match &self.call.arguments {
            Arguments::Json => object(),
            Arguments::Parameters(parameters) => parameters.write(arguments),
            Arguments::Keywords => {
                format!("{})", members(arguments, "=", ", ", &|value| python(value)))
            }
            Arguments::Braces { quote } => {
                format!(
                    "{{{}}}",
                    members(arguments, ":", ",", &|value| braces(value, quote))
                )
            }
            Arguments::Elements { prefix } => elements(arguments, prefix),
        };
        format!("{head}{body}{}", self.call.close)
    }
}

impl Parameters {
    fn write(&self, arguments: &Map<String, Value>) -> String {
        arguments
            .iter()
            .map(|(key, value)| {
                let text = match value {
                    Value::String(text) if self.cdata && text.contains(['<', '&', '\n']) => {
                        format!("<![CDATA[{text}]]>")
                    }
                    Value::String(text) => text.clone(),
                    other => spaced(other),
                };
                let attribute = self.attribute.map_or(String::new(), |attribute| {
                    attribute.written(Types::of(value))
                });
                let Self {
                    open,
                    key_end,
                    close,
                    padding,
                    separator,
                    ..
                } = self;
                format!("{separator}{open}{key}{key_end}{attribute}{padding}{text}{padding}{close}")
            })
            .collect()
    }
}

fn members(
    arguments: &Map<String, Value>,
    assign: &str,
    comma: &str,
    write: &dyn Fn(&Value) -> String,
) -> String {
    let members: Vec<String> = arguments
        .iter()
        .map(|(key, value)| format!("{key}{assign}{}", write(value)))
        .collect();
    members.join(comma)
}

fn python(value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Array(items) => format!(
            "[{}]",
            items.iter().map(python).collect::<Vec<_>>().join(", ")
        ),
        Value::Object(members) => {
            let members: Vec<String> = members
                .iter()
                .map(|(key, value)| format!("{}: {}", spaced(&key.as_str().into()), python(value)))
                .collect();
            format!("{{{}}}", members.join(", "))
        }
        other => spaced(other),
    }
}

fn braces(value: &Value, quote: &str) -> String {
    match value {
        Value::String(text) => format!("{quote}{text}{quote}"),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(|item| braces(item, quote)).collect();
            format!("[{}]", items.join(","))
        }
        Value::Object(object) => format!(
            "{{{}}}",
            members(object, ":", ",", &|value| braces(value, quote))
        ),
        other => other.to_string(),
    }
}

fn elements(members: &Map<String, Value>, prefix: &str) -> String {
    let members = members.iter();
    members
        .map(|(key, value)| element(key, value, prefix))
        .collect()
}

fn element(name: &str, value: &Value, prefix: &str) -> String {
    let inside = match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => items
            .iter()
            .map(|item| element(ITEM, item, prefix))
            .collect(),
        Value::Object(object) => elements(object, prefix),
        other => other.to_string(),
    };
    format!("{prefix}<{name}>{inside}{prefix}</{name}>")
}

/// JSON with a space after commas and colons, as Python and chat templates write it.
fn spaced(value: &Value) -> String {
    match value {
        Value::Array(items) => format!(
            "[{}]",
            items.iter().map(spaced).collect::<Vec<_>>().join(", ")
        ),
        Value::Object(members) => {
            let members: Vec<String> = members
                .iter()
                .map(|(key, value)| {
                    let mut member = String::new();
                    json::quote(key, &mut member);
                    format!("{member}: {}", spaced(value))
                })
                .collect();
            format!("{{{}}}", members.join(", "))
        }
        other => other.to_string(),
    }
}
