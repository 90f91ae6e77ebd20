//! Timer messages are linked into the wheel, as Python calls it.

use pyo3::prelude::*;

use crate::cursors::Map;
use crate::memory::Memory;
use crate::pull_units::UNIT_SIZE;
use crate::timer_links::{LogFile, Times, link_run};

/// Messages taken, the timer log's new end, and of each topic name, hash, messages, time of the last one.
type Taken = (usize, i64, Vec<(String, i32, usize, i64)>);

/// Link the messages of `count` units from position `begin` of `units`, the first of them number `queue_offset`.
///
/// `records` is the file of the commit log that has the offsets from `start` on; `wheel` the whole wheel; `log` the
/// file of the timer log that has the positions from `log_start` on and its end, `position`, with blocks for
/// `reserved` bytes. `times` are those of `timer_links::Times`. None if nothing was done.
#[pyfunction]
#[allow(clippy::too_many_arguments)] // one call for many messages
fn link_timers(
    py: Python<'_>,
    units: &Bound<'_, PyAny>,
    begin: usize,
    count: usize,
    queue_offset: i64,
    records: &Bound<'_, PyAny>,
    start: i64,
    wheel: &Bound<'_, PyAny>,
    log: &Bound<'_, PyAny>,
    log_start: i64,
    reserved: usize,
    position: i64,
    times: (i64, i64, i64, i64, i64),
) -> PyResult<Option<Taken>> {
    let (units, records) = (Memory::of(units)?, Memory::of(records)?);
    let (mut wheel_map, mut log_map) = (Map::default(), Map::default());
    wheel_map.set(wheel)?;
    log_map.set(log)?;
    let (Some(units), Some(records)) = (
        units.part(py, begin, count.saturating_mul(UNIT_SIZE)),
        records.part(py, 0, records.size()),
    ) else {
        return Ok(None);
    };
    let (slot_ms, window_ms, read_ms, end_ms, write_ms) = times;
    let times = Times {
        slot_ms,
        window_ms,
        read_ms,
        end_ms,
        write_ms,
    };
    let mut file = LogFile {
        bytes: log_map.bytes(py),
        start: log_start,
        reserved,
    };
    let wheel = wheel_map.bytes(py);
    let linked = link_run(
        units,
        queue_offset,
        records,
        start,
        wheel,
        &mut file,
        position,
        &times,
    );
    if linked.taken == 0 {
        return Ok(None);
    }
    let topics = linked.topics.iter().map(|links| {
        let name = String::from_utf8_lossy(links.topic).into_owned();
        (name, links.hash, links.count, links.store_ms)
    });
    Ok(Some((linked.taken, linked.position, topics.collect())))
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(link_timers, module)?)
}
