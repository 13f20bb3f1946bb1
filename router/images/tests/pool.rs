//! Preparation of pictures on the pool's threads.

#![allow(clippy::unwrap_used, reason = "a helper of tests may panic as they do")]

use std::fs;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use text_generation_images::{
    Detail, Filter, ImageError, ImageSpec, Limits, Pool, PoolOptions, Size, View, Window, decode,
    probe, resize,
};

const OPTIONS: PoolOptions = PoolOptions {
    threads: 2,
    memory: 1 << 20,
};

fn spec() -> ImageSpec {
    let config = json!({"model_type": "qwen2_vl"});
    let preprocessor = json!({"min_pixels": 784, "max_pixels": 100_000, "patch_size": 14});
    ImageSpec::read(&config, &preprocessor, None)
        .unwrap()
        .unwrap()
}

fn picture(name: &str) -> Bytes {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/oracle/pictures/");
    fs::read(format!("{folder}{name}")).unwrap().into()
}

#[tokio::test]
async fn views_are_prepared_and_damage_is_told_to_its_sender_alone() {
    let (pool, spec) = (Pool::new(OPTIONS), spec());
    let file = picture("420.jpg");
    let header = probe(&file, Limits::default()).unwrap();
    let size = Size {
        height: header.height,
        width: header.width,
    };
    let plan = spec.plan(size, Detail::High).unwrap();
    let broken = file.slice(..file.len() / 2);
    let good = pool.prepare(&spec, file.clone(), header, plan.clone());
    let bad = pool.prepare(&spec, broken, header, plan.clone());
    let (good, bad) = tokio::join!(good, bad);
    assert_eq!(bad, Err(ImageError::Damaged("JPEG")));
    let to = plan.views[0].resized;
    let image = decode(&file, &header).unwrap();
    let expected = resize(&image, to, Window::whole(to), Filter::Bicubic);
    assert_eq!(good.unwrap(), expected.pixels);
}

#[tokio::test]
async fn pictures_beyond_the_memory_wait_for_each_other_and_all_are_prepared() {
    let (pool, spec) = (Pool::new(OPTIONS), spec());
    let file = picture("rgb.png");
    let header = probe(&file, Limits::default()).unwrap();
    let size = Size {
        height: 10_000,
        width: 2_000,
    };
    // Each takes more than the whole budget, so it is decoded alone.
    let plan = spec.plan(size, Detail::High).unwrap();
    let prepared = (0..8).map(|_| pool.prepare(&spec, file.clone(), header, plan.clone()));
    let prepared: Vec<_> = prepared.collect();
    for each in prepared {
        assert_eq!(each.await.unwrap().len() as u64, plan.pixels() * 3);
    }
}

#[derive(Deserialize)]
struct Prepared {
    name: String,
    config: Value,
    preprocessor: Value,
    sizes: Vec<(u32, u32)>,
    rgb: String,
    #[serde(default)]
    several: bool,
}

#[tokio::test]
async fn views_are_those_of_the_processors_of_transformers() {
    let pool = Pool::new(OPTIONS);
    let table = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/oracle/views.json");
    let table: Vec<Prepared> = serde_json::from_slice(&fs::read(table).unwrap()).unwrap();
    for expected in table {
        let (config, file) = (&expected.config, picture(&expected.name));
        let spec = ImageSpec::read(config, &expected.preprocessor, None);
        let spec = spec.unwrap().unwrap();
        let spec = if expected.several {
            spec.of_several().unwrap()
        } else {
            spec
        };
        let header = probe(&file, Limits::default()).unwrap();
        let size = Size {
            height: header.height,
            width: header.width,
        };
        let plan = spec.plan(size, Detail::High).unwrap();
        let sizes = plan.views.iter().map(View::size);
        let sizes: Vec<_> = sizes.map(|size| (size.height, size.width)).collect();
        assert_eq!(sizes, expected.sizes, "{} {config}", expected.name);
        let pixels = pool.prepare(&spec, file, header, plan).await.unwrap();
        let digest = Sha256::digest(&pixels);
        let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(digest, expected.rgb, "{} {config}", expected.name);
    }
}
