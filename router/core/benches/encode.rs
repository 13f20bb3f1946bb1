//! Benchmark of text to ids: this crate beside the library, which it replaces.
//!
//! `make bench-encode` prints JSON: medians for chats of about 4,200 tokens, other ones in each run, the two in turn;
//! they must agree. One tokenizer splits as Llama 3 does and has 32,000 tokens, trained here on Python sources and
//! documents of this repository, one normalises as Qwen's does, too, and one is the demo model's. Turns are paragraphs
//! of other documents, and of Rust sources.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use serde_json::{Value, json};
use text_generation_core::tokenize::TextTokenizer;
use tokenizers::decoders::byte_level::ByteLevel as ByteLevelDecoder;
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, SplitDelimiterBehavior, Tokenizer};

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// A chat ends with the turn that passes this.
const TOKENS: usize = 3900;
const TURN_TOKENS: usize = 200;
const RUNS: usize = 200;

type BenchResult<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> BenchResult<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let llama = train(
        &[
            texts(&root.join("server"), "py")?,
            texts(&root.join("docs"), "md")?,
            texts(&root.join("benchmark"), "py")?,
        ]
        .concat(),
    )?;
    let mut with_nfc: Value = serde_json::from_str(&llama)?;
    with_nfc["normalizer"] = json!({"type": "NFC"});
    let demo = fs::read_to_string(root.join("models/demo/tokenizer.json"))?;
    let prose = [texts(&root, "md")?, texts(&root.join("models"), "md")?].concat();
    let code = texts(&root.join("router"), "rs")?;
    let report = json!({
        "like_llama_3": compare(&llama, &prose, &code)?,
        "with_nfc": compare(&with_nfc.to_string(), &prose, &code)?,
        "demo_model": compare(&demo, &prose, &code)?,
    });
    println!("{report:#}");
    Ok(())
}

/// Medians of both, in milliseconds.
fn compare(json: &str, prose: &[String], code: &[String]) -> BenchResult<Value> {
    let library: Tokenizer = json.parse()?;
    let ours = TextTokenizer::from_json(json)?;
    let mut random = StdRng::seed_from_u64(1);
    let (mut lengths, mut theirs, mut own) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..RUNS {
        let chat = chat(&mut random, prose, code, |text| {
            Ok(ours.encode(text, false)?.len())
        })?;
        let started = Instant::now();
        let expected = library.encode_fast(chat.as_str(), false)?;
        theirs.push(started.elapsed());
        let started = Instant::now();
        let ids = ours.encode(&chat, false)?;
        own.push(started.elapsed());
        if ids != expected.get_ids() {
            return Err("the ids differ".into());
        }
        lengths.push(ids.len());
    }
    Ok(json!({
        "prompt_tokens": lengths.iter().sum::<usize>() / RUNS,
        "library_ms_p50": median(&mut theirs),
        "encode_ms_p50": median(&mut own),
    }))
}

fn median(times: &mut [Duration]) -> f64 {
    times.sort_unstable();
    (times[times.len() / 2].as_secs_f64() * 1e6).round() / 1e3
}

/// Turns of prose and of code until there are enough tokens.
fn chat(
    random: &mut StdRng,
    prose: &[String],
    code: &[String],
    count: impl Fn(&str) -> BenchResult<usize>,
) -> BenchResult<String> {
    let (mut chat, mut total) = (String::new(), 0);
    for (role, texts) in [("user", prose), ("assistant", code)].into_iter().cycle() {
        let mut turn = format!("<|im_start|>{role}\n");
        let mut length = 0;
        while length < TURN_TOKENS {
            let text = texts.choose(random).ok_or("no text")?;
            turn.push_str(text);
            turn.push_str("\n\n");
            length += count(text)?;
        }
        turn.push_str("<|im_end|>\n");
        chat.push_str(&turn);
        total += length;
        if total >= TOKENS {
            break;
        }
    }
    Ok(chat)
}

fn train(texts: &[String]) -> BenchResult<String> {
    let expression = SplitPattern::Regex(LLAMA3.to_owned());
    let split = Split::new(expression, SplitDelimiterBehavior::Isolated, false)?;
    let steps = vec![split.into(), ByteLevel::new(false, true, false).into()];
    let mut tokenizer = Tokenizer::new(BPE::builder().ignore_merges(true).build()?);
    tokenizer
        .with_pre_tokenizer(Some(Sequence::new(steps)))
        .with_decoder(Some(ByteLevelDecoder::default()));
    let specials = ["<|im_start|>", "<|im_end|>"].map(|text| AddedToken::from(text, true));
    let trainer = BpeTrainer::builder()
        .vocab_size(32_000)
        .show_progress(false)
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .special_tokens(specials.to_vec())
        .build();
    tokenizer.train(&mut TrainerWrapper::from(trainer), texts.iter())?;
    tokenizer.to_string(false)
}

/// The paragraphs of the files with this extension below `folder`; of `.md`, only of those in it.
fn texts(folder: &Path, extension: &str) -> BenchResult<Vec<String>> {
    let mut entries: Vec<PathBuf> = fs::read_dir(folder)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()?;
    entries.sort();
    let mut found = Vec::new();
    for path in entries {
        if path.is_dir() && extension != "md" {
            found.extend(texts(&path, extension)?);
        } else if path.extension().is_some_and(|of| of == extension) {
            found.extend(fs::read_to_string(path)?.split("\n\n").map(str::to_owned));
        }
    }
    Ok(found)
}
