//! Images in server mode: what is sent, how often again, and how they are counted.

mod common;

use common::{Stub, StubConfig, images, stderr, stdout};

#[tokio::test]
async fn images_go_before_the_text_differ_and_are_counted() {
    let stub = Stub::start(StubConfig::default()).await;
    let folder = tempfile::tempdir().unwrap();
    let tokenizer = folder.path().join("tokenizer.json");
    std::fs::write(&tokenizer, common::tokenizer()).unwrap();
    let arguments = format!(
        "--no-tui --api openai-chat --requests 4 --input-length 9 --output-length 2 --turns 2 --images 2 \
         --tokenizer-path {}",
        tokenizer.display()
    );
    let (output, report) = stub
        .measured(&format!(
            "{arguments} --image-size 40x30 --image-format png"
        ))
        .await;
    assert!(output.status.success(), "{}", stderr(&output));
    let point = &report.points[0];
    // The second turn sends those of the first again.
    assert_eq!(point.rates["images_per_request"], 3.0);
    let per_request = point.rates["images_per_s"] / point.rates["requests_per_s"];
    assert!((per_request - 3.0).abs() < 1e-9);
    assert_eq!(report.settings["images"], "2 of 40x30 png, 0 came before");
    assert!(stdout(&output).contains("images/s"));

    // Two sessions and a warm-up, of two turns each.
    let bodies = stub.bodies();
    assert_eq!(bodies.len(), 6);
    let mut different = std::collections::HashSet::new();
    for body in &bodies {
        let message = body["messages"].as_array().unwrap().last().unwrap();
        assert_eq!(message["content"][2]["type"], "text");
        for file in images(message) {
            assert!(file.starts_with(b"\x89PNG\r\n\x1a\n"));
            assert_eq!(file[16..24], [0, 0, 0, 40, 0, 0, 0, 30], "width and height");
            different.insert(file);
        }
    }
    assert_eq!(different.len(), 12);
    let [first, second] = [&bodies[2], &bodies[3]].map(|body| &body["messages"][0]);
    assert_eq!(first, second, "the conversation keeps its images");
}

#[tokio::test]
async fn a_fraction_of_the_images_comes_again() {
    let stub = Stub::start(StubConfig::default()).await;
    let folder = tempfile::tempdir().unwrap();
    let tokenizer = folder.path().join("tokenizer.json");
    std::fs::write(&tokenizer, common::tokenizer()).unwrap();
    let output = stub
        .bench(&format!(
            "--no-tui --api openai-chat --requests 60 --warmup 0 --input-length 9 --output-length 2 --images 1 \
             --image-size 16x16 --image-repeat 0.8 --tokenizer-path {}",
            tokenizer.display()
        ))
        .await;
    assert!(output.status.success(), "{}", stderr(&output));
    let sent: Vec<Vec<u8>> = stub
        .bodies()
        .iter()
        .flat_map(|body| images(&body["messages"][0]))
        .collect();
    assert!(sent.iter().all(|file| file.starts_with(b"\xff\xd8\xff")));
    let different: std::collections::HashSet<&Vec<u8>> = sent.iter().collect();
    assert_eq!(sent.len(), 60);
    assert!((5..=25).contains(&different.len()), "{}", different.len());
    let texts: std::collections::HashSet<String> = stub
        .bodies()
        .iter()
        .map(|body| body["messages"][0]["content"][1]["text"].to_string())
        .collect();
    assert_eq!(texts.len(), 60, "the question differs");
}
