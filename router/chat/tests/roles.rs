//! Several system messages, and where the template does not know them.

#![allow(clippy::expect_used, reason = "helpers of tests, which may fail")]

mod common;

use common::{input, template};
use serde_json::{Value, json};
use text_generation_chat::{ChatInput, ChatTemplateError, SystemMessages};

const EVERY: &str = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}";
const DEVELOPER: &str = "{% for m in messages %}{% if m.role == 'developer' %}dev{% else %}{{ m.role }}{% endif %}:{{ m.content }};{% endfor %}";
const STRICT: &str = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('late') }}{% endif %}\
                      {{ m.role }}:{{ m.content }};{% endfor %}";

fn prompt(source: &str, messages: Value) -> Result<String, ChatTemplateError> {
    let input = ChatInput {
        system_messages: SystemMessages::Adapted,
        ..input(messages)
    };
    template(source).expect("a template").render(&input)
}

fn conversation() -> Value {
    json!([
        {"role": "system", "content": "a"},
        {"role": "developer", "content": [{"type": "text", "text": "b"}]},
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "r"},
        {"role": "system", "content": "late"},
        {"role": "user", "content": "s"},
    ])
}

#[test]
fn leading_ones_become_one_and_later_ones_stay_in_place() {
    assert_eq!(
        prompt(EVERY, conversation()).as_deref(),
        Ok("system:a\n\nb;user:q;assistant:r;system:late;user:s;")
    );
}

#[test]
fn a_template_that_knows_developers_gets_them() {
    assert_eq!(
        prompt(DEVELOPER, conversation()).as_deref(),
        Ok("system:a;dev:b;user:q;assistant:r;system:late;user:s;")
    );
}

#[test]
fn where_the_template_refuses_later_ones_they_go_to_the_user() {
    assert_eq!(
        prompt(STRICT, conversation()).as_deref(),
        Ok("system:a\n\nb;user:q;assistant:r;user:late\n\ns;")
    );
    let last = json!([{"role": "user", "content": "q"}, {"role": "system", "content": "late"}]);
    assert_eq!(prompt(STRICT, last).as_deref(), Ok("user:q\n\nlate;"));
}

#[test]
fn other_refusals_and_messages_as_given_stay_as_they_are() {
    let source = "{{ raise_exception('no') }}";
    let refused = prompt(source, json!([{"role": "user", "content": "q"}]));
    assert_eq!(refused, Err(ChatTemplateError::Raised("no".to_owned())));
    let given = template(STRICT)
        .expect("a template")
        .render(&input(conversation()));
    assert_eq!(given, Err(ChatTemplateError::Raised("late".to_owned())));
}
