//! Pulls: their headers as values, and answers in one piece. See `DESIGN.md`; Python decides in between.

use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::frames::frame_at;
use crate::memory::Memory;
use crate::pull_headers::{SignedPull, read_pull};
use crate::pull_units::{Run, UNIT_SIZE, find_records};
use crate::replies::put_decimal;
use crate::signatures::Signers;

/// Numbers of an answer, as `pull_pieces` has them: group flags, next, largest and smallest offset, topic
/// flags, opaque.
const NUMBERS: usize = 6;

/// Reads pulls and makes the answers to those that find messages.
#[pyclass(module = "brokerset_native")]
pub struct PullReader {
    pieces: Vec<Vec<u8>>,
    frame_size_max: usize,
    head: Vec<u8>,
    runs: Vec<Run>,
    /// Who may pull; None where nobody is asked.
    signers: Option<Signers>,
}

#[pymethods]
impl PullReader {
    /// `pieces` are the fixed texts of an answer, with a number between each two of them. With `checks_signatures` it
    /// reads only what is signed by somebody of whom `allow` was called.
    #[new]
    fn new(pieces: Vec<Vec<u8>>, frame_size_max: usize, checks_signatures: bool) -> PyResult<Self> {
        if pieces.len() != NUMBERS + 1 {
            return Err(PyValueError::new_err(
                "an answer to a pull has seven pieces",
            ));
        }
        Ok(Self {
            pieces,
            frame_size_max,
            head: Vec::new(),
            runs: Vec::new(),
            signers: checks_signatures.then(Signers::default),
        })
    }

    /// A user with this password, who is enabled, may read a topic as a group from an address.
    fn allow(&mut self, name: &[u8], password: &[u8], group: &[u8], topic: &[u8], source: &[u8]) {
        if let Some(signers) = &mut self.signers {
            signers.allow_consumer(name, password, group, topic, source);
        }
    }

    /// Nobody may pull until `allow` is called again.
    fn forget_signers(&mut self) {
        if let Some(signers) = &mut self.signers {
            signers.forget_all();
        }
    }

    /// The pull whose frame begins at `at`, with the end of the frame before its fields; None if it is declined, or not
    /// one that somebody may send from the address `source`.
    fn read<'py>(
        &mut self,
        py: Python<'py>,
        data: &Bound<'py, PyBytes>,
        at: usize,
        source: &str,
    ) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let Some(frame) = frame_at(data.as_bytes(), at, self.frame_size_max) else {
            return Ok(None);
        };
        let mut signed = SignedPull::default();
        let Some(pull) = read_pull(frame.header, &mut signed) else {
            return Ok(None);
        };
        if let Some(signers) = &mut self.signers {
            let (group, topic) = (pull.group.as_bytes(), pull.topic.as_bytes());
            if !frame.body.is_empty()
                || !signers.admit_consumer(source.as_bytes(), group, topic, &signed)
            {
                return Ok(None);
            }
        }
        let fields = [
            frame.end.into_bound_py_any(py)?,
            pull.opaque.into_bound_py_any(py)?,
            pull.group.into_bound_py_any(py)?,
            pull.topic.into_bound_py_any(py)?,
            pull.queue_id.into_bound_py_any(py)?,
            pull.queue_offset.into_bound_py_any(py)?,
            pull.messages_max.into_bound_py_any(py)?,
            pull.sys_flag.into_bound_py_any(py)?,
            pull.commit_offset.into_bound_py_any(py)?,
            pull.suspend_ms.into_bound_py_any(py)?,
            pull.bytes_max.into_bound_py_any(py)?,
            pull.subscription.into_bound_py_any(py)?,
            pull.subscription_version.into_bound_py_any(py)?,
        ];
        PyTuple::new(py, fields).map(Some)
    }

    /// The whole frame with the records of `count` units from position `begin` of `units`, and their bytes.
    ///
    /// `log` is the file of the log that has the offsets from `start` on, readable up to `end`. None if not all
    /// records are there, or they have more than `bytes_max`.
    #[allow(clippy::too_many_arguments)] // one call for each pull
    fn answer<'py>(
        &mut self,
        py: Python<'py>,
        units: &Bound<'py, PyAny>,
        begin: usize,
        count: usize,
        log: &Bound<'py, PyAny>,
        start: i64,
        end: i64,
        bytes_max: usize,
        numbers: [i64; NUMBERS],
    ) -> PyResult<Option<(Bound<'py, PyBytes>, usize)>> {
        let (units, log) = (Memory::of(units)?, Memory::of(log)?);
        let size = count.saturating_mul(UNIT_SIZE);
        let Some(units) = units.part(py, begin, size) else {
            return Ok(None);
        };
        let end = end.min(start.saturating_add(log.size() as i64));
        let Some(total) = find_records(units, start, end, bytes_max, &mut self.runs) else {
            return Ok(None);
        };
        let head = &mut self.head;
        head.clear();
        head.extend_from_slice(&[0; 8]);
        for (piece, number) in self.pieces.iter().zip(numbers) {
            head.extend_from_slice(piece);
            put_decimal(head, number);
        }
        head.extend_from_slice(&self.pieces[NUMBERS]);
        let header_size = head.len() - 8;
        let Ok(length) = u32::try_from(4 + header_size + total) else {
            return Ok(None);
        };
        head[..4].copy_from_slice(&length.to_be_bytes());
        head[4..8].copy_from_slice(&(header_size as u32).to_be_bytes());
        let mut pieces = Vec::with_capacity(1 + self.runs.len());
        pieces.push(head.as_slice());
        for (position, length) in &self.runs {
            let Some(part) = log.part(py, *position, *length) else {
                return Ok(None);
            };
            pieces.push(part);
        }
        Ok(Some((join(py, &pieces)?, total)))
    }
}

/// One object with the bytes of all pieces, each copied once.
fn join<'py>(py: Python<'py>, pieces: &[&[u8]]) -> PyResult<Bound<'py, PyBytes>> {
    let size: usize = pieces.iter().map(|piece| piece.len()).sum();
    // SAFETY: without a text to copy the call makes an object of `size` bytes, or sets an exception and returns
    // null. Nobody else has the object yet, so its bytes may be written: all of them are, one piece after the other.
    unsafe {
        let object = ffi::PyBytes_FromStringAndSize(std::ptr::null(), size as ffi::Py_ssize_t);
        let object = Bound::from_owned_ptr_or_err(py, object)?;
        let mut place = ffi::PyBytes_AsString(object.as_ptr()).cast::<u8>();
        for piece in pieces {
            std::ptr::copy_nonoverlapping(piece.as_ptr(), place, piece.len());
            place = place.add(piece.len());
        }
        Ok(object.cast_into_unchecked())
    }
}
