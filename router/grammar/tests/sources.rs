//! What each kind of source allows and refuses.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a helper of tests may panic as they do"
)]

mod common;

use common::{CALL, END, TOOL_CALLS, compile, feed, matches};
use serde_json::{Value, json};
use text_generation_grammar::{GrammarError, GrammarSource, MaskForm};

async fn check(source: GrammarSource, valid: &[&str], invalid: &[&str]) {
    let grammar = compile(source.clone()).await.unwrap();
    for text in valid {
        assert!(matches(&grammar, text), "{source:?} should allow {text:?}");
    }
    for text in invalid {
        assert!(
            !matches(&grammar, text),
            "{source:?} should refuse {text:?}"
        );
    }
}

#[tokio::test]
async fn any_json_object() {
    let valid = [r#"{}"#, r#"{"a": [1, {"b": null}], "c": "\u001b[0m"}"#];
    check(
        GrammarSource::JsonObject,
        &valid,
        &["[]", "1", "{", r#"{"a"}"#, " {}"],
    )
    .await;
}

#[tokio::test]
async fn a_schema_as_object_and_as_string() {
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer", "minimum": 3}}, "required": ["n"],
        "additionalProperties": false});
    let text = json!(schema.to_string());
    for schema in [schema, text] {
        let source = GrammarSource::json_schema(schema, true).unwrap();
        check(
            source,
            &[r#"{"n":3}"#, "{ \"n\" :\n 40}"],
            &[r#"{"n":2}"#, "{}", r#"{"n":3,"m":1}"#],
        )
        .await;
    }
    for wrong in [json!("{"), json!(3), json!("[1]")] {
        assert!(matches!(
            GrammarSource::json_schema(wrong, true),
            Err(GrammarError::Invalid { .. })
        ));
    }
}

#[tokio::test]
async fn whitespace_is_bounded() {
    let source = GrammarSource::JsonSchema {
        schema: json!({"type": "array", "items": {"type": "null"}}),
        strict: true,
    };
    let eight = format!("[{}null]", " ".repeat(8));
    let nine = format!("[{}null]", " ".repeat(9));
    check(source, &[&eight], &[&nine]).await;
}

#[tokio::test]
async fn a_regex_matches_the_whole_text() {
    check(
        GrammarSource::Regex("[a-c]{2}|x/y".into()),
        &["ab", "x/y"],
        &["a", "abc", "zab", ""],
    )
    .await;
    check(GrammarSource::Regex(r"^\d+$".into()), &["12"], &["1a", "٣"]).await;
    // What is wrong and where, in one line.
    for (regex, problem) in [
        ("(", "unclosed group, at `(`"),
        (r"\d+(a", "unclosed group, at `(a`"),
        (
            "(?=a)b",
            "look-around, including look-ahead and look-behind, is not supported, at `(?=a)b`",
        ),
        (r"(a)\1", r"backreferences are not supported, at `\1`"),
        (
            "a{5,2}",
            "invalid repetition count range, the start must be <= the end, at `{5,2}`",
        ),
    ] {
        let error = compile(GrammarSource::Regex(regex.into()))
            .await
            .unwrap_err();
        let expected = GrammarError::Invalid {
            part: "the regex",
            reason: problem.to_owned(),
        };
        assert_eq!(error, expected);
    }
}

#[tokio::test]
async fn choices() {
    let choices = ["yes", "yes, please", "\"no\"\n"]
        .map(String::from)
        .to_vec();
    check(
        GrammarSource::Choice(choices),
        &["yes", "yes, please", "\"no\"\n"],
        &["ye", "no", "yes,"],
    )
    .await;
    let error = compile(GrammarSource::Choice(Vec::new()))
        .await
        .unwrap_err();
    assert!(matches!(error, GrammarError::Invalid { .. }), "{error}");
}

/// `inner` after a word, in a grammar that has a schema of its own.
fn around(inner: GrammarSource, lark: &str) -> GrammarSource {
    GrammarSource::Around {
        lark: format!("start: \"so \" @inner | {lark}"),
        name: "inner",
        inner: Box::new(inner),
    }
}

#[tokio::test]
async fn every_source_may_stand_in_another_one() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"], "additionalProperties": false});
    let strict = true;
    for (inner, good, bad) in [
        (
            GrammarSource::JsonSchema { schema, strict },
            "so {\"a\": null}",
            "so {}",
        ),
        (GrammarSource::JsonObject, "so {}", "so []"),
        (GrammarSource::Regex("a/b+".into()), "so a/bb", "so a/"),
        (
            GrammarSource::Choice(vec!["a".into(), "ab".into()]),
            "so ab",
            "so b",
        ),
        (
            GrammarSource::Lark("start: X\nX: /x+/".into()),
            "so xx",
            "so y",
        ),
        (
            GrammarSource::Ebnf("root ::= \"(\" root? \")\"".into()),
            "so (())",
            "so (()",
        ),
    ] {
        check(around(inner, "\"no\""), &["no", good], &["so ", bad]).await;
    }
}

#[tokio::test]
async fn each_schema_of_a_grammar_is_as_strict_as_it_says() {
    let unique = json!({"type": "array", "uniqueItems": true});
    // The engine finds this out itself, and does not say where.
    let overlapping = json!({"oneOf": [{"type": "integer"}, {"type": "number"}]});
    let lax = json!({"anyOf": [unique, overlapping]});
    let fine = json!({"type": "integer"});
    let source = |inner: &Value, strict, lark: &Value, lark_strict: bool| {
        let inner = GrammarSource::json_schema(inner.clone(), strict).unwrap();
        let mut lark = lark.clone();
        lark["x-guidance"] = json!({"lenient": !lark_strict});
        around(inner, &format!("%json {lark}"))
    };
    for (inner, strict, lark, lark_strict) in [
        (&lax, false, &fine, true),
        (&fine, true, &lax, false),
        (&lax, false, &lax, false),
    ] {
        let grammar = compile(source(inner, strict, lark, lark_strict)).await;
        let grammar = grammar.unwrap();
        let all = grammar.not_enforced().concat();
        assert!(
            all.contains("uniqueItems") && all.contains("oneOf"),
            "{all}"
        );
    }
    for (inner, strict, lark, lark_strict) in [
        (&unique, true, &fine, false),
        (&overlapping, true, &fine, false),
        (&overlapping, true, &lax, false),
        (&fine, false, &unique, true),
        (&lax, false, &overlapping, true),
    ] {
        let error = compile(source(inner, strict, lark, lark_strict)).await;
        let error = error.unwrap_err();
        assert!(
            matches!(error, GrammarError::NotEnforceable { .. }),
            "{error}"
        );
    }
}

#[tokio::test]
async fn a_grammar_of_a_client_refers_to_no_other() {
    for inner in ["start: @inner", "start: \"a\" @lark_grammar"] {
        for source in [
            GrammarSource::Lark(inner.to_owned()),
            around(GrammarSource::Lark(inner.to_owned()), "\"no\""),
        ] {
            let error = compile(source).await.unwrap_err();
            assert!(error.to_string().contains("`@`"), "{error}");
        }
    }
    check(
        GrammarSource::Lark("start: \"@a\" /@/".into()),
        &["@a@"],
        &["@a"],
    )
    .await;
}

#[tokio::test]
async fn lark_with_special_tokens_by_name() {
    let lark = "start: \"a\" <|call|> %json {\"type\": \"object\", \"minProperties\": 0, \"uniqueItems\": true} <[TOOL_CALLS]>";
    let grammar = compile(GrammarSource::Lark(lark.into())).await.unwrap();
    assert_eq!(grammar.not_enforced(), ["`uniqueItems` at /"]);
    let mut matcher = grammar.matcher();
    assert!(feed(&mut matcher, "a"));
    assert_eq!(matcher.mask().unwrap().form(), MaskForm::Only(&[CALL]));
    matcher.accept(CALL).unwrap();
    assert!(feed(&mut matcher, "{\"x\": 1}"));
    matcher.accept(TOOL_CALLS).unwrap();
    assert!(matcher.is_finished());
    let nine = " ".repeat(9);
    assert!(!matches(&grammar, &format!("a{{{nine}")));

    let error = compile(GrammarSource::Lark("start: <|nothing|>".into()))
        .await
        .unwrap_err();
    assert!(error.to_string().contains("<|nothing|>"), "{error}");
}

/// The grammar that a coding agent sends with its tool for patches: nested rules, lazy lines.
#[tokio::test]
async fn lark_of_a_patch_tool() {
    let lark = r#"start: begin hunk+ end
begin: "*** Begin Patch" LF
end: "*** End Patch" LF?
hunk: add | delete
add: "*** Add File: " filename LF line+
delete: "*** Delete File: " filename LF
filename: /(.+)/
line: "+" /(.*)/ LF
%import common.LF
"#;
    let patch =
        "*** Begin Patch\n*** Add File: a.py\n+print(1)\n+\n*** Delete File: b\n*** End Patch\n";
    check(
        GrammarSource::Lark(lark.into()),
        &[patch],
        &["*** Begin Patch\n*** End Patch\n"],
    )
    .await;
}

#[tokio::test]
async fn ebnf_of_llama_cpp() {
    let gbnf = r#"
# moves of chess
root  ::= "1. " move " " move "\n" ([1-9] [0-9]? ". " move " " move "\n")*
move  ::= (pawn | castle) [+#]?
pawn  ::= ([a-h] "x")? [a-h] [1-8]
castle ::= "O-O" "-O"?
"#;
    let valid = ["1. e4 e5\n", "1. e4 e5\n2. O-O exd5+\n12. O-O-O a3#\n"];
    check(
        GrammarSource::Ebnf(gbnf.into()),
        &valid,
        &["1. e4\n", "e4", ""],
    )
    .await;
    let nested = "root ::= expr\nexpr ::= term\n  | expr \"+\" term\nterm ::= [0-9]{1,3} | \"(\" ws expr ws \")\"\nws ::= [ \\t]*";
    check(
        GrammarSource::Ebnf(nested.into()),
        &["1", "(1+ 2)+33".replace("+ 2", "+2").as_str(), "( 4 )"],
        &["1234", "(1", "1+"],
    )
    .await;
    check(
        GrammarSource::Ebnf("root ::= [^\\x41-\\x5A\\]]* \"\\u00e9\"".into()),
        &["xé", "é"],
        &["Aé", "]é"],
    )
    .await;
}

#[tokio::test]
async fn ebnf_errors_say_where() {
    for (ebnf, reason) in [
        ("start ::= \"a\"", "root"),
        ("root ::= b", "`b`"),
        ("root ::= \"a\nroot2 ::= \"b\"", "line 1"),
        ("root ::= (\"a\"", "`)`"),
        ("root ::= \"a\"{x}", "count"),
        ("root ::= (= \"a\")", "look-ahead"),
        ("root ::= /a/", "Lark"),
        ("root ::= \"a\"\nroot ::= \"b\"", "twice"),
        ("root = \"a\"", "::="),
        ("root ::= [\\xf你]", "column"),
        ("root ::= \"\\u00é", "column"),
    ] {
        let error = compile(GrammarSource::Ebnf(ebnf.into())).await.unwrap_err();
        assert!(
            matches!(
                error,
                GrammarError::Invalid {
                    part: "the EBNF grammar",
                    ..
                }
            ),
            "{error}"
        );
        assert!(error.to_string().contains(reason), "{error}");
    }
}

#[tokio::test]
async fn lark_and_ebnf_are_told_apart() {
    assert!(matches!(
        GrammarSource::grammar("root ::= \"a\"".into()),
        GrammarSource::Ebnf(_)
    ));
    assert!(matches!(
        GrammarSource::grammar("start: \"a\"".into()),
        GrammarSource::Lark(_)
    ));
}

#[tokio::test]
async fn strict_refuses_by_name_and_otherwise_the_rest_is_enforced() {
    for (schema, name, valid, invalid) in [
        (
            json!({"type": "array", "items": {"type": "null"}, "uniqueItems": true}),
            "`uniqueItems` at /",
            "[null]",
            "[1]",
        ),
        (
            json!({"type": "object", "properties": {"a/b": {"not": {"type": "null"}}}}),
            "`not` at /properties/a/b",
            "{}",
            "[]",
        ),
        (
            json!({"type": "string", "format": "idn-email"}),
            "`format: idn-email` at /",
            "\"a\"",
            "1",
        ),
        (
            json!({"type": "string", "pattern": "^(?!a)b", "maxLength": 2}),
            "`pattern` at /",
            "\"xy\"",
            "\"xyz\"",
        ),
        (
            json!({"type": "string", "pattern": r"^(?:\S+\s+){0,99}\S+$", "maxLength": 5000}),
            "`maxLength` at /",
            "\"a b\"",
            "\"a \"",
        ),
        (
            json!({"type": "object", "patternProperties": {"^a": {"type": "null"}, "b$": {"type": "string"}}}),
            "`patternProperties` at /",
            "{\"ab\":1}",
            "1",
        ),
        (
            json!({"oneOf": [{"type": "integer", "minimum": 2}, {"type": "integer", "maximum": 4}]}),
            "`oneOf`",
            "1",
            "\"\"",
        ),
        (
            json!({"$ref": "https://example.com/schema"}),
            "`$ref` at /",
            "1",
            "x",
        ),
        (
            json!({"type": "object", "properties": {"a": {"$ref": "common.json#/$defs/a"}}}),
            "`$ref` at /properties/a",
            "{\"a\":1}",
            "1",
        ),
    ] {
        let strict = compile(GrammarSource::JsonSchema {
            schema: schema.clone(),
            strict: true,
        })
        .await;
        let Err(GrammarError::NotEnforceable { feature, .. }) = strict else {
            panic!("{schema} should be refused: {strict:?}");
        };
        assert!(feature.contains(name), "{feature}");
        let grammar = compile(GrammarSource::JsonSchema {
            schema,
            strict: false,
        })
        .await
        .unwrap();
        assert!(
            grammar.not_enforced()[0].contains(name),
            "{:?}",
            grammar.not_enforced()
        );
        assert!(matches(&grammar, valid), "{valid} under {name}");
        assert!(!matches(&grammar, invalid), "{invalid} under {name}");
    }
}

#[tokio::test]
async fn a_document_may_refer_to_itself_by_its_name() {
    for reference in ["https://example.com/a.json#/$defs/n", "a.json#/$defs/n"] {
        let schema = json!({"$id": "https://example.com/a.json", "$defs": {"n": {"type": "null"}}, "$ref": reference});
        let strict = true;
        let source = GrammarSource::JsonSchema { schema, strict };
        check(source, &["null"], &["1"]).await;
    }
}

#[tokio::test]
async fn bounds_of_numbers_are_enforced_as_far_as_the_engine_has_digits() {
    let integer = json!("integer");
    let number = json!("number");
    for (kind, bound, value, valid, invalid) in [
        (
            &integer,
            "minimum",
            json!(-1_000_000_000_000_000_000_i64),
            "-1",
            "-9000000000000000000",
        ),
        (
            &integer,
            "minimum",
            json!(999_999_999_999_998_976_i64),
            "1000000000000000000",
            "9",
        ),
        (
            &integer,
            "maximum",
            json!(i64::MAX),
            "9223372036854775807",
            "9223372036854775808",
        ),
        (
            &integer,
            "maximum",
            json!(u64::MAX),
            "9223372036854775807",
            "\"\"",
        ),
        (
            &integer,
            "maximum",
            json!(1e300),
            "9223372036854775807",
            "\"\"",
        ),
        (
            &integer,
            "exclusiveMaximum",
            json!(-9_007_199_254_740_000_i64),
            "-9007199254740001",
            "-9",
        ),
        (
            &number,
            "minimum",
            json!(-9.2e18),
            "-9100000000000000000.5",
            "-9300000000000000000",
        ),
        (
            &number,
            "maximum",
            json!(9.2e18),
            "9100000000000000000.5",
            "9300000000000000000",
        ),
    ] {
        let strict = true;
        let schema = json!({"type": kind, bound: value});
        let source = GrammarSource::JsonSchema { schema, strict };
        check(source, &[valid], &[invalid]).await;
    }
    for (kind, bound, value) in [
        (&integer, "minimum", json!(9_007_199_254_740_993_i64)),
        (
            &integer,
            "exclusiveMaximum",
            json!(-9_007_199_254_740_993_i64),
        ),
        (&integer, "minimum", json!(i64::MIN)),
        (&integer, "exclusiveMinimum", json!(i64::MIN)),
        (&integer, "minimum", json!(-1e300)),
        (&integer, "minimum", json!(1e300)),
        (&integer, "minimum", json!(i64::MAX)),
        (&integer, "maximum", json!(i64::MIN)),
        (&number, "minimum", json!(i64::MIN)),
        (&number, "maximum", json!(i64::MAX)),
        (&number, "exclusiveMaximum", json!(1e300)),
        (&number, "minimum", json!(1e300)),
        (&number, "maximum", json!(-1e300)),
        (&json!(["number", "null"]), "maximum", json!(1e300)),
        (
            &integer,
            "exclusiveMinimum",
            json!(9_007_199_254_740_992_i64),
        ),
        (&integer, "multipleOf", json!(1_000_003)),
        (&integer, "multipleOf", json!(2_147_483_647)),
        (&integer, "multipleOf", json!(1_u64 << 32)),
        (
            &integer,
            "multipleOf",
            json!(18_446_744_073_709_551_616_f64),
        ),
        (&number, "multipleOf", json!(0.123_456_789_01)),
    ] {
        let strict = false;
        let schema = json!({"type": kind, bound: value});
        let source = GrammarSource::JsonSchema { schema, strict };
        let grammar = compile(source).await.unwrap();
        assert_eq!(grammar.not_enforced(), [format!("`{bound}` at /")]);
        assert!(matches(&grammar, "12") && !matches(&grammar, "\"\""));
    }
}

#[tokio::test]
async fn steps_that_meet_have_few_remainders_together() {
    let steps = |steps: [f64; 3]| {
        let all: Vec<_> = steps
            .iter()
            .map(|step| json!({"multipleOf": step}))
            .collect();
        let schema = json!({"type": "number", "allOf": all});
        let strict = false;
        compile(GrammarSource::JsonSchema { schema, strict })
    };
    let many = steps([9_973.0, 9_967.0, 9_949.0]).await.unwrap();
    assert_eq!(many.not_enforced().len(), 2);
    let few = steps([0.01, 50.0, 24.0]).await.unwrap();
    assert!(few.not_enforced().is_empty() && matches(&few, "3000"));
}

#[tokio::test]
async fn a_constant_that_no_double_holds_does_not_become_another() {
    for (constant, text) in [
        (json!(9_007_199_254_740_992_i64), "9007199254740992"),
        (json!(1_i64 << 60), "1152921504606846976"),
        (json!(-(1_i64 << 62)), "-4611686018427387904"),
        (json!([1e15]), "[1000000000000000]"),
        (json!(-0.1), "-0.1"),
    ] {
        let strict = true;
        let schema = json!({"const": constant});
        let source = GrammarSource::JsonSchema { schema, strict };
        check(source, &[text], &["2"]).await;
    }
    for schema in [
        json!({"const": 9_007_199_254_740_993_i64}),
        json!({"const": [{"id": 1_234_567_890_123_456_789_i64}]}),
        json!({"type": "integer", "const": i64::MIN}),
        json!({"const": u64::MAX}),
        // A double holds it, but the engine writes the shortest digits that read as the same.
        json!({"const": 1_u64 << 63}),
        // As `serde_json` reads 18446744073709551616 and its neighbours.
        json!({"const": 18_446_744_073_709_551_616_f64}),
        json!({"const": -18_446_744_073_709_551_616_f64}),
        json!({"const": 1e22}),
    ] {
        let strict = false;
        let source = GrammarSource::JsonSchema { schema, strict };
        let grammar = compile(source).await.unwrap();
        assert_eq!(grammar.not_enforced(), ["`const` at /"]);
    }
    let schema = json!({"type": "integer", "enum": [2, 1_234_567_890_123_456_789_i64]});
    let strict = false;
    let source = GrammarSource::JsonSchema { schema, strict };
    let grammar = compile(source).await.unwrap();
    assert_eq!(grammar.not_enforced(), ["`enum` at /"]);
    assert!(matches(&grammar, "1234567890123456789"));
}

#[tokio::test]
async fn notes_to_readers_are_not_rules() {
    let schema = json!({"type": "string", "format": "phone", "title": "t", "default": 1, "x-order": 3, "examples": [1]});
    check(
        GrammarSource::JsonSchema {
            schema,
            strict: true,
        },
        &["\"a\""],
        &["1"],
    )
    .await;
}

#[tokio::test]
async fn clients_do_not_set_options_of_the_engine() {
    let schema = json!({"type": "array", "items": {"type": "null"}, "x-guidance": {"whitespace_flexible": false}});
    check(
        GrammarSource::JsonSchema {
            schema,
            strict: true,
        },
        &["[ null ]"],
        &[],
    )
    .await;
}

#[tokio::test]
async fn what_nothing_can_match_is_refused() {
    let schema = json!({"type": "object", "properties": {"a": false}, "required": ["a"]});
    let error = compile(GrammarSource::JsonSchema {
        schema,
        strict: false,
    })
    .await
    .unwrap_err();
    assert!(matches!(error, GrammarError::Invalid { .. }), "{error}");
    assert!(!error.to_string().contains('\n'), "{error}");
}

#[tokio::test]
async fn a_schema_that_no_finite_value_fits_is_refused_by_its_reference() {
    let node = |required: Value| json!({"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "required": required});
    let list = |least: u64| json!({"type": "array", "items": {"$ref": "#"}, "minItems": least});
    let source = |schema| GrammarSource::JsonSchema {
        schema,
        strict: false,
    };
    for (schema, reference) in [
        (json!({"$ref": "#"}), "\"#\""),
        (
            json!({"allOf": [{"type": "integer"}, {"$ref": "#"}]}),
            "\"#\"",
        ),
        (
            json!({"$defs": {"node": node(json!(["next"]))}, "type": "array", "minItems": 1, "items": {"$ref": "#/$defs/node"}}),
            "\"#/$defs/node\"",
        ),
        (list(1), "\"#\""),
        (
            json!({"type": "array", "prefixItems": [{"$ref": "#"}], "minItems": 1}),
            "\"#\"",
        ),
    ] {
        let error = compile(source(schema)).await.unwrap_err().to_string();
        assert!(
            error.contains("the JSON schema") && error.contains(reference),
            "{error}"
        );
    }
    for (schema, valid) in [
        (
            json!({"$defs": {"node": node(json!([]))}, "$ref": "#/$defs/node"}),
            "{\"next\":{}}",
        ),
        (
            json!({"anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#"}, "minItems": 1}]}),
            "[[null]]",
        ),
        (list(0), "[[],[]]"),
        // The way back is found before the way out.
        (
            json!({"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}, {"const": 1}]}, "b": {"type": "array", "items": {"$ref": "#/$defs/a"}, "minItems": 1}}, "$ref": "#/$defs/b"}),
            "[[1]]",
        ),
    ] {
        check(source(schema), &[valid], &[]).await;
    }
}

#[tokio::test]
async fn equal_sources_compare_equal_and_the_order_of_names_counts() {
    let source = |text: &str| GrammarSource::json_schema(json!(text), true).unwrap();
    assert_eq!(source(r#"{"a": 1, "b": 2}"#), source(r#"{"a":1,"b":2}"#));
    assert_ne!(source(r#"{"a": 1, "b": 2}"#), source(r#"{"b":2,"a":1}"#));
    let ends = compile(GrammarSource::Regex("a*".into())).await.unwrap();
    assert!(ends.matcher().mask().unwrap().allows(END));
}
