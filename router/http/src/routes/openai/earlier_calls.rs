//! Checks of tool calls in earlier messages of a chat.

use serde_json::Value;

/// Each names the function that was called: a template writes the name.
///
/// # Errors
/// The key of the message that is wrong, and why.
pub fn check_calls(calls: &[Value]) -> Result<(), (String, String)> {
    let wrong = |(index, call)| {
        let (key, problem) = problem(call)?;
        Some((format!("tool_calls[{index}].{key}"), problem.to_owned()))
    };
    calls.iter().enumerate().find_map(wrong).map_or(Ok(()), Err)
}

fn problem(call: &Value) -> Option<(&'static str, &'static str)> {
    if call["type"] == "custom" {
        let problem = "must be `function`; calls of custom tools are for `/v1/responses`";
        return Some(("type", problem));
    }
    // Some clients leave out what says that a call is one of a function.
    let (key, name) = match &call["function"] {
        Value::Null if !call["name"].is_null() => ("name", &call["name"]),
        function => ("function.name", &function["name"]),
    };
    match name.as_str() {
        Some(name) if !name.is_empty() => None,
        _ => Some((key, "must be a string that is not empty")),
    }
}
