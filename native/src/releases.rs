//! Messages that waited are stored again, many by one call: see `waiting_records`. Python says which, and where they
//! may go; the first one that is not plain ends a call.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString};

use crate::cursors::{IndexCursor, LogCursor, QueueCursor};
use crate::ends::{End, SignedEnd, read_end};
use crate::frames::frame_at;
use crate::hashing::index_hash;
use crate::memory::Memory;
use crate::properties::derived;
use crate::pull_units::UNIT_SIZE;
use crate::records::{Head, Parts, put_record_of};
use crate::replies::put_decimal;
use crate::sends::{IndexRoom, Tags, index_room, join, put_entries};
use crate::signatures::Signers;
use crate::timer_units::{self, unit_at};
use crate::waiting_records::{COMMIT, HOST_BITS, TRANSACTION_MASK, Waiting, waiting_at};

const BORN_HOST_V6: i32 = 0x10;
const STORE_HOST_V6: i32 = 0x20;
const HOST_SIZE_V4: usize = 8;

/// Messages there carry the time of delivery as their tags code, which Python knows.
const SCHEDULE_TOPIC: &[u8] = b"SCHEDULE_TOPIC_XXXX";
const TIMER_TOPIC: &[u8] = b"rmq_sys_wheel_timer";
const HALF_TOPIC: &[u8] = b"RMQ_SYS_TRANS_HALF_TOPIC";

/// The settings that records depend on.
struct Config {
    store_host: Vec<u8>,
    body_size_max: usize,
    properties_size_max: usize,
    appends_crc: bool,
    frame_size_max: usize,
}

/// A queue that the call at hand stores in.
struct Queue {
    cursor: Py<QueueCursor>,
    name: Py<PyString>,
    topic: Box<[u8]>,
    queue_id: i32,
    magic: u32,
    topic_field: Vec<u8>,
    next_offset: i64,
    room: usize,
    last_end: i64,
    units: Vec<u8>,
    tags: Tags,
    count: usize,
}

/// What the call at hand has planned.
#[derive(Default)]
struct Plan {
    offset: i64,
    now: i64,
    limit: i64,
    index: Option<IndexRoom>,
    records: Vec<u8>,
    entries: Vec<(i32, i64)>,
    queues: Vec<Queue>,
    last: usize,
    count: usize,
    properties: Vec<u8>,
}

/// How a copy differs from what waited.
struct Changes {
    sys_flag: i32,
    prepared_offset: i64,
}

/// An end of a transaction that was read from a chunk; ranges are inside of that.
struct ReadEnd {
    frame_end: usize,
    opaque: i32,
    oneway: bool,
    commits: bool,
    half_offset: i64,
    half_queue_offset: i64,
    group: std::ops::Range<usize>,
    ids: [std::ops::Range<usize>; 2],
    /// The user who signed; empty where nobody is asked.
    signer: std::ops::Range<usize>,
}

/// Stores messages again that waited.
#[pyclass(module = "brokerset_native")]
pub struct Releases {
    log: Py<LogCursor>,
    config: Config,
    pieces: [Vec<u8>; 2],
    plan: Plan,
    ends: Vec<ReadEnd>,
    ends_of: Option<Py<PyBytes>>,
    /// The address that they came from.
    ends_from: Box<[u8]>,
    /// Who may end transactions of which topics; None where nobody is asked.
    signers: Option<Signers>,
}

/// The tables of a store that are needed: file of the index (None: without one), where messages may go (topic -> how
/// many queues), and queues by (topic, id).
type Tables<'py> = (
    Option<Py<IndexCursor>>,
    Bound<'py, PyDict>,
    Bound<'py, PyDict>,
);

/// The file of the log that has the records that wait: the offset of its first byte, and up to where they may be read.
type LogFile<'py> = (Bound<'py, PyAny>, i64, i64);

/// Queues that have arrivals, which they had not before.
type Arrived<'py> = Option<Bound<'py, PyList>>;

#[pymethods]
impl Releases {
    /// With `checks_signatures` it serves only ends that are signed by somebody of whom `allow` was called.
    #[new]
    fn new(
        log: Py<LogCursor>,
        config: &Bound<'_, PyDict>,
        checks_signatures: bool,
    ) -> PyResult<Self> {
        let (config, pieces) = read_config(config)?;
        Ok(Self {
            log,
            config,
            pieces,
            plan: Plan::default(),
            ends: Vec::new(),
            ends_of: None,
            ends_from: Box::default(),
            signers: checks_signatures.then(Signers::default),
        })
    }

    /// A user with this password, who is enabled, may end transactions of a topic from an address.
    fn allow(&mut self, name: &[u8], password: &[u8], topic: &[u8], source: &[u8]) {
        if let Some(signers) = &mut self.signers {
            signers.allow(name, password, topic, source);
        }
    }

    /// Nobody may end transactions until `allow` is called again.
    fn forget_signers(&mut self) {
        if let Some(signers) = &mut self.signers {
            signers.forget_all();
        }
    }

    /// Go by other settings.
    fn configure(&mut self, config: &Bound<'_, PyDict>) -> PyResult<()> {
        (self.config, self.pieces) = read_config(config)?;
        Ok(())
    }

    /// Store the messages of `count` units from position `begin` of `units` that were stored at `stored_max` or before:
    /// delayed ones, whose time has come. OSError if the log does not take them; then nothing has been done.
    ///
    /// None if the first is not plain; else how many, the end of the log, and what has arrived.
    #[allow(clippy::too_many_arguments, clippy::type_complexity)] // one call for many messages
    fn release_delayed<'py>(
        &mut self,
        py: Python<'py>,
        units: &Bound<'py, PyAny>,
        begin: usize,
        count: usize,
        log: LogFile<'py>,
        stored_max: i64,
        now: i64,
        bytes_max: usize,
        tables: Tables<'py>,
    ) -> PyResult<Option<(usize, i64, Arrived<'py>)>> {
        let (units, view) = (Memory::of(units)?, Memory::of(&log.0)?);
        let size = count.saturating_mul(UNIT_SIZE);
        let offsets: Vec<i64> = match units.part(py, begin, size) {
            None => return Ok(None),
            Some(units) => units
                .chunks_exact(UNIT_SIZE)
                .map(|unit| i64::from_be_bytes(unit[..8].try_into().expect("eight bytes")))
                .collect(),
        };
        if !self.begin(py, now, &tables)? {
            return Ok(None);
        }
        for offset in offsets {
            if self.plan.records.len() >= bytes_max {
                break;
            }
            let target = match source(py, &view, &log, offset, SCHEDULE_TOPIC) {
                Some(waiting) if waiting.store_timestamp <= stored_max => self.known(&waiting),
                _ => break,
            };
            let Some(place) = self.queue_for(py, target, &tables)? else {
                break;
            };
            let Some(waiting) = source(py, &view, &log, offset, SCHEDULE_TOPIC) else {
                break;
            };
            self.plan.properties.clear();
            self.plan.properties.extend_from_slice(waiting.properties);
            let changes = Changes {
                sys_flag: waiting.sys_flag,
                prepared_offset: waiting.prepared_transaction_offset,
            };
            if !plan_copy(&self.config, &mut self.plan, place, &waiting, &changes) {
                break;
            }
        }
        let done = self.plan.count;
        let arrived = self.carry_out(py, &tables)?;
        Ok(arrived.map(|arrived| (done, self.plan.offset, arrived)))
    }

    /// Store the messages of the units of the timer log at `positions`, oldest first: those of the slot `slot_ms`
    /// that has ended, if their number in the wheel's topic is at least `done_end`. OSError as above.
    ///
    /// `units`: the file of the timer log whose first byte is at `units_start`; `delivered_ms` is what
    /// `TIMER_DEQUEUE_MS` says. None if the first is not plain; else how many, the end of the log, what has arrived,
    /// the largest of their numbers in the wheel's topic, `TIMER_OUT_MS` of the last one, how many for each topic
    /// (its units' hash), and how many for each topic (its name).
    #[allow(clippy::too_many_arguments, clippy::type_complexity)] // one call for many messages
    fn release_timers<'py>(
        &mut self,
        py: Python<'py>,
        positions: Vec<i64>,
        units: &Bound<'py, PyAny>,
        units_start: i64,
        slot_ms: i64,
        done_end: i64,
        delivered_ms: i64,
        log: LogFile<'py>,
        now: i64,
        bytes_max: usize,
        tables: Tables<'py>,
    ) -> PyResult<
        Option<(
            usize,
            i64,
            Arrived<'py>,
            i64,
            i64,
            Vec<(i32, usize)>,
            Vec<(Py<PyString>, usize)>,
        )>,
    > {
        let (units, view) = (Memory::of(units)?, Memory::of(&log.0)?);
        if !self.begin(py, now, &tables)? {
            return Ok(None);
        }
        let (mut newest, mut last_out_ms) = (-1, 0);
        let mut hashes: Vec<(i32, usize)> = Vec::new();
        for position in positions {
            if self.plan.records.len() >= bytes_max {
                break;
            }
            let unit = units
                .part(py, 0, units.size())
                .and_then(|file| unit_at(file, units_start, position))
                .filter(|unit| unit.is_plain() && unit.slot_ms == slot_ms);
            let Some(unit) = unit else { break };
            let target = match source(py, &view, &log, unit.offset, TIMER_TOPIC) {
                Some(waiting) if waiting.queue_offset >= done_end => self.known(&waiting),
                _ => break,
            };
            let Some(place) = self.queue_for(py, target, &tables)? else {
                break;
            };
            let Some(waiting) = source(py, &view, &log, unit.offset, TIMER_TOPIC) else {
                break;
            };
            let Some(out_ms) = waiting.out_ms() else {
                break;
            };
            let properties = &mut self.plan.properties;
            properties.clear();
            properties.extend_from_slice(waiting.properties);
            for (name, time) in [
                (&b"TIMER_ENQUEUE_MS\x01"[..], unit.base_ms),
                (b"TIMER_DEQUEUE_MS\x01", delivered_ms),
            ] {
                properties.extend_from_slice(name);
                put_decimal(properties, time);
                properties.push(2);
            }
            let changes = Changes {
                sys_flag: waiting.sys_flag,
                prepared_offset: waiting.prepared_transaction_offset,
            };
            if !plan_copy(&self.config, &mut self.plan, place, &waiting, &changes) {
                break;
            }
            newest = newest.max(waiting.queue_offset);
            last_out_ms = out_ms;
            count_in(&mut hashes, unit.topic_hash);
        }
        let done = self.plan.count;
        let Some(arrived) = self.carry_out(py, &tables)? else {
            return Ok(None);
        };
        let topics = self.counted(py);
        Ok(Some((
            done,
            self.plan.offset,
            arrived,
            newest,
            last_out_ms,
            hashes,
            topics,
        )))
    }

    /// The ends of transactions at the beginning of `data`, which begins with a frame, at most `count_max`: offset and
    /// number of the half that each names, and whether it commits. They came from the address `source`. Where signatures
    /// are checked, whoever signed may send to the topic that an end names; of its half `serve_ends` checks that.
    fn read_ends<'py>(
        &mut self,
        py: Python<'py>,
        data: &Bound<'py, PyBytes>,
        count_max: usize,
        source: &str,
    ) -> PyResult<Bound<'py, PyList>> {
        let source = source.as_bytes();
        self.ends.clear();
        self.ends_of = Some(data.clone().unbind());
        if self.signers.is_some() && *self.ends_from != *source {
            self.ends_from = source.into();
        }
        let bytes = data.as_bytes();
        let place = |part: &[u8]| {
            let start = part.as_ptr() as usize - bytes.as_ptr() as usize;
            start..start + part.len()
        };
        let mut at = 0;
        let mut signed = SignedEnd::default();
        while self.ends.len() < count_max
            && let Some(frame) = frame_at(bytes, at, self.config.frame_size_max)
            && let Some(end) = read_end(frame.header, &mut signed)
        {
            let mut signer = 0..0;
            if let Some(signers) = &self.signers {
                let topic = Some(end.topic).filter(|topic| !topic.is_empty());
                if !frame.body.is_empty() || !signers.admit_about(source, topic, &signed) {
                    break;
                }
                signer = signed.access_key.map_or(0..0, place);
            }
            at = frame.end;
            let End {
                opaque,
                oneway,
                commits,
                half_offset,
                half_queue_offset,
                group,
                topic: _,
                ids,
            } = end;
            self.ends.push(ReadEnd {
                frame_end: frame.end,
                opaque,
                oneway,
                commits,
                half_offset,
                half_queue_offset,
                group: place(group),
                ids: ids.map(|id| if id.is_empty() { 0..0 } else { place(id) }),
                signer,
            });
        }
        let ends = self
            .ends
            .iter()
            .map(|end| (end.half_offset, end.half_queue_offset, end.commits));
        PyList::new(py, ends.collect::<Vec<_>>())
    }

    /// Serve the first `count` ends that `read_ends` gave: their halves are open, and have one copy each. OSError as
    /// above.
    ///
    /// None if the first is not plain; else how many are served, bytes of their frames, the end of the log, what has
    /// arrived, topic and born time of each half, answers to commits with how many they are, and the same of
    /// rollbacks.
    #[allow(clippy::type_complexity)] // one call for each chunk
    fn serve_ends<'py>(
        &mut self,
        py: Python<'py>,
        count: usize,
        log: LogFile<'py>,
        now: i64,
        tables: Tables<'py>,
    ) -> PyResult<
        Option<(
            usize,
            usize,
            i64,
            Arrived<'py>,
            Vec<(Py<PyString>, i64)>,
            (Bound<'py, PyBytes>, usize),
            (Bound<'py, PyBytes>, usize),
        )>,
    > {
        let Some(data) = self.ends_of.take() else {
            return Ok(None);
        };
        let data = data.into_bound(py);
        let bytes = data.as_bytes();
        let view = Memory::of(&log.0)?;
        if !self.begin(py, now, &tables)? {
            return Ok(None);
        }
        let ends = std::mem::take(&mut self.ends);
        let mut halves = Vec::new();
        let mut replies = [Vec::new(), Vec::new()];
        let mut answered = [0; 2];
        let mut size = 0;
        for end in ends.iter().take(count) {
            let ids = end.ids.clone().map(|id| &bytes[id]);
            let group = &bytes[end.group.clone()];
            let target = match source(py, &view, &log, end.half_offset, HALF_TOPIC) {
                Some(half)
                    if half.queue_offset == end.half_queue_offset
                        && half.is_half_of(group, ids)
                        && self.may_end(&bytes[end.signer.clone()], half.topic) =>
                {
                    self.known(&half)
                }
                _ => break,
            };
            let Some(place) = self.queue_for(py, target, &tables)? else {
                break;
            };
            let Some(half) = source(py, &view, &log, end.half_offset, HALF_TOPIC) else {
                break;
            };
            if end.commits {
                half.final_properties(&mut self.plan.properties);
                let changes = Changes {
                    sys_flag: half.sys_flag & !TRANSACTION_MASK | COMMIT,
                    prepared_offset: end.half_offset,
                };
                if !plan_copy(&self.config, &mut self.plan, place, &half, &changes) {
                    break;
                }
            }
            let born_timestamp = half.born_timestamp;
            halves.push((self.plan.queues[place].name.clone_ref(py), born_timestamp));
            if !end.oneway {
                let kind = usize::from(!end.commits);
                put_reply(&mut replies[kind], &self.pieces, end.opaque);
                answered[kind] += 1;
            }
            size = end.frame_end;
        }
        if halves.is_empty() {
            return Ok(None);
        }
        let arrived = self.carry_out(py, &tables)?.flatten();
        Ok(Some((
            halves.len(),
            size,
            self.plan.offset,
            arrived,
            halves,
            (PyBytes::new(py, &replies[0]), answered[0]),
            (PyBytes::new(py, &replies[1]), answered[1]),
        )))
    }
}

/// Where a record is for: the place of its queue among those of the call, or its topic and queue id.
enum Target {
    Known(usize),
    New(Vec<u8>, i32),
}

impl Releases {
    /// Plan nothing yet; false if the log or the index must be seen to first.
    fn begin(&mut self, py: Python<'_>, now: i64, tables: &Tables<'_>) -> PyResult<bool> {
        let index = match &tables.0 {
            None => None,
            Some(index) => match index_room(&mut index.borrow_mut(py), py) {
                None => return Ok(false),
                room => room,
            },
        };
        let log = self.log.borrow(py);
        if !log.has_file() {
            return Ok(false);
        }
        let plan = &mut self.plan;
        plan.offset = log.max_offset;
        plan.now = now.max(log.store_timestamp);
        plan.limit = log.limit;
        plan.index = index;
        plan.records.clear();
        plan.entries.clear();
        plan.queues.clear();
        plan.last = 0;
        plan.count = 0;
        Ok(true)
    }

    /// Whether who signed an end may send to the topic that the half is for, whatever topic the end names.
    fn may_end(&self, name: &[u8], topic: &[u8]) -> bool {
        self.signers
            .as_ref()
            .is_none_or(|signers| signers.may(name, topic, &self.ends_from))
    }

    fn known(&self, waiting: &Waiting<'_>) -> Target {
        let (queues, last) = (&self.plan.queues, self.plan.last);
        let is_it =
            |queue: &Queue| queue.queue_id == waiting.queue_id && *queue.topic == *waiting.topic;
        if queues.get(last).is_some_and(is_it) {
            return Target::Known(last);
        }
        match queues.iter().position(is_it) {
            Some(place) => Target::Known(place),
            None => Target::New(waiting.topic.to_vec(), waiting.queue_id),
        }
    }

    /// The queue of a target; None if messages may not go there, or its queue is new or full.
    fn queue_for(
        &mut self,
        py: Python<'_>,
        target: Target,
        tables: &Tables<'_>,
    ) -> PyResult<Option<usize>> {
        let (topic, queue_id) = match target {
            Target::Known(place) => {
                self.plan.last = place;
                return Ok(Some(place));
            }
            Target::New(topic, queue_id) => (topic, queue_id),
        };
        let Ok(text) = std::str::from_utf8(&topic) else {
            return Ok(None);
        };
        let name = PyString::new(py, text);
        let Some(limit) = tables.1.get_item(&name)? else {
            return Ok(None);
        };
        if i64::from(queue_id) >= limit.extract::<i64>()? || topic == SCHEDULE_TOPIC {
            return Ok(None);
        }
        let Some(found) = tables.2.get_item((&name, queue_id))? else {
            return Ok(None);
        };
        let magic = found.getattr("magic")?.extract()?;
        let topic_field = found.getattr("topic_field")?.extract()?;
        let Ok(cursor) = found.cast_into::<QueueCursor>() else {
            return Ok(None);
        };
        let (next_offset, last_end, room) = {
            let mut cursor = cursor.borrow_mut();
            (cursor.next_offset, cursor.last_end, cursor.room(py).len())
        };
        self.plan.last = self.plan.queues.len();
        self.plan.queues.push(Queue {
            cursor: cursor.unbind(),
            name: name.unbind(),
            topic: topic.into(),
            queue_id,
            magic,
            topic_field,
            next_offset,
            room,
            last_end,
            units: Vec::new(),
            tags: None,
            count: 0,
        });
        Ok(Some(self.plan.last))
    }

    /// Write what is planned, and move the cursors; None if nothing is.
    fn carry_out<'py>(
        &mut self,
        py: Python<'py>,
        tables: &Tables<'py>,
    ) -> PyResult<Option<Arrived<'py>>> {
        let plan = &self.plan;
        if plan.count == 0 {
            return Ok(None);
        }
        {
            let mut log = self.log.borrow_mut(py);
            log.write(&plan.records)?;
            log.max_offset = plan.offset;
            log.store_timestamp = plan.now;
        }
        let mut arrived = Vec::new();
        for queue in plan.queues.iter().filter(|queue| queue.count > 0) {
            let mut cursor = queue.cursor.borrow_mut(py);
            cursor.room(py)[..queue.units.len()].copy_from_slice(&queue.units);
            cursor.position += queue.units.len() as i64;
            cursor.next_offset = queue.next_offset;
            cursor.last_end = queue.last_end;
            let tags = queue.tags.expect("a queue that is used has messages");
            if !cursor.arrival_pending {
                cursor.arrival_pending = true;
                cursor.arrival_tags = tags;
                arrived.push(queue.cursor.clone_ref(py));
            } else if cursor.arrival_tags != tags {
                cursor.arrival_tags = None;
            }
        }
        if let Some(index) = &tables.0
            && !plan.entries.is_empty()
        {
            put_entries(&mut index.borrow_mut(py), py, &plan.entries, plan.now);
        }
        // Making an object may run the garbage collector, and so Python code: only now, when all is written.
        if arrived.is_empty() {
            return Ok(Some(None));
        }
        PyList::new(py, arrived).map(|arrived| Some(Some(arrived)))
    }

    /// How many were stored for each topic.
    fn counted(&self, py: Python<'_>) -> Vec<(Py<PyString>, usize)> {
        let mut found: Vec<(usize, usize)> = Vec::new();
        let queues = &self.plan.queues;
        for (place, queue) in queues
            .iter()
            .enumerate()
            .filter(|(_, queue)| queue.count > 0)
        {
            match found
                .iter_mut()
                .find(|(first, _)| queues[*first].topic == queue.topic)
            {
                Some((_, count)) => *count += queue.count,
                None => found.push((place, queue.count)),
            }
        }
        found
            .into_iter()
            .map(|(place, count)| (queues[place].name.clone_ref(py), count))
            .collect()
    }
}

/// The record at an offset of the log, if it waits in this topic and is plain.
fn source<'m>(
    py: Python<'_>,
    view: &'m Memory,
    log: &LogFile<'_>,
    offset: i64,
    topic: &[u8],
) -> Option<Waiting<'m>> {
    let size = usize::try_from(log.2.checked_sub(log.1)?).ok()?;
    let file = view.part(py, 0, size.min(view.size()))?;
    waiting_at(file, log.1, offset, topic)
}

/// Plans the copy of a record, with the properties in `plan.properties`, for the queue at `place`; false if it is
/// declined, and then nothing of it is planned.
fn plan_copy(
    config: &Config,
    plan: &mut Plan,
    place: usize,
    waiting: &Waiting<'_>,
    changes: &Changes,
) -> bool {
    let entries = plan.entries.len();
    let done = try_copy(config, plan, place, waiting, changes).is_some();
    if !done {
        plan.entries.truncate(entries);
    }
    done
}

fn try_copy(
    config: &Config,
    plan: &mut Plan,
    place: usize,
    waiting: &Waiting<'_>,
    changes: &Changes,
) -> Option<()> {
    let queue = &mut plan.queues[place];
    let properties = plan.properties.as_slice();
    if waiting.body.len() > config.body_size_max
        || properties.len() > config.properties_size_max
        || (properties.last().is_some_and(|last| *last != 2) && config.appends_crc)
        || (changes.sys_flag & TRANSACTION_MASK != COMMIT && !waiting.is_counted())
    {
        return None;
    }
    let parts = Parts {
        born_host: waiting.born_host,
        store_host: &config.store_host,
        body: waiting.body,
        topic_field: &queue.topic_field,
        properties: &[properties],
        with_crc: config.appends_crc,
    };
    let size = parts.size();
    let (offset, end) = (plan.offset, plan.offset + size as i64);
    if end > plan.limit || queue.units.len() + UNIT_SIZE > queue.room {
        return None;
    }
    let facts = derived(properties)?;
    if let Some(room) = plan.index
        && offset >= room.end_offset
    {
        let ids = facts.uniq_key.map(|range| &properties[range]);
        let keys = facts
            .keys
            .map(|range| &properties[range])
            .unwrap_or_default();
        for key in ids
            .into_iter()
            .chain(keys.split(|byte| *byte == b' '))
            .filter(|key| !key.is_empty())
        {
            plan.entries.push((index_hash(&queue.topic, key)?, offset));
        }
        if plan.entries.len() > room.units {
            return None;
        }
    }
    let mut sys_flag = changes.sys_flag & !HOST_BITS;
    if waiting.born_host.len() > HOST_SIZE_V4 {
        sys_flag |= BORN_HOST_V6;
    }
    if config.store_host.len() > HOST_SIZE_V4 {
        sys_flag |= STORE_HOST_V6;
    }
    let head = Head {
        magic: queue.magic,
        queue_id: queue.queue_id,
        flag: waiting.flag,
        queue_offset: queue.next_offset,
        offset,
        sys_flag,
        born_timestamp: waiting.born_timestamp,
        store_timestamp: plan.now,
        reconsume_times: waiting.reconsume_times,
    };
    put_record_of(&mut plan.records, &head, &parts, changes.prepared_offset);
    queue.units.extend_from_slice(&offset.to_be_bytes());
    queue.units.extend_from_slice(&(size as i32).to_be_bytes());
    queue
        .units
        .extend_from_slice(&facts.tags_code.to_be_bytes());
    queue.tags = join(queue.tags, Some(facts.tags_code));
    queue.next_offset += 1;
    queue.last_end = end;
    queue.count += 1;
    plan.offset = end;
    plan.count += 1;
    Some(())
}

fn count_in(counts: &mut Vec<(i32, usize)>, hash: i32) {
    match counts.iter_mut().find(|(known, _)| *known == hash) {
        Some((_, count)) => *count += 1,
        None => counts.push((hash, 1)),
    }
}

/// Appends the frame of an answer that says nothing but that all is well.
fn put_reply(out: &mut Vec<u8>, pieces: &[Vec<u8>; 2], opaque: i32) {
    let start = out.len();
    out.extend_from_slice(&[0; 8]);
    out.extend_from_slice(&pieces[0]);
    put_decimal(out, opaque.into());
    out.extend_from_slice(&pieces[1]);
    let header_size = (out.len() - start - 8) as u32;
    out[start..start + 4].copy_from_slice(&(header_size + 4).to_be_bytes());
    out[start + 4..start + 8].copy_from_slice(&header_size.to_be_bytes());
}

fn read_config(config: &Bound<'_, PyDict>) -> PyResult<(Config, [Vec<u8>; 2])> {
    let need = |name: &str| {
        config
            .get_item(name)?
            .ok_or_else(|| PyValueError::new_err(format!("the settings lack {name}")))
    };
    let pieces = need("reply")?.extract::<[Vec<u8>; 2]>()?;
    Ok((
        Config {
            store_host: need("store_host")?.extract()?,
            body_size_max: need("body_size_max")?.extract()?,
            properties_size_max: need("properties_size_max")?.extract()?,
            appends_crc: need("appends_crc")?.extract()?,
            frame_size_max: need("frame_size_max")?.extract()?,
        },
        pieces,
    ))
}

/// A part of the chain of a slot of the timer log, see `timer_units::chain`: positions, the one before them, and
/// whether one of them deletes a message.
#[pyfunction]
#[allow(clippy::too_many_arguments)] // one call for many units
fn timer_chain(
    py: Python<'_>,
    file: &Bound<'_, PyAny>,
    start: i64,
    position: i64,
    stop: i64,
    begin: i64,
    slot_ms: i64,
    count_max: usize,
) -> PyResult<(Vec<i64>, i64, bool)> {
    let file = Memory::of(file)?;
    let bytes = file.part(py, 0, file.size()).unwrap_or_default();
    let found = timer_units::chain(bytes, start, position, (stop, begin), slot_ms, count_max);
    Ok((found.positions, found.following, found.has_recalls))
}

/// How many units of the timer log in a row are in slots before `read_ms`, see `timer_units::passed`.
#[pyfunction]
fn timer_passed(
    py: Python<'_>,
    file: &Bound<'_, PyAny>,
    start: i64,
    position: i64,
    end: i64,
    read_ms: i64,
    count_max: usize,
) -> PyResult<usize> {
    let file = Memory::of(file)?;
    let bytes = file.part(py, 0, file.size()).unwrap_or_default();
    Ok(timer_units::passed(
        bytes, start, position, end, read_ms, count_max,
    ))
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Releases>()?;
    module.add_function(wrap_pyfunction!(timer_chain, module)?)?;
    module.add_function(wrap_pyfunction!(timer_passed, module)?)
}
