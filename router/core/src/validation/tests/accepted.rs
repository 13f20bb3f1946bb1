//! What a request that keeps the rules becomes.

use super::*;

#[tokio::test]
async fn values_at_the_limits_are_accepted() {
    let cases: Vec<Change> = vec![
        |p| p.best_of = Some(1),
        |p| (p.best_of, p.do_sample) = (Some(2), true),
        |p| (p.best_of, p.temperature) = (Some(2), Some(1.0)),
        |p| p.temperature = Some(f32::MIN_POSITIVE),
        |p| p.temperature = Some(f32::MAX),
        |p| p.frequency_penalty = Some(-2.0),
        |p| p.frequency_penalty = Some(2.0),
        |p| p.top_p = Some(0.999),
        |p| p.top_k = Some(i32::MAX),
        |p| p.stop = vec!["x".into(); 4],
        |p| p.top_n_tokens = Some(5),
        |p| p.truncate = Some(8),
        |p| p.seed = Some(u64::MAX),
        |p| p.max_new_tokens = Some(9),
        |p| p.presence_penalty = Some(-2.0),
        |p| p.min_p = Some(0.0),
        |p| p.min_p = Some(1.0),
        |p| p.min_new_tokens = Some(4),
        |p| p.logit_bias = Some([(0, -100.0), (999, 100.0)].into()),
    ];
    for change in cases {
        valid(change).await;
    }
    let exactly = validator(LIMITS)
        .validate(request(&tildes(8), parameters(|_| ())))
        .await
        .unwrap();
    assert_eq!(exactly.input_ids.len(), 8);
}

#[tokio::test]
async fn missing_parameters_are_neutral() {
    let request = valid(|p| p.max_new_tokens = None).await;
    assert_eq!(request.chooser, NextTokenChooser::GREEDY);
    // All that is left of the total.
    assert_eq!(
        request.stopping,
        StoppingCriteria {
            max_new_tokens: 9,
            ignore_eos_token: false,
            stop_token_ids: [].into(),
        }
    );
    assert_eq!((request.top_n_tokens, request.prefill_logprobs), (0, false));
    assert!(request.stop_sequences.is_empty());
}

#[tokio::test]
async fn given_parameters_reach_the_shard() {
    let request = valid(|p| {
        (p.temperature, p.top_k, p.top_p, p.typical_p) = (Some(0.5), Some(7), Some(0.9), Some(0.8));
        (p.repetition_penalty, p.frequency_penalty) = (Some(1.1), Some(-0.1));
        (p.seed, p.watermark, p.top_n_tokens) = (Some(3), true, Some(2));
        p.stop = vec!["x".into()];
    });
    let request = request.await;
    let given = NextTokenChooser {
        temperature: 0.5,
        top_k: 7,
        top_p: 0.9,
        typical_p: 0.8,
        do_sample: true,
        seed: 3,
        repetition_penalty: 1.1,
        frequency_penalty: -0.1,
        watermark: true,
        ..NextTokenChooser::GREEDY
    };
    assert_eq!(request.chooser, given);
    assert_eq!(
        (request.stopping.max_new_tokens, request.top_n_tokens),
        (4, 2)
    );
    assert_eq!(request.stop_sequences, ["x"]);
}

#[tokio::test]
async fn sampling_draws_a_seed_when_none_is_given() {
    let sampling: [Change; 6] = [
        |p| p.do_sample = true,
        |p| p.temperature = Some(0.5),
        |p| p.top_k = Some(1),
        |p| p.top_p = Some(0.5),
        |p| p.typical_p = Some(0.5),
        |p| p.min_p = Some(0.5),
    ];
    for change in sampling {
        let (first, second) = (valid(change).await.chooser, valid(change).await.chooser);
        assert!(first.do_sample && second.do_sample);
        assert_ne!(first.seed, second.seed);
    }
    let greedy: [Change; 3] = [
        |_| (),
        |p| p.temperature = Some(1.0),
        |p| p.min_p = Some(0.0),
    ];
    for change in greedy {
        let chooser = valid(change).await.chooser;
        assert_eq!((chooser.do_sample, chooser.seed), (false, 0));
    }
}

#[tokio::test]
async fn truncate_keeps_the_end_of_the_prompt() {
    let text = format!("{}!?#", tildes(20));
    let all = byte_level().encode(&text, true).unwrap();
    let truncated = validator(LIMITS)
        .validate(request(&text, parameters(|p| p.truncate = Some(3))))
        .await;
    assert_eq!(truncated.unwrap().input_ids[..], all[all.len() - 3..]);
    let longer = validator(LIMITS)
        .validate(request("!?#", parameters(|p| p.truncate = Some(8))))
        .await;
    assert_eq!(longer.unwrap().input_ids[..], all[all.len() - 3..]);
}

#[tokio::test]
async fn ids_are_kept_and_truncated_like_a_text() {
    let of = async |truncate| {
        let mut request = request("", parameters(|p| p.truncate = truncate));
        request.inputs = Inputs::Ids(vec![5, 6, 7]);
        let valid = validator(LIMITS).validate(request).await;
        valid.unwrap().input_ids.to_vec()
    };
    assert_eq!(of(None).await, [5, 6, 7]);
    assert_eq!(of(Some(2)).await, [6, 7]);
}

#[tokio::test]
async fn the_dialect_says_what_penalties_count() {
    let counted = async |dialect| {
        let request = GenerateRequest {
            dialect,
            ..request("~", parameters(|p| p.frequency_penalty = Some(1.0)))
        };
        let valid = validator(LIMITS).validate(request).await.unwrap();
        valid.chooser.penalize_output_only
    };
    assert!(counted(Dialect::OpenAi).await);
    assert!(!counted(Dialect::Tgi).await);
}

#[tokio::test]
async fn prompt_logprobs_need_request_and_server() {
    let asked = |server| async move {
        let limits = ValidationLimits {
            prefill_logprobs: server,
            ..LIMITS
        };
        let details = parameters(|p| p.decoder_input_details = true);
        validator(limits)
            .validate(request("~", details))
            .await
            .unwrap()
            .prefill_logprobs
    };
    assert!(asked(true).await);
    assert!(!asked(false).await);
    assert!(!valid(|_| ()).await.prefill_logprobs);
}

#[test]
fn bad_words_after_a_space_are_forbidden_with_however_many_tokens() {
    let pairs =
        |plain: &[u32], spaced: &[u32]| rules::bad_sequences(&[plain.into(), spaced.into()]);
    // One token with the space, and two without it.
    assert_eq!(pairs(&[7, 8], &[9]), [vec![7, 8], vec![9]]);
    assert_eq!(pairs(&[7], &[9]), [vec![7], vec![9]]);
    // A space of its own, which changes nothing.
    assert_eq!(pairs(&[7, 8], &[3, 7, 8]), [vec![7, 8]]);
    assert_eq!(pairs(&[7], &[7]), [vec![7]]);
}
