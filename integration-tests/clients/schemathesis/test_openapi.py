"""Requests that schemathesis makes up from the server's own OpenAPI document, and a look at what comes back."""

from __future__ import annotations

import json
import os
import urllib.request

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import checks

CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]


def document() -> dict:
    """The server's document, with events of streams as schemathesis reads them.

    OpenAPI has words for the data of an event only from 3.2 on. Before, as in TGI's document, the schema of a stream is
    that of the data; schemathesis takes it for that of the event around.
    """
    with urllib.request.urlopen(os.environ["TEXT_GENERATION_URL"] + "/api-doc/openapi.json") as reply:
        document = json.load(reply)
    for path in document["paths"].values():
        for operation in path.values():
            stream = operation["responses"]["200"].get("content", {}).get("text/event-stream")
            if stream:
                data = {"contentMediaType": "application/json", "contentSchema": stream["schema"]}
                last = {"const": "[DONE]"}
                stream["schema"] = {
                    "type": "object",
                    "properties": {"data": {"if": last, "else": data}},
                    "required": ["data"],
                }
    return document


schema = schemathesis.openapi.from_dict(document())
schema.config.update(base_url=os.environ["TEXT_GENERATION_URL"])

GENERATE = {"inputs": "Once", "parameters": {"max_new_tokens": 3, "details": True, "top_n_tokens": 2}}
COMPLETION = {"prompt": ["Once", "The"], "max_tokens": 3, "logprobs": 2, "n": 2}
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "logprobs": True, "top_logprobs": 2}
RESPONSE = {"input": "Hi", "max_output_tokens": 3}
MESSAGE = {"messages": CHAT["messages"], "max_tokens": 3}
STREAM = {"stream": True, "stream_options": {"include_usage": True}}
# Calls of tools in each API that has them.
CALLS = [
    (
        "/v1/chat/completions",
        {**CHAT, "tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required"},
    ),
    ("/v1/responses", {**RESPONSE, "tools": [{"type": "function", "name": "f"}], "tool_choice": "required"}),
    ("/v1/messages", {**MESSAGE, "tools": [{"name": "f", "input_schema": {}}], "tool_choice": {"type": "any"}}),
]
SCHEMA = {"type": "string", "maxLength": 2}
NAMED = {"type": "json_schema", "name": "short", "schema": SCHEMA}
# Outputs whose form is asked for in each of the ways.
FORMS = [
    (
        "/generate",
        {"inputs": "Once", "parameters": {"max_new_tokens": 3, "grammar": {"type": "regex", "value": "[a-z]+"}}},
    ),
    ("/v1/completions", {**COMPLETION, "structured_outputs": {"choice": ["yes", "no"]}}),
    ("/v1/completions", {**COMPLETION, "guided_regex": "[ab]+"}),
    ("/v1/chat/completions", {**CHAT, "response_format": {"type": "json_schema", "json_schema": NAMED}}),
    ("/v1/chat/completions", {**CHAT, "response_format": {"type": "json_object"}}),
    ("/v1/responses", {**RESPONSE, "text": {"format": NAMED}}),
    ("/v1/messages", {**MESSAGE, "output_config": {"format": NAMED}}),
]
# Bodies that are accepted, for what random ones seldom reach.
ACCEPTED = [
    ("/", GENERATE),
    ("/generate", GENERATE),
    ("/generate_stream", GENERATE),
    ("/v1/completions", COMPLETION),
    ("/v1/chat/completions", CHAT),
    ("/v1/responses", RESPONSE),
    ("/v1/messages", MESSAGE),
    ("/v1/messages/count_tokens", MESSAGE),
    ("/v1/chat/completions/render", CHAT),
    ("/v1/completions/render", COMPLETION),
    ("/chat_tokenize", CHAT),
    *CALLS,
    *FORMS,
    ("/vertex", {"instances": [GENERATE, CHAT]}),
    *(("/invocations", body) for body in [GENERATE, COMPLETION, CHAT]),
    *((path, {**GENERATE, **STREAM}) for path in ["/", "/invocations"]),
    *((path, {**COMPLETION, **STREAM}) for path in ["/v1/completions", "/invocations"]),
    *((path, {**CHAT, **STREAM}) for path in ["/v1/chat/completions", "/invocations"]),
    *((path, {**body, "stream": True}) for path, body in [("/v1/responses", RESPONSE), ("/v1/messages", MESSAGE)]),
    *((path, {**body, "stream": True}) for path, body in CALLS),
]


@schema.parametrize()
@settings(max_examples=12, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
def test_every_answer_is_documented(case, api):
    case.call_and_validate(headers={"Authorization": f"Bearer {api.key}"}, checks=CHECKS)


@pytest.mark.parametrize(("path", "body"), ACCEPTED)
def test_what_is_accepted_is_answered_as_documented(path, body, api):
    case = schema[path]["POST"].Case(body=body, media_type="application/json")
    reply = case.call_and_validate(headers={"Authorization": f"Bearer {api.key}"}, checks=CHECKS)
    assert reply.status_code == 200
