//! Files of images: within URLs, and within Markdown as TGI has them.

use text_generation_core::error::{InferError, ValidationError};
use text_generation_core::media::Vision;
use text_generation_core::types::{GivenImage, ImageFile};
use text_generation_images::{Detail, data_url, decode_base64};

use crate::body_files;
use crate::state::AppState;

/// The file of an image's URL, in which a mark of [`body_files`] may stand for base64, or where it is fetched from.
///
/// # Errors
/// `Validation` where it is neither data nor may be fetched, `Overloaded` where there is no memory for it.
pub fn file(path: &str, url: &str, vision: &Vision) -> Result<ImageFile, InferError> {
    let path = path.to_owned();
    let wrong = |error| ValidationError::ImageUrl {
        path: path.clone(),
        error,
    };
    let file = match data_url(url).map_err(wrong)? {
        Some(base64) => match body_files::file(base64) {
            Some(taken) => taken.map_err(wrong)?,
            None => {
                let file = decode_base64(base64, vision.limits().file.max_bytes);
                vision.hold(file.map_err(wrong)?)?
            }
        },
        None if vision.fetches() => return Ok(ImageFile::Url(url.to_owned())),
        None => return Err(ValidationError::ImageLink { path }.into()),
    };
    Ok(ImageFile::Bytes(file))
}

/// The prompt of a route of TGI. Where the model sees, Markdown images without a text, `![](data:...)`, are images.
///
/// # Errors
/// As those of [`of_markdown`].
pub fn of_inputs(
    state: &AppState,
    inputs: String,
) -> Result<(String, Vec<GivenImage>), InferError> {
    match state.infer.vision() {
        Some(vision) => of_markdown(inputs, vision),
        None => Ok((inputs, Vec::new())),
    }
}

/// The images of TGI's prompts, in Markdown without an alternative text, and the prompt with what stands for
/// one in the place of each. Other Markdown is text.
///
/// # Errors
/// `Validation` that says which image cannot be read.
fn of_markdown(inputs: String, vision: &Vision) -> Result<(String, Vec<GivenImage>), InferError> {
    const OPEN: &str = "![](";
    let mut images = Vec::new();
    let mut prompt = String::new();
    let mut rest = inputs.as_str();
    while let Some((before, behind)) = rest.split_once(OPEN) {
        let Some((url, after)) = behind.split_once(')') else {
            break;
        };
        prompt.push_str(before);
        rest = after;
        let is_image = ["data:", "http://", "https://"]
            .iter()
            .any(|scheme| url.starts_with(scheme));
        if !is_image {
            prompt.extend([OPEN, url, ")"]);
            continue;
        }
        prompt.push_str(&vision.whole_text(images.len()));
        let path = format!("inputs (image {})", images.len());
        let file = file(&path, url, vision)?;
        let detail = Detail::High;
        images.push(GivenImage { path, file, detail });
    }
    if images.is_empty() {
        return Ok((inputs, images));
    }
    prompt.push_str(rest);
    Ok((prompt, images))
}
