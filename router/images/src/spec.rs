//! How a model sees: from the size of a picture to views, rows and tokens, as data of the model's files.

mod geometry;
mod reading;

use serde_json::Value;

pub use self::geometry::Detail;
use self::geometry::Geometry;
use crate::error::{ImageError, SpecError};
use crate::resize::{Filter, Size, Squared, Window};

/// A part of a picture that the encoder gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    /// Sizes that the whole picture is resized to before, one after the other.
    pub before: Vec<Size>,
    /// The size that the whole picture is resized to.
    pub resized: Size,
    /// What of it is the view. Beyond the picture it is black.
    pub window: Window,
    /// The size that the window is resized to at last, where that is another one.
    pub last: Option<Size>,
    /// How the picture becomes square before it is resized for the first time, where it is made so.
    pub squared: Option<Squared>,
}

impl View {
    /// A part of the picture at size `resized`.
    fn part(resized: Size, window: Window) -> Self {
        Self {
            before: Vec::new(),
            resized,
            window,
            last: None,
            squared: None,
        }
    }

    /// The whole picture at size `resized`.
    fn whole(resized: Size) -> Self {
        Self::part(resized, Window::whole(resized))
    }

    /// What the encoder gets.
    pub fn size(&self) -> Size {
        self.last.unwrap_or(self.window.size)
    }
}

/// Tokens in place of the one placeholder of a picture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Segment {
    /// So many placeholders, each of which takes the next row of the encoder.
    Rows(u32),
    /// A special token, by its name.
    Token(&'static str),
    /// Text between special tokens, so that it merges with nothing.
    Text(&'static str),
    /// How many pictures the prompt has before this one, likewise.
    Number,
}

/// What becomes of a picture of one size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    pub views: Vec<View>,
    pub segments: Vec<Segment>,
    /// Rows and columns of the encoder's rows where they are a grid. Where tiles are cut out of one view, those of its
    /// patches that show the picture and no frame. Else `None`.
    pub grid: Option<Size>,
}

impl Plan {
    /// Rows of the encoder.
    pub fn rows(&self) -> u32 {
        let rows = self.segments.iter().map(|segment| match segment {
            Segment::Rows(count) => *count,
            Segment::Token(_) | Segment::Text(_) | Segment::Number => 0,
        });
        rows.sum()
    }

    /// Pixels of all views.
    pub fn pixels(&self) -> u64 {
        let pixels = self
            .views
            .iter()
            .map(|view| u64::from(view.size().height) * u64::from(view.size().width));
        pixels.sum()
    }
}

/// How a model sees.
#[derive(Debug, Clone, PartialEq)]
pub struct ImageSpec {
    /// The token that stands for each row of a picture.
    pub placeholder: &'static str,
    /// What the chat template writes for a picture.
    pub marker: &'static str,
    /// What stands in the prompt in its place: a text around one placeholder.
    pub before: &'static str,
    pub after: &'static str,
    /// What chat templates write before and after the marker, for prompts without a template that knows of pictures. `{}`
    /// in the first is the number of the picture in the prompt, from 1.
    pub around: (&'static str, &'static str),
    filter: Filter,
    geometry: Geometry,
    /// Where a prompt has several pictures, if that is something else.
    several: Option<Geometry>,
}

impl ImageSpec {
    /// Reads a model's `config.json` and its `preprocessor_config.json`, with `processor_config.json` where it has one.
    /// Newer models have what the second says in the third, as `image_processor`: then `preprocessor` is not looked at.
    /// `None` where the model is of no family whose pictures are prepared here.
    ///
    /// # Errors
    /// Where a key is missing, or has a value that is not served.
    pub fn read(
        config: &Value,
        preprocessor: &Value,
        processor: Option<&Value>,
    ) -> Result<Option<Self>, SpecError> {
        reading::Files::new(config, preprocessor, processor).spec()
    }

    /// # Errors
    /// [`ImageError::Aspect`] where the family takes no picture of this form.
    pub fn plan(&self, size: Size, detail: Detail) -> Result<Plan, ImageError> {
        self.geometry.plan(size, detail)
    }

    /// Names of all tokens that [`Segment::Token`] may have.
    pub fn tokens(&self) -> impl Iterator<Item = &'static str> {
        self.geometry.tokens().into_iter()
    }

    /// All texts that [`Segment::Text`] may have.
    pub fn texts(&self) -> impl Iterator<Item = &'static str> {
        self.geometry.texts().into_iter()
    }

    /// How each of several pictures of one prompt is seen, where that differs from a single one.
    pub fn of_several(&self) -> Option<Self> {
        let geometry = self.several.clone()?;
        Some(Self {
            geometry,
            several: None,
            ..self.clone()
        })
    }

    pub(crate) fn filter(&self) -> Filter {
        self.filter
    }

    /// Everything that pixels and rows depend on beside the file, for [`KeySecret::item`](crate::KeySecret::item).
    pub fn settings(&self, detail: Detail) -> String {
        format!("{self:?} {detail:?}")
    }

    /// The most pixels and the most rows that a picture of at most `max_pixels` can make.
    pub fn largest(&self, max_pixels: u64) -> (u64, u32) {
        self.geometry.largest(max_pixels)
    }
}
