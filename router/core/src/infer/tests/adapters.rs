//! Requests of adapters: which one the shards get to know, what is cached for it, and what a restart may not change.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use futures::future::join_all;
use text_generation_mock_shard::MockLoad;
use text_generation_proto::v1::LoadAdapterResponse;

use super::recovery::{ids, rest};
use super::*;
use crate::adapters::{AdapterToLoad, Place};
use crate::error::{AdapterError, ValidationError};

/// What shards find where: generations by source.
type Files = Arc<Mutex<BTreeMap<String, u64>>>;

/// Adapters of one page each; tokens tell the generation.
fn over(files: &Files) -> MockConfig {
    let files = files.clone();
    MockConfig {
        adapters: Arc::new(move |load: &MockLoad| {
            let source = &load.request.source;
            let found = files.lock().unwrap().get(source).copied();
            let missing = || ("adapter_not_found", format!("{source} is not a folder"));
            match found.ok_or_else(missing)? {
                0 => Err(("adapter_invalid", "it has half a pair".to_owned())),
                generation => Ok(LoadAdapterResponse {
                    generation,
                    rank: 8,
                    pages: 1,
                    bytes: 1 << 20,
                }),
            }
        }),
        tokens: Arc::new(|row| 10 + 20 * u32::try_from(row.adapter).unwrap() + row.generated),
        ..mock_config()
    }
}

fn source(name: &str) -> String {
    format!("/adapters/{name}")
}

fn files(of: &[(&str, u64)]) -> Files {
    let of = of
        .iter()
        .map(|&(name, generation)| (source(name), generation));
    Arc::new(Mutex::new(of.collect()))
}

fn named(name: &str) -> NamedAdapter {
    NamedAdapter {
        name: name.to_owned(),
        source: source(name),
    }
}

/// Two adapters, of generations 5 and 10. With `changed`, the shards find other files of the second one when they start
/// again.
pub(super) fn config(changed: bool) -> Setup {
    let stays = files(&[("pirate", 5), ("sums", 10)]);
    let config = over(&stays);
    let read = config.adapters.clone();
    let adapters = Arc::new(move |load: &MockLoad| {
        let found = read(load)?;
        let is_other = changed && load.life > 0 && found.generation == 10;
        let generation = if is_other { 11 } else { found.generation };
        Ok(LoadAdapterResponse {
            generation,
            ..found
        })
    });
    Setup {
        config: MockConfig { adapters, ..config },
        adapters: ["pirate", "sums"].map(named).into(),
        rules: AdapterRules::default(),
        answer_bytes: 0,
    }
}

/// Adapters in the folder `root` that come when they are asked for, on so many pages.
fn in_folder(root: &Path, generations: &[u64], pages: u32) -> (Files, Setup) {
    let root = root.canonicalize().unwrap();
    let known = generations.iter().map(|generation| {
        let folder = root.join(format!("a{generation}"));
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("adapter_config.json"), "{}").unwrap();
        (folder.display().to_string(), *generation)
    });
    let files: Files = Arc::new(Mutex::new(known.collect()));
    let setup = Setup {
        config: over(&files),
        adapters: Vec::new(),
        rules: AdapterRules {
            pages: Some(pages),
            host_bytes: 64 << 20,
            folder: Some(root),
            loading: true,
        },
        answer_bytes: 0,
    };
    (files, setup)
}

pub(super) fn asked(adapter: Option<&str>, tokens: u32) -> GenerateRequest {
    let prompt = "the same prompt of every one of them, long enough for the cache";
    let mut asked = request(prompt, tokens);
    asked.parameters.adapter_id = adapter.map(str::to_owned);
    asked
}

fn first_ids(answer: &GenerateAnswer) -> u32 {
    ids(answer)[0]
}

#[tokio::test]
async fn each_request_reaches_its_adapter_and_caches_for_it_alone() {
    let server = Server::start(config(false), batch_limits(), 64).await;
    let mut found = Vec::new();
    for adapter in [None, Some("pirate"), Some("sums"), Some("pirate"), Some("")] {
        let answer = server.infer.generate(asked(adapter, 4)).await.unwrap();
        found.push((first_ids(&answer), answer.cached_tokens > 0));
    }
    let base = (10, false);
    assert_eq!(
        found,
        [base, (110, false), (210, false), (110, true), (10, true)]
    );
    server.assert_clean(64).await;
}

#[tokio::test]
async fn an_unknown_adapter_is_refused_with_those_that_exist() {
    let server = Server::start(config(false), batch_limits(), 64).await;
    let error = server
        .infer
        .generate(asked(Some("parrot"), 4))
        .await
        .unwrap_err();
    let InferError::Validation(error) = error else {
        panic!("{error}");
    };
    assert_eq!(error.field(), Some("adapter_id"));
    assert_eq!(
        error.to_string(),
        "`adapter_id` names no adapter of this server, which has `pirate`, `sums`. Given: \"parrot\""
    );
    let none = Server::default().await;
    let error = none
        .infer
        .generate(asked(Some("pirate"), 4))
        .await
        .unwrap_err();
    assert!(matches!(
        error,
        InferError::Validation(ValidationError::NoAdapters)
    ));
}

#[tokio::test]
async fn adapters_outlive_the_shards() {
    let server = Server::start(config(false), batch_limits(), 64).await;
    server.mock.hold();
    let streams = server
        .streams([None, Some("sums")].map(|name| asked(name, 12)))
        .await;
    server.run_steps(3).await;
    server.mock.kill();
    server.until_recovered(1).await;
    server.mock.resume();
    let expected = [10, 210].map(|first| (first..first + 12).collect::<Vec<u32>>());
    assert_eq!(rest(streams).await, expected);
    server.assert_clean(64).await;
}

#[tokio::test]
async fn an_adapter_whose_files_have_changed_ends_its_requests_and_no_others() {
    let server = Server::start(config(true), batch_limits(), 64).await;
    server.mock.hold();
    let names = [None, Some("pirate"), Some("sums")];
    let streams = server.streams(names.map(|name| asked(name, 12))).await;
    server.run_steps(3).await;
    server.mock.kill();
    server.until_recovered(1).await;
    server.mock.resume();
    let answers = join_all(streams.into_iter().map(GenerateStream::gather)).await;
    let ended = answers
        .into_iter()
        .map(|answer| answer.map(|answer| first_ids(&answer)));
    let ended: Vec<_> = ended.collect();
    assert_eq!(ended[..2], [Ok(10), Ok(110)]);
    assert!(matches!(ended[2], Err(InferError::AdapterChanged)));
    // Nor does a later one get other weights than it asked for.
    let late = server.infer.generate(asked(Some("sums"), 4)).await;
    assert!(matches!(late, Err(InferError::AdapterChanged)));
    server.assert_clean(64).await;
}

fn to_load(path: &str, replaces: bool) -> AdapterToLoad {
    AdapterToLoad {
        name: "a".to_owned(),
        path: PathBuf::from(path),
        replaces,
        pinned: false,
    }
}

#[tokio::test]
async fn adapters_come_when_they_are_asked_for_and_share_few_pages() {
    let root = tempfile::tempdir().unwrap();
    let (_, setup) = in_folder(root.path(), &[1, 2, 3, 4, 5, 6], 2);
    let server = Server::start(setup, batch_limits(), 64).await;
    let names = (0..30).map(|n| 1 + n % 6);
    let streams = join_all(names.clone().map(|n| {
        let infer = server.infer.clone();
        async move { infer.generate(asked(Some(&format!("a{n}")), 5)).await }
    }));
    let found = within_a_minute(streams).await;
    let found = found.into_iter().map(|answer| first_ids(&answer.unwrap()));
    let expected = names.map(|n| 10 + 20 * n).collect::<Vec<u32>>();
    assert_eq!(found.collect::<Vec<u32>>(), expected);
    let loads = server.mock.loads();
    assert_eq!(loads.len(), 6, "each is read once: {loads:?}");
    assert!(loads.iter().all(|load| load.untrusted));
    server.assert_clean(64).await;
}

#[tokio::test]
async fn a_load_that_fails_costs_nobody_else_a_token() {
    let root = tempfile::tempdir().unwrap();
    let (files, setup) = in_folder(root.path(), &[1, 2], 2);
    for generation in files.lock().unwrap().values_mut().skip(1) {
        *generation = 0;
    }
    let server = Server::start(setup, batch_limits(), 64).await;
    server.mock.hold_loads();
    let running = server.infer.generate(asked(None, 20));
    let answer = within_a_minute(running).await.unwrap();
    assert_eq!(ids(&answer), (10..30).collect::<Vec<u32>>());
    server.mock.resume_loads();
    let error = server
        .infer
        .generate(asked(Some("a2"), 4))
        .await
        .unwrap_err();
    let InferError::Validation(ValidationError::Adapter(error)) = error else {
        panic!("{error}");
    };
    assert!(error.to_string().contains("half a pair"), "{error}");
    assert!(server.infer.generate(asked(Some("a1"), 4)).await.is_ok());
    server.assert_clean(64).await;
}

#[tokio::test]
async fn ranks_that_read_different_files_have_none_of_them() {
    let files = files(&[("a", 3)]);
    let config = over(&files);
    let read = config.adapters.clone();
    let setup = Setup {
        config: MockConfig {
            world_size: 2,
            adapters: Arc::new(move |load| {
                let generation = read(load)?.generation + load.rank as u64;
                Ok(LoadAdapterResponse {
                    generation,
                    ..read(load)?
                })
            }),
            ..config
        },
        ..in_folder(tempfile::tempdir().unwrap().path(), &[], 2).1
    };
    let server = Server::start(
        Setup {
            rules: AdapterRules {
                folder: None,
                ..setup.rules
            },
            ..setup
        },
        batch_limits(),
        64,
    )
    .await;
    let here = tempfile::tempdir().unwrap();
    files
        .lock()
        .unwrap()
        .insert(here.path().display().to_string(), 3);
    let path = here.path().display().to_string();
    let error = server.infer.adapters().load(to_load(&path, false)).await;
    assert!(
        matches!(error, Err(AdapterError::Invalid { .. })),
        "{error:?}"
    );
    until("nobody keeps it", || server.mock.adapters().is_empty()).await;
    server.assert_clean(64).await;
}

#[tokio::test]
async fn a_name_that_stands_for_other_contents_keeps_those_of_running_requests() {
    let root = tempfile::tempdir().unwrap();
    let (files, setup) = in_folder(root.path(), &[1], 4);
    let server = Server::start(setup, batch_limits(), 64).await;
    let adapters = server.infer.adapters().clone();
    adapters.load(to_load("a1", false)).await.unwrap();
    let again = adapters.load(to_load("a1", false)).await;
    assert!(matches!(again, Err(AdapterError::Exists { .. })));
    server.mock.hold();
    let old = server.streams([asked(Some("a"), 12)]).await;
    server.run_steps(4).await;
    for generation in files.lock().unwrap().values_mut() {
        *generation = 2;
    }
    adapters.load(to_load("a1", true)).await.unwrap();
    let new = server.streams([asked(Some("a"), 12)]).await;
    assert!(adapters.unload("a") && !adapters.unload("a"));
    server.mock.resume();
    let expected = [30, 50].map(|first| (first..first + 12).collect::<Vec<u32>>());
    assert_eq!(rest(old).await, expected[..1]);
    assert_eq!(rest(new).await, expected[1..]);
    let gone = server.infer.generate(asked(Some("a"), 4)).await;
    assert!(matches!(
        gone,
        Err(InferError::Validation(ValidationError::AdapterId { .. }))
    ));
    until("nobody keeps it", || server.mock.adapters().is_empty()).await;
    server.assert_clean(64).await;
}

#[tokio::test]
async fn a_stream_that_never_ends_its_turn_gives_its_pages_to_who_waits() {
    let root = tempfile::tempdir().unwrap();
    let (_, setup) = in_folder(root.path(), &[1, 2], 1);
    let setup = Setup {
        config: MockConfig {
            step_time: Arc::new(|_| Duration::from_millis(2)),
            ..setup.config
        },
        ..setup
    };
    let server = Server::start(setup, batch_limits(), 64).await;
    // Of those that follow each other without a gap, one always runs.
    let server = &server;
    let busy = async |delay: u64| {
        for _ in 0..40 {
            tokio::time::sleep(Duration::from_millis(delay)).await;
            server.infer.generate(asked(Some("a1"), 30)).await.unwrap();
        }
    };
    let other = async {
        until("the first runs", || server.infer.snapshot().running > 0).await;
        let began = tokio::time::Instant::now();
        let answer = server.infer.generate(asked(Some("a2"), 2)).await;
        (first_ids(&answer.unwrap()), began.elapsed())
    };
    let rest = async { tokio::join!(busy(0), busy(17), busy(31)) };
    let ((found, took), ..) = within_a_minute(async { tokio::join!(other, rest) }).await;
    assert_eq!(found, 50);
    assert!(took < Duration::from_secs(2), "{took:?}");
    server.assert_clean(64).await;
}

#[tokio::test]
async fn host_memory_is_bounded_and_what_left_it_is_read_again() {
    let root = tempfile::tempdir().unwrap();
    let (_, setup) = in_folder(root.path(), &[1, 2, 3, 4], 1);
    let setup = Setup {
        rules: AdapterRules {
            host_bytes: 2 << 20,
            ..setup.rules
        },
        ..setup
    };
    let server = Server::start(setup, batch_limits(), 64).await;
    for n in [1, 2, 3, 4, 1] {
        let answer = server
            .infer
            .generate(asked(Some(&format!("a{n}")), 3))
            .await;
        assert_eq!(first_ids(&answer.unwrap()), 10 + 20 * n);
        until("the bound is kept", || server.mock.adapters().len() <= 2).await;
    }
    assert_eq!(server.mock.loads().len(), 5);
    assert_eq!(server.mock.adapters(), [1, 4]);
    server.assert_clean(64).await;
}

#[tokio::test]
async fn pinned_adapters_are_on_the_device_before_anybody_asks() {
    let server = Server::start(config(false), batch_limits(), 64).await;
    let on_device = || {
        let listed = server.infer.adapters().list();
        let mut places = listed
            .iter()
            .map(|one| one.adapter.as_ref().unwrap().place());
        places.all(|place| place == Place::Device)
    };
    until("they are there", on_device).await;
    server.mock.kill();
    server.until_recovered(1).await;
    until("they are there again", on_device).await;
    assert_eq!(server.mock.copies().len(), 4);
    server.assert_clean(64).await;
}

/// A request whose adapter is read from a folder, and whose load waits in the shards.
async fn with_a_load_under_way(
    root: &Path,
) -> (
    Server,
    tokio::task::JoinHandle<Result<GenerateAnswer, InferError>>,
) {
    let (_, setup) = in_folder(root, &[1], 2);
    let server = Server::start(setup, batch_limits(), 64).await;
    server.mock.hold_loads();
    let infer = server.infer.clone();
    let request = tokio::spawn(async move { infer.generate(asked(Some("a1"), 3)).await });
    (server, request)
}

#[tokio::test]
async fn a_load_outlives_the_shards() {
    let root = tempfile::tempdir().unwrap();
    let (server, request) = with_a_load_under_way(root.path()).await;
    until("it is asked for", || server.mock.loads().len() == 1).await;
    server.mock.kill();
    server.until_recovered(1).await;
    server.mock.resume_loads();
    let answer = within_a_minute(request).await.unwrap().unwrap();
    assert_eq!(first_ids(&answer), 30);
    server.assert_clean(64).await;
}

#[tokio::test]
async fn a_load_under_which_the_shards_are_lost_twice_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let (server, request) = with_a_load_under_way(root.path()).await;
    for loss in 1..=2 {
        until("it is asked for", || server.mock.loads().len() == loss).await;
        server.mock.kill();
        server.until_recovered(loss as u64).await;
    }
    let refused = within_a_minute(request).await.unwrap().unwrap_err();
    assert!(refused.to_string().contains("lost again"), "{refused}");
    server.mock.resume_loads();
    assert_eq!(server.mock.loads().len(), 2);
    server.assert_clean(64).await;
}
