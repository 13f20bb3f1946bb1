//! The Python module `text_generation_router._router`: the command and the router's parts, for tests and simulation.
//! `python/text_generation_router/_router.pyi` says what each of them does.

mod chat;
mod pool;
mod scheduler;
mod text;

use std::path::Path;

use pyo3::prelude::*;

/// Runs the command with the interpreter lock released.
#[pyfunction]
#[pyo3(name = "main")]
fn run_main(py: Python<'_>, argv: Vec<String>, convert: Py<PyAny>) -> i32 {
    let convert = move |folder: &Path| {
        Python::attach(|py| -> PyResult<String> {
            let text = convert.call1(py, (folder.display().to_string(),))?;
            text.extract(py)
        })
        .map_err(|error| error.to_string())
    };
    py.detach(|| text_generation_http::main_from_args(argv, convert))
}

#[pymodule]
fn _router(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_function(wrap_pyfunction!(run_main, module)?)?;
    module.add_class::<chat::ChatTemplate>()?;
    module.add_class::<text::Tokenizer>()?;
    module.add_class::<text::Detokenizer>()?;
    module.add_class::<pool::SlotAllocator>()?;
    module.add_class::<scheduler::StepCost>()?;
    module.add_class::<scheduler::Queued>()?;
    module.add_class::<scheduler::Running>()?;
    module.add_class::<scheduler::Plan>()?;
    module.add_class::<scheduler::Scheduler>()
}
