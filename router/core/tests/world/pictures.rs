//! Worlds with images: answers depend on what is seen, whoever asks, pauses or is lost beside it.

use std::time::Duration;

use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::json;
use text_generation_client::types::{MediaCost, MediaInfo};
use text_generation_core::infer::MediaShards;
use text_generation_core::media::{Vision, VisionLimits};
use text_generation_core::tokenize::TextTokenizer;
use text_generation_core::types::{GivenImage, ImageFile};
use text_generation_images::{Detail, ImageSpec, Limits, Pool, PoolOptions};
use text_generation_proto::v1;

use super::chaos::{self, Chaos};
use super::clients::{self, Client};
use super::model::VOCAB;
use super::server::{Server, Setup, step_time};
use super::{Report, checks, in_model_time, live, patient, surprise, traffic};

/// Stands for an image in a prompt.
pub const IMAGE: u32 = VOCAB;

/// An image of one pixel, which the model sees as 8 x 8 of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Picture(u8);

impl Picture {
    pub const ROWS: u32 = 16;

    fn colour(self) -> [u8; 3] {
        [self.0, 255 - self.0, 7]
    }

    /// What the shards get.
    pub fn pixels(self) -> Vec<u8> {
        self.colour().repeat(64)
    }

    pub fn given(&self) -> GivenImage {
        let [red, green, blue] = self.colour();
        let mut file = b"GIF89a\x01\0\x01\0\x80\0\0".to_vec();
        file.extend([red, green, blue, 255, 255, 255]);
        file.extend(b",\0\0\0\0\x01\0\x01\0\0\x02\x02D\x01\0;");
        GivenImage {
            path: format!("picture {}", self.0),
            file: ImageFile::Bytes(Bytes::from(file)),
            detail: Detail::High,
        }
    }
}

/// The encoder of a world.
#[derive(Debug, Clone, Copy)]
pub struct Encoder {
    /// Of the media pool.
    pub rows: u32,
    pub layers: u32,
    /// What one takes, of an image.
    pub layer: Duration,
    /// An image is computed in one chunk.
    pub whole_spans: bool,
}

impl Encoder {
    /// Room for so many images.
    fn of(images: u32) -> Self {
        Self {
            rows: images * Picture::ROWS,
            layers: 4,
            layer: Duration::from_millis(5),
            whole_spans: false,
        }
    }

    pub fn mock(self) -> v1::MediaInfo {
        v1::MediaInfo {
            token_id: IMAGE,
            layers: self.layers,
            whole_spans: self.whole_spans,
            axes: false,
            packs: true,
        }
    }

    pub fn mock_cost(self) -> v1::MediaCost {
        let MediaCost { pixels, times_ms } = self.cost();
        v1::MediaCost { pixels, times_ms }
    }

    fn cost(self) -> MediaCost {
        MediaCost {
            pixels: vec![64],
            times_ms: vec![(self.layer * self.layers).as_secs_f32() * 1e3],
        }
    }

    pub fn shards(self) -> MediaShards {
        MediaShards {
            info: MediaInfo {
                token_id: IMAGE,
                layers: self.layers,
                whole_spans: self.whole_spans,
                axes: false,
                packs: true,
            },
            cost: self.cost(),
            rows: self.rows,
            max_pixels: 64,
            longest: Picture::ROWS,
        }
    }

    pub fn vision(self, tokenizer: &TextTokenizer) -> Vision {
        let config = json!({"model_type": "llava", "vision_config": {"patch_size": 2}});
        let preprocessor = json!({"size": {"shortest_edge": 8}, "crop_size": 8});
        let spec = ImageSpec::read(&config, &preprocessor, None).unwrap();
        let limits = VisionLimits {
            file: Limits::default(),
            max_images: None,
            rows: self.rows,
            memory: 1 << 30,
        };
        // One after the other, so that a world follows from its seed.
        let pool = Pool::new(PoolOptions {
            threads: 1,
            memory: 1 << 24,
        });
        Vision::new(spec.unwrap(), tokenizer, limits, pool, None).unwrap()
    }
}

/// Puts one to three of six pictures into half of the prompts. Those that begin with the same ids begin with the same
/// picture.
fn show(random: &mut StdRng, clients: &mut [Client]) {
    for client in clients {
        if random.random_bool(0.5) {
            continue;
        }
        let task = &mut client.task;
        task.scored = false;
        let more = random.random_range(0..3);
        let mut places = vec![1];
        task.pictures = vec![Picture(task.prompt[0] as u8 % 6)];
        for _ in 0..more {
            places.push(random.random_range(1..=task.prompt.len()));
            task.pictures.push(Picture(random.random_range(0..6)));
        }
        places.sort_unstable();
        for place in places.into_iter().rev() {
            task.prompt.insert(place, IMAGE);
        }
    }
}

/// Of the clients of a world, whose limits let everything in.
fn random_world(seed: u64, count: usize, faults: usize) -> (Report, usize) {
    let mut random = StdRng::seed_from_u64(seed);
    let ranks = random.random_range(1..=2);
    let mut setup = traffic::setup(&mut random, ranks);
    let limits = &mut setup.limits;
    limits.max_batch_total_tokens += 3 * Picture::ROWS;
    let whole_spans = random.random_bool(0.3) && limits.prefill_chunking;
    limits.max_batch_prefill_tokens = match limits.prefill_chunking {
        true => limits.max_batch_prefill_tokens.max(2 * Picture::ROWS),
        false => limits.max_batch_prefill_tokens + 3 * Picture::ROWS,
    };
    setup.encoder = Some(Encoder {
        whole_spans,
        layer: Duration::from_millis(random.random_range(0..40)),
        ..Encoder::of(random.random_range(3..10))
    });
    let per_second = random.random_range(0.5..6.0);
    let mut clients = traffic::clients(&mut random, count, per_second);
    show(&mut random, &mut clients);
    let shown = clients
        .iter()
        .map(|client| client.task.pictures.len())
        .sum();
    let within = clients.last().map_or(Duration::ZERO, |last| last.at) + Duration::from_secs(20);
    let chaos = chaos::random(&mut random, faults, within, ranks);
    (in_model_time(seed, live(&setup, clients, chaos)), shown)
}

#[test]
fn any_traffic_with_images_gets_what_each_request_gets_alone() {
    for seed in 500..504 {
        let (report, shown) = random_world(seed, 30, 0);
        assert_eq!(report.failed(), 0);
        // Some came again while they were in the pool, or the cache had what they are part of.
        assert!(
            (1..shown).contains(&report.encoded),
            "{} of {shown}",
            report.encoded
        );
    }
}

#[test]
fn whatever_goes_wrong_images_are_seen_again() {
    let reports: Vec<Report> = (600..606).map(|seed| random_world(seed, 24, 5).0).collect();
    let all = |count: fn(&Report) -> usize| reports.iter().map(count).sum::<usize>();
    assert!(all(|report| report.happened.len()) > 5);
    assert!(all(|report| report.starts) > 6);
    assert!(all(Report::finished) > 100);
}

#[test]
fn requests_with_images_that_pause_see_them_again() {
    let mut random = StdRng::seed_from_u64(700);
    let mut setup = Setup::spacious();
    setup.limits.max_batch_total_tokens = 1_500;
    setup.encoder = Some(Encoder::of(4));
    let (mut clients, mut longer) = surprise(&mut random);
    show(&mut random, &mut longer);
    clients.append(&mut longer);
    let report = in_model_time(700, live(&setup, clients, Chaos::new()));
    assert!(report.admitted > report.outcomes.len());
    assert_eq!(report.finished(), report.outcomes.len());
}

/// The encoder of one image takes longer than a stream may wait.
#[test]
fn streams_keep_the_gap_that_they_are_promised_beside_images() {
    let longest_gap = |max_token_gap| {
        let mut random = StdRng::seed_from_u64(800);
        let mut setup = Setup::spacious();
        setup.limits.max_token_gap = max_token_gap;
        setup.encoder = Some(Encoder {
            layers: 24,
            layer: Duration::from_millis(10),
            ..Encoder::of(12)
        });
        let mut clients = patient(&mut random, 60, 4.0);
        show(&mut random, &mut clients);
        let report = in_model_time(800, live(&setup, clients, Chaos::new()));
        assert_eq!(report.finished(), report.outcomes.len());
        checks::longest_gap(&report.outcomes)
    };
    // The smallest chunk beside all rows, and a layer, fit.
    let promised = step_time(32 + 32) * 21 / 20 + Duration::from_millis(10);
    let timers = Duration::from_millis(2);
    let kept = longest_gap(Some(promised));
    assert!(kept <= promised + timers, "{kept:?}, not {promised:?}");
    assert!(longest_gap(None) > Duration::from_millis(240));
}

/// Whoever shows the same picture in the same place finds all of it computed, and elsewhere finds its rows.
#[test]
fn a_picture_that_was_shown_before_is_encoded_once() {
    let mut setup = Setup::spacious();
    setup.encoder = Some(Encoder::of(4));
    let mut random = StdRng::seed_from_u64(900);
    let mut clients = patient(&mut random, 3, 1.0);
    for (index, client) in clients.iter_mut().enumerate() {
        client.at = Duration::from_secs(10 * index as u64);
        client.task.scored = false;
        client.task.prompt = vec![5; 40];
        client.task.pictures = vec![Picture(1)];
    }
    clients[0].task.prompt[30] = IMAGE;
    clients[1].task.prompt[30] = IMAGE;
    clients[1].task.prompt[35] = 6;
    clients[2].task.prompt[10] = IMAGE;
    let (outcomes, images, steps) = in_model_time(900, async {
        let server = Server::start(&setup);
        let outcomes = clients::serve(&server.infer, clients).await;
        (outcomes, server.mock.images(), server.mock.steps())
    });
    checks::answers(&outcomes, &[]);
    assert_eq!(images, (1, 1));
    let chunks: Vec<u32> = steps.iter().map(|step| step.chunk_tokens).collect();
    let chunks: Vec<u32> = chunks.into_iter().filter(|&tokens| tokens > 0).collect();
    assert_eq!(chunks, [55, 5, 45]);
}
