//! Python class of the KV pool: allocation of slots.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use text_generation_core::kv_pool::alloc::{self, SlotRange};

#[pyclass(module = "text_generation_router")]
#[derive(Debug)]
pub struct SlotAllocator(alloc::SlotAllocator);

#[pymethods]
impl SlotAllocator {
    #[new]
    fn new(capacity: u32) -> Self {
        Self(alloc::SlotAllocator::new(capacity))
    }

    #[getter]
    fn capacity(&self) -> u32 {
        self.0.capacity()
    }

    #[getter]
    fn available(&self) -> u32 {
        self.0.available()
    }

    fn allocate(&mut self, count: u32) -> Option<Vec<(u32, u32)>> {
        let ranges = self.0.allocate(count)?;
        let pair = |range: &SlotRange| (range.start, range.length);
        Some(ranges.iter().map(pair).collect())
    }

    fn free(&mut self, ranges: Vec<(u32, u32)>) -> PyResult<()> {
        let range = |(start, length)| SlotRange { start, length };
        let ranges: Vec<SlotRange> = ranges.into_iter().map(range).collect();
        self.0
            .free(&ranges)
            .map_err(|error| PyValueError::new_err(error.to_string()))
    }
}
