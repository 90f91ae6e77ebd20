//! Units and records of the wheel's topic: what is linked has a unit and a slot, and nothing else is written.
#![no_main]

use brokerset_native::pull_units::UNIT_SIZE;
use brokerset_native::timer_links::{LogFile, Times, link_run};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&[unit_count], records)) = data.split_first_chunk::<1>() else {
        return;
    };
    let (units, records) = records.split_at(records.len().min(usize::from(unit_count) * UNIT_SIZE));
    let times = Times {
        slot_ms: 1000,
        window_ms: 100_000,
        read_ms: 10_000,
        end_ms: 90_000,
        write_ms: 12_000,
    };
    let (mut wheel, mut bytes) = (vec![0; 32 * 80], vec![0; 1000]);
    let mut log = LogFile {
        bytes: &mut bytes,
        start: 2_000,
        reserved: 600,
    };
    let linked = link_run(units, 0, records, 0, &mut wheel, &mut log, 2_052, &times);
    assert!(linked.taken <= units.len() / UNIT_SIZE);
    assert_eq!(linked.position, 2_052 + 52 * linked.taken as i64);
    let count: usize = linked.topics.iter().map(|links| links.count).sum();
    assert_eq!(count, linked.taken);
    let written = 52 + 52 * linked.taken;
    assert!(
        bytes[..52]
            .iter()
            .chain(&bytes[written..])
            .all(|byte| *byte == 0)
    );
});
