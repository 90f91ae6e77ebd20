//! Bytes of a log behind one byte of options: what is taken lies inside, and counts up.
#![no_main]

use brokerset_native::scan::{INDEX_ENTRY_SIZE, Options, find_magic, take};
use libfuzzer_sys::fuzz_target;

const UNIT_SIZE: usize = 20;
const ENTRY_HEAD_SIZE: usize = 48;

fuzz_target!(|data: &[u8]| {
    let Some((&flags, file)) = data.split_first() else {
        return;
    };
    let options = Options {
        stop: file.len(),
        records_max: 100,
        entry_head: if flags & 1 == 0 { 0 } else { ENTRY_HEAD_SIZE },
        verify_crc: flags & 2 == 0,
        units: flags & 4 == 0,
        index: flags & 8 == 0,
    };
    let taken = take(file, 0, 0, &options);
    assert!(taken.end <= file.len());
    assert_eq!(taken.index_entries.len() % INDEX_ENTRY_SIZE, 0);
    for run in &taken.runs {
        assert!(!run.units.is_empty() && run.units.len() % UNIT_SIZE == 0);
        assert!(run.first_offset < run.last_end && run.last_end as usize <= taken.end);
    }
    if taken.end > 0 {
        assert!(find_magic(file, 0, taken.end).is_some());
    }
    find_magic(file, taken.end, file.len());
});
