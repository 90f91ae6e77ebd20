//! Plain records of a log: checked, parsed, and grouped by queue.
//!
//! A record is plain when the rules of Python's recovery (`check_record`, `store/recovery.scan`) and of its
//! receiving (`store/receiving.py`) both take it, and nothing about it needs a decision. A walk stops before the
//! first record that is anything else.

use std::collections::HashMap;
use std::sync::LazyLock;

use memchr::memmem::Finder;

use crate::hashing::{index_hash_from, index_hash_head};
use crate::properties::derived;
use crate::records::{PROPERTY_CRC_NAME, PROPERTY_CRC_SIZE, crc31};

const MAGIC_V1: u32 = 0xDAA3_20A7;
const FIXED_SIZE: usize = 88;
const RECORD_SIZE_MIN: usize = FIXED_SIZE + 3;
const HOST_V6_EXTRA: usize = 12;

const BORN_HOST_V6: i32 = 0x10;
const STORE_HOST_V6: i32 = 0x20;
const IN_NO_QUEUE: i32 = 0x4;
const IN_NO_INDEX: i32 = 0xC;

/// Stands in the properties of every message that is in light queues, too: Python puts it there.
static LIGHT: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("INNER_MULTI_"));

/// Its messages carry the time of delivery as their tags code, which Python knows.
const SCHEDULE_TOPIC: &[u8] = b"SCHEDULE_TOPIC_XXXX";

const ENTRY_MAGIC: u32 = 1;

/// A record with the usual parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    pub size: usize,
    pub topic: &'a [u8],
    pub properties: &'a [u8],
    pub queue_id: i32,
    pub queue_offset: i64,
    pub offset: i64,
    pub sys_flag: i32,
    pub store_timestamp: i64,
}

/// The record at `position` of a file whose first byte has the offset `start` in the log, and whose bytes end with
/// the slice; None unless it is whole, right and of the first version.
pub fn record_at(file: &[u8], start: i64, position: usize, verify_crc: bool) -> Option<Record<'_>> {
    let rest = file.get(position..)?;
    let size = usize::try_from(i32_at(rest, 0)?).ok()?;
    if u32_at(rest, 4)? != MAGIC_V1 || size < RECORD_SIZE_MIN {
        return None;
    }
    let record = rest.get(..size)?;
    let sys_flag = i32_at(record, 36)?;
    let born = if sys_flag & BORN_HOST_V6 != 0 {
        HOST_V6_EXTRA
    } else {
        0
    };
    let hosts = born
        + if sys_flag & STORE_HOST_V6 != 0 {
            HOST_V6_EXTRA
        } else {
            0
        };
    let body_start = FIXED_SIZE + hosts;
    let body_size = usize::try_from(i32_at(record, body_start - 4)?).ok()?;
    let body_end = body_start.checked_add(body_size)?;
    let body = record.get(body_start..body_end)?;
    let topic_size = usize::from(*record.get(body_end)?);
    if topic_size > 127 {
        return None;
    }
    let topic_end = body_end + 1 + topic_size;
    let topic = record.get(body_end + 1..topic_end)?;
    let properties_size =
        u16::from_be_bytes(record.get(topic_end..topic_end + 2)?.try_into().ok()?);
    let properties = &record[topic_end + 2..];
    if properties_size > i16::MAX as u16 || properties.len() != usize::from(properties_size) {
        return None;
    }
    let offset = i64_at(record, 28)?;
    let queue_offset = i64_at(record, 20)?;
    let is_there = usize::try_from(offset.checked_sub(start)?) == Ok(position);
    let counts = i128::from(queue_offset) * RECORD_SIZE_MIN as i128 <= i128::from(offset);
    if !is_there || !counts || memchr::memchr(0, topic).is_some() {
        return None;
    }
    if verify_crc && !is_right(record, body, properties) {
        return None;
    }
    Some(Record {
        size,
        topic,
        properties,
        queue_id: i32_at(record, 12)?,
        queue_offset,
        offset,
        sys_flag,
        store_timestamp: i64_at(record, 56 + born)?,
    })
}

/// Whether the record matches the CRC in its properties, or, without one, its body the body's CRC.
fn is_right(record: &[u8], body: &[u8], properties: &[u8]) -> bool {
    if let Some(digits) = property_crc(properties) {
        let mut rest = crc31(&record[..record.len() - PROPERTY_CRC_SIZE]);
        return digits.iter().all(|&digit| {
            let expected = b'0' + (rest % 10) as u8;
            rest /= 10;
            digit == expected
        }) && properties.last() == Some(&2);
    }
    Some(crc31(body)) == u32_at(record, 8) && properties.last() != Some(&0)
}

/// The digits of a CRC over the record, last one first, if it is the last property.
fn property_crc(properties: &[u8]) -> Option<&[u8]> {
    let begin = properties.len().checked_sub(PROPERTY_CRC_SIZE)?;
    let is_property = begin == 0 || properties[begin - 1] == 2;
    let value = properties[begin..].strip_prefix(PROPERTY_CRC_NAME)?;
    is_property.then(|| &value[..10])
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn i32_at(bytes: &[u8], at: usize) -> Option<i32> {
    u32_at(bytes, at).map(|value| value as i32)
}

fn i64_at(bytes: &[u8], at: usize) -> Option<i64> {
    Some(i64::from_be_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// What to take, and what to make of it.
#[derive(Clone, Debug)]
pub struct Options {
    /// Records that begin here or later are not taken.
    pub stop: usize,
    pub records_max: usize,
    /// Bytes before each record: 0, or the size of a DLedger entry's head.
    pub entry_head: usize,
    pub verify_crc: bool,
    /// Whether queue units are wanted.
    pub units: bool,
    /// Whether index entries are wanted.
    pub index: bool,
}

/// New units of one queue, in a row.
#[derive(Debug, PartialEq, Eq)]
pub struct Run<'a> {
    pub topic: &'a [u8],
    pub queue_id: i32,
    pub first_queue_offset: i64,
    /// Where its first record begins.
    pub first_offset: i64,
    /// Behind its last record.
    pub last_end: i64,
    /// 20 bytes each: offset, size, tags code.
    pub units: Vec<u8>,
    /// Of all messages; None if they differ.
    pub tags_code: Option<i64>,
    /// What index hashes of the topic's keys have in common.
    hash_head: u32,
}

/// Bytes of an index entry: hash (i32), offset and store time (i64), big endian.
pub const INDEX_ENTRY_SIZE: usize = 20;

/// What was taken.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Taken<'a> {
    /// Position behind the last record.
    pub end: usize,
    pub newest_timestamp: i64,
    pub runs: Vec<Run<'a>>,
    /// See `INDEX_ENTRY_SIZE`; in the order of the log.
    pub index_entries: Vec<u8>,
}

/// Takes plain records from `position` on, as many as `options` allow; see `record_at` for `start`.
pub fn take<'a>(file: &'a [u8], start: i64, position: usize, options: &Options) -> Taken<'a> {
    let mut taken = Taken {
        end: position,
        newest_timestamp: i64::MIN,
        ..Taken::default()
    };
    let mut numbers: HashMap<(&[u8], i32), usize> = HashMap::new();
    let mut last = 0;
    for _ in 0..options.records_max {
        if taken.end >= options.stop {
            break;
        }
        let Some(record) = record_in_entry(file, start, taken.end, options) else {
            break;
        };
        let number = match taken.runs.get(last) {
            Some(run) if run.topic == record.topic && run.queue_id == record.queue_id => Some(last),
            _ => numbers.get(&(record.topic, record.queue_id)).copied(),
        };
        if taken.put(&record, number, options).is_none() {
            break;
        }
        if let Some(number) = number {
            last = number;
        } else if taken.runs.len() > numbers.len() {
            last = numbers.len();
            numbers.insert((record.topic, record.queue_id), last);
        }
        taken.end += options.entry_head + record.size;
        taken.newest_timestamp = taken.newest_timestamp.max(record.store_timestamp);
    }
    taken
}

fn record_in_entry<'a>(
    file: &'a [u8],
    start: i64,
    position: usize,
    options: &Options,
) -> Option<Record<'a>> {
    let record = record_at(
        file,
        start,
        position + options.entry_head,
        options.verify_crc,
    )?;
    if options.entry_head > 0 {
        let head = &file[position..];
        let size = u32::try_from(options.entry_head + record.size).ok()?;
        if u32_at(head, 0)? != ENTRY_MAGIC || u32_at(head, 4)? != size {
            return None;
        }
    }
    Some(record)
}

impl<'a> Taken<'a> {
    /// Adds what is made of one record, of the queue with this `number` among the runs; None, and nothing added,
    /// if the record is not plain.
    fn put(&mut self, record: &Record<'a>, number: Option<usize>, options: &Options) -> Option<()> {
        let in_queue = options.units && record.sys_flag & IN_NO_QUEUE == 0;
        let in_index = options.index && record.sys_flag & IN_NO_INDEX != IN_NO_INDEX;
        if !in_queue && !in_index {
            return Some(());
        }
        if record.topic == SCHEDULE_TOPIC || (in_queue && LIGHT.find(record.properties).is_some()) {
            return None;
        }
        let derived = derived(record.properties)?;
        let hash_head = match number {
            Some(number) => {
                let run = &self.runs[number];
                let next = run.first_queue_offset + (run.units.len() / 20) as i64;
                if in_queue && next != record.queue_offset {
                    return None;
                }
                run.hash_head
            }
            None => index_hash_head(record.topic)?,
        };
        if in_index {
            let entries = self.index_entries.len();
            let id = derived.uniq_key.filter(|id| !id.is_empty());
            let keys = derived.keys.unwrap_or(0..0);
            let ids = id.map(|id| &record.properties[id]);
            for key in ids.into_iter().chain(split(&record.properties[keys])) {
                let Some(hash) = index_hash_from(hash_head, key) else {
                    self.index_entries.truncate(entries);
                    return None;
                };
                self.index_entries.extend_from_slice(&hash.to_be_bytes());
                self.index_entries
                    .extend_from_slice(&record.offset.to_be_bytes());
                self.index_entries
                    .extend_from_slice(&record.store_timestamp.to_be_bytes());
            }
        }
        if in_queue {
            let number = number.unwrap_or_else(|| {
                self.runs.push(Run {
                    topic: record.topic,
                    queue_id: record.queue_id,
                    first_queue_offset: record.queue_offset,
                    first_offset: record.offset,
                    last_end: 0,
                    units: Vec::new(),
                    tags_code: Some(derived.tags_code),
                    hash_head,
                });
                self.runs.len() - 1
            });
            let run = &mut self.runs[number];
            run.units.extend_from_slice(&record.offset.to_be_bytes());
            run.units
                .extend_from_slice(&(record.size as i32).to_be_bytes());
            run.units
                .extend_from_slice(&derived.tags_code.to_be_bytes());
            run.last_end = record.offset + record.size as i64;
            run.tags_code = run.tags_code.filter(|&code| code == derived.tags_code);
        }
        Some(())
    }
}

/// Keys with spaces between them.
fn split(keys: &[u8]) -> impl Iterator<Item = &[u8]> {
    keys.split(|&byte| byte == b' ')
        .filter(|key| !key.is_empty())
}

/// Where the first magic of a record (of any version) begins in `file`, at `begin` or behind it, but before `end`.
pub fn find_magic(file: &[u8], begin: usize, end: usize) -> Option<usize> {
    let common = MAGIC_V1.to_be_bytes();
    let common = &common[..3];
    let searched = file.get(begin..end.saturating_add(3).min(file.len()))?;
    memchr::memmem::find_iter(searched, common)
        .find(|&at| matches!(searched.get(at + 3), Some(0xA7 | 0xAB)))
        .map(|at| begin + at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hashing::index_hash;
    use crate::records::{Head, Parts, put_record};

    fn log(start: i64, messages: &[(&[u8], i32, i64, &[u8])], with_crc: bool) -> Vec<u8> {
        let mut file = Vec::new();
        for &(topic, queue_id, queue_offset, properties) in messages {
            let head = Head {
                magic: MAGIC_V1,
                queue_id,
                flag: 0,
                queue_offset,
                offset: start + file.len() as i64,
                sys_flag: 0,
                born_timestamp: 1,
                store_timestamp: 1_000 + file.len() as i64,
                reconsume_times: 0,
            };
            let topic_field = [&[topic.len() as u8], topic].concat();
            let parts = Parts {
                born_host: &[1; 8],
                store_host: &[2; 8],
                body: b"body",
                topic_field: &topic_field,
                properties: &[properties],
                with_crc,
            };
            put_record(&mut file, &head, &parts);
        }
        file
    }

    fn options() -> Options {
        Options {
            stop: usize::MAX,
            records_max: 100,
            entry_head: 0,
            verify_crc: true,
            units: true,
            index: true,
        }
    }

    #[test]
    fn records_are_grouped_by_queue() {
        let first: &[u8] = b"UNIQ_KEY\x01id\x02KEYS\x01a  b\x02TAGS\x01TagA\x02";
        for with_crc in [false, true] {
            let file = log(
                9_000,
                &[(b"T", 1, 5, first), (b"T", 2, 9, b""), (b"T", 1, 6, b"")],
                with_crc,
            );
            let taken = take(&file, 9_000, 0, &options());
            assert_eq!(taken.end, file.len());
            let numbers: Vec<_> = taken
                .runs
                .iter()
                .map(|run| (run.queue_id, run.first_queue_offset, run.units.len()))
                .collect();
            assert_eq!(numbers, [(1, 5, 40), (2, 9, 20)]);
            assert_eq!(taken.runs[0].tags_code, None);
            assert_eq!(taken.runs[0].last_end, 9_000 + file.len() as i64);
            let hashes: Vec<_> = taken
                .index_entries
                .chunks(INDEX_ENTRY_SIZE)
                .map(|entry| i32_at(entry, 0))
                .collect();
            assert_eq!(
                hashes,
                [
                    index_hash(b"T", b"id"),
                    index_hash(b"T", b"a"),
                    index_hash(b"T", b"b")
                ]
            );
        }
    }

    #[test]
    fn a_walk_stops_before_what_is_not_plain() {
        let messages: &[(&[u8], i32, i64, &[u8])] = &[(b"T", 1, 5, b""), (b"T", 1, 7, b"")];
        let file = log(9_000, messages, false);
        assert_eq!(
            take(&file, 9_000, 0, &options()).end,
            file.len() / 2,
            "a gap in a queue"
        );
        assert_eq!(take(&file, 9_001, 0, &options()).end, 0, "another offset");
        assert_eq!(
            take(&file[..file.len() - 1], 9_000, 0, &options()).end,
            file.len() / 2,
            "a torn tail"
        );
        let file = log(9_000, &[(SCHEDULE_TOPIC, 1, 5, b"DELAY\x013\x02")], false);
        assert_eq!(
            take(&file, 9_000, 0, &options()).end,
            0,
            "a time of delivery"
        );
        let light = b"INNER_MULTI_DISPATCH\x01%LMQ%a\x02INNER_MULTI_QUEUE_OFFSET\x010\x02";
        let file = log(9_000, &[(b"T", 1, 5, light)], false);
        assert_eq!(take(&file, 9_000, 0, &options()).end, 0, "a light queue");
        let without_units = Options {
            units: false,
            ..options()
        };
        assert_eq!(take(&file, 9_000, 0, &without_units).end, file.len());
    }

    #[test]
    fn magics_of_both_versions_are_found() {
        let file = b"..\xDA\xA3\x20\xA7.\xDA\xA3\x20\xA8.\xDA\xA3\x20\xAB\xDA\xA3\x20";
        assert_eq!(find_magic(file, 0, 100), Some(2));
        assert_eq!(find_magic(file, 2, 3), Some(2));
        assert_eq!(find_magic(file, 0, 2), None);
        assert_eq!(find_magic(file, 3, 100), Some(12));
        assert_eq!(find_magic(file, 13, 100), None);
        assert_eq!(find_magic(file, 100, 200), None);
    }

    #[test]
    fn every_bit_counts_that_a_crc_covers() {
        let file = log(9_000, &[(b"Topic", 1, 5, b"TAGS\x01TagA\x02")], true);
        let name = file.len() - PROPERTY_CRC_SIZE - 1; // without its name, it is no CRC, and the body's counts
        let value = name + 1 + PROPERTY_CRC_NAME.len();
        for bit in (0..name * 8).chain(value * 8..file.len() * 8) {
            let mut damaged = file.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(take(&damaged, 9_000, 0, &options()).end, 0, "bit {bit}");
        }
    }
}
