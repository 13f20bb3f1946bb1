//! Server mode against a stub: what is sent, what is reported, and how failures end.

mod common;

use std::time::Duration;

use common::{Fault, Stub, StubConfig, bench, report, stderr, stdout};
use serde_json::Value;

const IDS: &str = "--no-tui --vocab-size 1000 --input-length 16 --output-length 8 --requests 6";

#[tokio::test]
async fn completions_send_ids_of_the_exact_length_and_count_tokens_from_usage() {
    let stub = Stub::start(StubConfig {
        tokens_per_event: 2,
        ..StubConfig::default()
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let csv = folder.path().join("x.csv");
    let (output, report) = stub
        .measured(&format!(
            "{IDS} --api openai --concurrency 2 --output-csv {}",
            csv.display()
        ))
        .await;
    assert!(output.status.success(), "{}", stderr(&output));

    let point = &report.points[0];
    assert_eq!(
        (report.model.as_str(), point.completed, point.failed),
        ("stub", 6, 0)
    );
    // Four events brought eight tokens.
    assert_eq!(point.rates["output_tokens_per_request"], 8.0);
    assert_eq!(point.rates["prompt_tokens_per_request"], 16.0);
    assert_eq!(point.latency_ms["itl"].count, 6 * 3);
    assert!(point.client.is_some());
    assert!(stdout(&output).contains("| TTFT"));
    assert!(
        std::fs::read_to_string(csv)
            .unwrap()
            .contains("ttft_ms,p99,")
    );

    let prompts: Vec<Value> = stub
        .bodies()
        .iter()
        .map(|body| body["prompt"].clone())
        .collect();
    assert_eq!(prompts.len(), 7, "six requests and a warm-up");
    assert!(
        prompts
            .iter()
            .all(|prompt| prompt.as_array().unwrap().len() == 16)
    );
    let different: std::collections::HashSet<String> =
        prompts.iter().map(Value::to_string).collect();
    assert_eq!(different.len(), 7);
    let body = &stub.bodies()[0];
    assert_eq!(
        (&body["ignore_eos"], &body["model"]),
        (&true.into(), &"stub".into())
    );
}

#[tokio::test]
async fn an_open_loop_measures_from_when_requests_were_due() {
    // One place, and requests that come faster than they are served: waiting counts.
    let stub = Stub::start(StubConfig {
        step: Duration::from_millis(10),
        ..StubConfig::default()
    })
    .await;
    let (output, report) = stub
        .measured(&format!(
            "{IDS} --request-rate 200 --arrival constant --max-in-flight 1 --slo ttft=60000,e2e=1"
        ))
        .await;
    assert!(output.status.success(), "{}", stderr(&output));
    let point = &report.points[0];
    assert_eq!(
        (point.label.as_str(), point.completed),
        ("200 req/s constant", 6)
    );
    // Each answer takes at least 8 x 10 ms, the sixth starts after five of them.
    assert!(point.latency_ms["e2e"].min >= 80.0);
    assert!(point.latency_ms["e2e"].max >= 6.0 * 80.0 - 6.0 * 5.0);
    assert_eq!(point.rates["slo_attainment"], 0.0);
}

#[tokio::test]
async fn each_load_of_a_list_is_a_point() {
    let stub = Stub::start(StubConfig::default()).await;
    let (output, report) = stub.measured(&format!("{IDS} --concurrency 1,3")).await;
    assert!(output.status.success(), "{}", stderr(&output));
    let labels: Vec<String> = report.points.into_iter().map(|point| point.label).collect();
    assert_eq!(labels, ["concurrency 1", "concurrency 3"]);
}

#[tokio::test]
async fn a_dataset_is_sent_as_it_is() {
    let stub = Stub::start(StubConfig::default()).await;
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data.jsonl");
    std::fs::write(
        &data,
        "{\"prompt\": \"one two\", \"output_length\": 3}\n{\"prompt\": \"three\", \"output_length\": 5}\n",
    )
    .unwrap();
    let output = stub
        .bench(&format!(
            "--no-tui --api tgi --warmup 0 --requests 2 --dataset {}",
            data.display()
        ))
        .await;
    assert!(output.status.success(), "{}", stderr(&output));
    let sent: Vec<_> = stub
        .bodies()
        .iter()
        .map(|body| {
            (
                body["inputs"].clone(),
                body["parameters"]["max_new_tokens"].clone(),
            )
        })
        .collect();
    assert_eq!(
        sent,
        [("one two".into(), 3.into()), ("three".into(), 5.into())]
    );
}

#[tokio::test]
async fn lines_of_a_dataset_are_sent_in_turn_and_their_repetition_is_noted() {
    let stub = Stub::start(StubConfig::default()).await;
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("d.jsonl");
    let lines = ["a", "b", "c", "d", "e"]
        .map(|prompt| format!("{{\"prompt\": \"{prompt}\", \"output_length\": 2}}\n"));
    std::fs::write(&data, lines.concat()).unwrap();
    let (output, report) = stub
        .measured(&format!(
            "--no-tui --api tgi --concurrency 1,1 --requests 2 --dataset {}",
            data.display()
        ))
        .await;
    assert!(output.status.success(), "{}", stderr(&output));
    let sent: Vec<Value> = stub
        .bodies()
        .iter()
        .map(|body| body["inputs"].clone())
        .collect();
    // The warm-up comes before its point, and takes the line after those of the point.
    assert_eq!(sent, ["c", "a", "b", "a", "d", "e"]);
    let notes = report.points.into_iter().map(|point| point.notes);
    let noted: Vec<bool> = notes
        .map(|notes| notes.iter().any(|note| note.contains("prefix cache")))
        .collect();
    assert_eq!(noted, [false, true]);
}

#[tokio::test]
async fn who_waits_for_a_place_does_not_start_after_the_time() {
    let stub = Stub::start(StubConfig {
        step: Duration::from_millis(50),
        ..StubConfig::default()
    })
    .await;
    let output = stub
        .bench(
            "--no-tui --vocab-size 1000 --input-length 4 --output-length 8 --warmup 0 --request-rate 100 \
             --arrival constant --requests 20 --duration 0.3 --max-in-flight 1",
        )
        .await;
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stub.bodies().len() <= 2, "one takes longer than the time");
}

#[tokio::test]
async fn a_server_that_dies_ends_the_benchmark_and_keeps_the_results() {
    let stub = Stub::start(StubConfig {
        fault: Fault::DieAt(5),
        ..StubConfig::default()
    })
    .await;
    let (output, report) = stub
        .measured("--no-tui --vocab-size 1000 --input-length 4 --output-length 8 --requests 500")
        .await;
    assert_eq!(output.status.code(), Some(1));
    let point = &report.points[0];
    assert_eq!(point.completed, 3, "the warm-up came before");
    assert!(point.failed >= 10 && point.failed < 500);
    assert!(
        point.errors.contains_key("connection_lost"),
        "{:?}",
        point.errors
    );
    assert!(point.notes[0].contains("went away"));
    assert!(stderr(&output).contains("requests failed"));
}

#[tokio::test]
async fn an_error_in_a_stream_is_counted_by_its_type() {
    for (api, kind) in [("openai", "server_error"), ("tgi", "generation")] {
        let stub = Stub::start(StubConfig {
            fault: Fault::ErrorAt(2),
            ..StubConfig::default()
        })
        .await;
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data.jsonl");
        std::fs::write(&data, "{\"prompt\": \"a\", \"output_length\": 4}\n").unwrap();
        let (output, report) = stub
            .measured(&format!(
                "--no-tui --api {api} --requests 4 --dataset {}",
                data.display()
            ))
            .await;
        assert_eq!(output.status.code(), Some(1));
        let point = &report.points[0];
        assert_eq!((point.completed, point.errors[kind].count), (3, 1), "{api}");
    }
}

#[tokio::test]
async fn a_server_that_refuses_or_cuts_its_streams_is_told_before_the_clock_starts() {
    for (fault, part) in [(Fault::Overloaded, "http_429"), (Fault::Cut, "stream_cut")] {
        let stub = Stub::start(StubConfig {
            fault,
            ..StubConfig::default()
        })
        .await;
        let output = stub.bench(IDS).await;
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains(part), "{}", stderr(&output));
    }
}

#[tokio::test]
async fn bad_flags_name_themselves() {
    let stub = Stub::start(StubConfig::default()).await;
    for (arguments, part) in [
        ("--vocab-size 1000 --input-length 0", "at least 1"),
        ("--vocab-size 1000 --output-length 0", "at least 1"),
        ("--vocab-size 1000 --concurrency 0", "--concurrency"),
        ("--vocab-size 1000 --request-rate 0", "--request-rate"),
        ("--vocab-size 1000 --requests 0", "--requests"),
        ("--vocab-size 1000 --duration 5", "--requests"),
        (
            "--vocab-size 1000 --requests 4 --duration 1e300",
            "--duration",
        ),
        ("--api tgi", "--tokenizer-path"),
        ("--api tgi --prompts ids", "--prompts"),
        ("--tokenizer-path /nowhere", "/nowhere"),
        ("--vocab-size 1000 --slo ttft", "for example"),
        (
            "--vocab-size 1000 --output-json /nowhere/x.json",
            "/nowhere/x.json",
        ),
        ("--vocab-size 1000 --floor", "--bandwidth"),
        ("--vocab-size 1000 --images 1", "--api openai-chat"),
        ("--api tgi --images 1", "--api openai-chat"),
        ("--api openai-chat --images 0", "--images"),
        ("--api openai-chat --image-size 5x5", "--images"),
        ("--api openai-chat --images 1 --image-size 5", "1024x768"),
        ("--api openai-chat --images 1 --image-format gif", "jpeg"),
        ("--api openai-chat --images 1 --image-repeat 2", "0 to 1"),
        ("--api openai-chat --images 1 --dataset x", "--dataset"),
    ] {
        let output = stub.bench(&format!("--no-tui {arguments}")).await;
        assert!(matches!(output.status.code(), Some(1 | 2)), "{arguments}");
        assert!(
            stderr(&output).contains(part),
            "{arguments}: {}",
            stderr(&output)
        );
    }
    assert!(stub.bodies().is_empty());
}

#[tokio::test]
async fn a_wrong_url_is_told_at_once() {
    for (url, part) in [
        (
            "http://127.0.0.1:1",
            "no server answers at http://127.0.0.1:1",
        ),
        ("127.0.0.1:8080", "http://"),
    ] {
        let output = bench(&format!("server --no-tui --vocab-size 1000 --url {url}")).await;
        assert!(!output.status.success());
        assert!(stderr(&output).contains(part), "{}", stderr(&output));
    }
}

#[tokio::test]
async fn a_chat_sends_the_whole_conversation_with_every_turn() {
    let stub = Stub::start(StubConfig::default()).await;
    let folder = tempfile::tempdir().unwrap();
    let tokenizer = folder.path().join("tokenizer.json");
    std::fs::write(&tokenizer, common::tokenizer()).unwrap();
    let output = stub
        .bench(&format!(
            "--no-tui --api openai-chat --turns 3 --requests 3 --warmup 0 --input-length 9 --turn-input-length 4 --output-length 2 --tokenizer-path {}",
            tokenizer.display()
        ))
        .await;
    assert!(output.status.success(), "{}", stderr(&output));
    let bodies = stub.bodies();
    let words = |turn: usize, message: usize| {
        let text = bodies[turn]["messages"][message]["content"]
            .as_str()
            .unwrap()
            .to_owned();
        text.split_whitespace().count()
    };
    let lengths: Vec<usize> = bodies
        .iter()
        .map(|body| body["messages"].as_array().unwrap().len())
        .collect();
    assert_eq!(lengths, [1, 3, 5]);
    assert_eq!((words(2, 0), words(2, 1), words(2, 4)), (9, 2, 4));
    assert_eq!(bodies[1]["messages"][0], bodies[2]["messages"][0]);
}

#[tokio::test]
async fn fractions_of_the_floor_and_a_plot_come_with_the_figures() {
    let stub = Stub::start(StubConfig::default()).await;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(
        folder.path().join("config.json"),
        r#"{"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 1000}"#,
    )
    .unwrap();
    let (json, plot) = (folder.path().join("x.json"), folder.path().join("x.svg"));
    let output = stub
        .bench(&format!(
            "{IDS} --floor --bandwidth 4.3 --matrix-rate 788 --model-config {} --output-json {} --output-plot {}",
            folder.path().display(),
            json.display(),
            plot.display()
        ))
        .await;
    assert!(output.status.success(), "{}", stderr(&output));
    let floor = &report(&json).points[0].floor;
    let figure = floor["ttft_p50_ms"];
    assert!(figure.floor > 0.0 && (figure.fraction - figure.floor / figure.measured).abs() < 1e-12);
    assert!(stdout(&output).contains("Of the floor"));
    assert!(std::fs::read_to_string(plot).unwrap().contains("<svg"));

    let output = bench(&format!("compare {0} {0}", json.display())).await;
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).contains("ttft_ms p50"));
}

#[tokio::test]
async fn a_reader_that_has_gone_costs_no_results() {
    let stub = Stub::start(StubConfig::default()).await;
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("x.json");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let arguments = format!("server --url {} {IDS}", stub.url);
    let ended = tokio::process::Command::new(env!("CARGO_BIN_EXE_text-generation-benchmark"))
        .args(arguments.split(' '))
        .arg("--output-json")
        .arg(&json)
        .stdout(writer)
        .status()
        .await
        .unwrap();
    assert!(ended.success(), "{ended}");
    assert_eq!(report(&json).points[0].completed, 6);
}

#[tokio::test]
async fn ctrl_c_keeps_the_results_of_finished_requests() {
    let stub = Stub::start(StubConfig {
        step: Duration::from_millis(5),
        ..StubConfig::default()
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("x.json");
    let child = tokio::process::Command::new(env!("CARGO_BIN_EXE_text-generation-benchmark"))
        .args([
            "server",
            "--no-tui",
            "--vocab-size",
            "1000",
            "--output-length",
            "4",
        ])
        .args([
            "--requests",
            "100000",
            "--input-length",
            "4",
            "--url",
            &stub.url,
        ])
        .arg("--output-json")
        .arg(&json)
        .stderr(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    while stub.bodies().len() < 5 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let pid = child.id().unwrap().to_string();
    let killed = tokio::process::Command::new("kill")
        .args(["-INT", &pid])
        .status()
        .await
        .unwrap();
    assert!(killed.success());
    let output = child.wait_with_output().await.unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert!(report(&json).points[0].completed >= 3);
    assert!(stderr(&output).contains("stopped"));
}
