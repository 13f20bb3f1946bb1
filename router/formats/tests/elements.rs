//! Arguments that are written as XML elements.

mod common;

use common::{format, options, parse, tool, tools};
use serde_json::json;

/// MiniMax M3's markup of elements, with its marker before each tag.
fn m3(elements: &str) -> String {
    let call = format!("<tool_call>\n<invoke name=\"order\">{elements}</invoke>\n</tool_call>");
    call.replace('<', "]<]minimax[>[<")
}

#[test]
fn elements_are_objects_and_arrays_as_the_schema_says() {
    let parameters = json!({
        "type": "object",
        "properties": {
            "who": {"$ref": "#/$defs/person"},
            "lines": {"type": "array", "items": {"type": "object", "properties": {
                "sku": {"type": "string"}, "count": {"type": "integer"},
            }}},
            "tags": {"anyOf": [{"type": "null"}, {"type": "array", "items": {"type": "integer"}}]},
            "rates": {"type": "object", "additionalProperties": {"type": "number"}},
            "note": {"type": ["string", "null"]},
            "code": {"type": "string"},
        },
        "$defs": {"person": {"type": "object", "properties": {
            "name": {"type": "string"}, "age": {"type": "integer"}, "boss": {"$ref": "#/$defs/person"},
        }}},
    });
    let options = options(&[tool("order", parameters)]);
    for (elements, expected) in [
        ("", json!({})),
        (
            "\n<who>\n<name>\"Ann\"\n</name>\n<age>3</age><boss><name>Bo</name></boss></who>\n",
            json!({"who": {"name": "\"Ann\"\n", "age": 3, "boss": {"name": "Bo"}}}),
        ),
        (
            "<lines><item><sku>01</sku><count>2</count></item><item><sku></sku></item></lines>",
            json!({"lines": [{"sku": "01", "count": 2}, {"sku": ""}]}),
        ),
        (
            "<lines></lines><rates></rates>",
            json!({"lines": [], "rates": {}}),
        ),
        (
            "<tags><item>1</item><item>2</item></tags>",
            json!({"tags": [1, 2]}),
        ),
        (
            "<tags>null</tags><note>null</note>",
            json!({"tags": null, "note": null}),
        ),
        ("<tags>[1, 2]</tags>", json!({"tags": [1, 2]})),
        (
            "<rates><a>1.5</a><b>2</b></rates>",
            json!({"rates": {"a": 1.5, "b": 2}}),
        ),
        (
            "<note>nullify</note><code> x = 1\n </code>",
            json!({"note": "nullify", "code": " x = 1\n "}),
        ),
        (
            "<else>007</else><more><x>1</x></more><list><item>a</item><item>b</item></list>",
            json!({"else": "007", "more": {"x": "1"}, "list": ["a", "b"]}),
        ),
    ] {
        let answer = parse(format("minimax_m3"), "", &m3(elements), &options);
        assert_eq!(answer.called(), [("order", expected)], "{elements}");
        assert!(
            answer.calls[0].ended && answer.content.is_empty(),
            "{elements}"
        );
    }
    let broken = parse(
        format("minimax_m3"),
        "",
        &m3("<who><age>3</age>years</who>"),
        &options,
    );
    assert!(!broken.calls[0].ended);
}

#[test]
fn text_of_elements_may_stand_between_markers_of_cdata() {
    let call = |value: &str| {
        format!("<function name=\"get_weather\"><param name=\"city\">{value}</param></function>")
    };
    for (value, city) in [
        ("<![CDATA[a </param> <b>\n]]>", "a </param> <b>\n"),
        ("<![CDATA[]]>", ""),
        ("a < b", "a < b"),
        ("<![CDAT", "<![CDAT"),
    ] {
        let answer = parse(format("minicpm5"), "", &call(value), &options(&tools()));
        assert_eq!(
            answer.called(),
            [("get_weather", json!({"city": city}))],
            "{value}"
        );
    }
}
