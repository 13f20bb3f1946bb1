//! Times decoding and resizing on one thread: `cargo bench -p text-generation-images -- FILE HEIGHT WIDTH`.

use std::time::Instant;

use text_generation_images::{Filter, Limits, Size, Window, decode, probe, resize};

fn best(mut work: impl FnMut()) -> f64 {
    let mut least = f64::INFINITY;
    for _ in 0..7 {
        let start = Instant::now();
        work();
        least = least.min(start.elapsed().as_secs_f64() * 1e3);
    }
    least
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|each| each != "--bench")
        .collect();
    let [file, height, width] = arguments.as_slice() else {
        println!("arguments: FILE HEIGHT WIDTH");
        return Ok(());
    };
    let bytes = std::fs::read(file)?;
    let to = Size {
        height: height.parse()?,
        width: width.parse()?,
    };
    let header = probe(&bytes, Limits::default())?;
    let image = decode(&bytes, &header)?;
    let decoding = best(|| {
        std::hint::black_box(decode(&bytes, &header)).ok();
    });
    let resizing = best(|| {
        std::hint::black_box(resize(&image, to, Window::whole(to), Filter::Bicubic));
    });
    println!(
        "{} x {}: decode {decoding:.1} ms, resize {resizing:.1} ms",
        header.height, header.width
    );
    Ok(())
}
