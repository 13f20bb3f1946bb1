//! Files of images in bodies: their base64 leaves the JSON before that is read, so that nobody makes strings of it.
//!
//! Where the model sees, a body with base64 goes to the threads that decode images. Where an image may stand, they make
//! bytes of its base64 and put a mark in its place; [`file`] gives the bytes to who reads the mark. What is not canonical
//! base64 stays where it is and is read with the rest of the body, as is what is short.

mod places;

use std::borrow::Cow;
use std::cell::RefCell;
use std::ops::Range;

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use memchr::memmem;
use text_generation_core::error::InferError;
use text_generation_core::media::Vision;
use text_generation_images::{DataUrlError, check_length};
use uuid::Uuid;

/// Begins a mark: a noncharacter of Unicode, which is in no base64.
const MARK: char = '\u{fdd3}';
/// Base64 that is shorter stays in the body, of which it is a small part.
const SHORTEST: usize = 1024;

/// One of these is in a body with base64, but for those of clients that write it otherwise; seldom in another.
const SIGNS: [&[u8]; 2] = [b";base64,", br#""base64""#];

/// A file, or why there is none.
type Taken = Result<Bytes, DataUrlError>;

tokio::task_local! {
    /// Files of the body of the request that is being handled.
    static FILES: RefCell<Files>;
}

/// The files of a body.
#[derive(Default)]
struct Files {
    /// What marks begin with, before the number of a file: a client cannot know it and write a mark itself.
    mark: String,
    files: Vec<Taken>,
}

/// A body without its files.
struct Parted {
    json: BytesMut,
    files: Files,
}

/// Handles a request that may have files.
pub async fn scope(request: Request, next: Next) -> Response {
    FILES.scope(RefCell::default(), next.run(request)).await
}

/// Takes the files out of a body. They count as memory of images from then on.
///
/// # Errors
/// Where other requests hold too much of that, or the server stops.
pub async fn take_out(body: BytesMut, vision: &Vision) -> Result<BytesMut, InferError> {
    // Others do not wait for images.
    if !SIGNS.iter().any(|sign| memmem::find(&body, sign).is_some()) {
        return Ok(body);
    }
    let of = vision.clone();
    let parted = vision.on_threads(move || Parted::new(body, &of)).await??;
    // Where nobody handles a request, nobody asks for its files.
    FILES.try_with(|files| files.replace(parted.files)).ok();
    Ok(parted.json)
}

/// The file for which `base64` stands, where it is a mark and no base64.
pub fn file(base64: &str) -> Option<Taken> {
    let base64 = base64.strip_prefix(MARK)?;
    let file = FILES.try_with(|files| {
        let files = files.borrow();
        let number: usize = base64.strip_prefix(&files.mark[..])?.parse().ok()?;
        files.files.get(number).cloned()
    });
    file.ok()?
}

/// A text as it was sent, with base64 again where it has marks.
///
/// # Errors
/// Of a file that is larger than one may be.
pub fn as_sent(text: &str) -> Result<Cow<'_, str>, DataUrlError> {
    let (mut sent, mut done) = (String::new(), 0);
    for (mark, file) in marks(text) {
        sent.push_str(&text[done..mark.start]);
        STANDARD.encode_string(file?, &mut sent);
        done = mark.end;
    }
    if done == 0 {
        return Ok(text.into());
    }
    sent.push_str(&text[done..]);
    Ok(sent.into())
}

/// How many characters a text had when it was sent.
pub fn characters(text: &str) -> usize {
    let marks = marks(text).filter_map(|(mark, file)| Some((mark, file.ok()?.len())));
    marks.fold(text.chars().count(), |characters, (mark, bytes)| {
        characters - text[mark].chars().count() + bytes.div_ceil(3) * 4
    })
}

/// The marks in a text, and the files for which they stand.
fn marks(text: &str) -> impl Iterator<Item = (Range<usize>, Taken)> {
    text.match_indices(MARK).filter_map(|(start, mark)| {
        let behind = start + mark.len();
        let length = text[behind..].bytes().take_while(u8::is_ascii_alphanumeric);
        let place = start..behind + length.count();
        Some((place.clone(), file(&text[place])?))
    })
}

impl Parted {
    fn new(body: BytesMut, vision: &Vision) -> Result<Self, InferError> {
        let mark = Uuid::new_v4().simple().to_string();
        let (mut json, mut files, mut done) = (BytesMut::new(), Vec::new(), 0);
        for place in places::base64(&body) {
            let Some(taken) = taken(&body[place.clone()], vision) else {
                continue;
            };
            let file = match taken {
                Ok(file) => Ok(vision.hold(file)?),
                Err(error) => Err(error),
            };
            json.extend_from_slice(&body[done..place.start]);
            json.extend_from_slice(format!("{MARK}{mark}{}", files.len()).as_bytes());
            files.push(file);
            done = place.end;
        }
        let json = match files.is_empty() {
            true => body,
            false => {
                json.extend_from_slice(&body[done..]);
                json
            }
        };
        let files = Files { mark, files };
        Ok(Self { json, files })
    }
}

/// The file that a string of JSON is, where that is canonical base64: then the same string can be made of it.
fn taken(string: &[u8], vision: &Vision) -> Option<Taken> {
    if string.len() < SHORTEST {
        return None;
    }
    let base64 = without_escapes(string)?;
    if let Err(error) = check_length(base64.len(), vision.limits().file.max_bytes) {
        return Some(Err(error));
    }
    STANDARD.decode(base64).ok().map(|file| Ok(file.into()))
}

/// Some libraries escape the slashes of a text.
fn without_escapes(string: &[u8]) -> Option<Cow<'_, [u8]>> {
    if memchr::memchr(b'\\', string).is_none() {
        return Some(string.into());
    }
    let mut text = Vec::with_capacity(string.len());
    let mut rest = string;
    while let Some(at) = memchr::memchr(b'\\', rest) {
        text.extend_from_slice(&rest[..at]);
        rest = rest[at + 1..].strip_prefix(b"/")?;
        text.push(b'/');
    }
    text.extend_from_slice(rest);
    Some(text.into())
}
