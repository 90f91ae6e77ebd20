//! Filtered pulls: an expression that is compiled once, and the units that it or tags choose.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::filter_programs::Program;
use crate::filtered_units::{Wanted, select};
use crate::memory::Memory;
use crate::pull_units::UNIT_SIZE;

/// A compiled expression.
#[pyclass(module = "brokerset_native", frozen)]
pub struct FilterProgram(Program);

#[pymethods]
impl FilterProgram {
    /// `code` is what `filters/native_programs.py` has written.
    #[new]
    fn new(code: &[u8]) -> PyResult<Self> {
        Program::read(code)
            .map(Self)
            .ok_or_else(|| PyValueError::new_err("no program of a filter"))
    }
}

/// Units examined, messages, their bytes, whether a limit ended it, and begin and end of each run of records.
type Selected = (usize, usize, usize, bool, Vec<(i64, i64)>);

/// Examine `count` units from position `begin` of `units`, see `filtered_units`.
///
/// `log` is the file of the log that has the offsets from `start` on, readable up to `end`. None if the units are
/// not there.
#[pyfunction]
#[allow(clippy::too_many_arguments)] // one call for each pull
fn select_units(
    py: Python<'_>,
    units: &Bound<'_, PyAny>,
    begin: usize,
    count: usize,
    log: &Bound<'_, PyAny>,
    start: i64,
    end: i64,
    codes: Option<Vec<i32>>,
    program: Option<&Bound<'_, FilterProgram>>,
    messages_max: usize,
    bytes_max: usize,
    properties_max: usize,
) -> PyResult<Option<Selected>> {
    let (units, log) = (Memory::of(units)?, Memory::of(log)?);
    let Some(units) = units.part(py, begin, count.saturating_mul(UNIT_SIZE)) else {
        return Ok(None);
    };
    let Some(log) = log.part(py, 0, log.size()) else {
        return Ok(None);
    };
    let program = program.map(|one| &one.get().0);
    let wanted = Wanted {
        codes: codes.as_deref(),
        program,
        messages_max,
        bytes_max,
        properties_max,
    };
    let mut runs = Vec::new();
    let found = select(units, log, start, end, &wanted, &mut runs);
    let runs = runs
        .iter()
        .map(|(position, size)| (start + *position as i64, start + (*position + *size) as i64))
        .collect();
    Ok(Some((
        found.examined,
        found.messages,
        found.bytes,
        found.full,
        runs,
    )))
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<FilterProgram>()?;
    module.add_function(wrap_pyfunction!(select_units, module)?)
}
