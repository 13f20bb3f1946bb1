//! Times decoding and resizing on one thread: `cargo bench -p text-generation-images -- FILE HEIGHT WIDTH`.

use mimalloc::MiMalloc;
use text_generation_images::{Filter, Limits, Size, Window, decode, probe, resize};

/// That of the router: large pictures are new memory each time, which the allocator may have kept.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Work is done so often between two looks at the time, which the kernel counts in ticks for a thread at work.
const TIMES: u32 = 12;

/// Milliseconds of the thread on a processor so far, whatever else runs there (proc(5)).
fn cpu_ms() -> std::io::Result<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let nanoseconds = text.split(' ').next().and_then(|text| text.parse().ok());
    Ok(nanoseconds.unwrap_or(f64::NAN) / 1e6)
}

fn best(mut work: impl FnMut()) -> std::io::Result<f64> {
    let mut least = f64::INFINITY;
    for _ in 0..5 {
        let start = cpu_ms()?;
        (0..TIMES).for_each(|_| work());
        least = least.min((cpu_ms()? - start) / f64::from(TIMES));
    }
    Ok(least)
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
    })?;
    let resizing = best(|| {
        std::hint::black_box(resize(&image, to, Window::whole(to), Filter::Bicubic));
    })?;
    println!(
        "{} x {}: decode {decoding:.1} ms, resize {resizing:.1} ms",
        header.height, header.width
    );
    Ok(())
}
