//! The body of a batch: what is read covers it from end to end.
#![no_main]

use brokerset_native::batches::read_batch;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut items = Vec::new();
    if read_batch(data, &mut items).is_some() {
        let size: usize = items
            .iter()
            .map(|item| 22 + item.body.len() + item.properties.len())
            .sum();
        assert_eq!(size, data.len());
    }
});
