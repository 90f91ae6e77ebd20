//! Units of the timer log: one message that waits in one slot of the wheel.
//!
//! Source: `brokerset_formats.timer_files.decode_timer_unit` and `timers.timer_log.TimerLog`, after RocketMQ's
//! `TimerLog`. Positions are those of the whole log, over all of its files.

pub const UNIT_SIZE: usize = 52;
const BLANK_SIZE: usize = 16;

const DEFAULT: i32 = 1;
const DELETE: i32 = 4;
const ALL_BITS: i32 = 0xF;

/// What a unit says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Of the unit before it in its slot; -1 for the first.
    pub previous: i64,
    pub magic: i32,
    pub base_ms: i64,
    pub slot_ms: i64,
    /// Of the message's record in the commit log.
    pub offset: i64,
    pub topic_hash: i32,
}

impl Unit {
    /// Whether its message is delivered when the slot is read, as far as the unit says.
    pub fn is_plain(&self) -> bool {
        self.magic == DEFAULT
    }

    /// Whether its message deletes another one.
    pub fn deletes(&self) -> bool {
        self.magic & DELETE != 0
    }
}

/// The unit at `position` of the log, in the file that begins at `start`; None if it is not there, or no broker can
/// have written it.
pub fn unit_at(file: &[u8], start: i64, position: i64) -> Option<Unit> {
    let inside = usize::try_from(position.checked_sub(start)?).ok()?;
    let unit = file.get(inside..inside.checked_add(UNIT_SIZE)?)?;
    let word = |at: usize| i32::from_be_bytes(unit[at..at + 4].try_into().expect("four bytes"));
    let long = |at: usize| i64::from_be_bytes(unit[at..at + 8].try_into().expect("eight bytes"));
    let (previous, magic, offset) = (long(4), word(12), long(28));
    let is_right = word(0) == UNIT_SIZE as i32
        && magic & DEFAULT != 0
        && magic & !ALL_BITS == 0
        && (-1..position).contains(&previous)
        && offset >= 0
        && word(36) > 0;
    if !is_right {
        return None;
    }
    Some(Unit {
        previous,
        magic,
        base_ms: long(16),
        slot_ms: long(16).checked_add(word(24).into())?,
        offset,
        topic_hash: word(40),
    })
}

/// A part of the chain of a slot.
#[derive(Debug, PartialEq, Eq)]
pub struct Chain {
    /// Of its units, newest first.
    pub positions: Vec<i64>,
    /// Position of the unit before them.
    pub following: i64,
    /// Whether one of them deletes a message.
    pub has_recalls: bool,
}

/// The chain of `slot_ms` from `position` back, as far as it is in this file: at most `count_max` units, none before
/// `begin` and none from `stop` on. It ends before a unit that is damaged, or of another slot.
pub fn chain(
    file: &[u8],
    start: i64,
    position: i64,
    (stop, begin): (i64, i64),
    slot_ms: i64,
    count_max: usize,
) -> Chain {
    let mut found = Chain {
        positions: Vec::new(),
        following: position,
        has_recalls: false,
    };
    while found.positions.len() < count_max && found.following != stop && found.following >= begin {
        let Some(unit) = unit_at(file, start, found.following) else {
            break;
        };
        if unit.slot_ms != slot_ms {
            break;
        }
        found.positions.push(found.following);
        found.has_recalls |= unit.deletes();
        found.following = unit.previous;
    }
    found
}

/// How many units in a row from `position` on are in slots before `read_ms`: of this file, before `end`, and at most
/// `count_max`.
pub fn passed(
    file: &[u8],
    start: i64,
    position: i64,
    end: i64,
    read_ms: i64,
    count_max: usize,
) -> usize {
    let mut count = 0;
    let mut at = position;
    while count < count_max && at < end {
        let rest = (file.len() as i64).saturating_sub(at.saturating_sub(start));
        let fits = rest >= (UNIT_SIZE + BLANK_SIZE) as i64;
        if !fits || unit_at(file, start, at).is_none_or(|unit| unit.slot_ms >= read_ms) {
            break;
        }
        count += 1;
        at = at.saturating_add(UNIT_SIZE as i64);
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(previous: i64, magic: i32, base_ms: i64, delay_ms: i32) -> Vec<u8> {
        let mut unit = Vec::new();
        unit.extend_from_slice(&52i32.to_be_bytes());
        unit.extend_from_slice(&previous.to_be_bytes());
        unit.extend_from_slice(&magic.to_be_bytes());
        unit.extend_from_slice(&base_ms.to_be_bytes());
        unit.extend_from_slice(&delay_ms.to_be_bytes());
        unit.extend_from_slice(&700i64.to_be_bytes());
        unit.extend_from_slice(&90i32.to_be_bytes());
        unit.extend_from_slice(&7i32.to_be_bytes());
        unit.extend_from_slice(&0i64.to_be_bytes());
        unit
    }

    fn file(units: &[Vec<u8>]) -> Vec<u8> {
        let mut file = units.concat();
        file.resize(file.len() + BLANK_SIZE, 0);
        file
    }

    #[test]
    fn a_unit_is_read() {
        let file = file(&[unit(-1, 1, 5_000, -1_000)]);
        let found = unit_at(&file, 520, 520).unwrap();
        assert_eq!(
            (found.base_ms, found.slot_ms, found.offset),
            (5_000, 4_000, 700)
        );
        assert!(found.is_plain());
        assert_eq!(unit_at(&file, 520, 572), None);
        assert_eq!(unit_at(&file, 520, 519), None);
    }

    #[test]
    fn units_that_no_broker_writes_are_none() {
        for (previous, magic) in [(-2, 1), (0, 1), (-1, 0), (-1, 17), (-1, 4)] {
            assert_eq!(unit_at(&file(&[unit(previous, magic, 0, 0)]), 0, 0), None);
        }
    }

    #[test]
    fn a_chain_is_walked_newest_first_and_ends_where_it_may_not_go_on() {
        let file = file(&[
            unit(-1, 1, 1_000, 0),
            unit(-1, 1, 2_000, 0),
            unit(0, 5, 1_000, 0),
            unit(104, 1, 1_000, 0),
        ]);
        let walk = |position, stop, begin, count_max| {
            chain(&file, 0, position, (stop, begin), 1_000, count_max)
        };
        assert_eq!(
            walk(156, -1, 0, 9),
            Chain {
                positions: vec![156, 104, 0],
                following: -1,
                has_recalls: true
            }
        );
        assert_eq!(walk(156, -1, 0, 1).following, 104);
        assert!(!walk(156, -1, 0, 1).has_recalls);
        assert_eq!(walk(156, 104, 0, 9).positions, [156]);
        assert_eq!(walk(156, -1, 104, 9).positions, [156, 104]);
        assert_eq!(walk(52, -1, 0, 9).positions, [0i64; 0]);
    }

    #[test]
    fn units_of_earlier_slots_are_passed() {
        let file = file(&[
            unit(-1, 1, 1_000, 0),
            unit(-1, 1, 2_000, 0),
            unit(-1, 1, 3_000, 0),
        ]);
        assert_eq!(passed(&file, 0, 0, 156, 3_000, 9), 2);
        assert_eq!(passed(&file, 0, 0, 156, 3_000, 1), 1);
        assert_eq!(passed(&file, 0, 0, 52, 3_000, 9), 1);
        assert_eq!(passed(&file, 0, 0, 156, 9_000, 9), 3);
        assert_eq!(passed(&file[..156 + 15], 0, 0, 156, 9_000, 9), 2);
    }
}
