//! Images of requests: how many, of which size and form, and which of them come again.

mod picture;

use std::fmt;
use std::str::FromStr;

use clap::{ValueEnum, value_parser};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rayon::prelude::*;

use super::api::{Api, DataUrl, Prompt};
use super::workload::Session;
use crate::error::{BenchmarkError, Result};

/// Prompts are the same with and without images.
const IMAGES_SEED: u64 = 0x1_4A6E;
/// What every format and browser takes.
const LONGEST_SIDE: u32 = 16_384;

/// Which images go with prompts.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Images")]
pub struct ImageArgs {
    /// Put so many images before the text of every message of a user (--api openai-chat).
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    pub images: Option<u32>,
    /// Width and height in pixels; 1024x1024 when unset.
    #[arg(long, value_name = "WxH", requires = "images")]
    pub image_size: Option<ImageSize>,
    /// How images are packed; jpeg when unset.
    #[arg(long, value_enum, requires = "images")]
    pub image_format: Option<ImageFormat>,
    /// Fraction of images that came before in the same point, which a server may remember; 0 when unset: all differ.
    #[arg(long, value_name = "FRACTION", requires = "images", value_parser = fraction)]
    pub image_repeat: Option<f64>,
}

/// Width and height in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageSize {
    pub width: u32,
    pub height: u32,
}

/// How an image is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ImageFormat {
    Jpeg,
    Png,
}

impl FromStr for ImageSize {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let side = |text: &str| {
            let side = text.parse().ok();
            side.filter(|side| (1..=LONGEST_SIDE).contains(side))
        };
        text.split_once('x')
            .and_then(|(width, height)| {
                Some(Self {
                    width: side(width)?,
                    height: side(height)?,
                })
            })
            .ok_or_else(|| {
                format!("write for example 1024x768, with sides from 1 to {LONGEST_SIDE}")
            })
    }
}

impl fmt::Display for ImageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.width, self.height)
    }
}

fn fraction(text: &str) -> std::result::Result<f64, String> {
    let fraction = text.parse().ok();
    fraction
        .filter(|fraction| (0.0..=1.0).contains(fraction))
        .ok_or_else(|| "must be a number from 0 to 1".to_owned())
}

impl ImageArgs {
    /// The images of all requests; `None` where they have none.
    pub fn images(&self, api: Api) -> Result<Option<Images>> {
        let Some(count) = self.images else {
            return Ok(None);
        };
        if api != Api::OpenaiChat {
            return Err(BenchmarkError::argument(
                "--images",
                "images are parts of messages: they need --api openai-chat",
            ));
        }
        Ok(Some(Images {
            count,
            size: self.image_size.unwrap_or(ImageSize {
                width: 1024,
                height: 1024,
            }),
            format: self.image_format.unwrap_or(ImageFormat::Jpeg),
            repeat: self.image_repeat.unwrap_or(0.0),
        }))
    }
}

/// Draws the images of requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Images {
    /// Of a message.
    count: u32,
    size: ImageSize,
    format: ImageFormat,
    /// Fraction of images that came before.
    repeat: f64,
}

impl fmt::Display for Images {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            count,
            size,
            format,
            repeat,
        } = self;
        let format = match format {
            ImageFormat::Jpeg => "jpeg",
            ImageFormat::Png => "png",
        };
        write!(f, "{count} of {size} {format}, {repeat} came before")
    }
}

impl Images {
    /// Puts images before the texts of all turns. All are drawn and packed here, before any clock starts; the same
    /// seed gives the same images.
    pub fn add_to(&self, sessions: &mut [Session], seed: u64) -> Result<()> {
        let mut rng = StdRng::seed_from_u64(seed ^ IMAGES_SEED);
        let turns: usize = sessions.iter().map(|session| session.turns.len()).sum();
        let chosen = self.choose(turns * self.count as usize, &mut rng);
        let different = chosen.iter().max().map_or(0, |last| last + 1);
        let seeds: Vec<u64> = (0..different).map(|_| rng.random()).collect();
        let drawn = seeds
            .into_par_iter()
            .map(|seed| picture::data_url(self.size, self.format, seed))
            .collect::<Result<Vec<DataUrl>>>()?;
        let turns = sessions.iter_mut().flat_map(|session| &mut session.turns);
        for (turn, chosen) in turns.zip(chosen.chunks(self.count as usize)) {
            if let Prompt::Text(text) = &mut turn.prompt {
                turn.prompt = Prompt::Seen {
                    text: std::mem::take(text),
                    images: chosen.iter().map(|index| drawn[*index].clone()).collect(),
                };
            }
        }
        Ok(())
    }

    /// Numbers of `count` images in the order of their requests: a new one is the next number, and one that came
    /// before may be any of those.
    fn choose(&self, count: usize, rng: &mut impl RngExt) -> Vec<usize> {
        let mut different = 0;
        (0..count)
            .map(|_| {
                if different > 0 && rng.random_bool(self.repeat) {
                    return rng.random_range(0..different);
                }
                different += 1;
                different - 1
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::time::Duration;

    use super::*;
    use crate::server::workload::Turn;

    fn images(repeat: f64) -> Images {
        Images {
            count: 2,
            size: "24x16".parse().unwrap(),
            format: ImageFormat::Png,
            repeat,
        }
    }

    fn drawn(images: Images, turns: usize, seed: u64) -> Vec<DataUrl> {
        let turn = Turn {
            prompt: Prompt::Text("a".to_owned()),
            output_tokens: 1,
            think: Duration::ZERO,
        };
        let mut sessions = vec![
            Session {
                turns: vec![turn; 2]
            };
            turns / 2
        ];
        images.add_to(&mut sessions, seed).unwrap();
        let turns = sessions.into_iter().flat_map(|session| session.turns);
        turns
            .flat_map(|turn| match turn.prompt {
                Prompt::Seen { text, images } if text == "a" => images,
                other => panic!("{other:?}"),
            })
            .collect()
    }

    #[test]
    fn every_turn_has_its_images_and_all_differ() {
        let one = drawn(images(0.0), 20, 1);
        assert_eq!((one.len(), &one), (40, &drawn(images(0.0), 20, 1)));
        let different: HashSet<DataUrl> =
            one.into_iter().chain(drawn(images(0.0), 20, 2)).collect();
        assert_eq!(different.len(), 80);
    }

    #[test]
    fn a_fraction_of_images_came_before() {
        let all = drawn(images(0.75), 200, 1);
        let different: HashSet<&DataUrl> = all.iter().collect();
        assert!((70..130).contains(&different.len()), "{}", different.len());
        assert_eq!(
            drawn(images(1.0), 4, 1)
                .iter()
                .collect::<HashSet<_>>()
                .len(),
            1
        );
    }

    #[test]
    fn sizes_are_read_and_written_alike() {
        for text in ["1024x768", "1x16384"] {
            assert_eq!(text.parse::<ImageSize>().unwrap().to_string(), text);
        }
        for text in ["1024", "0x5", "5x", "axb", "5x16385", "5x5x5", "-1x5"] {
            let error = text.parse::<ImageSize>().unwrap_err();
            assert!(error.contains("1024x768"), "{text}");
        }
    }
}
