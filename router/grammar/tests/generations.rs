//! A model that chooses at random under masks writes nothing but what an independent validator calls valid.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a helper of tests may panic as they do"
)]

mod common;

use std::sync::Arc;

use common::{CALL, END, OTHER_END, compiler, entries};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::Value;
use text_generation_grammar::{Grammar, GrammarSource, Mask, MaskForm};

const LENGTH: usize = 400;
const RUNS: usize = 6;

fn schemas() -> Vec<Value> {
    serde_json::from_str(include_str!("schemas.json")).unwrap()
}

fn ids(mask: &Mask) -> Vec<u32> {
    match mask.form() {
        MaskForm::Only(ids) => ids.to_vec(),
        _ => (0..entries().len() as u32)
            .filter(|&id| mask.allows(id))
            .collect(),
    }
}

/// The ids of one random generation with their masks. Ends and closing characters are likelier than others.
fn generate(grammar: &Grammar, random: &mut StdRng) -> Vec<(u32, Mask)> {
    let mut matcher = grammar.matcher();
    let mut steps = Vec::new();
    while steps.len() < LENGTH && !matcher.is_finished() {
        let mask = matcher.mask().unwrap();
        let allowed = ids(&mask);
        let ends: Vec<u32> = allowed
            .iter()
            .copied()
            .filter(|&id| id >= END || [b'"', b'}', b']'].map(u32::from).contains(&id))
            .collect();
        let among = if !ends.is_empty() && random.random_bool(0.3) {
            &ends
        } else {
            &allowed
        };
        let id = among[random.random_range(0..among.len())];
        matcher.accept(id).unwrap();
        steps.push((id, mask));
    }
    if matcher.is_finished() && ![END, OTHER_END].contains(&steps[steps.len() - 1].0) {
        let mask = matcher.mask().unwrap();
        assert_eq!(mask.form(), MaskForm::Only(&[END, OTHER_END]));
        steps.push((END, mask));
    }
    steps
}

#[tokio::test]
async fn random_generations_are_valid() {
    let (compiler, entries) = (compiler(), entries());
    let mut random = StdRng::seed_from_u64(7);
    let mut whole = 0;
    for schema in schemas() {
        let judge = jsonschema::options()
            .should_validate_formats(true)
            .build(&schema)
            .unwrap();
        let source = GrammarSource::JsonSchema {
            schema: schema.clone(),
            strict: true,
        };
        let grammar = compiler.compile(source).await.unwrap();
        for _ in 0..RUNS {
            let steps = generate(&grammar, &mut random);
            let Some(((END | OTHER_END, _), steps)) = steps.split_last() else {
                continue;
            };
            let text: Vec<u8> = steps
                .iter()
                .flat_map(|(id, _)| entries[*id as usize].bytes.clone())
                .collect();
            let text = String::from_utf8(text).unwrap();
            let value: Value = serde_json::from_str(&text).unwrap();
            assert!(judge.is_valid(&value), "{text} under {schema}");
            whole += 1;
        }
    }
    assert!(whole > schemas().len() * RUNS / 2, "only {whole} ended");
}

/// The grammar of each schema, and one text under it.
async fn samples(seed: u64) -> Vec<(Arc<Grammar>, Vec<(u32, Mask)>)> {
    let compiler = compiler();
    let mut random = StdRng::seed_from_u64(seed);
    let mut samples = Vec::new();
    for schema in schemas() {
        let source = GrammarSource::JsonSchema {
            schema,
            strict: true,
        };
        let grammar = compiler.compile(source).await.unwrap();
        let steps = generate(&grammar, &mut random);
        samples.push((grammar, steps));
    }
    samples
}

#[tokio::test]
async fn a_replayed_sample_has_the_same_masks() {
    for (grammar, steps) in samples(8).await {
        // This one looks ahead too, and is asked for masks only in its second half.
        let mut replayed = grammar.matcher();
        for (index, (id, mask)) in steps.iter().enumerate() {
            replayed.ahead().forced();
            let rest: Vec<u32> = steps[index..].iter().map(|(id, _)| *id).collect();
            for mut wrong in [rest.clone(), rest] {
                wrong[0] = steps[index / 2].0;
                replayed.ahead().masks(mask, &wrong);
            }
            if index >= steps.len() / 2 {
                assert_eq!(replayed.mask().unwrap(), *mask);
            }
            replayed.accept(*id).unwrap();
        }
    }
}

#[tokio::test]
async fn masks_ahead_are_those_that_come() {
    for (grammar, steps) in samples(9).await {
        let mut matcher = grammar.matcher();
        for (index, (id, mask)) in steps.iter().enumerate() {
            let next = &steps[index..steps.len().min(index + 4)];
            let ids: Vec<u32> = next.iter().map(|(id, _)| *id).collect();
            let ahead = matcher.ahead().masks(mask, &ids);
            let expected: Vec<Mask> = steps[index + 1..]
                .iter()
                .take(ids.len())
                .map(|(_, mask)| mask.clone())
                .collect();
            // Behind the last token of the text there may be one more.
            assert!(ahead.starts_with(&expected), "{index} of {}", steps.len());
            // Behind a token that is not allowed nothing is.
            if let Some(forbidden) = (0..256).find(|&id| !mask.allows(id)) {
                assert_eq!(matcher.ahead().masks(mask, &[forbidden, ids[0]]), []);
            }
            matcher.accept(*id).unwrap();
        }
    }
}

#[tokio::test]
async fn forced_tokens_are_allowed_one_after_the_other() {
    let source = GrammarSource::Lark("start: \"{\\\"name\\\": \" /[0-9]/ <|call|>".into());
    let grammar = compiler().compile(source).await.unwrap();
    let mut matcher = grammar.matcher();
    let forced = matcher.ahead().forced();
    assert_eq!(forced, grammar.first_forced());
    assert!(forced.len() > 1, "{forced:?}");
    for id in forced {
        assert!(matcher.mask().unwrap().allows(id));
        matcher.accept(id).unwrap();
    }
    while !matcher.mask().unwrap().allows(b'7'.into()) {
        let id = ids(&matcher.mask().unwrap())[0];
        matcher.accept(id).unwrap();
    }
    matcher.accept(b'7'.into()).unwrap();
    assert_eq!(matcher.mask().unwrap().form(), MaskForm::Only(&[CALL]));
}

#[tokio::test]
async fn a_token_that_is_not_allowed_is_rejected() {
    let grammar = compiler()
        .compile(GrammarSource::Regex("ab".into()))
        .await
        .unwrap();
    for id in [u32::from(b'x'), END, 1_000_000] {
        let mut matcher = grammar.matcher();
        assert!(matcher.accept(id).is_err(), "{id}");
        assert!(matcher.mask().is_err(), "it stays at its error");
    }
    let mut matcher = grammar.matcher();
    for id in [b'a', b'b'] {
        assert!(!matcher.is_finished());
        matcher.accept(id.into()).unwrap();
    }
    assert!(matcher.is_finished());
    matcher.accept(OTHER_END).unwrap();
    assert!(matcher.is_finished());
}

#[tokio::test]
async fn masks_have_their_smallest_form_and_share_a_hash() {
    use std::collections::HashSet;
    let compiler = compiler();
    let first = |source| async {
        compiler
            .compile(source)
            .await
            .unwrap()
            .matcher()
            .mask()
            .unwrap()
    };
    let few = first(GrammarSource::Regex("[xy]".into())).await;
    assert_eq!(
        few.form(),
        MaskForm::Only(&[u32::from(b'x'), u32::from(b'y')])
    );
    let same = first(GrammarSource::Choice(vec!["x".into(), "y".into()])).await;
    assert_eq!(HashSet::from([few.clone(), same.clone()]).len(), 1);
    assert_ne!(few, first(GrammarSource::Regex("[xz]".into())).await);
    let any = first(GrammarSource::Lark("start: <[*]>".into())).await;
    assert_eq!(any.form(), MaskForm::All);
}
