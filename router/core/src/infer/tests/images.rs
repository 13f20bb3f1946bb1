//! Images: answers depend on what is seen and on nothing else, whatever happens on the way.

use futures::future::join_all;
use serde_json::json;
use text_generation_client::types::{MediaCost, MediaInfo};
use text_generation_images::{Detail, ImageError, ImageSpec, Limits, Pool, PoolOptions};
use text_generation_mock_shard::MockRow;
use text_generation_proto::v1;

use super::*;
use crate::error::ValidationError;
use crate::media::VisionLimits;
use crate::tokenize::TextTokenizer;
use crate::types::{GivenImage, ImageFile};

/// Rows of one image.
const ROWS: u32 = 16;
const LAYERS: u32 = 4;
const PICTURES: [&[u8]; 5] = [
    include_bytes!("../../../../images/tests/oracle/pictures/rgb.png"),
    include_bytes!("../../../../images/tests/oracle/pictures/rgba.png"),
    include_bytes!("../../../../images/tests/oracle/pictures/420.jpg"),
    include_bytes!("../../../../images/tests/oracle/pictures/1.png"),
    include_bytes!("../../../../images/tests/oracle/pictures/one.gif"),
];

/// What a batcher knows of a mock with an encoder.
pub(super) fn media(config: &MockConfig) -> Option<MediaShards> {
    let info = config.media?;
    let cost = config.media_cost.clone().unwrap_or_default();
    Some(MediaShards {
        info: MediaInfo {
            token_id: info.token_id,
            layers: info.layers,
            whole_spans: info.whole_spans,
            axes: info.axes,
            packs: info.packs,
        },
        cost: MediaCost {
            pixels: cost.pixels,
            times_ms: cost.times_ms,
        },
        rows: config.media_rows,
        max_pixels: 1 << 20,
        longest: ROWS,
    })
}

/// Pictures become 8 x 8 pixels, and 16 rows.
pub(super) fn vision(tokenizer: &TextTokenizer, rows: u32) -> Vision {
    let config = json!({"model_type": "llava", "vision_config": {"patch_size": 2}});
    let preprocessor = json!({"size": {"shortest_edge": 8}, "crop_size": 8});
    let spec = ImageSpec::read(&config, &preprocessor, None).unwrap();
    let limits = VisionLimits {
        file: Limits::default(),
        max_images: Some(8),
        rows,
        memory: 1 << 20,
    };
    let options = PoolOptions {
        threads: 1,
        memory: 1 << 24,
    };
    Vision::new(spec.unwrap(), tokenizer, limits, Pool::new(options), None).unwrap()
}

/// Tokens follow from all that was seen and said before. There is room for so many images.
fn config(images: u32) -> MockConfig {
    let token_id = VOCAB;
    MockConfig {
        vocab_size: VOCAB + 1,
        media: Some(v1::MediaInfo {
            token_id,
            layers: LAYERS,
            whole_spans: false,
            axes: false,
            packs: false,
        }),
        media_rows: images * ROWS,
        tokens: Arc::new(|row: &MockRow| 40 + (row.content % 250) as u32),
        ..mock_config()
    }
}

/// A prompt that names these pictures, each between words.
fn asked(pictures: &[usize], words: &str) -> GenerateRequest {
    let inputs = format!("look {}{words}", "at <image> and ".repeat(pictures.len()));
    let given = pictures.iter().enumerate();
    let images = given.map(|(place, picture)| GivenImage {
        path: format!("image {place}"),
        file: ImageFile::Bytes(PICTURES[*picture].into()),
        detail: Detail::High,
    });
    GenerateRequest {
        images: images.collect(),
        ..request(&inputs, 6)
    }
}

fn ids(answer: &GenerateAnswer) -> Vec<u32> {
    answer.tokens.iter().map(|token| token.id).collect()
}

async fn alone(asked: GenerateRequest) -> Vec<u32> {
    let server = Server::start(config(8), batch_limits(), 8).await;
    ids(&server.infer.generate(asked).await.unwrap())
}

#[tokio::test]
async fn all_steps_of_a_search_see_what_was_encoded_once() {
    let server = Server::start(config(8), batch_limits(), 8).await;
    let greedy = alone(asked(&[0, 1], "tell")).await;
    let searched = with(asked(&[0, 1], "tell"), |p| p.beam_width = Some(3));
    let streams = server.infer.generate_group(group(searched, 3)).await;
    let answers = join_all(streams.unwrap().into_iter().map(GenerateStream::gather)).await;
    // The likeliest token is that of the best beam in every step.
    assert_eq!(ids(answers[0].as_ref().unwrap()), greedy);
    assert!(answers.iter().all(Result::is_ok));
    assert_eq!(server.mock.images(), (2, 2));
    server.assert_clean(8).await;
}

#[tokio::test]
async fn answers_follow_from_what_is_seen_and_its_order() {
    let server = Server::start(config(8), batch_limits(), 8).await;
    let mut seen = Vec::new();
    for pictures in [&[0][..], &[1], &[0, 1], &[1, 0], &[0, 0], &[]] {
        let answer = server.infer.generate(asked(pictures, "tell")).await;
        let answer = ids(&answer.unwrap());
        assert!(!seen.contains(&answer), "{pictures:?}");
        seen.push(answer);
    }
    // Two files were encoded, each once.
    assert_eq!(server.mock.images(), (2, 2));
    server.assert_clean(8).await;
}

#[tokio::test]
async fn an_image_that_was_seen_is_neither_brought_nor_computed_again() {
    let server = Server::start(config(8), batch_limits(), 8).await;
    let first = server.infer.generate(asked(&[2], "tell")).await.unwrap();
    let other = server.infer.generate(asked(&[2], "say it")).await.unwrap();
    assert_eq!(first.cached_tokens, 0);
    assert!(other.cached_tokens > ROWS, "{}", other.cached_tokens);
    assert_eq!(server.mock.images(), (1, 1));
    // Another image in its place shares what comes before it, and not one of its positions.
    let unlike = server.infer.generate(asked(&[3], "tell")).await.unwrap();
    let before = server.infer.generate(asked(&[], "tell")).await.unwrap();
    assert!(unlike.cached_tokens <= before.input_length);
    assert!(unlike.cached_tokens < ROWS);
    assert_eq!(ids(&unlike), alone(asked(&[3], "tell")).await);
    server.assert_clean(8).await;
}

#[tokio::test]
async fn all_get_what_they_get_alone_where_there_is_room_for_two_images_and_chunks_are_small() {
    let limits = BatchLimits {
        max_batch_prefill_tokens: 5,
        max_token_gap: Some(Duration::from_millis(2)),
        ..batch_limits()
    };
    let cost = StepCost::new(&[1, 64], &[1.0, 2.0], 0.0, 0.0, &[]);
    let slow = MockConfig {
        media_cost: Some(v1::MediaCost {
            pixels: vec![64],
            times_ms: vec![4.0],
        }),
        ..config(2)
    };
    let server = Server::costing(cost, slow, limits, 64).await;
    let prompts: [&[usize]; 8] = [&[0], &[1, 2], &[], &[3], &[2, 0], &[4, 4], &[], &[1, 3]];
    let answers = prompts.map(|pictures| server.infer.generate(asked(pictures, "tell")));
    let answers = within_a_minute(join_all(answers)).await;
    for (pictures, answer) in prompts.into_iter().zip(answers) {
        let expected = alone(asked(pictures, "tell")).await;
        assert_eq!(ids(&answer.unwrap()), expected, "{pictures:?}");
    }
    server.assert_clean(64).await;
}

#[tokio::test]
async fn what_cannot_be_seen_is_refused_before_it_waits() {
    let server = Server::start(config(2), batch_limits(), 8).await;
    let mut broken = asked(&[2], "tell");
    broken.images[0].file = ImageFile::Bytes(PICTURES[2][..200].into());
    let mut unknown = asked(&[2], "tell");
    unknown.images[0].file = ImageFile::Bytes((&b"hello"[..]).into());
    let mut link = asked(&[2], "tell");
    link.images[0].file = ImageFile::Url("https://example.org/a.png".to_owned());
    let mut more = asked(&[2], "tell <image>");
    more.images.truncate(1);
    let path = "image 0".to_owned();
    let file = |error| ValidationError::Image {
        path: path.clone(),
        error,
    };
    for (request, error) in [
        (broken, file(ImageError::Damaged("JPEG"))),
        (unknown, file(ImageError::Format)),
        (
            link,
            ValidationError::ImageLink {
                path: "image 0".to_owned(),
            },
        ),
        (
            more,
            ValidationError::ImageTokens {
                tokens: 2,
                images: 1,
            },
        ),
        (
            asked(&[0, 1, 2], "tell"),
            ValidationError::ImageRows { max: 32, given: 48 },
        ),
        (
            asked(&[0; 9], "tell"),
            ValidationError::Images { max: 8, given: 9 },
        ),
        (
            with(asked(&[0], "tell"), |parameters| {
                parameters.truncate = Some(4);
            }),
            ValidationError::ImageTruncated,
        ),
        (
            with(asked(&[0], "tell"), |parameters| {
                parameters.decoder_input_details = true;
            }),
            ValidationError::ImageLogprobs,
        ),
    ] {
        let refused = server.infer.generate(request).await.unwrap_err();
        assert_eq!(refused, InferError::Validation(error));
    }
    assert_eq!(server.mock.images(), (0, 0));
    server.infer.generate(asked(&[0], "tell")).await.unwrap();
    server.assert_clean(8).await;
}

#[tokio::test]
async fn who_leaves_leaves_nothing_behind() {
    let server = Server::start(config(2), batch_limits(), 8).await;
    server.mock.hold();
    let stays = server.streams([asked(&[0], "tell")]).await;
    let leaves = server
        .streams([asked(&[1], "tell"), asked(&[2], "tell")])
        .await;
    // The third comes too where the first one's request has been planned by then.
    until("two images came", || server.mock.images().0 >= 2).await;
    drop(leaves);
    server.mock.resume();
    let answers = join_all(stays.into_iter().map(GenerateStream::gather)).await;
    assert!(answers.into_iter().all(|answer| answer.is_ok()));
    // The room of those that have left is free.
    let next = server.infer.generate(asked(&[3, 4], "tell")).await.unwrap();
    assert_eq!(ids(&next), alone(asked(&[3, 4], "tell")).await);
    server.assert_clean(8).await;
}

#[tokio::test]
async fn an_image_that_the_shards_refuse_costs_its_request_alone() {
    let server = Server::start(config(4), batch_limits(), 8).await;
    server.mock.refuse_next_image();
    let refused = server.infer.generate(asked(&[0], "tell")).await;
    let error = refused.unwrap_err().to_string();
    assert!(error.contains("no memory is left for images"), "{error}");
    let answers = [0, 1].map(|picture| server.infer.generate(asked(&[picture], "tell")));
    for (picture, answer) in join_all(answers).await.into_iter().enumerate() {
        let expected = alone(asked(&[picture], "tell")).await;
        assert_eq!(ids(&answer.unwrap()), expected);
    }
    server.assert_clean(8).await;
}

/// Tokens of an image attend to each other, so it is computed in one chunk, whatever the limit of a step is.
#[tokio::test]
async fn chunks_do_not_end_within_an_image_that_is_computed_whole() {
    let mut whole = config(4);
    whole.media = whole.media.map(|media| v1::MediaInfo {
        whole_spans: true,
        ..media
    });
    for tokens in [2 * ROWS, 2 * ROWS + 5, 100] {
        let limits = BatchLimits {
            max_batch_prefill_tokens: tokens,
            ..batch_limits()
        };
        let server = Server::start(whole.clone(), limits, 8).await;
        let prompts: [&[usize]; 4] = [&[0, 1], &[2], &[1, 0], &[3, 4]];
        let answers = prompts.map(|pictures| server.infer.generate(asked(pictures, "tell")));
        let answers = within_a_minute(join_all(answers)).await;
        for (pictures, answer) in prompts.into_iter().zip(answers) {
            let expected = alone(asked(pictures, "tell")).await;
            assert_eq!(ids(&answer.unwrap()), expected, "{pictures:?} {tokens}");
        }
        let longest = server
            .mock
            .steps()
            .iter()
            .map(|step| step.chunk_tokens)
            .max();
        assert!(longest.unwrap() <= tokens, "{longest:?} of {tokens}");
        server.assert_clean(8).await;
    }
}

#[tokio::test]
async fn requests_go_on_where_they_were_when_the_shards_start_again() {
    let restarting = MockConfig {
        restarts: true,
        named: true,
        ..config(4)
    };
    let server = Server::start(restarting, batch_limits(), 8).await;
    for steps in 0..4 {
        server.mock.hold();
        let pictures = [steps, 4];
        let streams = server.streams([asked(&pictures, "tell")]).await;
        until("the images came", || server.mock.images().0 > 0).await;
        server.mock.release(steps);
        server.mock.kill();
        server.mock.resume();
        let answers = join_all(streams.into_iter().map(GenerateStream::gather));
        let answers = within_a_minute(answers).await;
        let expected = alone(asked(&pictures, "tell")).await;
        for answer in answers {
            let tokens = answer.unwrap().tokens;
            let tokens: Vec<u32> = tokens.iter().map(|token| token.id).collect();
            assert_eq!(tokens, expected);
        }
    }
    assert_eq!(server.mock.violations(), Vec::<String>::new());
}
