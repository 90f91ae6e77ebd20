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
    let (mut tags, mut keys, mut uniq_key) = (None, None, None);
    for pair in pairs(raw) {
        match raw.get(pair.start) {
            Some(b'T') => tags = value(raw, &pair, TAGS).or(tags),
            Some(b'K') => keys = value(raw, &pair, KEYS).or(keys),
            Some(b'U') if uniq_key.is_none() && raw[pair.clone()].starts_with(UNIQ_KEY) => {
                uniq_key = Some(first_uniq_key(raw, &pair));
            }
            _ => {}
        }
    }
    Some(Derived {
        tags_code: match tags {
            Some(tags) => i64::from(java_hash_bytes(&raw[tags])?),
            None => 0,
        },
        uniq_key: uniq_key.flatten(),
        keys,
    })
}

/// The value of the property `name`, a text without 0x01 and 0x02: the last one that is not empty.
pub fn find(raw: &[u8], name: &[u8]) -> Option<Range<usize>> {
    last_value(raw, &[name, b"\x01"].concat())
}

/// The value of the first UNIQ_KEY, `pair`, even if it is empty; but the last one if the name stands somewhere
/// before it, inside of another text.
fn first_uniq_key(raw: &[u8], pair: &Range<usize>) -> Option<Range<usize>> {
    if memmem::find(&raw[..pair.start], UNIQ_KEY).is_some() {
        return last_value(raw, UNIQ_KEY);
    }
    Some(pair.start + UNIQ_KEY.len()..pair.end)
}

fn last_value(raw: &[u8], needle: &[u8]) -> Option<Range<usize>> {
    pairs(raw)
        .filter_map(|pair| value(raw, &pair, needle))
        .last()
}

/// What a pair has behind its name (`needle`, with the 0x01), unless it is empty or another name.
fn value(raw: &[u8], pair: &Range<usize>, needle: &[u8]) -> Option<Range<usize>> {
    let size = needle.len();
    (pair.len() > size && raw[pair.clone()].starts_with(needle))
        .then(|| pair.start + size..pair.end)
}

/// Where pairs of name and value are; the last one may lack its end, or be empty.
fn pairs(raw: &[u8]) -> impl Iterator<Item = Range<usize>> {
    let mut start = 0;
    std::iter::from_fn(move || {
        let rest = raw.get(start..)?;
        let pair = start..start + memchr(VALUE_END, rest).unwrap_or(rest.len());
        start = pair.end + 1;
        Some(pair)
    })
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
