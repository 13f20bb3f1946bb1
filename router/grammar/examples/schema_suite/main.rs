//! Runs collections of JSON schemas through the compiler, and prints as JSON what share is accepted, what compilation
//! and masks cost, whether generations are valid, and which instances that should be valid are refused.
//!
//! ```text
//! cargo run --profile quick -p text-generation-grammar --example schema_suite -- schemas.json suite.json [tekken.json]
//! ```
//!
//! `schemas.json` is `[{"name", "schema"}]`; `suite.json` is `{file: [{"description", "schema", "tests": [{"description",
//! "data", "valid"}]}]}`, the form of the JSON-Schema-Test-Suite; `tekken.json` is a vocabulary of Mistral, as it is in
//! the Python package `mistral_common`, for the times. Without it the times are those of a vocabulary of bytes. `-` in
//! place of `suite.json` leaves out everything but the times.

mod generate;
mod instances;
mod vocabularies;

use std::error::Error;
use std::fs;
use std::sync::Arc;
use std::time::Instant;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::{TimeVal, TimeValLike};
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde_json::{Value, json};
use text_generation_grammar::{Compiler, CompilerLimits, Grammar, GrammarSource};

use crate::generate::{Ended, generate};
use crate::vocabularies::Tokens;

/// As in the router.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Outcome<T> = Result<T, Box<dyn Error>>;

const GENERATIONS: usize = 10_000;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [schemas, suite, rest @ ..] = arguments.as_slice() else {
        return Err("usage: schema_suite schemas.json suite.json [tekken.json]".into());
    };
    let schemas: Vec<Value> = serde_json::from_slice(&fs::read(schemas)?)?;
    let bytes = vocabularies::of_bytes()?;
    let large = match rest {
        [path, ..] => vocabularies::tekken(path)?,
        [] => bytes.clone(),
    };
    let times = times(&large, &schemas).await?;
    if suite == "-" {
        println!("{times:#}");
        return Ok(());
    }
    let suite: Value = serde_json::from_slice(&fs::read(suite)?)?;
    let report = json!({
        "times": times,
        "acceptance": acceptance(&bytes, &schemas).await,
        "generations": validity(&bytes, &schemas).await,
        "suite": instances::report(&bytes, &suite).await,
    });
    println!("{report:#}");
    Ok(())
}

async fn compile(
    compiler: &Compiler,
    schema: &Value,
    strict: bool,
) -> Result<Arc<Grammar>, String> {
    let schema = schema.clone();
    let source = GrammarSource::JsonSchema { schema, strict };
    compiler
        .compile(source)
        .await
        .map_err(|error| error.to_string())
}

/// How often each schema is compiled for its time. The best counts: it leaves out what others on the machine took.
const REPEATS: usize = 5;

/// Milliseconds to compile, and of masks along one random generation of each schema. Compilation is given in time of the
/// processor too, which what else runs on the machine changes little: the best of all repetitions of this process's
/// threads, of which no other works meanwhile.
async fn times(tokens: &Tokens, schemas: &[Value]) -> Outcome<Value> {
    let limits = CompilerLimits {
        cache_bytes: 0,
        ..CompilerLimits::default()
    };
    let compiler = Compiler::new(tokens.vocabulary.clone(), limits);
    let mut random = StdRng::seed_from_u64(1);
    let (mut compiled, mut first, mut masks) = (Vec::new(), Vec::new(), Vec::new());
    let mut processor: Vec<(f64, &Value)> = Vec::new();
    for entry in schemas {
        let (mut best, mut best_processor) = (f64::INFINITY, f64::INFINITY);
        for _ in 0..REPEATS {
            let (start, start_processor) = (Instant::now(), processor_ms()?);
            let _ = compile(&compiler, &entry["schema"], false).await;
            best = best.min(start.elapsed().as_secs_f64() * 1e3);
            best_processor = best_processor.min(processor_ms()? - start_processor);
        }
        compiled.push(best);
        processor.push((best_processor, entry));
        let grammar = compile(&compiler, &entry["schema"], false).await;
        let Ok(grammar) = grammar else { continue };
        let start = Instant::now();
        let mut matcher = grammar.matcher();
        matcher.mask()?;
        first.push(start.elapsed().as_secs_f64() * 1e3);
        generate(&grammar, tokens, &mut random, 200, |elapsed| {
            masks.push(elapsed.as_secs_f64() * 1e3);
        });
    }
    Ok(json!({
        "vocabulary": tokens.size(),
        "compile_ms": percentiles(compiled),
        "compile_processor_ms": percentiles(processor.iter().map(|(time, _)| *time).collect()),
        "slowest": slowest(processor),
        "first_mask_ms": percentiles(first),
        "mask_ms": percentiles(masks),
    }))
}

/// CPU time of all threads of this process so far.
fn processor_ms() -> Outcome<f64> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let ms = |time: TimeVal| time.num_microseconds() as f64 / 1e3;
    Ok(ms(usage.user_time()) + ms(usage.system_time()))
}

/// The schemas that take most CPU time to compile.
fn slowest(mut processor: Vec<(f64, &Value)>) -> Value {
    processor.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    let shown = |(time, entry): &(f64, &Value)| {
        let bytes = entry["schema"].to_string().len();
        json!({"name": entry["name"], "bytes": bytes, "ms": (time * 1e3).round() / 1e3})
    };
    processor.iter().take(12).map(shown).collect()
}

fn percentiles(mut values: Vec<f64>) -> Value {
    values.sort_by(f64::total_cmp);
    let at = |share: f64| {
        let index = (share * (values.len().saturating_sub(1)) as f64).round() as usize;
        values.get(index).map(|value| (value * 1e3).round() / 1e3)
    };
    json!({"count": values.len(), "p50": at(0.5), "p90": at(0.9), "p95": at(0.95), "p99": at(0.99), "p999": at(0.999), "max": at(1.0)})
}

/// How many schemas are accepted, with and without `strict`, and why the others are not.
async fn acceptance(tokens: &Tokens, schemas: &[Value]) -> Value {
    let compiler = Compiler::new(tokens.vocabulary.clone(), CompilerLimits::default());
    let (mut lenient, mut strict, mut refused) = (0, 0, Vec::new());
    for entry in schemas {
        lenient += usize::from(compile(&compiler, &entry["schema"], false).await.is_ok());
        match compile(&compiler, &entry["schema"], true).await {
            Ok(_) => strict += 1,
            Err(error) => refused.push(json!({"name": entry["name"], "error": error})),
        }
    }
    json!({
        "schemas": schemas.len(),
        "accepted": lenient,
        "accepted_strict": strict,
        "refused_strict": refused,
    })
}

/// Random generations of every schema that is accepted with `strict`, judged by `jsonschema`.
async fn validity(tokens: &Tokens, schemas: &[Value]) -> Value {
    let compiler = Compiler::new(tokens.vocabulary.clone(), CompilerLimits::default());
    let mut random = StdRng::seed_from_u64(2);
    let mut judged = Vec::new();
    let mut without_judge = Vec::new();
    for entry in schemas {
        let Ok(grammar) = compile(&compiler, &entry["schema"], true).await else {
            continue;
        };
        let options = jsonschema::options().should_validate_formats(true);
        match options.build(&entry["schema"]) {
            Ok(judge) => judged.push((&entry["name"], grammar, judge)),
            Err(error) => {
                without_judge.push(json!({"name": entry["name"], "error": error.to_string()}))
            }
        }
    }
    let (mut whole, mut length, mut beyond_doubles) = (0, 0, 0);
    let (mut failed, mut invalid) = (Vec::new(), Vec::new());
    for index in 0..GENERATIONS * 20 {
        if whole == GENERATIONS {
            break;
        }
        let (name, grammar, judge) = &judged[index % judged.len()];
        match generate(grammar, tokens, &mut random, 1000, |_| ()) {
            Ended::Length => length += 1,
            Ended::Error(error) => failed.push(json!({"name": name, "error": error})),
            Ended::Whole(text) => {
                whole += 1;
                let error = match serde_json::from_slice::<Value>(&text) {
                    Ok(mut value) => {
                        plain_zeros(&mut value);
                        judge.validate(&value).err().map(|error| error.to_string())
                    }
                    // JSON such as 1e999, which fits no double.
                    Err(error) if error.to_string().starts_with("number out of range") => {
                        beyond_doubles += 1;
                        None
                    }
                    Err(error) => Some(error.to_string()),
                };
                if let Some(error) = error {
                    let text = String::from_utf8_lossy(&text);
                    invalid.push(json!({"name": name, "text": text, "error": error}));
                }
            }
        }
    }
    json!({
        "whole": whole, "ended_by_length": length, "numbers_beyond_doubles": beyond_doubles, "failed": failed,
        "invalid_count": invalid.len(), "invalid": invalid, "schemas_without_judge": without_judge,
    })
}

/// The integer -0, which the library that reads JSON turns into a float.
fn plain_zeros(value: &mut Value) {
    match value {
        Value::Number(number) if number.as_f64() == Some(0.0) => *value = json!(0),
        Value::Array(items) => items.iter_mut().for_each(plain_zeros),
        Value::Object(entries) => entries.values_mut().for_each(plain_zeros),
        _ => {}
    }
}
