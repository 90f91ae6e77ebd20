//! Plain timer messages are linked into the wheel: a unit in the timer log for each, and the slot that names it.
//!
//! Source: `TimerWork._take` of `brokerset_broker.services.timers.work`, with `timers.enqueue.decide_take`. Plain is
//! a message whose slot is to come, in this turn of the wheel, and that neither rolls, has rolled, nor recalls another.

use std::sync::LazyLock;

use memchr::memmem::Finder;

use crate::hashing::java_hash_bytes;
use crate::pull_units::UNIT_SIZE as QUEUE_UNIT_SIZE;
use crate::scan::{Record, record_at};

pub const TIMER_TOPIC: &[u8] = b"rmq_sys_wheel_timer";

const UNIT_SIZE: usize = 52;
/// A unit leaves so many bytes of its file for the blank behind the last one.
const BLANK_SIZE: usize = 16;
const SLOT_SIZE: usize = 32;
const DEFAULT_MAGIC: i32 = 1;
const NO_POSITION: i64 = -1;
const DIGITS_MAX: usize = 18;

static RECALLS: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("TIMER_DEL_UNIQKEY"));
static ROLLED: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("TIMER_ROLL_TIMES"));

/// Where the wheel stands.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Width of a slot.
    pub slot_ms: i64,
    /// What waits for so long or longer rolls.
    pub window_ms: i64,
    /// Slots before may have been read.
    pub read_ms: i64,
    /// Slots from here on have no room.
    pub end_ms: i64,
    /// The wheel's clock.
    pub write_ms: i64,
}

/// The file that has the end of the timer log.
pub struct LogFile<'a> {
    pub bytes: &'a mut [u8],
    /// Position of its first byte.
    pub start: i64,
    /// Bytes of it whose blocks are reserved.
    pub reserved: usize,
}

/// Messages of one topic that were linked.
#[derive(Debug, PartialEq, Eq)]
pub struct TopicLinks<'a> {
    pub topic: &'a [u8],
    pub hash: i32,
    pub count: usize,
    /// When the last one was stored.
    pub store_ms: i64,
}

/// What was done.
#[derive(Debug, PartialEq, Eq)]
pub struct Linked<'a> {
    pub taken: usize,
    /// The timer log's new end.
    pub position: i64,
    pub topics: Vec<TopicLinks<'a>>,
}

/// Links the messages of whole queue `units`, the first of them number `queue_offset`, until one is not plain.
///
/// `records` is the file of the commit log whose first byte has the offset `start`; the timer log ends at `position`.
#[allow(clippy::too_many_arguments)] // two files of the store, two of the timers, and where they stand
pub fn link_run<'a>(
    units: &[u8],
    queue_offset: i64,
    records: &'a [u8],
    start: i64,
    wheel: &mut [u8],
    log: &mut LogFile<'_>,
    position: i64,
    times: &Times,
) -> Linked<'a> {
    let mut linked = Linked {
        taken: 0,
        position,
        topics: Vec::new(),
    };
    for unit in units.chunks_exact(QUEUE_UNIT_SIZE) {
        let number = queue_offset + linked.taken as i64;
        let Some(found) = plain_at(unit, number, records, start, times) else {
            break;
        };
        let Some(end) = link(&found, wheel, log, linked.position, times) else {
            break;
        };
        linked.position = end;
        linked.taken += 1;
        let store_ms = found.record.store_timestamp;
        match linked
            .topics
            .iter_mut()
            .find(|links| links.topic == found.topic)
        {
            Some(links) => {
                links.count += 1;
                links.store_ms = store_ms;
            }
            None => linked.topics.push(TopicLinks {
                topic: found.topic,
                hash: found.hash,
                count: 1,
                store_ms,
            }),
        }
    }
    linked
}

struct Plain<'a> {
    record: Record<'a>,
    topic: &'a [u8],
    hash: i32,
    slot_ms: i64,
}

/// The message that a unit of the queue names, if it is plain.
fn plain_at<'a>(
    unit: &[u8],
    number: i64,
    records: &'a [u8],
    start: i64,
    times: &Times,
) -> Option<Plain<'a>> {
    let offset = i64::from_be_bytes(unit[..8].try_into().ok()?);
    let size = i32::from_be_bytes(unit[8..12].try_into().ok()?);
    let position = usize::try_from(offset.checked_sub(start)?).ok()?;
    let record = record_at(records, start, position, false)?;
    if Ok(record.size) != usize::try_from(size)
        || record.topic != TIMER_TOPIC
        || record.queue_offset != number
    {
        return None;
    }
    let raw = record.properties;
    if RECALLS.find(raw).is_some() || ROLLED.find(raw).is_some() {
        return None;
    }
    let (mut out_ms, mut topic, mut queue_id) = (None, None, None);
    for pair in raw.split(|byte| *byte == 2) {
        // Few begin so; of a repeated name the last value that is not empty counts.
        if !matches!(pair.first(), Some(b'T' | b'R')) {
            continue;
        }
        for (name, value) in [
            (&b"TIMER_OUT_MS\x01"[..], &mut out_ms),
            (b"REAL_TOPIC\x01", &mut topic),
            (b"REAL_QID\x01", &mut queue_id),
        ] {
            if let Some(found) = pair.strip_prefix(name)
                && !found.is_empty()
            {
                *value = Some(found);
            }
        }
    }
    let out_ms = number_in(out_ms?)?;
    number_in(queue_id?)?;
    let topic = topic?;
    let hash = java_hash_bytes(topic)?;
    if record.store_timestamp < 0 || times.slot_ms <= 0 {
        return None;
    }
    let base_ms = record.store_timestamp - record.store_timestamp % times.slot_ms;
    let slot_ms = out_ms - out_ms % times.slot_ms;
    let rolls = out_ms - base_ms >= times.window_ms;
    if rolls || slot_ms < times.read_ms || slot_ms >= times.end_ms {
        return None;
    }
    Some(Plain {
        record,
        topic,
        hash,
        slot_ms,
    })
}

fn number_in(digits: &[u8]) -> Option<i64> {
    if digits.is_empty() || digits.len() > DIGITS_MAX || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Writes the unit at `position`, then the slot; where the log ends behind it. None if there is no room.
fn link(
    found: &Plain<'_>,
    wheel: &mut [u8],
    log: &mut LogFile<'_>,
    position: i64,
    times: &Times,
) -> Option<i64> {
    let inside = usize::try_from(position.checked_sub(log.start)?).ok()?;
    let end = inside.checked_add(UNIT_SIZE)?;
    let slots = wheel.len() / SLOT_SIZE;
    if end > log.reserved || end + BLANK_SIZE > log.bytes.len() || slots == 0 {
        return None;
    }
    let number = found.slot_ms / times.slot_ms;
    let at = number as usize % slots * SLOT_SIZE;
    let slot: &mut [u8] = wheel.get_mut(at..at + SLOT_SIZE)?;
    let long = |from: usize| i64::from_be_bytes(slot[from..from + 8].try_into().expect("8 bytes"));
    let word = |from: usize| i32::from_be_bytes(slot[from..from + 4].try_into().expect("4 bytes"));
    let is_used = number > 0 && long(0) == number && long(16) != NO_POSITION;
    let (first, previous, count, magic) = if is_used {
        (long(8), long(16), word(24), word(28))
    } else {
        (position, NO_POSITION, 0, 0)
    };
    let count = count.checked_add(1)?;
    let delay = found.slot_ms - times.write_ms;
    let fits = (-i64::from(i32::MAX)..=i64::from(i32::MAX)).contains(&delay);
    let (base, delay) = if fits {
        (times.write_ms, delay as i32)
    } else {
        (found.slot_ms, 0)
    };
    let mut unit = Writer(&mut log.bytes[inside..end]);
    unit.put(&(UNIT_SIZE as i32).to_be_bytes());
    unit.put(&previous.to_be_bytes());
    unit.put(&DEFAULT_MAGIC.to_be_bytes());
    unit.put(&base.to_be_bytes());
    unit.put(&delay.to_be_bytes());
    unit.put(&found.record.offset.to_be_bytes());
    unit.put(&(found.record.size as i32).to_be_bytes());
    unit.put(&found.hash.to_be_bytes());
    unit.put(&0i64.to_be_bytes());
    let mut writer = Writer(slot);
    writer.put(&number.to_be_bytes());
    writer.put(&first.to_be_bytes());
    writer.put(&position.to_be_bytes());
    writer.put(&count.to_be_bytes());
    writer.put(&magic.to_be_bytes());
    Some(position + UNIT_SIZE as i64)
}

/// Bytes that are written one after the other.
struct Writer<'a>(&'a mut [u8]);

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) {
        let (head, rest) = std::mem::take(&mut self.0).split_at_mut(bytes.len());
        head.copy_from_slice(bytes);
        self.0 = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::{Head, Parts, put_record};

    const TIMES: Times = Times {
        slot_ms: 1000,
        window_ms: 100_000,
        read_ms: 10_000,
        end_ms: 90_000,
        write_ms: 12_000,
    };

    /// Records with these properties, and their units.
    fn stored(properties: &[&str]) -> (Vec<u8>, Vec<u8>) {
        let (mut records, mut units) = (Vec::new(), Vec::new());
        let topic_field = [&[TIMER_TOPIC.len() as u8], TIMER_TOPIC].concat();
        for (number, text) in properties.iter().enumerate() {
            let offset = records.len() as i64 + 4096;
            let head = Head {
                magic: 0xdaa3_20a7,
                queue_id: 0,
                flag: 0,
                queue_offset: number as i64,
                offset,
                sys_flag: 0,
                born_timestamp: 1,
                store_timestamp: 12_345,
                reconsume_times: 0,
            };
            let parts = Parts {
                born_host: &[1; 8],
                store_host: &[2; 8],
                body: b"body",
                topic_field: &topic_field,
                properties: &[text.as_bytes()],
                with_crc: false,
            };
            put_record(&mut records, &head, &parts);
            units.extend_from_slice(&offset.to_be_bytes());
            units.extend_from_slice(&(parts.size() as i32).to_be_bytes());
            units.extend_from_slice(&0i64.to_be_bytes());
        }
        (records, units)
    }

    fn waits(out_ms: i64) -> String {
        format!("TIMER_OUT_MS\x01{out_ms}\x02REAL_TOPIC\x01t\x02REAL_QID\x013\x02")
    }

    #[test]
    fn messages_are_linked_until_one_is_not_plain() {
        let plain = waits(20_000);
        let (records, units) = stored(&[&plain, &plain, &waits(9_000), &plain]);
        let (mut wheel, mut bytes) = (vec![0; 32 * 100], vec![0; 1000]);
        let mut log = LogFile {
            bytes: &mut bytes,
            start: 2000,
            reserved: 1000,
        };

        let linked = link_run(
            &units, 0, &records, 4096, &mut wheel, &mut log, 2104, &TIMES,
        );

        assert_eq!((linked.taken, linked.position), (2, 2208));
        assert_eq!(
            linked.topics,
            [TopicLinks {
                topic: b"t",
                hash: 116,
                count: 2,
                store_ms: 12_345
            }]
        );
        let slot = &wheel[20 * 32..21 * 32];
        assert_eq!(slot[..8], 20i64.to_be_bytes());
        assert_eq!(slot[8..16], 2104i64.to_be_bytes());
        assert_eq!(slot[16..24], 2156i64.to_be_bytes());
        assert_eq!(slot[24..28], 2i32.to_be_bytes());
        assert_eq!(bytes[104 + 52 + 4..104 + 52 + 12], 2104i64.to_be_bytes());
    }

    #[test]
    fn what_is_not_plain_is_left() {
        for text in [
            waits(5_000),
            waits(90_000),
            waits(112_000),
            format!("{}TIMER_DEL_UNIQKEY\x01k\x02", waits(20_000)),
            format!("{}TIMER_ROLL_TIMES\x011\x02", waits(20_000)),
            format!("{}REAL_QID\x01x\x02", waits(20_000)),
            "TIMER_OUT_MS\x0120000\x02REAL_QID\x013\x02".to_owned(),
        ] {
            let (records, units) = stored(&[&text]);
            let (mut wheel, mut bytes) = (vec![0; 32 * 100], vec![0; 1000]);
            let mut log = LogFile {
                bytes: &mut bytes,
                start: 0,
                reserved: 1000,
            };
            let linked = link_run(&units, 0, &records, 4096, &mut wheel, &mut log, 0, &TIMES);
            assert_eq!(linked.taken, 0, "{text}");
            assert!(wheel.iter().chain(&bytes).all(|byte| *byte == 0));
        }
    }

    #[test]
    fn a_file_without_room_is_left() {
        let plain = waits(20_000);
        let (records, units) = stored(&[&plain, &plain, &plain]);
        for (size, reserved, count) in [(1000, 120, 2), (120, 120, 2), (119, 119, 1), (60, 60, 0)] {
            let (mut wheel, mut bytes) = (vec![0; 32 * 100], vec![0; size]);
            let mut log = LogFile {
                bytes: &mut bytes,
                start: 0,
                reserved,
            };
            let linked = link_run(&units, 0, &records, 4096, &mut wheel, &mut log, 0, &TIMES);
            assert_eq!(linked.taken, count, "{size} {reserved}");
        }
    }
}
