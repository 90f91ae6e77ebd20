//! Puts into an index file: a header of 40 bytes, slots, units chained through `previous`.
//!
//! Source: `brokerset_formats.index_file.IndexTable.put`, after RocketMQ's `IndexFile`.

const HEADER_SIZE: usize = 40;
const SLOT_SIZE: usize = 4;
const UNIT_SIZE: usize = 20;
const CHAIN_STEPS_MAX: usize = 200_000;
const SECONDS_MAX: i64 = 0x7fff_ffff;

/// The header's fields, and the sizes of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Index {
    pub slots: usize,
    pub units: i64,
    pub begin_timestamp: i64,
    pub end_timestamp: i64,
    pub begin_offset: i64,
    pub end_offset: i64,
    pub slots_used: i64,
    pub next_unit: i64,
}

/// Bytes of a file.
pub fn file_size(slots: usize, units: usize) -> usize {
    HEADER_SIZE + slots * SLOT_SIZE + units * UNIT_SIZE
}

fn read_i32(file: &[u8], at: usize) -> i32 {
    i32::from_be_bytes(file[at..at + 4].try_into().expect("four bytes"))
}

impl Index {
    fn unit_position(&self, number: i64) -> usize {
        HEADER_SIZE + self.slots * SLOT_SIZE + number as usize * UNIT_SIZE
    }

    /// Puts entries (hash, offset in the log, store time) in the order of the log, as long as their units are below `room`,
    /// and the header; returns how many are done. Those below `end_offset` are in the index already.
    pub fn put_all(
        &mut self,
        file: &mut [u8],
        room: i64,
        entries: impl IntoIterator<Item = (i32, i64, i64)>,
    ) -> usize {
        let begun = self.next_unit;
        let mut done = 0;
        for (key_hash, offset, store_timestamp) in entries {
            if offset >= self.end_offset {
                if self.next_unit >= room {
                    break;
                }
                self.put(file, key_hash, offset, store_timestamp);
            }
            done += 1;
        }
        if self.next_unit != begun {
            self.write_header(file);
        }
        done
    }

    /// Adds one unit; there must be room, and `file` must have the size of `file_size`.
    fn put(&mut self, file: &mut [u8], key_hash: i32, offset: i64, store_timestamp: i64) {
        let number = self.next_unit;
        let slot = HEADER_SIZE + key_hash as usize % self.slots * SLOT_SIZE;
        let mut previous = i64::from(read_i32(file, slot));
        if previous >= number {
            previous = self.older_than(file, number, previous);
        }
        if previous <= 0 {
            previous = 0;
            self.slots_used += 1;
        }
        if number == 1 {
            self.begin_timestamp = store_timestamp;
            self.begin_offset = offset;
        }
        let seconds = store_timestamp
            .saturating_sub(self.begin_timestamp)
            .div_euclid(1000)
            .clamp(0, SECONDS_MAX);
        let at = self.unit_position(number);
        file[at..at + 4].copy_from_slice(&key_hash.to_be_bytes());
        file[at + 4..at + 12].copy_from_slice(&offset.to_be_bytes());
        file[at + 12..at + 16].copy_from_slice(&(seconds as i32).to_be_bytes());
        file[at + 16..at + 20].copy_from_slice(&(previous as i32).to_be_bytes());
        file[slot..slot + 4].copy_from_slice(&(number as i32).to_be_bytes());
        self.next_unit = number + 1;
        self.end_offset = offset;
        self.end_timestamp = store_timestamp;
    }

    /// The newest unit below `limit` in the chain from `number`, 0 if there is none: see the Python source.
    fn older_than(&self, file: &[u8], limit: i64, mut number: i64) -> i64 {
        for _ in 0..CHAIN_STEPS_MAX {
            if !(limit <= number && number < self.units) {
                break;
            }
            let older = i64::from(read_i32(file, self.unit_position(number) + 16));
            if older >= number {
                return 0;
            }
            number = older;
        }
        if 0 < number && number < limit {
            number
        } else {
            0
        }
    }

    /// Stores the header's fields; units beyond the stored number are ignored by readers.
    fn write_header(&self, file: &mut [u8]) {
        let times = [
            self.begin_timestamp,
            self.end_timestamp,
            self.begin_offset,
            self.end_offset,
        ];
        for (field, value) in times.iter().enumerate() {
            file[field * 8..field * 8 + 8].copy_from_slice(&value.to_be_bytes());
        }
        file[32..36].copy_from_slice(&(self.slots_used as i32).to_be_bytes());
        file[36..40].copy_from_slice(&(self.next_unit as i32).to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new(slots: usize, units: usize) -> (Index, Vec<u8>) {
        let index = Index {
            slots,
            units: units as i64,
            begin_timestamp: 0,
            end_timestamp: 0,
            begin_offset: 0,
            end_offset: 0,
            slots_used: 0,
            next_unit: 1,
        };
        (index, vec![0; file_size(slots, units)])
    }

    #[test]
    fn units_of_a_slot_are_chained_newest_first() {
        let (mut index, mut file) = new(4, 10);
        for (number, hash) in [5, 1, 5].into_iter().enumerate() {
            index.put(
                &mut file,
                hash,
                100 + number as i64,
                1_000 + 1_000 * number as i64,
            );
        }
        index.write_header(&mut file);
        assert_eq!(read_i32(&file, HEADER_SIZE + 4), 3);
        assert_eq!(read_i32(&file, index.unit_position(3) + 16), 2);
        assert_eq!(read_i32(&file, index.unit_position(2) + 16), 1);
        assert_eq!(read_i32(&file, index.unit_position(3) + 12), 2);
        assert_eq!(
            (index.slots_used, index.next_unit, read_i32(&file, 36)),
            (1, 4, 4)
        );
    }

    #[test]
    fn entries_are_put_until_there_is_no_room_and_none_is_put_twice() {
        let (mut index, mut file) = new(4, 10);
        let entries = [(5, 100, 1_000), (6, 100, 1_000), (7, 200, 2_000)];
        assert_eq!(index.put_all(&mut file, 3, entries), 2);
        assert_eq!((index.next_unit, read_i32(&file, 36)), (3, 3));

        file[36..40].fill(0);
        assert_eq!(index.put_all(&mut file, 3, [(5, 99, 1_000)]), 1);
        assert_eq!((index.next_unit, read_i32(&file, 36)), (3, 0));

        assert_eq!(
            index.put_all(&mut file, 4, [(4, 99, 1_000), (7, 200, 2_000)]),
            2
        );
        assert_eq!(
            (index.next_unit, index.end_offset, read_i32(&file, 36)),
            (4, 200, 4)
        );
    }

    #[test]
    fn a_slot_that_leads_behind_the_last_unit_is_followed_back() {
        let (mut index, mut file) = new(1, 10);
        index.put(&mut file, 1, 100, 0);
        let before = index.clone();
        index.put(&mut file, 2, 101, 0);
        let mut index = before;
        index.put(&mut file, 3, 102, 0);
        assert_eq!(read_i32(&file, index.unit_position(2) + 16), 1);
        assert_eq!(index.slots_used, 1);
    }
}
