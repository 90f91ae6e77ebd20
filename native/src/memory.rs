//! The bytes of Python objects, read for as long as a call takes.

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;

/// The bytes of a mapped file.
pub struct Memory(PyBuffer<u8>);

impl Memory {
    /// Of an object in one piece.
    pub fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = PyBuffer::<u8>::get(object)?;
        if !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err("memory in one piece is needed"));
        }
        Ok(Self(buffer))
    }

    /// Bytes of all of it.
    pub fn size(&self) -> usize {
        self.0.len_bytes()
    }

    /// `size` bytes from `begin` on; None if they are not there.
    pub fn part(&self, _py: Python<'_>, begin: usize, size: usize) -> Option<&[u8]> {
        if begin.checked_add(size)? > self.0.len_bytes() {
            return None;
        }
        // SAFETY: `PyBuffer` keeps the memory where it is, of its size, for as long as it lives, and the part lies
        // in it. The interpreter is attached (`_py`), and no Python code runs while slices live, which all end
        // with the call: written units and records are changed by Python code alone.
        Some(unsafe { std::slice::from_raw_parts(self.0.buf_ptr().cast::<u8>().add(begin), size) })
    }
}
