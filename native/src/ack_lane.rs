//! Acks for Python: see `acks`. Which messages are out, only Python knows.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::acks::read_runs;

/// Reads acks at the beginning of a chunk.
#[pyclass(frozen, module = "brokerset_native")]
struct AckReader {
    pieces: [Vec<u8>; 2],
    frame_size_max: usize,
}

#[pymethods]
impl AckReader {
    /// `pieces`: what an answer that all is well has before and behind its opaque.
    #[new]
    fn new(pieces: Vec<Vec<u8>>, frame_size_max: usize) -> PyResult<Self> {
        let pieces = pieces
            .try_into()
            .map_err(|_| PyValueError::new_err("an answer to an ack has two pieces"))?;
        Ok(Self {
            pieces,
            frame_size_max,
        })
    }

    /// The acks at the beginning of `data`, at most `count_max`, neighbours of one check point together: topic, group,
    /// queue id and handle without its last field as text; bits of the messages from the start of the check point on;
    /// bytes up to there, how many, and answers that say that all is well.
    fn read<'py>(
        &self,
        py: Python<'py>,
        data: &Bound<'py, PyBytes>,
        count_max: usize,
    ) -> PyResult<Bound<'py, PyList>> {
        let runs = read_runs(
            data.as_bytes(),
            count_max,
            self.frame_size_max,
            &self.pieces,
        );
        let found = PyList::empty(py);
        for run in &runs {
            let names = run.names;
            found.append((
                (names.topic, names.group, names.queue_id, names.handle),
                run.distances,
                run.end,
                run.count,
                PyBytes::new(py, &run.replies),
            ))?;
        }
        Ok(found)
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<AckReader>()
}
