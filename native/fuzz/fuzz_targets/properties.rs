//! Properties of a message: what is found lies inside them, and none of it holds the end of a value.
#![no_main]

use std::ops::Range;

use brokerset_native::{asides, hashing, plain, properties};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let value = |range: Range<usize>| {
        assert!(!data[range.clone()].contains(&2));
        &data[range]
    };
    if let Some(found) = properties::derived(data) {
        let keys = found.keys.map(value);
        assert!(keys.is_none_or(|keys| !keys.is_empty()));
        found.uniq_key.map(value);
    }
    for name in [&b"KEYS"[..], b"A", b""] {
        properties::find(data, name).map(value);
    }
    plain::is_plain(data);
    plain::may_not_wait(data);
    if let Some(id) = plain::unique_id(data) {
        assert!(!id.is_empty() && id.is_ascii());
        assert!(plain::mentions_unique_id(data));
    }
    plain::has_one_unique_id(data);
    let put_aside = [data, b"\x02"].concat();
    if asides::is_plain_half(&put_aside, 4) || asides::plain_timer(&put_aside).is_some() {
        assert!(!plain::is_plain(&put_aside));
        assert!(plain::has_one_unique_id(&put_aside));
    }
    if let Some(out_ms) = asides::plain_timer(&put_aside)
        .and_then(|wish| wish.out_ms(1_700_000_000_123, 1000, 259_200_000))
    {
        assert!((1_700_000_000_000..1_700_259_201_000).contains(&out_ms) && out_ms % 1000 == 0);
    }
    let hash = hashing::java_hash_bytes(data);
    assert_eq!(hash, std::str::from_utf8(data).ok().map(hashing::java_hash));
    let (topic, key) = data.split_at(data.len() / 2);
    let pieces =
        hashing::index_hash_head(topic).and_then(|head| hashing::index_hash_from(head, key));
    assert_eq!(hashing::index_hash(topic, key), pieces);
});
