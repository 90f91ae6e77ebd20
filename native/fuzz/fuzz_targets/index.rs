//! Puts into an index file with any bytes in it, as a crash or a bad disk may leave them.
#![no_main]

use brokerset_native::index::{Index, file_size};
use libfuzzer_sys::fuzz_target;

const SLOTS: usize = 7;
const UNITS: usize = 40;

fuzz_target!(|data: &[u8]| {
    let Some((&first, rest)) = data.split_first() else {
        return;
    };
    let mut file = vec![0; file_size(SLOTS, UNITS)];
    let size = rest.len().min(file.len());
    file[..size].copy_from_slice(&rest[..size]);
    let mut index = Index {
        slots: SLOTS,
        units: UNITS as i64,
        begin_timestamp: 0,
        end_timestamp: 0,
        begin_offset: 0,
        end_offset: 0,
        slots_used: 0,
        next_unit: 1 + i64::from(first) % (UNITS as i64 - 1),
    };
    let numbers = index.next_unit..index.units;
    let entries = numbers.clone().map(|number| {
        let hash = i32::from(first) * 31 + number as i32 % 3;
        (hash, number, number * 1000)
    });
    let done = index.put_all(&mut file, UNITS as i64, entries);
    assert_eq!(done, numbers.count());
    assert_eq!(index.next_unit, index.units);
});
