//! Properties of a message, found in their raw bytes: `name 0x01 value 0x02`, repeated.
//!
//! Ports of `find_property` of `brokerset_formats.properties` and of `derived` of `store/dispatch.py`.

use std::ops::Range;

use memchr::memchr;
use memchr::memmem;

use crate::hashing::java_hash_bytes;

const VALUE_END: u8 = 2;

const UNIQ_KEY: &[u8] = b"UNIQ_KEY\x01";
const KEYS: &[u8] = b"KEYS\x01";
const TAGS: &[u8] = b"TAGS\x01";

/// What queue and index need of the properties of an ordinary message. Ranges are inside the properties.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Derived {
    /// Hash of the whole TAGS property; 0 without one.
    pub tags_code: i64,
    /// The client-made id. Empty if the first UNIQ_KEY is, as in Python: then there is nothing to index.
    pub uniq_key: Option<Range<usize>>,
    /// Keys with spaces between them; never empty.
    pub keys: Option<Range<usize>>,
}

/// Tags code and keys of a message; None if the tags are not UTF-8.
pub fn derived(raw: &[u8]) -> Option<Derived> {
    let tags_code = match find_with_end(raw, TAGS) {
        Some(tags) => i64::from(java_hash_bytes(&raw[tags])?),
        None => 0,
    };
    Some(Derived {
        tags_code,
        uniq_key: uniq_key(raw),
        keys: find_with_end(raw, KEYS),
    })
}

/// The value of the property `name`: the last one that is not empty.
pub fn find(raw: &[u8], name: &[u8]) -> Option<Range<usize>> {
    find_with_end(raw, &[name, b"\x01"].concat())
}

/// The first UNIQ_KEY, or, where other text stands before its name, the last that begins where it should.
fn uniq_key(raw: &[u8]) -> Option<Range<usize>> {
    let start = if raw.starts_with(UNIQ_KEY) {
        0
    } else {
        memmem::find(raw, UNIQ_KEY)?
    };
    if start > 0 && raw[start - 1] != VALUE_END {
        return find_with_end(raw, UNIQ_KEY);
    }
    let begin = start + UNIQ_KEY.len();
    Some(begin..value_end(raw, begin))
}

/// `find` for a name with the 0x01 behind it.
fn find_with_end(raw: &[u8], needle: &[u8]) -> Option<Range<usize>> {
    let mut limit = raw.len();
    loop {
        let start = memmem::rfind(&raw[..limit], needle)?;
        if start == 0 || raw[start - 1] == VALUE_END {
            let begin = start + needle.len();
            let end = value_end(raw, begin);
            if end > begin {
                return Some(begin..end);
            }
        }
        limit = start;
    }
}

fn value_end(raw: &[u8], begin: usize) -> usize {
    memchr(VALUE_END, &raw[begin..]).map_or(raw.len(), |length| begin + length)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found<'a>(raw: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
        find(raw, name).map(|range| &raw[range])
    }

    #[test]
    fn the_last_value_counts() {
        let raw = b"A\x01first\x02B\x01x\x02A\x01second\x02";
        assert_eq!(found(raw, b"A"), Some(&b"second"[..]));
        assert_eq!(found(raw, b"B"), Some(&b"x"[..]));
        assert_eq!(found(raw, b"C"), None);
    }

    #[test]
    fn an_empty_value_is_none_and_an_earlier_one_counts() {
        assert_eq!(found(b"A\x01\x02", b"A"), None);
        assert_eq!(found(b"A\x01\x02A\x01", b"A"), None);
        assert_eq!(found(b"A\x01x\x02A\x01\x02", b"A"), Some(&b"x"[..]));
    }

    #[test]
    fn a_name_inside_another_or_in_a_value_does_not_count() {
        assert_eq!(found(b"XA\x01x\x02", b"A"), None);
        assert_eq!(found(b"A\x01y\x02XA\x01x\x02", b"A"), Some(&b"y"[..]));
    }

    #[test]
    fn the_last_value_may_lack_its_end() {
        assert_eq!(found(b"A\x01x\x02B\x01rest", b"B"), Some(&b"rest"[..]));
    }

    #[test]
    fn derived_has_tags_and_keys() {
        let raw = b"UNIQ_KEY\x01id\x02TAGS\x01TagA\x02KEYS\x01a b\x02";
        let derived = derived(raw).unwrap();
        assert_eq!(derived.tags_code, 2_598_919);
        assert_eq!(&raw[derived.uniq_key.unwrap()], b"id");
        assert_eq!(&raw[derived.keys.unwrap()], b"a b");
    }

    #[test]
    fn of_two_client_made_ids_the_first_counts_even_if_it_is_empty() {
        assert_eq!(
            derived(b"UNIQ_KEY\x01a\x02UNIQ_KEY\x01b\x02")
                .unwrap()
                .uniq_key,
            Some(9..10)
        );
        assert_eq!(
            derived(b"UNIQ_KEY\x01\x02UNIQ_KEY\x01b\x02")
                .unwrap()
                .uniq_key,
            Some(9..9)
        );
        assert_eq!(derived(b"UNIQ_KEY\x01").unwrap().uniq_key, Some(9..9));
        let inside = b"XUNIQ_KEY\x01a\x02UNIQ_KEY\x01b\x02UNIQ_KEY\x01c\x02";
        assert_eq!(&inside[derived(inside).unwrap().uniq_key.unwrap()], b"c");
    }

    #[test]
    fn tags_that_are_not_utf8_are_declined() {
        assert_eq!(derived(b"TAGS\x01\xff\x02"), None);
        assert_eq!(derived(b"KEYS\x01\xff\x02").unwrap().keys, Some(5..6));
    }
}
