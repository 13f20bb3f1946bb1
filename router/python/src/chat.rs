//! Python class of chat templates: conversations to prompts.

use std::collections::BTreeMap;
use std::path::PathBuf;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde_json::Value;
use text_generation_chat::{ChatInput, ChatTemplateError, Limits};

fn value_error(error: impl ToString) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// What Python's own `json` makes of an object.
fn from_python(object: &Bound<'_, PyAny>) -> PyResult<Value> {
    let text: String = object
        .py()
        .import("json")?
        .call_method1("dumps", (object,))?
        .extract()?;
    serde_json::from_str(&text).map_err(value_error)
}

fn list(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Vec<Value>> {
    match from_python(object)? {
        Value::Array(items) => Ok(items),
        _ => Err(value_error(format!("`{name}` must be a list"))),
    }
}

#[pyclass(frozen, module = "text_generation_router")]
#[derive(Debug)]
pub struct ChatTemplate(text_generation_chat::ChatTemplate);

#[pymethods]
impl ChatTemplate {
    #[new]
    #[pyo3(signature = (templates, special_tokens = BTreeMap::new()))]
    fn new(
        py: Python<'_>,
        templates: BTreeMap<String, String>,
        special_tokens: BTreeMap<String, String>,
    ) -> PyResult<Self> {
        let special_tokens = special_tokens
            .into_iter()
            .map(|(name, token)| (name, token.into()))
            .collect();
        py.detach(|| {
            text_generation_chat::ChatTemplate::new(templates, special_tokens, Limits::default())
        })
        .map(Self)
        .map_err(value_error)
    }

    #[staticmethod]
    #[pyo3(signature = (folder, tokenizer_config_path = None))]
    fn load(
        py: Python<'_>,
        folder: PathBuf,
        tokenizer_config_path: Option<PathBuf>,
    ) -> PyResult<Option<Self>> {
        py.detach(|| {
            text_generation_chat::ChatTemplate::load(&folder, tokenizer_config_path.as_deref())
        })
        .map(|loaded| loaded.map(Self))
        .map_err(value_error)
    }

    #[pyo3(signature = (messages, tools = None, add_generation_prompt = true, continue_final_message = false, **kwargs))]
    fn render(
        &self,
        py: Python<'_>,
        messages: &Bound<'_, PyAny>,
        tools: Option<&Bound<'_, PyAny>>,
        add_generation_prompt: bool,
        continue_final_message: bool,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<String> {
        let kwargs = kwargs.map(|kwargs| from_python(kwargs)).transpose()?;
        let input = ChatInput {
            messages: list(messages, "messages")?,
            tools: tools.map(|tools| list(tools, "tools")).transpose()?,
            add_generation_prompt,
            continue_final_message,
            chat_template_kwargs: match kwargs {
                Some(Value::Object(kwargs)) => kwargs,
                _ => serde_json::Map::new(),
            },
            ..ChatInput::default()
        };
        py.detach(|| self.0.render(&input))
            .map_err(|error: ChatTemplateError| value_error(error))
    }
}
