//! The plain sends at the beginning of a chunk of input: from frames to records, units, entries and answers.
//!
//! Source: `brokerset_broker.requests.send.SendProcessor.send`, `store.message_store.MessageStore.append` and
//! `append_batch`, whose plain cases these are; plain halves and plain timers, as that has them, too.

use std::collections::HashMap;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};

use crate::asides;
use crate::batches::{Item, read_batch};
use crate::cursors::{IndexCursor, LogCursor, QueueCursor};
use crate::frames::frame_at;
use crate::hashing::index_hash;
use crate::headers::{SendHeader, Signed, read_send};
use crate::index::{Index, file_size};
use crate::plain;
use crate::properties::derived;
use crate::records::{Head, Parts, put_record};
use crate::replies::{Stored, Template, WaitingTemplate};
use crate::signatures::Signers;

/// Bits of sysFlag that a client may set freely: compression and its type, multi-tags.
const PLAIN_BITS: i32 = 0x0703;
/// Bits that tell the sizes of the hosts.
const HOST_BITS: i32 = 0x0030;
const BORN_HOST_V6: i32 = 0x10;
const STORE_HOST_V6: i32 = 0x20;
const HOST_SIZE_V4: usize = 8;
const UNIT_SIZE: usize = 20;
const SIZE_CLASSES: usize = 32;
/// Messages of a batch whose ids surely fit the header of an answer, 57 bytes each.
const ANSWER_IDS_MAX: usize = 8_000;

/// Tags codes of several messages: None while there is none, then one code, or that there are several.
pub(crate) type Tags = Option<Option<i64>>;

pub(crate) fn join(tags: Tags, code: Option<i64>) -> Tags {
    match tags {
        None => Some(code),
        Some(before) if before == code => tags,
        Some(_) => Some(None),
    }
}

#[derive(Clone, Default)]
struct Counters {
    calls: u64,
    messages: u64,
    size: u64,
    classes: [u64; SIZE_CLASSES],
}

impl Counters {
    /// `size` bytes of `messages` records.
    fn add(&mut self, messages: u64, size: u64) {
        self.calls += 1;
        self.messages += messages;
        self.size += size;
        let largest = size / messages - 1;
        let class = (u64::BITS - largest.leading_zeros()) as usize;
        self.classes[class.min(SIZE_CLASSES - 1)] += messages;
    }

    fn join(&mut self, other: &Counters) {
        self.calls += other.calls;
        self.messages += other.messages;
        self.size += other.size;
        for (class, more) in self.classes.iter_mut().zip(&other.classes) {
            *class += more;
        }
    }
}

/// What becomes of a message. Python knows them by their numbers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// It goes to the queue that it names.
    Plain = 0,
    /// It waits for the end of its transaction.
    Half = 1,
    /// It waits for its time.
    Timer = 2,
}

const KINDS: [Kind; 3] = [Kind::Plain, Kind::Half, Kind::Timer];

/// A queue that Python has sent to; the second half is what the call at hand has planned for it.
struct Queue {
    topic: Box<[u8]>,
    queue_id: i32,
    cursor: Py<QueueCursor>,
    key: Py<PyTuple>,
    magic: u32,
    topic_field: Vec<u8>,
    call: u64,
    next_offset: i64,
    room: usize,
    last_end: i64,
    units: Vec<u8>,
    tags: Tags,
}

impl Queue {
    fn new(
        name: &Bound<'_, PyString>,
        queue_id: i32,
        cursor: Py<QueueCursor>,
        topic_field: Vec<u8>,
        magic: u32,
    ) -> PyResult<Self> {
        Ok(Self {
            topic: name.to_str()?.as_bytes().into(),
            queue_id,
            cursor,
            key: (name, queue_id).into_pyobject(name.py())?.unbind(),
            magic,
            topic_field,
            call: 0,
            next_offset: 0,
            room: 0,
            last_end: 0,
            units: Vec::new(),
            tags: None,
        })
    }

    /// Begins with what is planned in a call; false if the broker has another queue now.
    fn enter(&mut self, call: u64, chunk: &Chunk<'_, '_>) -> PyResult<bool> {
        if self.call == call {
            return Ok(true);
        }
        let found = chunk.queues.get_item(&self.key)?;
        if !found.is_some_and(|found| found.is(&self.cursor)) {
            return Ok(false);
        }
        let mut cursor = self.cursor.borrow_mut(chunk.py);
        self.next_offset = cursor.next_offset;
        self.last_end = cursor.last_end;
        self.room = cursor.room(chunk.py).len();
        self.units.clear();
        self.tags = None;
        self.call = call;
        Ok(true)
    }

    /// The records are in the log: writes the units; the queue, if nobody knows yet that it has arrivals.
    fn carry_out(&self, py: Python<'_>) -> Option<Py<QueueCursor>> {
        let mut cursor = self.cursor.borrow_mut(py);
        cursor.room(py)[..self.units.len()].copy_from_slice(&self.units);
        cursor.position += self.units.len() as i64;
        cursor.next_offset = self.next_offset;
        cursor.last_end = self.last_end;
        let tags = self.tags.expect("a queue that is used has messages");
        if cursor.arrival_pending {
            if cursor.arrival_tags != tags {
                cursor.arrival_tags = None;
            }
            return None;
        }
        cursor.arrival_pending = true;
        cursor.arrival_tags = tags;
        Some(self.cursor.clone_ref(py))
    }
}

struct Topic {
    name: Py<PyString>,
    config: Py<PyAny>,
    facts: Py<PyAny>,
    /// Further queues are refused.
    queue_count: i32,
    queues: HashMap<i32, Queue>,
    call: u64,
    /// Of the call at hand, by kind.
    planned: [Counters; KINDS.len()],
    counters: [Counters; KINDS.len()],
}

impl Topic {
    fn has_counted(&self) -> bool {
        self.counters.iter().any(|counters| counters.calls > 0)
    }
}

/// The settings that answers and records depend on.
struct Config {
    store_host: Vec<u8>,
    host_text: Vec<u8>,
    suffix: Vec<u8>,
    body_size_max: usize,
    batch_size_max: i64,
    properties_size_max: usize,
    frame_size_max: usize,
    appends_crc: bool,
    /// Bytes that the properties of a message that waits leave free for its delivery.
    delivery_properties_size: usize,
    broker_name: Vec<u8>,
    single: Template,
    batch: Template,
    waiting: WaitingTemplate,
}

/// A half message that was stored: number in its queue, offset, client-made id, born time, topic that it is for.
type Half = (i64, i64, Box<[u8]>, i64, Py<PyString>);

/// What the call at hand has planned, besides what queues know.
#[derive(Default)]
struct Plan {
    call: u64,
    offset: i64,
    now: i64,
    records: Vec<u8>,
    entries: Vec<(i32, i64)>,
    replies: Vec<u8>,
    /// Queues in the order in which they got messages: kind, and of plain ones topic and queue id.
    used: Vec<(Kind, Box<[u8]>, i32)>,
    /// Topics that messages are for.
    topics: Vec<Box<[u8]>>,
    halves: Vec<Half>,
    messages: usize,
    waiting: usize,
}

/// Serves plain sends to topics and queues that it was told of.
#[pyclass(module = "brokerset_native")]
pub struct SendLane {
    log: Py<LogCursor>,
    config: Config,
    topics: HashMap<Box<[u8]>, Topic>,
    /// By kind: where messages wait that are put aside.
    asides: [Option<Queue>; KINDS.len()],
    counted: Vec<Box<[u8]>>,
    forgotten: Vec<(Py<PyAny>, [Counters; KINDS.len()])>,
    /// Who may send; None where nobody is asked.
    signers: Option<Signers>,
    plan: Plan,
    properties: Vec<u8>,
    offsets: Vec<i64>,
}

/// What stays the same for all frames of a call.
struct Chunk<'a, 'py> {
    py: Python<'py>,
    born_host: &'a [u8],
    source: &'a [u8],
    now_ms: i64,
    halves_max: usize,
    timer_slot_ms: i64,
    timer_max_delay_ms: i64,
    limit: i64,
    index: Option<IndexRoom>,
    topics: &'a Bound<'py, PyDict>,
    queues: &'a Bound<'py, PyDict>,
}

#[derive(Clone, Copy)]
pub(crate) struct IndexRoom {
    pub(crate) units: usize,
    pub(crate) end_offset: i64,
}

#[pymethods]
impl SendLane {
    /// With `checks_signatures` it serves only what is signed by somebody of whom `allow` was called.
    #[new]
    fn new(
        log: Py<LogCursor>,
        config: &Bound<'_, PyDict>,
        checks_signatures: bool,
    ) -> PyResult<Self> {
        Ok(Self {
            log,
            config: read_config(config)?,
            topics: HashMap::new(),
            asides: [const { None }; KINDS.len()],
            counted: Vec::new(),
            forgotten: Vec::new(),
            signers: checks_signatures.then(Signers::default),
            plan: Plan::default(),
            properties: Vec::new(),
            offsets: Vec::new(),
        })
    }

    /// Go by other settings.
    fn configure(&mut self, config: &Bound<'_, PyDict>) -> PyResult<()> {
        self.config = read_config(config)?;
        Ok(())
    }

    /// Serve messages for this topic that are put aside, for as long as the table of topics has this `config`;
    /// for `queue_count` queues.
    fn learn_topic(
        &mut self,
        name: &Bound<'_, PyString>,
        config: Py<PyAny>,
        facts: Py<PyAny>,
        queue_count: i32,
    ) -> PyResult<()> {
        let topic = name.to_str()?.as_bytes();
        let known = self.topics.get(topic);
        if known.is_some_and(|known| !known.config.is(&config) || !known.facts.is(&facts)) {
            self.forget(name)?;
        }
        self.topics.entry(topic.into()).or_insert_with(|| Topic {
            name: name.clone().unbind(),
            config,
            facts,
            queue_count,
            queues: HashMap::new(),
            call: 0,
            planned: Default::default(),
            counters: Default::default(),
        });
        Ok(())
    }

    /// Serve sends to this queue of a topic that was learnt.
    fn learn_queue(
        &mut self,
        name: &Bound<'_, PyString>,
        queue_id: i32,
        cursor: Py<QueueCursor>,
        topic_field: Vec<u8>,
        magic: u32,
    ) -> PyResult<()> {
        let queue = Queue::new(name, queue_id, cursor, topic_field, magic)?;
        if let Some(topic) = self.topics.get_mut(&queue.topic) {
            topic.queues.insert(queue_id, queue);
        }
        Ok(())
    }

    /// Put messages of a kind aside in this queue: 1 for halves, 2 for timers.
    fn learn_aside(
        &mut self,
        kind: usize,
        name: &Bound<'_, PyString>,
        queue_id: i32,
        cursor: Py<QueueCursor>,
        topic_field: Vec<u8>,
        magic: u32,
    ) -> PyResult<()> {
        let aside = self
            .asides
            .get_mut(kind)
            .ok_or_else(|| PyValueError::new_err("there is no such kind of message"))?;
        *aside = Some(Queue::new(name, queue_id, cursor, topic_field, magic)?);
        Ok(())
    }

    /// Serve no sends to a topic until it is learnt again.
    fn forget(&mut self, name: &Bound<'_, PyString>) -> PyResult<()> {
        if let Some(topic) = self.topics.remove(name.to_str()?.as_bytes())
            && topic.has_counted()
        {
            self.forgotten.push((topic.facts, topic.counters));
        }
        Ok(())
    }

    /// Serve no sends to any topic until it is learnt again.
    fn forget_all(&mut self) {
        self.asides = [const { None }; KINDS.len()];
        for (_, topic) in self.topics.drain() {
            if topic.has_counted() {
                self.forgotten.push((topic.facts, topic.counters));
            }
        }
    }

    /// A user with this password, who is enabled, may send to a topic from an address.
    fn allow(&mut self, name: &[u8], password: &[u8], topic: &[u8], source: &[u8]) {
        if let Some(signers) = &mut self.signers {
            signers.allow(name, password, topic, source);
        }
    }

    /// Nobody may send until `allow` is called again.
    fn forget_signers(&mut self) {
        if let Some(signers) = &mut self.signers {
            signers.forget_all();
        }
    }

    /// What was stored since the last call: (facts, kind, requests, messages, bytes, records by class of size), …
    fn take<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let found = PyList::empty(py);
        for topic in self.counted.drain(..) {
            if let Some(topic) = self.topics.get_mut(&topic) {
                let counters = std::mem::take(&mut topic.counters);
                put_counted(&found, &topic.facts, &counters)?;
            }
        }
        for (facts, counters) in self.forgotten.drain(..) {
            put_counted(&found, &facts, &counters)?;
        }
        Ok(found)
    }

    /// Serve the plain sends at the beginning of `data`, which begins with a frame. OSError if the log does not take
    /// them; then nothing has been done.
    ///
    /// `now`: milliseconds; `born_host`, `source`: the client's, with its port, and as text without; `index`: the file that is written, None without an index;
    /// `topics`, `queues`: the tables by name and by (name, queue id); `waiting_max`: requests that may wait for an
    /// answer; `replies_max`: bytes of answers at which it stops; `halves_max`: half messages that may be stored;
    /// `timer_slot_ms`, `timer_max_delay_ms`: how timers wait, 0 if none is taken. None if the first frame is not
    /// one; else bytes served, messages stored, answers, their frames, the end of the log, the queues that have
    /// arrivals since (None: no new ones), and the half messages (None: there are none).
    #[allow(clippy::too_many_arguments, clippy::type_complexity)] // one call for each chunk
    fn serve<'py>(
        &mut self,
        py: Python<'py>,
        data: &Bound<'py, PyBytes>,
        now: i64,
        born_host: &Bound<'py, PyBytes>,
        source: &str,
        index: Option<Py<IndexCursor>>,
        topics: &Bound<'py, PyDict>,
        queues: &Bound<'py, PyDict>,
        waiting_max: usize,
        replies_max: usize,
        halves_max: usize,
        timer_slot_ms: i64,
        timer_max_delay_ms: i64,
    ) -> PyResult<
        Option<(
            usize,
            usize,
            usize,
            Bound<'py, PyBytes>,
            i64,
            Option<Bound<'py, PyList>>,
            Option<Bound<'py, PyList>>,
        )>,
    > {
        let data = data.as_bytes();
        let room = match &index {
            None => None,
            Some(index) => match index_room(&mut index.borrow_mut(py), py) {
                None => return Ok(None),
                room => room,
            },
        };
        let limit = {
            let log = self.log.borrow(py);
            if !log.has_file() {
                return Ok(None);
            }
            let plan = &mut self.plan;
            plan.call += 1;
            plan.offset = log.max_offset;
            plan.now = now.max(log.store_timestamp);
            plan.records.clear();
            plan.entries.clear();
            plan.replies.clear();
            plan.used.clear();
            plan.topics.clear();
            plan.halves.clear();
            plan.messages = 0;
            plan.waiting = 0;
            log.limit
        };
        let chunk = Chunk {
            py,
            born_host: born_host.as_bytes(),
            source: source.as_bytes(),
            now_ms: now,
            halves_max,
            timer_slot_ms,
            timer_max_delay_ms,
            limit,
            index: room,
            topics,
            queues,
        };
        let mut at = 0;
        let mut items = Vec::new();
        while self.plan.waiting < waiting_max
            && self.plan.replies.len() < replies_max
            && let Some(frame) = frame_at(data, at, self.config.frame_size_max)
        {
            if !self.take_frame(&chunk, frame.header, frame.body, &mut items)? {
                break;
            }
            at = frame.end;
        }
        if at == 0 {
            return Ok(None);
        }
        self.log.borrow(py).write(&self.plan.records)?;
        let arrived = self.carry_out(py, index);
        // Making an object may run the garbage collector, and so Python code: only now, when all is written.
        let halves = std::mem::take(&mut self.plan.halves);
        let (messages, waiting, end) = (self.plan.messages, self.plan.waiting, self.plan.offset);
        let replies = PyBytes::new(py, &self.plan.replies);
        let arrived = (!arrived.is_empty())
            .then(|| PyList::new(py, arrived))
            .transpose()?;
        let halves = (!halves.is_empty())
            .then(|| {
                let halves = halves
                    .into_iter()
                    .map(|(number, offset, key, born, topic)| {
                        (number, offset, PyBytes::new(py, &key), born, topic)
                    });
                PyList::new(py, halves.collect::<Vec<_>>())
            })
            .transpose()?;
        Ok(Some((at, messages, waiting, replies, end, arrived, halves)))
    }
}

impl SendLane {
    /// Plans one request; false if it is declined, and then nothing of it is planned.
    fn take_frame<'a>(
        &mut self,
        chunk: &Chunk<'_, '_>,
        header: &'a [u8],
        body: &'a [u8],
        items: &mut Vec<Item<'a>>,
    ) -> PyResult<bool> {
        let mut signed = Signed::default();
        let Some(header) = read_send(header, &mut self.properties, &mut signed) else {
            return Ok(false);
        };
        // First of all: nothing is done, and nothing added to the properties, for whoever may not send.
        if let Some(signers) = &self.signers
            && !signers.admit(chunk.source, &header, &signed, &self.properties, body)
        {
            return Ok(false);
        }
        let Some(topic) = self.topics.get_mut(header.topic) else {
            return Ok(false);
        };
        let call = self.plan.call;
        if topic.call != call {
            let config = chunk.topics.get_item(&topic.name)?;
            if !config.is_some_and(|config| config.is(&topic.config)) {
                return Ok(false);
            }
            topic.call = call;
            topic.planned = Default::default();
        }
        let aside = if header.batch || plain::is_plain(&self.properties) {
            None
        } else {
            let Some(aside) = aside_of(chunk, &self.plan, &header, &mut self.properties) else {
                return Ok(false);
            };
            if header.queue_id >= topic.queue_count {
                return Ok(false);
            }
            Some(aside)
        };
        let kind = aside.map_or(Kind::Plain, Aside::kind);
        let queue = match kind {
            Kind::Plain => topic.queues.get_mut(&header.queue_id),
            Kind::Half | Kind::Timer => self.asides[kind as usize].as_mut(),
        };
        let Some(queue) = queue else {
            return Ok(false);
        };
        if !queue.enter(call, chunk)? {
            return Ok(false);
        }
        let marks = (
            self.plan.records.len(),
            self.plan.entries.len(),
            queue.units.len(),
        );
        let work = Work {
            config: &self.config,
            chunk,
            plan: &mut self.plan,
            queue,
            header: &header,
            properties: &mut self.properties,
            offsets: &mut self.offsets,
        };
        let planned = match aside {
            Some(aside) => work.aside(body, aside, &topic.name),
            None if header.batch => work.batch(body, items),
            None => work.single(body),
        };
        let Some((messages, size)) = planned else {
            self.plan.records.truncate(marks.0);
            self.plan.entries.truncate(marks.1);
            queue.units.truncate(marks.2);
            return Ok(false);
        };
        if marks.2 == 0 {
            let (topic, queue_id) = if kind == Kind::Plain {
                (header.topic, header.queue_id)
            } else {
                (&b""[..], 0)
            };
            self.plan.used.push((kind, topic.into(), queue_id));
        }
        if topic.planned.iter().all(|counters| counters.calls == 0) {
            self.plan.topics.push(header.topic.into());
        }
        topic.planned[kind as usize].add(messages as u64, size as u64);
        self.plan.messages += messages;
        self.plan.waiting += usize::from(!header.oneway);
        Ok(true)
    }

    /// The records are in the log: write units and entries, and move the cursors; which queues have arrivals since.
    fn carry_out(
        &mut self,
        py: Python<'_>,
        index: Option<Py<IndexCursor>>,
    ) -> Vec<Py<QueueCursor>> {
        const KNOWN: &str = "what was planned is known";
        let plan = &self.plan;
        {
            let mut log = self.log.borrow_mut(py);
            log.max_offset = plan.offset;
            log.store_timestamp = plan.now;
        }
        for topic in &plan.topics {
            let known = self.topics.get_mut(topic).expect(KNOWN);
            if !known.has_counted() {
                self.counted.push(topic.clone());
            }
            for (counters, more) in known.counters.iter_mut().zip(&known.planned) {
                if more.calls > 0 {
                    counters.join(more);
                }
            }
        }
        let mut arrived = Vec::new();
        for (kind, topic, queue_id) in &plan.used {
            let queue = match kind {
                Kind::Plain => self.topics.get(topic).expect(KNOWN).queues.get(queue_id),
                Kind::Half | Kind::Timer => self.asides[*kind as usize].as_ref(),
            };
            arrived.extend(queue.expect(KNOWN).carry_out(py));
        }
        if let Some(index) = index
            && !plan.entries.is_empty()
        {
            put_entries(&mut index.borrow_mut(py), py, &plan.entries, plan.now);
        }
        arrived
    }
}

/// How a message is put aside.
#[derive(Clone, Copy)]
enum Aside {
    Half,
    Timer { out_ms: i64 },
}

impl Aside {
    fn kind(self) -> Kind {
        match self {
            Self::Half => Kind::Half,
            Self::Timer { .. } => Kind::Timer,
        }
    }
}

/// How a message is put aside whose properties are not plain, if that is done here; they end with a separator then.
fn aside_of(
    chunk: &Chunk<'_, '_>,
    plan: &Plan,
    header: &SendHeader<'_>,
    properties: &mut Vec<u8>,
) -> Option<Aside> {
    if properties.last().is_some_and(|last| *last != 2) {
        properties.push(2);
    }
    if plan.halves.len() < chunk.halves_max && asides::is_plain_half(properties, header.sys_flag) {
        return Some(Aside::Half);
    }
    if chunk.timer_slot_ms > 0 && header.sys_flag & !PLAIN_BITS == 0 {
        let out_ms = asides::plain_timer(properties)?.out_ms(
            chunk.now_ms,
            chunk.timer_slot_ms,
            chunk.timer_max_delay_ms,
        )?;
        return Some(Aside::Timer { out_ms });
    }
    None
}

/// One request, in the state of the call so far.
struct Work<'w, 'a, 'py> {
    config: &'w Config,
    chunk: &'w Chunk<'a, 'py>,
    plan: &'w mut Plan,
    queue: &'w mut Queue,
    header: &'w SendHeader<'w>,
    properties: &'w mut Vec<u8>,
    offsets: &'w mut Vec<i64>,
}

impl Work<'_, '_, '_> {
    /// One message; its size if it was planned.
    fn single(self, body: &[u8]) -> Option<(usize, usize)> {
        let Self {
            config,
            chunk,
            plan,
            queue,
            header,
            properties,
            offsets,
        } = self;
        if body.is_empty()
            || body.len() > config.body_size_max
            || header.sys_flag & !PLAIN_BITS != 0
        {
            return None;
        }
        if plain::may_not_wait(properties) {
            return None;
        }
        if properties.last().is_some_and(|last| *last != 2) {
            properties.push(2);
        }
        let unique_id = plain::unique_id(properties)?.to_vec();
        properties.extend_from_slice(&config.suffix);
        if properties.len() > config.properties_size_max {
            return None;
        }
        let message = Message {
            flag: header.flag,
            body,
            raw: properties,
            pieces: &[properties],
        };
        let (offset, queue_offset) = (plan.offset, queue.next_offset);
        let size = plan_message(config, chunk, plan, queue, header, &message)?;
        if !header.oneway {
            offsets.clear();
            offsets.push(offset);
            let stored = Stored {
                queue_id: header.queue_id,
                unique_id: &unique_id,
                offsets,
                queue_offset,
                opaque: header.opaque,
            };
            config
                .single
                .put(&mut plan.replies, &config.host_text, &stored);
        }
        Some((1, size))
    }

    /// One message that is put aside; its size if it was planned. `topic` is the one that it is for.
    fn aside(self, body: &[u8], aside: Aside, topic: &Py<PyString>) -> Option<(usize, usize)> {
        let Self {
            config,
            chunk,
            plan,
            queue,
            header,
            properties,
            offsets,
        } = self;
        if body.is_empty() || body.len() > config.body_size_max || plain::may_not_wait(properties) {
            return None;
        }
        let unique_id: Box<[u8]> = plain::unique_id(properties)?.into();
        properties.extend_from_slice(&config.suffix);
        let properties_max = match aside {
            Aside::Half => {
                asides::put_half_properties(properties, &unique_id, header.topic, header.queue_id);
                config.properties_size_max
            }
            Aside::Timer { out_ms } => {
                asides::put_timer_properties(properties, out_ms, header.topic, header.queue_id);
                config
                    .properties_size_max
                    .checked_sub(config.delivery_properties_size)?
            }
        };
        if properties.len() > properties_max {
            return None;
        }
        let message = Message {
            flag: header.flag,
            body,
            raw: properties,
            pieces: &[properties],
        };
        let (offset, queue_offset) = (plan.offset, queue.next_offset);
        let size = plan_message(config, chunk, plan, queue, header, &message)?;
        if !header.oneway {
            offsets.clear();
            offsets.push(offset);
            let stored = Stored {
                queue_id: header.queue_id,
                unique_id: &unique_id,
                offsets,
                queue_offset,
                opaque: header.opaque,
            };
            match aside {
                Aside::Half => {
                    config
                        .single
                        .put(&mut plan.replies, &config.host_text, &stored);
                }
                Aside::Timer { out_ms } => {
                    let put_handle = |out: &mut Vec<u8>| {
                        let name = &config.broker_name;
                        asides::put_recall_handle(out, header.topic, name, out_ms, &unique_id);
                    };
                    config
                        .waiting
                        .put(&mut plan.replies, &config.host_text, &stored, put_handle);
                }
            }
        }
        if let Aside::Half = aside {
            let topic = topic.clone_ref(chunk.py);
            plan.halves.push((
                queue_offset,
                offset,
                unique_id,
                header.born_timestamp,
                topic,
            ));
        }
        Some((1, size))
    }

    /// A batch: all of it or nothing; how many messages and bytes were planned.
    fn batch<'a>(self, body: &'a [u8], items: &mut Vec<Item<'a>>) -> Option<(usize, usize)> {
        let Self {
            config,
            chunk,
            plan,
            queue,
            header,
            properties,
            offsets,
        } = self;
        if body.is_empty()
            || body.len() > config.body_size_max
            || header.sys_flag & !PLAIN_BITS & !HOST_BITS != 0
            || plain::may_not_wait(properties)
        {
            return None;
        }
        let unique_id = match plain::mentions_unique_id(properties) {
            false => None,
            true if plain::has_one_unique_id(properties) => {
                Some(plain::unique_id(properties)?.to_vec())
            }
            true => return None,
        };
        read_batch(body, items)?;
        if items.len() > ANSWER_IDS_MAX {
            return None;
        }
        let before = (plan.offset, queue.next_offset, queue.last_end, queue.tags);
        offsets.clear();
        for item in items.iter() {
            offsets.push(plan.offset);
            if plan_item(config, chunk, plan, queue, header, item).is_none() {
                (plan.offset, queue.next_offset, queue.last_end, queue.tags) = before;
                return None;
            }
        }
        let size = plan.offset - before.0;
        if size > config.batch_size_max {
            (plan.offset, queue.next_offset, queue.last_end, queue.tags) = before;
            return None;
        }
        if !header.oneway {
            let template = if unique_id.is_some() {
                &config.single
            } else {
                &config.batch
            };
            let stored = Stored {
                queue_id: header.queue_id,
                unique_id: unique_id.as_deref().unwrap_or_default(),
                offsets,
                queue_offset: before.1,
                opaque: header.opaque,
            };
            template.put(&mut plan.replies, &config.host_text, &stored);
        }
        Some((items.len(), size as usize))
    }
}

/// One message: its own flag, body and properties, these in one piece and in the pieces to write.
struct Message<'m> {
    flag: i32,
    body: &'m [u8],
    raw: &'m [u8],
    pieces: &'m [&'m [u8]],
}

/// Plans one message of a batch.
fn plan_item(
    config: &Config,
    chunk: &Chunk<'_, '_>,
    plan: &mut Plan,
    queue: &mut Queue,
    header: &SendHeader<'_>,
    item: &Item<'_>,
) -> Option<usize> {
    if !plain::is_plain(item.properties) {
        return None;
    }
    let (flag, body) = (item.flag, item.body);
    if config.appends_crc && item.properties.last().is_some_and(|last| *last != 2) {
        let raw = [item.properties, b"\x02"].concat();
        let message = Message {
            flag,
            body,
            raw: &raw,
            pieces: &[&raw],
        };
        return plan_message(config, chunk, plan, queue, header, &message);
    }
    let message = Message {
        flag,
        body,
        raw: item.properties,
        pieces: &[item.properties],
    };
    plan_message(config, chunk, plan, queue, header, &message)
}

/// Plans record, unit and index entries of one message at the end of what is planned; the record's size.
fn plan_message(
    config: &Config,
    chunk: &Chunk<'_, '_>,
    plan: &mut Plan,
    queue: &mut Queue,
    header: &SendHeader<'_>,
    message: &Message<'_>,
) -> Option<usize> {
    if message.raw.len() > config.properties_size_max {
        return None;
    }
    let parts = Parts {
        born_host: chunk.born_host,
        store_host: &config.store_host,
        body: message.body,
        topic_field: &queue.topic_field,
        properties: message.pieces,
        with_crc: config.appends_crc,
    };
    let size = parts.size();
    let (offset, end) = (plan.offset, plan.offset + size as i64);
    if end > chunk.limit || queue.units.len() + UNIT_SIZE > queue.room {
        return None;
    }
    let facts = derived(message.raw)?;
    if let Some(room) = chunk.index
        && offset >= room.end_offset
    {
        let ids = facts.uniq_key.map(|range| &message.raw[range]);
        let keys = facts
            .keys
            .map(|range| &message.raw[range])
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
    let head = Head {
        magic: queue.magic,
        queue_id: queue.queue_id,
        flag: message.flag,
        queue_offset: queue.next_offset,
        offset,
        sys_flag: header.sys_flag & PLAIN_BITS
            | if chunk.born_host.len() > HOST_SIZE_V4 {
                BORN_HOST_V6
            } else {
                0
            }
            | if config.store_host.len() > HOST_SIZE_V4 {
                STORE_HOST_V6
            } else {
                0
            },
        born_timestamp: header.born_timestamp,
        store_timestamp: plan.now,
        reconsume_times: if header.batch {
            0
        } else {
            header.reconsume_times
        },
    };
    put_record(&mut plan.records, &head, &parts);
    queue.units.extend_from_slice(&offset.to_be_bytes());
    queue.units.extend_from_slice(&(size as i32).to_be_bytes());
    queue
        .units
        .extend_from_slice(&facts.tags_code.to_be_bytes());
    queue.tags = join(queue.tags, Some(facts.tags_code));
    queue.next_offset += 1;
    queue.last_end = end;
    plan.offset = end;
    Some(size)
}

/// Puts entries into the file that is written; there is room for all of them.
pub(crate) fn put_entries(
    cursor: &mut IndexCursor,
    py: Python<'_>,
    entries: &[(i32, i64)],
    now: i64,
) {
    let mut index = Index {
        slots: cursor.slots as usize,
        units: cursor.units,
        begin_timestamp: cursor.begin_timestamp,
        end_timestamp: cursor.end_timestamp,
        begin_offset: cursor.begin_offset,
        end_offset: cursor.end_offset,
        slots_used: cursor.slots_used,
        next_unit: cursor.next_unit,
    };
    let file = cursor.buffer.bytes(py);
    let units = index.units;
    let entries = entries.iter().map(|(hash, offset)| (*hash, *offset, now));
    index.put_all(file, units, entries);
    cursor.begin_timestamp = index.begin_timestamp;
    cursor.end_timestamp = index.end_timestamp;
    cursor.begin_offset = index.begin_offset;
    cursor.end_offset = index.end_offset;
    cursor.slots_used = index.slots_used;
    cursor.next_unit = index.next_unit;
}

/// Units of the index that may be put, and from which offset of the log on; None for a file of another size.
pub(crate) fn index_room(cursor: &mut IndexCursor, py: Python<'_>) -> Option<IndexRoom> {
    let (slots, units) = (
        usize::try_from(cursor.slots).ok()?,
        usize::try_from(cursor.units).ok()?,
    );
    if slots == 0
        || cursor.next_unit < 1
        || cursor.buffer.bytes(py).len() != file_size(slots, units)
    {
        return None;
    }
    let room = cursor.room.min(cursor.units) - cursor.next_unit;
    Some(IndexRoom {
        units: usize::try_from(room).unwrap_or(0),
        end_offset: cursor.end_offset,
    })
}

fn put_counted(
    found: &Bound<'_, PyList>,
    facts: &Py<PyAny>,
    counters: &[Counters; KINDS.len()],
) -> PyResult<()> {
    for (kind, counters) in KINDS.into_iter().zip(counters) {
        if counters.calls > 0 {
            let classes: Vec<(usize, u64)> = counters
                .classes
                .iter()
                .copied()
                .enumerate()
                .filter(|(_, n)| *n > 0)
                .collect();
            let Counters {
                calls,
                messages,
                size,
                ..
            } = counters;
            found.append((facts, kind as usize, calls, messages, size, classes))?;
        }
    }
    Ok(())
}

fn read_config(config: &Bound<'_, PyDict>) -> PyResult<Config> {
    let need = |name: &str| {
        config
            .get_item(name)?
            .ok_or_else(|| PyValueError::new_err(format!("the settings lack {name}")))
    };
    let bytes = |name: &str| need(name)?.extract::<Vec<u8>>();
    let number = |name: &str| need(name)?.extract::<usize>();
    let template = |name: &str| -> PyResult<Template> {
        let pieces = need(name)?.extract::<Vec<Vec<u8>>>()?;
        let [
            queue_id,
            transaction_id,
            message_ids,
            queue_offset,
            opaque,
            end,
        ] = <[Vec<u8>; 6]>::try_from(pieces)
            .map_err(|_| PyValueError::new_err("an answer has six pieces"))?;
        let transaction_id = Some(transaction_id).filter(|piece| !piece.is_empty());
        Ok(Template {
            queue_id,
            transaction_id,
            message_ids,
            queue_offset,
            opaque,
            end,
        })
    };
    let waiting = need("waiting")?.extract::<Vec<Vec<u8>>>()?;
    let store_host = bytes("store_host")?;
    Ok(Config {
        host_text: store_host
            .iter()
            .flat_map(|byte| format!("{byte:02X}").into_bytes())
            .collect(),
        store_host,
        suffix: bytes("suffix")?,
        body_size_max: number("body_size_max")?,
        batch_size_max: number("batch_size_max")? as i64,
        properties_size_max: number("properties_size_max")?,
        frame_size_max: number("frame_size_max")?,
        appends_crc: need("appends_crc")?.extract()?,
        delivery_properties_size: number("delivery_properties_size")?,
        broker_name: bytes("broker_name")?,
        waiting: WaitingTemplate {
            pieces: waiting
                .try_into()
                .map_err(|_| PyValueError::new_err("such an answer has seven pieces"))?,
        },
        single: template("single")?,
        batch: template("batch")?,
    })
}
