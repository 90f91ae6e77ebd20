//! What is read of messages that wait: ends of transactions, records, units of the timer log. What is found lies inside
//! what was read, and the same is found where there is more behind it.
#![no_main]

use brokerset_native::{asides, ends, timer_units, waiting_records};
use libfuzzer_sys::fuzz_target;

const TOPICS: [&[u8]; 2] = [b"RMQ_SYS_TRANS_HALF_TOPIC", b"T"];

fuzz_target!(|data: &[u8]| {
    let mut signed = ends::SignedEnd::default();
    if let Some(end) = ends::read_end(data, &mut signed) {
        let pieces = signed.pieces(b"");
        assert!(pieces.map(<[u8]>::len).sum::<usize>() <= data.len());
        assert!(end.group.len() + end.ids[0].len() + end.ids[1].len() <= data.len());
    }
    asides::is_plain_half(data, 0);
    asides::plain_timer(data);
    let longer = [data, &[0; 64]].concat();
    for topic in TOPICS {
        let found = waiting_records::waiting_at(data, 0, 0, topic);
        let Some(waiting) = found else { continue };
        assert_eq!(
            waiting_records::waiting_at(&longer, 0, 0, topic).as_ref(),
            Some(&waiting)
        );
        let mut kept = Vec::new();
        waiting.final_properties(&mut kept);
        assert!(kept.len() <= waiting.properties.len());
        waiting.out_ms();
        waiting.is_half_of(b"g", [b"id", b""]);
    }
    for start in [0, 52, i64::MAX - 60] {
        let chain = timer_units::chain(data, start, start + 52, (-1, start), 1_000, 8);
        assert!(chain.positions.len() <= 8);
        assert!(chain.positions.windows(2).all(|pair| pair[1] < pair[0]));
        assert!(timer_units::passed(data, start, start, start + 60, 1_000, 8) <= 8);
    }
});
