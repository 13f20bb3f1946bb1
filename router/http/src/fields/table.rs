//! Every field that some API knows. `docs/fields.md` has the same names.

use super::known::{Known, known, one_field};
use super::takes::Takes::{Anything, Nothing, Null, Number, Text, True};

const CHAT: &str = "/v1/chat/completions";
const PROMPTS: &[&str] = &["messages", "prompt", "input", "inputs"];
const LIMITS: &[&str] = &[
    "max_tokens",
    "max_output_tokens",
    "max_new_tokens",
    "parameters.max_new_tokens",
];
const TRUNCATIONS: &[&str] = &["truncate_prompt_tokens", "truncate", "parameters.truncate"];
const FORMS: &[&str] = &[
    "response_format",
    "text.format",
    "output_config.format",
    "grammar",
    "parameters.grammar",
];

/// What is known of the field `name`.
pub fn find(name: &str) -> Option<&'static Known> {
    KNOWN.iter().find(|known| known.has(name))
}

static KNOWN: &[Known] = &[
    // The prompt.
    known(PROMPTS, Nothing, PROMPTS),
    known(
        &["system", "instructions"],
        Nothing,
        &["system", "instructions", "messages"],
    ),
    known(
        &["previous_response_id", "conversation", "thread"],
        Nothing,
        &["messages"],
    ),
    known(&["previous_input_messages"], Nothing, &["messages"]),
    known(&["prompt_embeds", "container", "parameters"], Nothing, &[]),
    known(
        &["suffix", "chat_template", "return_prompt_text"],
        Nothing,
        &[],
    ),
    known(&["documents", "chat_template_kwargs"], Nothing, &[]).on(CHAT),
    one_field(&["use_activation", "activation"], True, &[]),
    known(&["continue_final_message"], Nothing, &[]).on(CHAT),
    known(&["add_generation_prompt"], True, &[]).on(CHAT),
    known(
        &[
            "choices",
            "text_1",
            "text_2",
            "query",
            "items",
            "label_token_ids",
        ],
        Nothing,
        &["choices"],
    ),
    known(&["add_special_tokens"], Null, &[]),
    known(&["token_healing"], Nothing, &["parameters"]),
    one_field(&["truncate", "truncate_prompt_tokens"], Null, TRUNCATIONS),
    known(&["truncation"], Text(&["disabled"]), TRUNCATIONS),
    known(&["truncation_side"], Text(&["left"]), &[]),
    known(
        &["echo", "return_full_text"],
        Nothing,
        &["echo", "return_full_text", "parameters.return_full_text"],
    ),
    // How much is generated, and where it ends.
    one_field(
        &[
            "max_tokens",
            "max_completion_tokens",
            "max_output_tokens",
            "max_new_tokens",
        ],
        Null,
        LIMITS,
    ),
    one_field(
        &["min_tokens", "min_new_tokens"],
        Number(0.0),
        &["min_tokens", "min_new_tokens", "parameters.min_new_tokens"],
    ),
    one_field(
        &["stop", "stop_sequences"],
        Nothing,
        &["stop", "stop_sequences", "parameters.stop"],
    ),
    known(
        &["stop_token_ids", "include_stop_str_in_output", "ignore_eos"],
        Nothing,
        &["parameters"],
    ),
    known(&["n"], Number(1.0), &[]),
    known(&["best_of"], Number(1.0), &["parameters"]),
    known(&["thinking_token_budget"], Number(-1.0), &[]),
    known(&["repetition_detection"], Nothing, &[]),
    // How tokens are chosen.
    known(
        &[
            "temperature",
            "top_p",
            "top_k",
            "min_p",
            "typical_p",
            "repetition_penalty",
            "frequency_penalty",
            "presence_penalty",
            "logit_bias",
            "bad_words",
            "seed",
            "priority",
            "cache_salt",
        ],
        Null,
        &["parameters"],
    ),
    known(&["prediction"], Anything, &["parameters"]),
    known(&["do_sample"], True, &["temperature", "parameters"]),
    known(
        &["watermark", "watermarking"],
        Nothing,
        &["watermark", "parameters.watermark"],
    ),
    known(&["adapter_id"], Nothing, &["parameters", "model"]),
    known(&["allowed_token_ids", "logits_processors"], Nothing, &[]),
    known(
        &["use_beam_search"],
        Nothing,
        &["beam_width", "parameters.beam_width"],
    )
    .on(CHAT),
    known(&["beam_width"], Nothing, &["use_beam_search", "parameters"])
        .on_as(CHAT, "use_beam_search"),
    known(&["length_penalty"], Number(1.0), &["parameters"]).on(CHAT),
    known(&["early_stopping"], Nothing, &["parameters"]).on(CHAT),
    // The form of the answer.
    known(
        &["response_format", "text", "output_config", "output_format"],
        Text(&["text"]),
        FORMS,
    ),
    known(&["guided_json", "json_schema"], Nothing, FORMS),
    known(
        &["guided_regex", "guided_choice", "regex", "grammar"],
        Nothing,
        &["structured_outputs", "grammar", "parameters.grammar"],
    )
    .on_as(CHAT, "structured_outputs"),
    // TGI's `grammar` has none of these.
    known(
        &["structured_outputs", "guided_grammar", "ebnf"],
        Nothing,
        &["structured_outputs"],
    )
    .on_as(CHAT, "structured_outputs"),
    known(
        &["structural_tag", "guided_whitespace_pattern"],
        Nothing,
        &[],
    ),
    known(&["skip_special_tokens"], True, &["parameters"]),
    known(&["modalities"], Text(&["text"]), &[]),
    known(&["verbosity"], Text(&["medium"]), &["text.verbosity"])
        .advised(", and say in the prompt how long answers shall be"),
    known(&["audio", "moderation", "web_search_options"], Nothing, &[]),
    // Tools and reasoning.
    known(&["tools", "functions"], Nothing, &["tools"]).on_as(CHAT, "tools"),
    known(&["mcp_servers"], Nothing, &[]),
    known(
        &["tool_choice", "function_call"],
        Text(&["auto", "none"]),
        &["tool_choice"],
    )
    .on_as(CHAT, "tool_choice"),
    known(
        &["parallel_tool_calls"],
        True,
        &["tool_choice.disable_parallel_tool_use"],
    )
    .on(CHAT),
    known(&["tool_prompt"], Nothing, &[]).on(CHAT),
    known(
        &["reasoning_effort", "reasoning", "thinking"],
        Nothing,
        &[
            "reasoning_effort",
            "reasoning.effort",
            "output_config.effort",
        ],
    )
    .on_as(CHAT, "reasoning_effort"),
    known(&["separate_reasoning", "include_reasoning"], True, &[]).on(CHAT),
    // What else the answer has.
    known(
        &["logprobs", "details"],
        Nothing,
        &["logprobs", "details", "parameters.details"],
    )
    .on_as(CHAT, "logprobs"),
    known(
        &["return_tokens_as_token_ids", "return_token_ids"],
        Nothing,
        &["details", "parameters.details"],
    )
    .on(CHAT),
    known(
        &["top_logprobs", "top_n_tokens"],
        Number(0.0),
        &[
            "top_logprobs",
            "logprobs",
            "top_n_tokens",
            "parameters.top_n_tokens",
        ],
    )
    .on_as(CHAT, "top_logprobs"),
    known(
        &["prompt_logprobs", "decoder_input_details"],
        Nothing,
        &[
            "echo",
            "decoder_input_details",
            "parameters.decoder_input_details",
        ],
    )
    .on_as("/v1/completions", "echo"),
    known(&["logprob_token_ids", "return_token_offsets"], Nothing, &[]),
    known(
        &["include", "enable_response_messages", "background"],
        Nothing,
        &[],
    ),
    known(
        &["vllm_xargs", "kv_transfer_params", "ec_transfer_params"],
        Nothing,
        &[],
    ),
    // What cannot change what the model answers.
    known(
        &[
            "model",
            "stream",
            "stream_options",
            "stream_interval",
            "request_id",
            "session_id",
            "user",
            "store",
            "metadata",
            "service_tier",
            "safety_identifier",
            "prompt_cache_key",
            "prompt_cache_options",
            "prompt_cache_retention",
            "cache_control",
            "context_management",
            "inference_geo",
            "speed",
            "betas",
            "max_tool_calls",
            "guided_decoding_backend",
            "spaces_between_special_tokens",
            "media_io_kwargs",
            "mm_processor_kwargs",
            "return_mm_kwargs",
            "routed_experts_prompt_start",
        ],
        Anything,
        &[],
    ),
];
