//! Records of messages that wait in a topic of the broker's own: for a delay, a timer, or the end of a transaction.
//! When their time has come they are stored again, in the queue that they are for.
//!
//! Source: `brokerset_broker.store.releases`, `services/delay.py`, `timers/messages.py` and
//! `brokerset_formats.transactions.final_of`. What is not plain here takes their way.

use std::ops::Range;
use std::sync::LazyLock;

use memchr::memmem::Finder;

use crate::properties::find;
use crate::records::{PROPERTY_CRC_NAME, PROPERTY_CRC_SIZE};
use crate::scan::record_at;

/// Bits that tell the sizes of the hosts.
pub const HOST_BITS: i32 = 0x30;
const BORN_HOST_V6: i32 = 0x10;
const STORE_HOST_V6: i32 = 0x20;
pub const TRANSACTION_MASK: i32 = 0xC;
/// A record with this bit is in no queue.
const PREPARED: i32 = 0x4;
pub const COMMIT: i32 = 0x8;

const REAL_TOPIC: &[u8] = b"REAL_TOPIC";
const REAL_QID: &[u8] = b"REAL_QID";
const QUEUE_ID_DIGITS: usize = 9;
const TIME_DIGITS: usize = 18;

/// The number of a message in light queues is made when it is stored.
static LIGHT: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("INNER_MULTI_"));
static ENQUEUED: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("TIMER_ENQUEUE_MS"));
static DEQUEUED: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("TIMER_DEQUEUE_MS"));
static IMMUNITY: LazyLock<Finder<'static>> =
    LazyLock::new(|| Finder::new("CHECK_IMMUNITY_TIME_IN_SECONDS"));

/// What a final record leaves out of its half's properties, with the 0x01.
const OF_HALVES: [&[u8]; 3] = [
    b"REAL_TOPIC\x01",
    b"REAL_QID\x01",
    b"TRAN_PREPARED_QUEUE_OFFSET\x01",
];

/// A record that waits, and where it is for.
#[derive(Debug, PartialEq, Eq)]
pub struct Waiting<'a> {
    pub queue_offset: i64,
    pub flag: i32,
    pub sys_flag: i32,
    pub born_timestamp: i64,
    pub born_host: &'a [u8],
    pub store_timestamp: i64,
    pub reconsume_times: i32,
    pub prepared_transaction_offset: i64,
    pub body: &'a [u8],
    /// Raw, without a CRC over the record; they end in a separator.
    pub properties: &'a [u8],
    /// Topic and queue that it is for.
    pub topic: &'a [u8],
    pub queue_id: i32,
}

fn i32_at(bytes: &[u8], at: usize) -> i32 {
    i32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn i64_at(bytes: &[u8], at: usize) -> i64 {
    i64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// The record at `offset` of the log, in a file whose first byte has the offset `start`, if it is a plain one that
/// waits in `topic`.
pub fn waiting_at<'a>(
    file: &'a [u8],
    start: i64,
    offset: i64,
    topic: &[u8],
) -> Option<Waiting<'a>> {
    let position = usize::try_from(offset.checked_sub(start)?).ok()?;
    let found = record_at(file, start, position, false)?;
    if found.topic != topic {
        return None;
    }
    let properties = without_crc(found.properties);
    if memchr::memchr(b'#', properties).is_some()
        || properties.last() != Some(&2)
        || LIGHT.find(properties).is_some()
    {
        return None;
    }
    let target = &properties[find(properties, REAL_TOPIC)?];
    let queue_id = digits(&properties[find(properties, REAL_QID)?], QUEUE_ID_DIGITS)?;
    let record = &file[position..position + found.size];
    let born_size = if found.sys_flag & BORN_HOST_V6 != 0 {
        20
    } else {
        8
    };
    let store_size = if found.sys_flag & STORE_HOST_V6 != 0 {
        20
    } else {
        8
    };
    let behind_hosts = 48 + born_size + 8 + store_size;
    let body = behind_hosts + 16;
    let body_size = usize::try_from(i32_at(record, behind_hosts + 12)).ok()?;
    Some(Waiting {
        queue_offset: found.queue_offset,
        flag: i32_at(record, 16),
        sys_flag: found.sys_flag,
        born_timestamp: i64_at(record, 40),
        born_host: &record[48..48 + born_size],
        store_timestamp: found.store_timestamp,
        reconsume_times: i32_at(record, behind_hosts),
        prepared_transaction_offset: i64_at(record, behind_hosts + 4),
        body: &record[body..body + body_size],
        properties,
        topic: target,
        queue_id: queue_id as i32,
    })
}

impl Waiting<'_> {
    /// Whether a copy with the same bits is in a queue.
    pub fn is_counted(&self) -> bool {
        self.sys_flag & PREPARED == 0
    }

    /// `TIMER_OUT_MS`, if a copy needs nothing but the two times of a delivery behind its properties.
    pub fn out_ms(&self) -> Option<i64> {
        let properties = self.properties;
        if ENQUEUED.find(properties).is_some() || DEQUEUED.find(properties).is_some() {
            return None;
        }
        digits(&properties[find(properties, b"TIMER_OUT_MS")?], TIME_DIGITS)
    }

    /// Whether it is a half message of this producer group with one of these ids, and may be ended at any time.
    pub fn is_half_of(&self, group: &[u8], ids: [&[u8]; 2]) -> bool {
        let properties = self.properties;
        let value = |name: &[u8]| find(properties, name).map(|range| &properties[range]);
        if IMMUNITY.find(properties).is_some() || value(b"PGROUP") != Some(group) {
            return false;
        }
        let known = [value(b"UNIQ_KEY"), value(b"__transactionId__")];
        ids.iter()
            .any(|id| !id.is_empty() && known.contains(&Some(id)))
    }

    /// The properties of the final record: the pieces that are left of the half's.
    pub fn final_properties(&self, kept: &mut Vec<u8>) {
        kept.clear();
        let mut start = 0;
        while start < self.properties.len() {
            let rest = &self.properties[start..];
            let pair: Range<usize> =
                0..memchr::memchr(2, rest).map_or(rest.len(), |separator| separator + 1);
            if !OF_HALVES.iter().any(|name| rest.starts_with(name)) {
                kept.extend_from_slice(&rest[pair.clone()]);
            }
            start += pair.end;
        }
    }
}

/// Properties without the CRC over the record, if that is the last one.
fn without_crc(properties: &[u8]) -> &[u8] {
    let Some(begin) = properties.len().checked_sub(PROPERTY_CRC_SIZE) else {
        return properties;
    };
    if properties[begin..].starts_with(PROPERTY_CRC_NAME)
        && (begin == 0 || properties[begin - 1] == 2)
    {
        return &properties[..begin];
    }
    properties
}

/// A number of decimal digits, at most so many.
fn digits(text: &[u8], count_max: usize) -> Option<i64> {
    if text.is_empty() || text.len() > count_max {
        return None;
    }
    text.iter().try_fold(0i64, |number, digit| {
        digit
            .is_ascii_digit()
            .then(|| number * 10 + i64::from(digit - b'0'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::{Head, Parts, put_record};

    fn record(properties: &[u8], with_crc: bool) -> Vec<u8> {
        let head = Head {
            magic: 0xdaa3_20a7,
            queue_id: 0,
            flag: 2,
            queue_offset: 3,
            offset: 1_000,
            sys_flag: 0x20,
            born_timestamp: 6,
            store_timestamp: 7,
            reconsume_times: 8,
        };
        let parts = Parts {
            born_host: &[1; 8],
            store_host: &[2; 20],
            body: b"body",
            topic_field: b"\x01T",
            properties: &[properties],
            with_crc,
        };
        let mut out = Vec::new();
        put_record(&mut out, &head, &parts);
        out
    }

    const PROPERTIES: &[u8] =
        b"UNIQ_KEY\x01id\x02PGROUP\x01g\x02TIMER_OUT_MS\x0177\x02REAL_TOPIC\x01target\x02REAL_QID\x015\x02";

    #[test]
    fn a_record_that_waits_is_read_with_and_without_a_crc() {
        for with_crc in [false, true] {
            let data = record(PROPERTIES, with_crc);
            let found = waiting_at(&data, 1_000, 1_000, b"T").unwrap();
            assert_eq!((found.topic, found.queue_id), (&b"target"[..], 5));
            assert_eq!((found.body, found.properties), (&b"body"[..], PROPERTIES));
            assert_eq!(
                (found.flag, found.reconsume_times, found.born_host),
                (2, 8, &[1; 8][..])
            );
            assert_eq!(found.out_ms(), Some(77));
            assert_eq!(waiting_at(&data, 1_000, 1_000, b"U"), None);
            assert_eq!(waiting_at(&data, 1_000, 1_001, b"T"), None);
        }
    }

    #[test]
    fn records_with_unusual_properties_are_declined() {
        for properties in [
            "",
            "REAL_TOPIC\x01target\x02",
            "REAL_TOPIC\x01target\x02REAL_QID\x01-1\x02",
            "REAL_TOPIC\x01target\x02REAL_QID\x011234567890\x02",
            "REAL_TOPIC\x01target\x02REAL_QID\x015",
            "REAL_TOPIC\x01target\x02REAL_QID\x015\x02A\x01#\x02",
            "REAL_TOPIC\x01target\x02REAL_QID\x015\x02INNER_MULTI_DISPATCH\x01x\x02",
        ] {
            let data = record(properties.as_bytes(), false);
            assert_eq!(waiting_at(&data, 1_000, 1_000, b"T"), None, "{properties}");
        }
    }

    #[test]
    fn a_final_record_has_the_properties_of_its_half_without_three() {
        let properties =
            b"REAL_QID\x01\x02REAL_TOPIC\x01a\x02XREAL_TOPIC\x01b\x02REAL_QID\x015\x02A\x01REAL_QID\x01\x02";
        let data = record(properties, false);
        let found = waiting_at(&data, 1_000, 1_000, b"T").unwrap();
        let mut kept = Vec::new();
        found.final_properties(&mut kept);
        assert_eq!(kept, b"XREAL_TOPIC\x01b\x02A\x01REAL_QID\x01\x02");
    }

    #[test]
    fn a_half_is_known_by_its_group_and_one_of_its_ids() {
        let data = record(PROPERTIES, false);
        let found = waiting_at(&data, 1_000, 1_000, b"T").unwrap();
        assert!(found.is_half_of(b"g", [b"id", b""]));
        assert!(found.is_half_of(b"g", [b"", b"id"]));
        assert!(!found.is_half_of(b"g", [b"", b""]));
        assert!(!found.is_half_of(b"h", [b"id", b""]));
        assert!(!found.is_half_of(b"g", [b"other", b""]));
    }
}
