//! The fields that every append changes, shared with Python: see `brokerset_formats.cursors`.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};

/// Memory of a Python object that can be changed in place: a mapped file, or a view of one.
struct Memory {
    object: Py<PyAny>,
    buffer: PyBuffer<u8>,
}

/// A field for memory; empty until it is set.
#[derive(Default)]
pub struct Map(Option<Memory>);

impl Map {
    fn get(&self, py: Python<'_>) -> Py<PyAny> {
        match &self.0 {
            Some(memory) => memory.object.clone_ref(py),
            None => PyBytes::new(py, b"").into_any().unbind(),
        }
    }

    pub fn set(&mut self, object: &Bound<'_, PyAny>) -> PyResult<()> {
        let buffer = PyBuffer::<u8>::get(object)?;
        self.0 = None;
        if buffer.len_bytes() == 0 {
            return Ok(());
        }
        if buffer.readonly() || !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err(
                "memory in one piece that can be changed is needed",
            ));
        }
        self.0 = Some(Memory {
            object: object.clone().unbind(),
            buffer,
        });
        Ok(())
    }

    /// The bytes; none while nothing is set.
    pub fn bytes(&mut self, _py: Python<'_>) -> &mut [u8] {
        let Some(memory) = &self.0 else {
            return &mut [];
        };
        let (start, size) = (
            memory.buffer.buf_ptr().cast::<u8>(),
            memory.buffer.len_bytes(),
        );
        // SAFETY: `PyBuffer` keeps the memory where it is, of this size, for as long as it lives, and `set` made
        // sure that it is in one piece and may be changed. The interpreter is attached (`_py`) while the slice
        // lives, and no Python code runs meanwhile, so nobody else in this process reads or writes there: all
        // other access to these objects is by Python code. Threads that sync or fault in pages do so in the kernel.
        unsafe { std::slice::from_raw_parts_mut(start, size) }
    }
}

/// Where a commit log ends, and where the next record goes.
#[pyclass(subclass, module = "brokerset_native")]
pub struct LogCursor {
    #[pyo3(get, set)]
    pub limit: i64,
    #[pyo3(get, set)]
    pub map_start: i64,
    #[pyo3(get, set)]
    pub max_offset: i64,
    #[pyo3(get, set)]
    pub store_timestamp: i64,
    map: Map,
    file: Option<File>,
}

#[pymethods]
impl LogCursor {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs))]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> Self {
        let map = Map::default();
        Self {
            limit: -1,
            map_start: 0,
            max_offset: 0,
            store_timestamp: 0,
            map,
            file: None,
        }
    }

    #[getter]
    fn map(&self, py: Python<'_>) -> Py<PyAny> {
        self.map.get(py)
    }

    #[setter]
    fn set_map(&mut self, object: &Bound<'_, PyAny>) -> PyResult<()> {
        self.map.set(object)
    }

    /// Name the file of `map`, for who writes with system calls. OSError, and nothing has changed.
    #[pyo3(signature = (path))]
    fn write_to(&mut self, path: Option<&str>) -> PyResult<()> {
        self.file = match path {
            Some(path) => Some(OpenOptions::new().write(true).open(path)?),
            None => None,
        };
        Ok(())
    }
}

impl LogCursor {
    /// Whether there is a file to write to.
    pub fn has_file(&self) -> bool {
        self.file.is_some()
    }

    /// Writes records at the end of the log; nothing else changes.
    pub fn write(&self, records: &[u8]) -> io::Result<()> {
        let file = self.file.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let position = u64::try_from(self.max_offset - self.map_start)
            .map_err(|_| io::ErrorKind::InvalidInput)?;
        file.write_all_at(records, position)
    }
}

/// Where a consume queue ends, and where the next unit goes.
#[pyclass(subclass, module = "brokerset_native")]
pub struct QueueCursor {
    #[pyo3(get, set)]
    pub arrival_pending: bool,
    #[pyo3(get, set)]
    pub arrival_tags: Option<i64>,
    #[pyo3(get, set)]
    pub last_end: i64,
    #[pyo3(get, set)]
    pub map_start: i64,
    #[pyo3(get, set)]
    pub next_offset: i64,
    #[pyo3(get, set)]
    pub position: i64,
    #[pyo3(get, set)]
    pub room_end: i64,
    map: Map,
}

#[pymethods]
impl QueueCursor {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs))]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> Self {
        Self {
            arrival_pending: false,
            arrival_tags: Some(0),
            last_end: 0,
            map_start: 0,
            next_offset: 0,
            position: 0,
            room_end: -1,
            map: Map::default(),
        }
    }

    #[getter]
    fn map(&self, py: Python<'_>) -> Py<PyAny> {
        self.map.get(py)
    }

    #[setter]
    fn set_map(&mut self, object: &Bound<'_, PyAny>) -> PyResult<()> {
        self.map.set(object)
    }
}

impl QueueCursor {
    /// Where units may be written, from `position` on.
    pub fn room(&mut self, py: Python<'_>) -> &mut [u8] {
        let from = usize::try_from(self.position - self.map_start).unwrap_or(usize::MAX);
        let to = usize::try_from(self.room_end - self.map_start).unwrap_or(0);
        let map = self.map.bytes(py);
        let to = to.min(map.len());
        if from > to {
            &mut []
        } else {
            &mut map[from..to]
        }
    }
}

/// The header's fields of an index file, and its memory.
#[pyclass(subclass, module = "brokerset_native")]
pub struct IndexCursor {
    #[pyo3(get, set)]
    pub begin_offset: i64,
    #[pyo3(get, set)]
    pub begin_timestamp: i64,
    #[pyo3(get, set)]
    pub end_offset: i64,
    #[pyo3(get, set)]
    pub end_timestamp: i64,
    #[pyo3(get, set)]
    pub next_unit: i64,
    #[pyo3(get, set)]
    pub room: i64,
    #[pyo3(get, set)]
    pub slots: i64,
    #[pyo3(get, set)]
    pub slots_used: i64,
    #[pyo3(get, set)]
    pub units: i64,
    pub buffer: Map,
}

#[pymethods]
impl IndexCursor {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs))]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> Self {
        Self {
            begin_offset: 0,
            begin_timestamp: 0,
            end_offset: 0,
            end_timestamp: 0,
            next_unit: 1,
            room: 0,
            slots: 0,
            slots_used: 0,
            units: 0,
            buffer: Map::default(),
        }
    }

    #[getter]
    fn buffer(&self, py: Python<'_>) -> Py<PyAny> {
        self.buffer.get(py)
    }

    #[setter]
    fn set_buffer(&mut self, object: &Bound<'_, PyAny>) -> PyResult<()> {
        self.buffer.set(object)
    }
}
