//! Python classes of tokenisation: text to ids and back.

use std::path::PathBuf;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use text_generation_core::detokenize;
use text_generation_core::tokenize::{TextTokenizer, TokenizerError};

fn value_error(error: TokenizerError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

#[pyclass(frozen, module = "text_generation_router")]
#[derive(Debug)]
pub struct Tokenizer(TextTokenizer);

#[pymethods]
impl Tokenizer {
    #[new]
    fn new(py: Python<'_>, json: &str) -> PyResult<Self> {
        py.detach(|| TextTokenizer::from_json(json))
            .map(Self)
            .map_err(value_error)
    }

    #[staticmethod]
    fn from_file(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        py.detach(|| TextTokenizer::from_file(&path))
            .map(Self)
            .map_err(value_error)
    }

    #[pyo3(signature = (text, add_special_tokens = true))]
    fn encode(&self, py: Python<'_>, text: &str, add_special_tokens: bool) -> PyResult<Vec<u32>> {
        py.detach(|| self.0.encode(text, add_special_tokens))
            .map_err(value_error)
    }

    #[pyo3(signature = (ids, skip_special_tokens = true))]
    fn decode(&self, py: Python<'_>, ids: Vec<u32>, skip_special_tokens: bool) -> PyResult<String> {
        py.detach(|| self.0.decode(&ids, skip_special_tokens))
            .map_err(value_error)
    }

    fn detokenizer(&self) -> Detokenizer {
        Detokenizer(detokenize::Detokenizer::new(self.0.clone()))
    }
}

#[pyclass(module = "text_generation_router")]
#[derive(Debug)]
pub struct Detokenizer(detokenize::Detokenizer);

#[pymethods]
impl Detokenizer {
    fn push(&mut self, id: u32) -> String {
        self.0.push(id)
    }

    fn flush(&mut self) -> String {
        self.0.flush()
    }
}
