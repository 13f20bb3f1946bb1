//! Kinds of reasoning that go by other names than those of formats, and can be combined with any format.

use std::sync::LazyLock;

use super::make::{reasoning, think};
use crate::format::Reasoning;

/// By the names that the `--reasoning-parser` of vLLM and SGLang has, where no format has them.
pub(super) static REASONING: LazyLock<Vec<(&[&str], Reasoning)>> = LazyLock::new(|| {
    vec![
        (
            &[
                "think",
                "deepseek-r1",
                "deepseek-v3",
                "deepseek-v4",
                "qwen3-thinking",
                "nemotron_3",
                "exaone4",
                "holo2",
                "telechat4",
            ],
            think(),
        ),
        (&["kimi"], reasoning("◁think▷", "◁/think▷")),
        (
            &["granite"],
            reasoning("Here is my thought process:", "Here is my response:"),
        ),
    ]
});
