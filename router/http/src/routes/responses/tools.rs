//! Tools of a request: those that the model may call, and what clients call them.

use std::collections::HashMap;

use serde_json::{Map, Value};
use text_generation_formats::{CustomGrammar, Tool, ToolChoice, ToolKind};

use crate::conversation::{OfferedTool, ToolWishes, choice_of};
use crate::error::ApiError;
use crate::routes::openai::sampling::{check, refused};

/// Between the name of a namespace and that of a tool in it, where a model sees one name.
const SEPARATOR: &str = "__";

/// What a client calls a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientName {
    pub namespace: Option<String>,
    pub name: String,
    /// Its input is a text, not a JSON object.
    pub custom: bool,
}

/// From the names that the model sees to those of the client.
#[derive(Debug, Clone, Default)]
pub struct ToolNames(HashMap<String, ClientName>);

impl ToolNames {
    /// The name that the model sees.
    pub fn flat(&self, namespace: Option<&str>, name: &str) -> String {
        match namespace {
            Some(namespace) if !namespace.is_empty() => format!("{namespace}{SEPARATOR}{name}"),
            _ => name.to_owned(),
        }
    }

    /// What the client calls the tool that the model called. A name that the model made up stays as it is.
    pub fn client(&self, flat: &str) -> ClientName {
        self.0.get(flat).cloned().unwrap_or_else(|| ClientName {
            namespace: None,
            name: flat.to_owned(),
            custom: false,
        })
    }
}

/// The tools of a request.
#[derive(Debug, Default)]
pub struct Tools {
    pub wishes: ToolWishes,
    pub names: ToolNames,
}

impl Tools {
    /// Reads `tools` and `tool_choice`. Kinds of tools that run on other servers are left out: the model does without
    /// them, unless the request insists on one.
    ///
    /// # Errors
    /// 422 that names the field.
    pub fn read(tools: Option<Vec<Value>>, choice: Option<Value>) -> Result<Self, ApiError> {
        let mut read = Self::default();
        for (index, tool) in tools.unwrap_or_default().iter().enumerate() {
            read.add(&format!("tools[{index}]"), None, tool)?;
        }
        let choice = read.choice(choice)?;
        read.wishes.choose(choice)?;
        Ok(read)
    }

    fn add(&mut self, field: &str, namespace: Option<&str>, tool: &Value) -> Result<(), ApiError> {
        let text = |key: &str| tool.get(key).and_then(Value::as_str);
        let kind = match text("type") {
            Some("namespace") => {
                let name = Some(name(field, tool)?);
                let inner = tool.get("tools").and_then(Value::as_array);
                for (index, tool) in inner.into_iter().flatten().enumerate() {
                    self.add(&format!("{field}.tools[{index}]"), name, tool)?;
                }
                return Ok(());
            }
            Some("function") => ToolKind::Function {
                parameters: tool.get("parameters").filter(|p| !p.is_null()).cloned(),
            },
            Some("custom") => ToolKind::Custom {
                grammar: custom_grammar(field, tool)?,
            },
            Some(_) => return Ok(()),
            None => return Err(refused(format_args!("`{field}.type` must be a string"))),
        };
        let client = ClientName {
            namespace: namespace.map(str::to_owned),
            name: name(field, tool)?.to_owned(),
            custom: matches!(kind, ToolKind::Custom { .. }),
        };
        let flat = self.names.flat(namespace, &client.name);
        let tool = Tool {
            name: flat.clone(),
            description: text("description").map(str::to_owned),
            kind,
            strict: tool.get("strict").and_then(Value::as_bool).unwrap_or(false),
        };
        self.wishes
            .offer(field, "parameters", OfferedTool::new(tool))?;
        self.names.0.insert(flat, client);
        Ok(())
    }

    /// What `tool_choice` says; tools that it does not allow are dropped.
    fn choice(&mut self, choice: Option<Value>) -> Result<ToolChoice, ApiError> {
        match choice {
            None | Some(Value::Null) => Ok(ToolChoice::Auto),
            Some(Value::String(word)) => mode("tool_choice", &word),
            Some(Value::Object(choice)) => self.chosen(&choice),
            Some(_) => Err(refused("`tool_choice` must be a string or an object")),
        }
    }

    fn chosen(&mut self, choice: &Map<String, Value>) -> Result<ToolChoice, ApiError> {
        let text = |key: &str| choice.get(key).and_then(Value::as_str);
        match text("type") {
            Some("function" | "custom") => {
                let name = text("name").unwrap_or_default();
                let flat = self.names.flat(text("namespace"), name);
                check(self.names.0.contains_key(&flat), || {
                    format!("`tool_choice.name`: there is no tool `{flat}` in `tools`")
                })?;
                Ok(ToolChoice::Named(flat))
            }
            Some("allowed_tools") => {
                let listed = choice.get("tools").and_then(Value::as_array);
                let allowed: Vec<String> = listed
                    .into_iter()
                    .flatten()
                    .filter_map(|tool| {
                        let name = tool.get("name")?.as_str()?;
                        let namespace = tool.get("namespace").and_then(Value::as_str);
                        Some(self.names.flat(namespace, name))
                    })
                    .collect();
                let tools = &mut self.wishes.tools;
                tools.retain(|offered| allowed.contains(&offered.tool.name));
                mode("tool_choice.mode", text("mode").unwrap_or("auto"))
            }
            Some(kind) => Err(refused(format_args!(
                "`tool_choice.type` is `{kind}`, which this server does not have: use `function`, `custom` or `allowed_tools`"
            ))),
            None => Err(refused("`tool_choice.type` must be a string")),
        }
    }
}

fn mode(field: &str, word: &str) -> Result<ToolChoice, ApiError> {
    choice_of(word).ok_or_else(|| {
        refused(format_args!(
            "`{field}` must be `auto`, `none` or `required`. Given: `{word}`"
        ))
    })
}

fn name<'a>(field: &str, tool: &'a Value) -> Result<&'a str, ApiError> {
    let name = tool.get("name").and_then(Value::as_str);
    name.filter(|name| !name.is_empty()).ok_or_else(|| {
        refused(format_args!(
            "`{field}.name` must be a string that is not empty"
        ))
    })
}

fn custom_grammar(field: &str, tool: &Value) -> Result<Option<CustomGrammar>, ApiError> {
    let Some(format) = tool.get("format").filter(|format| !format.is_null()) else {
        return Ok(None);
    };
    let text = |key: &str| format.get(key).and_then(Value::as_str);
    match (text("type"), text("syntax"), text("definition")) {
        (Some("text"), ..) => Ok(None),
        (Some("grammar"), Some("lark"), Some(lark)) => {
            Ok(Some(CustomGrammar::Lark(lark.to_owned())))
        }
        (Some("grammar"), Some("regex"), Some(regex)) => {
            Ok(Some(CustomGrammar::Regex(regex.to_owned())))
        }
        _ => Err(refused(format_args!(
            "`{field}.format` must be {{\"type\": \"text\"}}, or of the type `grammar` with `syntax` `lark` or `regex` \
             and a `definition`"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(tools: Value, choice: Value) -> Result<Tools, String> {
        let tools = tools.as_array().cloned();
        Tools::read(tools, Some(choice)).map_err(|error| error.body.error)
    }

    fn several() -> Value {
        json!([
            {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": true},
            {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark", "definition": "start: /a/"}},
            {"type": "namespace", "name": "ns", "tools": [{"type": "function", "name": "f"}]},
            {"type": "web_search"},
        ])
    }

    #[test]
    fn tools_of_namespaces_have_both_names_and_hosted_ones_are_left_out() {
        let read = read(several(), json!("auto")).unwrap();
        let tools: Vec<&Tool> = read
            .wishes
            .tools
            .iter()
            .map(|offered| &offered.tool)
            .collect();
        let names: Vec<_> = tools.iter().map(|tool| tool.name.as_str()).collect();
        assert_eq!(names, ["f", "patch", "ns__f"]);
        assert!(tools[0].strict && !tools[1].strict);
        let inner = read.names.client("ns__f");
        assert_eq!(
            (inner.namespace.as_deref(), inner.name.as_str()),
            (Some("ns"), "f")
        );
        assert!(read.names.client("patch").custom);
        assert_eq!(read.names.client("made_up").name, "made_up");
    }

    #[test]
    fn choices_name_tools_of_the_request() {
        let choice = |choice: Value| read(several(), choice).map(|read| read.wishes.choice);
        assert_eq!(choice(json!("required")), Ok(ToolChoice::Required));
        assert_eq!(
            choice(json!({"type": "function", "name": "f", "namespace": "ns"})),
            Ok(ToolChoice::Named("ns__f".to_owned()))
        );
        let allowed = json!({"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "patch"}]});
        let allowed = read(several(), allowed).unwrap();
        assert_eq!(
            (allowed.wishes.tools.len(), allowed.wishes.choice),
            (1, ToolChoice::Required)
        );
        for (wrong, field) in [
            (json!("any"), "`tool_choice`"),
            (
                json!({"type": "function", "name": "g"}),
                "`tool_choice.name`",
            ),
            (json!({"type": "web_search"}), "`tool_choice.type`"),
            (json!(1), "`tool_choice`"),
        ] {
            assert!(choice(wrong).unwrap_err().contains(field));
        }
        let only_hosted = read(json!([{"type": "web_search"}]), json!("required"));
        assert!(only_hosted.unwrap_err().contains("`tool_choice`"));
    }
}
