//! Units of a queue whose messages a consumer wants, by tags or by an expression.
//!
//! Source: `brokerset_broker.store.reading`, `_select`: the same units, up to the same limits, as far as all records
//! are in one file of the log.

use std::ops::Range;

use crate::filter_programs::{Program, Value};
use crate::pull_units::{Run, UNIT_SIZE};

/// What a consumer wants, and how much at most.
pub struct Wanted<'a> {
    /// The low 32 bits of the tags codes; None for all.
    pub codes: Option<&'a [i32]>,
    pub program: Option<&'a Program>,
    pub messages_max: usize,
    pub bytes_max: usize,
    /// Bytes of properties that are examined by the program; the message with the last of them is.
    pub properties_max: usize,
}

/// What was found in the units that were examined.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Found {
    pub examined: usize,
    pub messages: usize,
    pub bytes: usize,
    /// Whether a limit ended it; else it ended with the units, or before one that is Python's to examine.
    pub full: bool,
}

/// Examines whole `units`; `log` has the offsets of the log from `start` on, and may be read up to `end`.
pub fn select(
    units: &[u8],
    log: &[u8],
    start: i64,
    end: i64,
    wanted: &Wanted,
    runs: &mut Vec<Run>,
) -> Found {
    runs.clear();
    let mut found = Found::default();
    let mut properties_size = 0;
    for unit in units.chunks_exact(UNIT_SIZE) {
        let Some((offset, size, code)) = parts(unit) else {
            break;
        };
        if (found.messages > 0
            && (found.messages >= wanted.messages_max
                || found.bytes.saturating_add(size) > wanted.bytes_max))
            || properties_size > wanted.properties_max
        {
            found.full = true;
            break;
        }
        if wanted.codes.is_some_and(|codes| !codes.contains(&code)) {
            found.examined += 1;
            continue;
        }
        if offset < start || offset.saturating_add(size as i64) > end {
            break;
        }
        let position = (offset - start) as usize;
        let Some(record) = log.get(position..position.saturating_add(size)) else {
            break;
        };
        if let Some(program) = wanted.program {
            let Some(properties) = properties_of(record) else {
                break;
            };
            properties_size += properties.len();
            match program.evaluate(&record[properties]) {
                Value::Ask => break,
                Value::True => {}
                Value::False | Value::Null => {
                    found.examined += 1;
                    continue;
                }
            }
        }
        match runs.last_mut() {
            Some((begin, length)) if *begin + *length == position => *length += size,
            _ => runs.push((position, size)),
        }
        found.examined += 1;
        found.messages += 1;
        found.bytes += size;
    }
    found
}

fn parts(unit: &[u8]) -> Option<(i64, usize, i32)> {
    let offset = i64::from_be_bytes(unit[..8].try_into().ok()?);
    let size = i32::from_be_bytes(unit[8..12].try_into().ok()?);
    let code = i32::from_be_bytes(unit[16..20].try_into().ok()?);
    (size > 0 && offset >= 0).then_some((offset, size as usize, code))
}

const MAGIC_V2: u32 = 0xDAA3_20AB;
const SYS_FLAG: usize = 36;
const FIXED: usize = 88;
const V6_EXTRA: usize = 12;

/// Where the properties of a whole record are; None if its lengths do not add up.
fn properties_of(record: &[u8]) -> Option<Range<usize>> {
    let four = |at: usize| -> Option<u32> {
        Some(u32::from_be_bytes(record.get(at..at + 4)?.try_into().ok()?))
    };
    let (size, magic, sys_flag) = (four(0)? as usize, four(4)?, four(SYS_FLAG)?);
    let extra = V6_EXTRA * ((sys_flag >> 4 & 1) + (sys_flag >> 5 & 1)) as usize;
    let body = FIXED + extra;
    let body_size = usize::try_from(i32::try_from(four(body - 4)?).ok()?).ok()?;
    let topic = body.checked_add(body_size)?;
    let (topic, topic_size) = if magic == MAGIC_V2 {
        let size = record.get(topic..topic.checked_add(2)?)?;
        (topic + 2, usize::from(size[0]) << 8 | usize::from(size[1]))
    } else {
        (topic + 1, usize::from(*record.get(topic)?))
    };
    let at = topic + topic_size;
    let length = record.get(at..at + 2)?;
    let length = usize::from(u16::from_be_bytes([length[0], length[1]]));
    let begin = at + 2;
    (size == record.len() && begin + length == size && length <= i16::MAX as usize)
        .then_some(begin..size)
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: i64 = 1000;

    fn record(body: &[u8], properties: &[u8]) -> Vec<u8> {
        let mut data = vec![0; FIXED];
        data[4..8].copy_from_slice(&0xDAA3_20A7u32.to_be_bytes());
        data[FIXED - 4..].copy_from_slice(&(body.len() as u32).to_be_bytes());
        data.extend_from_slice(body);
        data.push(1);
        data.push(b't');
        data.extend_from_slice(&(properties.len() as u16).to_be_bytes());
        data.extend_from_slice(properties);
        let size = data.len() as u32;
        data[..4].copy_from_slice(&size.to_be_bytes());
        data
    }

    /// Records with the property a = 0, 1, 2, 0, ..., and their units, whose codes are the same.
    fn queue(count: usize) -> (Vec<u8>, Vec<u8>, usize) {
        let (mut units, mut log, mut size) = (Vec::new(), Vec::new(), 0);
        for number in 0..count {
            let one = record(b"body", format!("a\x01{}\x02", number % 3).as_bytes());
            size = one.len();
            units.extend_from_slice(&(START + log.len() as i64).to_be_bytes());
            units.extend_from_slice(&(size as i32).to_be_bytes());
            units.extend_from_slice(&((number % 3) as i64).to_be_bytes());
            log.extend(one);
        }
        (units, log, size)
    }

    fn program(value: &[u8]) -> Program {
        let mut code = vec![6, 0, 0, 0, 1, b'a', 0, 0, 0, value.len() as u8];
        code.extend_from_slice(value);
        code.push(2);
        Program::read(&code).unwrap()
    }

    fn run(wanted: &Wanted, end: i64) -> (Found, Vec<Run>, usize) {
        let (units, log, size) = queue(9);
        let mut runs = Vec::new();
        let found = select(
            &units,
            &log,
            START,
            end.min(START + log.len() as i64),
            wanted,
            &mut runs,
        );
        (found, runs, size)
    }

    fn wanted<'a>(codes: Option<&'a [i32]>, program: Option<&'a Program>) -> Wanted<'a> {
        Wanted {
            codes,
            program,
            messages_max: 32,
            bytes_max: 1 << 20,
            properties_max: usize::MAX,
        }
    }

    #[test]
    fn tags_and_expressions_choose_the_same() {
        let one = program(b"1");
        let (by_code, runs, size) = run(&wanted(Some(&[1]), None), i64::MAX);
        let (by_program, same, _) = run(&wanted(None, Some(&one)), i64::MAX);
        assert_eq!((&by_code, &runs), (&by_program, &same));
        assert_eq!(runs, vec![(size, size), (4 * size, size), (7 * size, size)]);
        assert_eq!(
            by_code,
            Found {
                examined: 9,
                messages: 3,
                bytes: 3 * size,
                full: false
            }
        );
    }

    #[test]
    fn neighbours_are_one_run() {
        let (_, runs, size) = run(&wanted(Some(&[0, 1]), None), i64::MAX);
        assert_eq!(runs[0], (0, 2 * size));
    }

    #[test]
    fn limits_end_it_after_the_first_message() {
        let one = program(b"0");
        let two = Wanted {
            messages_max: 2,
            ..wanted(None, Some(&one))
        };
        let (found, _, size) = run(&two, i64::MAX);
        assert_eq!(
            found,
            Found {
                examined: 4,
                messages: 2,
                bytes: 2 * size,
                full: true
            }
        );
        let few = Wanted {
            bytes_max: 1,
            ..wanted(None, Some(&one))
        };
        assert_eq!(
            run(&few, i64::MAX).0,
            Found {
                examined: 1,
                messages: 1,
                bytes: size,
                full: true
            }
        );
    }

    #[test]
    fn long_properties_end_it_whether_they_match_or_not() {
        let none = program(b"9");
        let few = Wanted {
            properties_max: 8,
            ..wanted(None, Some(&none))
        };
        let (found, runs, _) = run(&few, i64::MAX); // each message has four bytes of properties
        assert_eq!((found.examined, found.full, runs.len()), (3, true, 0));
    }

    #[test]
    fn it_ends_before_what_is_not_readable_there() {
        let one = program(b"1");
        let (_, _, size) = run(&wanted(None, Some(&one)), i64::MAX);
        let (found, _, _) = run(&wanted(None, Some(&one)), START + 5 * size as i64 - 1);
        assert_eq!(
            found,
            Found {
                examined: 4,
                messages: 1,
                bytes: size,
                full: false
            }
        );
    }

    #[test]
    fn a_record_whose_lengths_do_not_add_up_is_left_to_python() {
        let whole = record(b"body", b"a\x011");
        assert!(properties_of(&whole).is_some());
        assert!((0..whole.len()).all(|size| properties_of(&whole[..size]).is_none()));
        let mut longer = whole.clone();
        longer.push(0);
        assert!(properties_of(&longer).is_none());
    }
}
