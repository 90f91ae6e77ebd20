//! Scans of a log for Python: see `scan`. What is taken goes into queues and index by calls of Python.

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

use crate::index::{Index, file_size};
use crate::scan::{INDEX_ENTRY_SIZE, Options, take};
use crate::{hashing, properties, scan};

/// The bytes of an object with one piece of memory; `_py` says that the interpreter is attached.
fn bytes_of<'a>(_py: Python<'a>, buffer: &'a PyBuffer<u8>) -> PyResult<&'a [u8]> {
    if !buffer.is_c_contiguous() {
        return Err(PyBufferError::new_err("memory in one piece is needed"));
    }
    if buffer.len_bytes() == 0 {
        return Ok(&[]);
    }
    // SAFETY: `PyBuffer` keeps the memory where it is, of this size, for as long as the slice lives. No Python code
    // runs while the interpreter is attached here, so nobody else in this process writes to what is read: what is
    // received into a mapped log goes behind the end that Python gives.
    Ok(unsafe { std::slice::from_raw_parts(buffer.buf_ptr().cast(), buffer.len_bytes()) })
}

/// Takes plain records of the file in `view` whose first byte has the offset `start`, from `position` on, as long as
/// they begin before `stop` and end before `limit`.
///
/// None if the first one is not plain, or a tuple: position behind the last, newest store time, runs of queue units
/// (topic, queue id, first queue offset, first offset, end of the last record, units, their tags code), index entries.
#[pyfunction]
#[pyo3(signature = (view, start, position, *, stop, limit, records_max, entry_head, verify_crc, units, index))]
#[allow(clippy::too_many_arguments)] // keyword arguments of Python
fn take_records<'py>(
    py: Python<'py>,
    view: PyBuffer<u8>,
    start: i64,
    position: usize,
    stop: usize,
    limit: usize,
    records_max: usize,
    entry_head: usize,
    verify_crc: bool,
    units: bool,
    index: bool,
) -> PyResult<Option<Bound<'py, PyTuple>>> {
    let file = bytes_of(py, &view)?;
    let options = Options {
        stop,
        records_max,
        entry_head,
        verify_crc,
        units,
        index,
    };
    let taken = take(&file[..limit.min(file.len())], start, position, &options);
    if taken.end == position {
        return Ok(None);
    }
    let runs = PyList::empty(py);
    for run in &taken.runs {
        runs.append((
            PyBytes::new(py, run.topic),
            run.queue_id,
            run.first_queue_offset,
            run.first_offset,
            run.last_end,
            PyBytes::new(py, &run.units),
            run.tags_code,
        ))?;
    }
    let entries = PyBytes::new(py, &taken.index_entries);
    (taken.end, taken.newest_timestamp, runs, entries)
        .into_pyobject(py)
        .map(Some)
}

/// Where the first magic of a record begins in `view`, at `begin` or behind it, but before `end`; None without one.
#[pyfunction]
fn find_magic(
    py: Python<'_>,
    view: PyBuffer<u8>,
    begin: usize,
    end: usize,
) -> PyResult<Option<usize>> {
    Ok(scan::find_magic(bytes_of(py, &view)?, begin, end))
}

/// Puts entries of `take_records` from byte `done` on into an index file, as long as its units are below `room`;
/// returns how many bytes of entries are done. `table` has the header's fields as attributes; `memory` is the file.
#[pyfunction]
fn put_index_entries(
    table: &Bound<'_, PyAny>,
    memory: PyBuffer<u8>,
    slots: usize,
    room: i64,
    entries: &[u8],
    done: usize,
) -> PyResult<usize> {
    let size = memory.len_bytes();
    let fixed = file_size(slots, 0);
    let units = size.saturating_sub(fixed) / 20;
    if slots == 0
        || file_size(slots, units) != size
        || memory.readonly()
        || !memory.is_c_contiguous()
    {
        return Err(PyValueError::new_err(
            "this is not the memory of an index file",
        ));
    }
    let field = |name: &str| table.getattr(name)?.extract::<i64>();
    let mut index = Index {
        slots,
        units: units as i64,
        begin_timestamp: field("begin_timestamp")?,
        end_timestamp: field("end_timestamp")?,
        begin_offset: field("begin_offset")?,
        end_offset: field("end_offset")?,
        slots_used: field("slots_used")?,
        next_unit: field("next_unit")?,
    };
    if index.next_unit < 1 || room > index.units {
        return Err(PyValueError::new_err(
            "an index file has no room for such a unit",
        ));
    }
    let begun = index.next_unit;
    let packed = entries.get(done..).unwrap_or_default();
    let unpacked = packed.chunks_exact(INDEX_ENTRY_SIZE).map(|entry| {
        let (hash, rest) = entry.split_at(4);
        let (offset, timestamp) = rest.split_at(8);
        (
            i32::from_be_bytes(hash.try_into().expect("four bytes")),
            i64::from_be_bytes(offset.try_into().expect("eight bytes")),
            i64::from_be_bytes(timestamp.try_into().expect("eight bytes")),
        )
    });
    let put = {
        // SAFETY: as in `bytes_of`, for the arguments are borrowed from the interpreter; the memory may be changed,
        // `entries` are immutable bytes of another object, and only this block, which runs no Python code, uses it.
        let file = unsafe { std::slice::from_raw_parts_mut(memory.buf_ptr().cast::<u8>(), size) };
        index.put_all(file, room, unpacked)
    };
    if index.next_unit != begun {
        table.setattr("begin_timestamp", index.begin_timestamp)?;
        table.setattr("end_timestamp", index.end_timestamp)?;
        table.setattr("begin_offset", index.begin_offset)?;
        table.setattr("end_offset", index.end_offset)?;
        table.setattr("slots_used", index.slots_used)?;
        table.setattr("next_unit", index.next_unit)?;
    }
    Ok(done + put * INDEX_ENTRY_SIZE)
}

/// `hashing.index_hash` of a topic and a key in UTF-8; None for other bytes.
#[pyfunction]
fn index_hash(topic: &[u8], key: &[u8]) -> Option<i32> {
    hashing::index_hash(topic, key)
}

/// `hashing.java_hash` of UTF-8 bytes; None for other bytes.
#[pyfunction]
fn java_hash(text: &[u8]) -> Option<i32> {
    hashing::java_hash_bytes(text)
}

/// Tags code, client-made id, keys.
type DerivedBytes<'a> = (i64, Option<&'a [u8]>, Option<&'a [u8]>);

/// `store.dispatch.derived` of raw properties; None if the tags are not UTF-8.
#[pyfunction]
fn derived(raw: &[u8]) -> Option<DerivedBytes<'_>> {
    let found = properties::derived(raw)?;
    Some((
        found.tags_code,
        found.uniq_key.map(|id| &raw[id]),
        found.keys.map(|keys| &raw[keys]),
    ))
}

/// `formats.properties.find_property`.
#[pyfunction]
fn find_property<'a>(raw: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    properties::find(raw, name).map(|range| &raw[range])
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(take_records, module)?)?;
    module.add_function(wrap_pyfunction!(put_index_entries, module)?)?;
    module.add_function(wrap_pyfunction!(find_magic, module)?)?;
    module.add_function(wrap_pyfunction!(index_hash, module)?)?;
    module.add_function(wrap_pyfunction!(java_hash, module)?)?;
    module.add_function(wrap_pyfunction!(derived, module)?)?;
    module.add_function(wrap_pyfunction!(find_property, module)?)
}
