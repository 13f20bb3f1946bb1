//! Against Pillow and transformers, whose results `oracle/make.py` wrote down.

#![allow(clippy::unwrap_used, reason = "a helper of tests may panic as they do")]

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use text_generation_images::{
    Detail, Filter, ImageError, ImageSpec, Limits, Plan, Rgb, Segment, Size, Window, decode, probe,
    resize,
};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracle")
}

fn rows<T: for<'a> Deserialize<'a>>(name: &str) -> Vec<T> {
    let text = fs::read_to_string(folder().join(name)).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn picture(name: &str) -> Vec<u8> {
    fs::read(folder().join("pictures").join(name)).unwrap()
}

fn decoded(file: &[u8]) -> Result<Rgb, ImageError> {
    let header = probe(file, Limits::default())?;
    let image = decode(file, &header)?;
    assert_eq!((image.height, image.width), (header.height, header.width));
    Ok(image)
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[derive(Deserialize)]
struct Picture {
    name: String,
    height: u32,
    width: u32,
    rgb: String,
}

/// Pillow's own WebP decoder interpolates colours of lossy files otherwise than the `image` crate.
const OTHERWISE: [&str; 1] = ["lossy.webp"];

#[test]
fn pictures_are_decoded_to_the_pixels_of_pillow() {
    let mut different = Vec::new();
    for expected in rows::<Picture>("pictures.json") {
        let image = decoded(&picture(&expected.name)).unwrap_or_else(|error| {
            panic!("{}: {error}", expected.name);
        });
        assert_eq!(
            (image.height, image.width),
            (expected.height, expected.width),
            "{}",
            expected.name
        );
        if hex(&image.pixels) != expected.rgb {
            different.push(expected.name);
        }
    }
    different.retain(|name| !OTHERWISE.contains(&name.as_str()));
    assert!(different.is_empty(), "{different:?}");
}

#[derive(Deserialize)]
struct Resized {
    filter: String,
    height: u32,
    width: u32,
    rgb: String,
}

#[test]
fn pictures_are_resized_to_the_pixels_of_pillow() {
    let image = decoded(&picture("rgb.png")).unwrap();
    for expected in rows::<Resized>("resizes.json") {
        let filter = match expected.filter.as_str() {
            "Bilinear" => Filter::Bilinear,
            "Bicubic" => Filter::Bicubic,
            _ => Filter::Lanczos,
        };
        let to = Size {
            height: expected.height,
            width: expected.width,
        };
        let whole = resize(&image, to, Window::whole(to), filter);
        assert_eq!(hex(&whole.pixels), expected.rgb, "{filter:?} {to:?}");
        // A window is the same pixels as that part of the whole.
        let window = Window {
            top: (to.height / 3).into(),
            left: (to.width / 4).into(),
            size: Size {
                height: to.height.div_ceil(2),
                width: to.width.div_ceil(2),
            },
        };
        let part = resize(&image, to, window, filter);
        let stride = to.width as usize * 3;
        let (left, width) = (window.left as usize * 3, window.size.width as usize * 3);
        let lines = whole.pixels.chunks_exact(stride);
        let lines = lines.skip(window.top as usize);
        let cut: Vec<u8> = lines
            .take(window.size.height as usize)
            .flat_map(|line| line[left..left + width].to_vec())
            .collect();
        assert_eq!(part.pixels, cut, "{filter:?} {to:?}");
    }
}

#[test]
fn a_window_beyond_a_picture_is_black() {
    let image = decoded(&picture("rgb.png")).unwrap();
    let size = Size {
        height: 7,
        width: 50,
    };
    let window = Window {
        top: 9,
        left: 9,
        size,
    };
    let black = resize(&image, size, window, Filter::Bicubic);
    assert_eq!(black.pixels, [0; 3 * 7 * 50]);
}

#[derive(Deserialize)]
struct Planned {
    config: Value,
    preprocessor: Value,
    first: Vec<String>,
    lines: String,
}

/// As in `oracle/make.py`.
fn sizes(count: usize) -> impl Iterator<Item = Size> {
    let mut state: u64 = 1;
    let mut side = move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let most = if (state >> 40) % 2 == 1 { 4000 } else { 300 };
        u32::try_from(1 + (state >> 33) % most).unwrap()
    };
    (0..count).map(move |_| Size {
        height: side(),
        width: side(),
    })
}

/// As in `oracle/plans.py`.
fn line(plan: &Plan) -> String {
    let views = plan.views.iter().map(|view| {
        let sizes = view.before.iter().chain([&view.resized]);
        let sizes = sizes.map(|size| format!("{}x{}", size.height, size.width));
        sizes.collect::<Vec<_>>().join("/")
    });
    let mut words: Vec<String> = views.collect();
    words.dedup();
    let tokens = plan.segments.iter().map(|segment| match segment {
        Segment::Rows(count) => *count,
        Segment::Token(_) | Segment::Text(_) | Segment::Number => 1,
    });
    words.push(tokens.sum::<u32>().to_string());
    words.join(" ")
}

#[test]
fn sizes_and_counts_are_those_of_transformers() {
    for expected in rows::<Planned>("plans.json") {
        let spec = ImageSpec::read(&expected.config, &expected.preprocessor, None);
        let spec = spec.unwrap().unwrap();
        let lines: Vec<String> = sizes(10_000)
            .map(|size| {
                let said = match spec.plan(size, Detail::High) {
                    Ok(plan) => line(&plan),
                    Err(_) => "refused".to_owned(),
                };
                format!("{} {} {said}\n", size.height, size.width)
            })
            .collect();
        for (line, first) in lines.iter().zip(&expected.first) {
            assert_eq!(line.trim_end(), first, "{}", expected.config);
        }
        assert_eq!(
            hex(lines.concat().as_bytes()),
            expected.lines,
            "{}",
            expected.config
        );
    }
}

#[test]
fn every_size_has_a_plan_or_is_refused_and_none_is_above_the_largest() {
    let sides = [
        1, 2, 3, 27, 28, 29, 199, 500, 4999, 5000, 30_000, 25_000_000,
    ];
    for expected in rows::<Planned>("plans.json") {
        let spec = ImageSpec::read(&expected.config, &expected.preprocessor, None);
        let spec = spec.unwrap().unwrap();
        let (most_pixels, most_rows) = spec.largest(25_000_000);
        for height in sides {
            for width in sides {
                if u64::from(height) * u64::from(width) > 25_000_000 {
                    continue;
                }
                for detail in [Detail::High, Detail::Low] {
                    let plan = match spec.plan(Size { height, width }, detail) {
                        Ok(plan) => plan,
                        Err(ImageError::Aspect { max, .. }) => {
                            assert!(height.max(width) > max * height.min(width));
                            continue;
                        }
                        Err(error) => panic!("{height} {width}: {error}"),
                    };
                    assert!(
                        (1..=most_pixels).contains(&plan.pixels()),
                        "{height} {width}"
                    );
                    assert!((1..=most_rows).contains(&plan.rows()), "{height} {width}");
                    for view in plan.views {
                        let (whole, part) = (view.resized, view.window);
                        let sides = [
                            (part.top, part.size.height, whole.height),
                            (part.left, part.size.width, whole.width),
                        ];
                        // Some of the picture is seen.
                        for (first, length, of) in sides {
                            assert!(first < of.into() && first + i64::from(length) > 0);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn what_is_no_picture_is_refused_in_our_words() {
    let limits = Limits::default();
    let refused = |file: &[u8]| probe(file, limits).unwrap_err();
    assert_eq!(refused(b""), ImageError::Empty);
    for file in [
        &b"<svg xmlns='http://www.w3.org/2000/svg'/>"[..],
        b"hello",
        b"BM\0\0\0\0",
        b"II*\0\x08\0\0\0",
        b"\0\0\0\x0cjP  \r\n\x87\n",
        b"RIFF\0\0\0\0WAVE",
    ] {
        assert_eq!(refused(file), ImageError::Format);
    }
    assert_eq!(refused(b"\xff\xd8\xff\xe0"), ImageError::Damaged("JPEG"));
    let bomb = picture("bomb.png");
    let (width, height, max) = (20_000, 20_000, 25_000_000);
    assert_eq!(refused(&bomb), ImageError::Pixels { width, height, max });
    let small = Limits {
        max_bytes: 100,
        ..limits
    };
    let error = probe(&picture("rgb.png"), small).unwrap_err();
    assert!(error.to_string().contains("--max-image-bytes"), "{error}");
}

#[test]
fn truncated_pictures_are_errors_wherever_they_end() {
    for name in [
        "420.jpg",
        "progressive.jpg",
        "cmyk.jpg",
        "rgb.png",
        "1.png",
        "one.gif",
        "lossy.webp",
        "lossless.webp",
    ] {
        let whole = picture(name);
        let complete = decoded(&whole).unwrap();
        for len in (0..whole.len()).step_by(7) {
            // The last bytes of some formats hold nothing of the picture.
            if let Ok(image) = decoded(&whole[..len]) {
                assert_eq!(image, complete, "{name} of {len} bytes");
                assert!(whole.len() - len < 24, "{name} of {len} bytes");
            }
        }
    }
}

#[test]
fn damaged_pictures_are_decoded_or_refused_and_nothing_else_happens() {
    let mut state: u64 = 7;
    for entry in rows::<Picture>("pictures.json") {
        let whole = picture(&entry.name);
        for _ in 0..200 {
            let mut file = whole.clone();
            for _ in 0..3 {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(99);
                let at = usize::try_from(state >> 33).unwrap() % file.len();
                file[at] = state.to_le_bytes()[3];
            }
            let limits = Limits {
                max_pixels: 100_000,
                ..Limits::default()
            };
            if let Ok(header) = probe(&file, limits) {
                decode(&file, &header).ok();
            }
        }
    }
}
