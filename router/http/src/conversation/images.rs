//! Images in messages: their files leave the conversation, and the template gets what it can write in their place.

use serde_json::{Map, Value, json};
use text_generation_core::media::Vision;
use text_generation_core::types::GivenImage;
use text_generation_images::Detail;

use crate::error::{ApiError, refused};
use crate::image_files::file;
use crate::renderer::ImageParts;

/// Stands for an image in a text, until the template has written it: noncharacters of Unicode, which are in no text.
const PLACE: &str = "\u{fdd1}\u{fdd2}\u{fdd1}";
/// Where a part stands in the body of its API, if not at its place in the messages.
pub const PATH: &str = "path";

/// Takes the images out of messages.
///
/// # Errors
/// 422 that names the part that cannot be read.
pub fn take(
    messages: &mut [Value],
    vision: &Vision,
    parts: ImageParts,
) -> Result<Vec<GivenImage>, ApiError> {
    let mut images = Vec::new();
    for (index, message) in messages.iter_mut().enumerate() {
        let is_system = matches!(message["role"].as_str(), Some("system" | "developer"));
        let Some(Value::Array(content)) = message.get_mut("content") else {
            continue;
        };
        let before = images.len();
        for (place, part) in content.iter_mut().enumerate() {
            if part["type"] == "image" {
                return Err(refused(format_args!(
                    "`messages[{index}].content[{place}].type` is `image`; send `image_url`, with the image as a data URL"
                )));
            }
            if part["type"] != "image_url" {
                continue;
            }
            let given = part[PATH].as_str().map(str::to_owned);
            let path = given.unwrap_or_else(|| format!("messages[{index}].content[{place}]"));
            if is_system {
                return Err(refused(format_args!(
                    "`{path}` is an image in a system message; send it in a message of the user"
                )));
            }
            images.push(image(path, part, vision)?);
            *part = json!({"type": "image"});
        }
        if images.len() > before && parts == ImageParts::Before {
            let texts = std::mem::take(content);
            message["content"] = before_text(&texts);
        }
    }
    Ok(images)
}

/// Reads a part of chat completions: `{"type": "image_url", "image_url": {"url", "detail"}}`, or the URL alone.
fn image(path: String, part: &mut Value, vision: &Vision) -> Result<GivenImage, ApiError> {
    let given = part["image_url"].take();
    let (url, detail) = match &given {
        Value::Object(image) => (image.get("url"), image.get("detail")),
        url => (Some(url), None),
    };
    let url = url.and_then(Value::as_str);
    let url =
        url.ok_or_else(|| refused(format_args!("`{path}.image_url.url` must be a string")))?;
    Ok(GivenImage {
        detail: self::detail(&path, detail)?,
        file: file(&path, url, vision)?,
        path,
    })
}

fn detail(path: &str, given: Option<&Value>) -> Result<Detail, ApiError> {
    match given {
        None | Some(Value::Null) => Ok(Detail::High),
        Some(Value::String(name)) if name == "low" => Ok(Detail::Low),
        Some(Value::String(name)) if ["auto", "high", "original"].contains(&name.as_str()) => {
            Ok(Detail::High)
        }
        Some(_) => Err(refused(format_args!(
            "`{path}.image_url.detail` must be `auto`, `low`, `high` or `original`"
        ))),
    }
}

/// One text of a content with images, for a template of texts.
fn before_text(parts: &[Value]) -> Value {
    let images = parts.iter().filter(|part| part["type"] == "image");
    let mut text = format!("{PLACE}\n").repeat(images.count());
    let texts = parts.iter().filter_map(|part| part["text"].as_str());
    text.extend(texts);
    text.into()
}

/// The prompt with what stands for an image where the template has written the model's marker, or what [`take`] has put
/// in its place.
pub fn placed(prompt: String, vision: &Vision, parts: ImageParts) -> String {
    let (marker, text) = (vision.marker(), vision.text());
    match parts {
        ImageParts::Written if marker == text => prompt,
        ImageParts::Written => prompt.replace(marker, &text),
        ImageParts::Before => numbered(&prompt, vision),
    }
}

/// The prompt with images in their places. One that ends with a new line needs no other behind it.
fn numbered(prompt: &str, vision: &Vision) -> String {
    let mut parts = prompt.split(PLACE);
    let mut whole = parts.next().unwrap_or_default().to_owned();
    for (number, behind) in parts.enumerate() {
        let text = vision.whole_text(number);
        let behind = match text.ends_with('\n') {
            true => behind.strip_prefix('\n').unwrap_or(behind),
            false => behind,
        };
        whole.extend([text.as_str(), behind]);
    }
    whole
}

/// An image of another API as a part of chat completions; `path` is where it stands there.
pub fn part(path: &str, url: String, detail: Option<&Value>) -> Value {
    let mut image = Map::new();
    image.insert("url".to_owned(), url.into());
    if let Some(detail) = detail {
        image.insert("detail".to_owned(), detail.clone());
    }
    json!({"type": "image_url", "image_url": image, PATH: path})
}
