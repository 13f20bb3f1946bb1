//! Shard mode against a mock group, which checks plans, rows and slots as real shards do.

#![allow(clippy::unwrap_used, reason = "a helper of tests may panic as they do")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{bench, report, stderr, stdout};
use text_generation_mock_shard::{MockConfig, MockShard, MockStep};

fn socket(mock: &MockShard) -> String {
    mock.path().display().to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_of_tgi_runs_the_grid() {
    for world_size in [1, 2] {
        let mock = MockShard::start(MockConfig {
            world_size,
            step_time: Arc::new(|step| match step.chunks {
                0 => Duration::from_millis(2),
                _ => Duration::ZERO,
            }),
            ..MockConfig::default()
        })
        .unwrap();
        let folder = tempfile::tempdir().unwrap();
        let json = folder.path().join("x.json");
        let output = bench(&format!(
            "--tokenizer-name some-model -b 1 -b 4 -s 10 -d 8 -r 2 -w 1 -m {} --no-tui --output-json {}",
            socket(&mock),
            json.display()
        ))
        .await;
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(mock.violations().is_empty(), "{:?}", mock.violations());
        assert_eq!((mock.rows(), mock.slots()), (0, 0));

        let report = report(&json);
        assert_eq!((report.mode.as_str(), report.points.len()), ("shard", 2));
        let point = &report.points[1];
        assert_eq!(
            (point.label.as_str(), point.completed),
            ("batch 4, 10 in, 8 out", 2)
        );
        // Seven tokens after that of the prefill, at least 2 ms each.
        assert!(point.latency_ms["decode_total"].min >= 14.0);
        assert!(point.rates["decode_tokens_per_s"] <= 4.0 / 0.002);
        assert!(stdout(&output).contains("Decode (token)"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grid_has_a_point_for_each_combination_and_one_new_token_is_enough() {
    let mock = MockShard::start(MockConfig::default()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let csv = folder.path().join("x.csv");
    let output = bench(&format!(
        "shard -b 1,2 -s 4,8 -d 1,3 -r 1 -m {} --no-tui --output-csv {}",
        socket(&mock),
        csv.display()
    ))
    .await;
    assert!(output.status.success(), "{}", stderr(&output));
    let text = std::fs::read_to_string(csv).unwrap();
    assert_eq!(text.matches("prefill_ms,p50").count(), 8);
    assert_eq!(text.matches("decode_token_ms,p50").count(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn prompts_are_computed_in_steps_of_the_tokens_that_are_asked_for() {
    let mock = MockShard::start(MockConfig::default()).unwrap();
    let output = bench(&format!(
        "shard -b 4 -s 10 -d 3 -r 1 -w 0 --max-batch-prefill-tokens 16 -m {} --no-tui",
        socket(&mock),
    ))
    .await;
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(mock.violations().is_empty(), "{:?}", mock.violations());
    let step = |chunks, chunk_tokens, decodes| MockStep {
        chunks,
        chunk_tokens,
        decodes,
        constrained: 0,
        layers: 0,
        width: 1,
        hints: 0,
    };
    let prompts = [step(2, 16, 0), step(3, 16, 0), step(1, 8, 0)];
    let decodes = [step(0, 0, 4), step(0, 0, 4)];
    assert_eq!(mock.steps(), [&prompts[..], &decodes[..]].concat());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_fails_is_reported_and_the_grid_goes_on() {
    let mock = MockShard::start(MockConfig::default()).unwrap();
    mock.fail_next_step("the device is out of memory");
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("x.json");
    let output = bench(&format!(
        "shard -b 1,2 -r 1 -w 0 -m {} --no-tui --output-json {}",
        socket(&mock),
        json.display()
    ))
    .await;
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("out of memory"));
    let points = report(&json).points;
    assert_eq!((points[0].failed, points[1].completed), (1, 1));
    assert_eq!(mock.rows(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_work_names_its_flag() {
    let mock = MockShard::start(MockConfig::default()).unwrap();
    let config = tempfile::tempdir().unwrap();
    for (arguments, part) in [
        ("-b 0", "--batch-size"),
        ("-s 0", "--sequence-length"),
        ("-d 0", "--decode-length"),
        ("-b 64 -s 1000", "KV slots"),
        ("--floor", "--bandwidth"),
        ("--floor --bandwidth 4 --matrix-rate 700", "--model-config"),
        (
            &format!(
                "--floor --bandwidth 4 --matrix-rate 700 --model-config {}",
                config.path().display()
            ),
            "config.json",
        ),
    ] {
        let output = bench(&format!("shard --no-tui {arguments} -m {}", socket(&mock))).await;
        assert!(!output.status.success(), "{arguments}");
        assert!(
            stderr(&output).contains(part),
            "{arguments}: {}",
            stderr(&output)
        );
    }
    assert!(mock.steps().is_empty());
}

#[tokio::test]
async fn no_shard_at_the_socket_says_how_to_start_one() {
    let output = bench("--no-tui -m /nowhere/shard-0").await;
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("text-generation-server serve"));
}
