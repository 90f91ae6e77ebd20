//! Acks for Python: see `acks`. Which messages are out, only Python knows.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::acks::{Check, read_runs};
use crate::signatures::Signers;

/// Reads acks at the beginning of a chunk.
#[pyclass(module = "brokerset_native")]
struct AckReader {
    pieces: [Vec<u8>; 2],
    frame_size_max: usize,
    /// Who may ack; None where nobody is asked.
    signers: Option<Signers>,
}

#[pymethods]
impl AckReader {
    /// `pieces`: what an answer that all is well has before and behind its opaque. With `checks_signatures` it reads only
    /// what is signed by somebody of whom `allow` was called.
    #[new]
    fn new(pieces: Vec<Vec<u8>>, frame_size_max: usize, checks_signatures: bool) -> PyResult<Self> {
        let pieces = pieces
            .try_into()
            .map_err(|_| PyValueError::new_err("an answer to an ack has two pieces"))?;
        Ok(Self {
            pieces,
            frame_size_max,
            signers: checks_signatures.then(Signers::default),
        })
    }

    /// A user with this password, who is enabled, may ack as a group what is popped from a topic, from an address.
    fn allow(&mut self, name: &[u8], password: &[u8], group: &[u8], topic: &[u8], source: &[u8]) {
        if let Some(signers) = &mut self.signers {
            signers.allow_consumer(name, password, group, topic, source);
        }
    }

    /// Nobody may ack until `allow` is called again.
    fn forget_signers(&mut self) {
        if let Some(signers) = &mut self.signers {
            signers.forget_all();
        }
    }

    /// The acks at the beginning of `data`, at most `count_max`, neighbours of one check point together: topic, group,
    /// queue id and handle without its last field as text; bits of the messages from the start of the check point on;
    /// bytes up to there, how many, and answers that say that all is well. They came from the address `source`.
    fn read<'py>(
        &mut self,
        py: Python<'py>,
        data: &Bound<'py, PyBytes>,
        count_max: usize,
        source: &str,
    ) -> PyResult<Bound<'py, PyList>> {
        let check = self.signers.as_mut().map(|signers| Check {
            signers,
            source: source.as_bytes(),
        });
        let runs = read_runs(
            data.as_bytes(),
            count_max,
            self.frame_size_max,
            &self.pieces,
            check,
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
