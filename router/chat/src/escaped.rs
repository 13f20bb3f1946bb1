//! Conversations whose texts cannot speak for the template.

use serde_json::{Map, Value};

use super::{ChatTemplateError, Escape};

/// Roles that any template may be given.
const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// Escapes all texts of messages but their roles, of which many templates make special tokens.
///
/// # Errors
/// A role that is none of the usual ones and that the template does not name.
pub(super) fn messages(
    messages: &mut [Value],
    escape: &Escape<'_>,
    names: impl Fn(&str) -> bool,
) -> Result<(), ChatTemplateError> {
    for (index, message) in messages.iter_mut().enumerate() {
        let role = message.get("role").cloned();
        if let Some(role) = role.as_ref().and_then(Value::as_str)
            && !ROLES.contains(&role)
            && !names(role)
        {
            return Err(ChatTemplateError::input(
                format!("messages[{index}].role"),
                "is not one that the chat template of this model names, as `--escape-special-tokens` demands",
            ));
        }
        value(message, escape);
        if let (Some(role), Some(message)) = (role, message.as_object_mut()) {
            message.insert("role".to_owned(), role);
        }
    }
    Ok(())
}

/// Escapes every text of `object`, also the names of its entries.
pub(super) fn object(object: &mut Map<String, Value>, escape: &Escape<'_>) {
    for (name, mut entry) in std::mem::take(object) {
        value(&mut entry, escape);
        object.insert(escape(&name).into_owned(), entry);
    }
}

/// Escapes every text inside `value`.
pub(super) fn value(value: &mut Value, escape: &Escape<'_>) {
    match value {
        Value::String(text) => *text = escape(text).into_owned(),
        Value::Array(items) => items.iter_mut().for_each(|item| self::value(item, escape)),
        Value::Object(entries) => object(entries, escape),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
