//! Files that somebody has damaged on purpose: whatever comes out, nothing but an error or a picture.
//!
//! `DAMAGE_ROUNDS=20000 cargo test -p text-generation-images --test damage -- --nocapture` looks longer, and says what it
//! saw.

#![allow(clippy::unwrap_used, reason = "a helper of tests may panic as they do")]

use std::fs;
use std::panic;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use text_generation_images::{Limits, decode, probe};

/// Of each picture. A damaged file is decoded in well under a millisecond.
const ROUNDS: usize = 300;
const LIMITS: Limits = Limits {
    max_bytes: 1 << 20,
    max_pixels: 1 << 20,
};

/// A linear congruential generator of 64 bits.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % end.max(1)
    }

    fn byte(&mut self) -> u8 {
        // Bytes that mean something in headers come often.
        const TELLING: [u8; 12] = [0, 1, 2, 3, 0x11, 0x22, 0x41, 0x7f, 0x80, 0xd9, 0xfe, 0xff];
        if self.below(2) == 0 {
            TELLING[self.below(TELLING.len())]
        } else {
            u8::try_from(self.below(256)).unwrap()
        }
    }
}

fn damage(file: &[u8], other: &[u8], dice: &mut Dice) -> Vec<u8> {
    let mut file = file.to_vec();
    for _ in 0..=dice.below(4) {
        let at = dice.below(file.len());
        // Headers decide the most.
        let at = if dice.below(3) == 0 { at } else { at % 700 };
        let at = at.min(file.len().saturating_sub(1));
        match dice.below(8) {
            0..=3 => file[at] = dice.byte(),
            4 => file[at] ^= 1 << dice.below(8),
            5 => {
                let end = (at + 1 + dice.below(40)).min(file.len());
                file.drain(at..end);
            }
            6 => {
                let from = dice.below(other.len());
                let end = (from + dice.below(200)).min(other.len());
                file.splice(at..at, other[from..end].iter().copied());
            }
            _ => file.truncate(at + 1),
        }
        if file.is_empty() {
            break;
        }
    }
    file
}

#[test]
fn damaged_files_are_errors_or_pictures() {
    let rounds = std::env::var("DAMAGE_ROUNDS").ok();
    let rounds = rounds.map_or(ROUNDS, |rounds| rounds.parse().unwrap());
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracle/pictures");
    let mut names: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    names.retain(|name| !name.ends_with("bomb.png"));
    names.sort();
    let files: Vec<Vec<u8>> = names.iter().map(|name| fs::read(name).unwrap()).collect();
    // The library makes errors of them; here they are counted.
    static PANICS: AtomicUsize = AtomicUsize::new(0);
    let hook = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if PANICS.fetch_add(1, Ordering::Relaxed) < 10 {
            hook(info);
        }
    }));
    let mut dice = Dice(std::process::id().into());
    if rounds == ROUNDS {
        dice = Dice(5);
    }
    let (mut decoded, mut refused, mut slowest) = (0, 0, (Duration::ZERO, Vec::new()));
    for _ in 0..rounds {
        for file in &files {
            let other = &files[dice.below(files.len())];
            let file = damage(file, other, &mut dice);
            let start = Instant::now();
            if let Ok(header) = probe(&file, LIMITS)
                && let Ok(image) = decode(&file, &header)
            {
                assert_eq!((image.height, image.width), (header.height, header.width));
                assert_eq!(
                    image.pixels.len(),
                    image.height as usize * image.width as usize * 3
                );
                decoded += 1;
            } else {
                refused += 1;
            }
            let taken = start.elapsed();
            if taken > slowest.0 {
                slowest = (taken, file);
            }
        }
    }
    let panics = PANICS.load(Ordering::Relaxed);
    println!(
        "{decoded} decoded, {refused} refused, {panics} panics, slowest {:?}",
        slowest.0
    );
    if let Ok(path) = std::env::var("DAMAGE_SLOWEST") {
        fs::write(path, slowest.1).unwrap();
    }
}
