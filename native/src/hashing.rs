//! Java's `String.hashCode` and the hash of the index files, over UTF-8 bytes.
//!
//! Ports of `brokerset_formats.hashing`. Bytes that are not UTF-8 have no hash here: Python decides what such
//! a text is.

const POWER_2: u32 = 31 * 31;
const POWER_3: u32 = POWER_2 * 31;
const POWER_4: u32 = POWER_3 * 31;

/// `String.hashCode` of a text: over its UTF-16 units.
pub fn java_hash(text: &str) -> i32 {
    extend(0, text) as i32
}

/// `java_hash` of UTF-8 bytes; None if they are anything else.
pub fn java_hash_bytes(text: &[u8]) -> Option<i32> {
    extend_bytes(0, text).map(|value| value as i32)
}

/// The hash of the index files for `key` of `topic`, never negative; None if one of both is not UTF-8.
pub fn index_hash(topic: &[u8], key: &[u8]) -> Option<i32> {
    index_hash_from(index_hash_head(topic)?, key)
}

/// What the index hashes of all keys of a topic have in common; for `index_hash_from`.
pub fn index_hash_head(topic: &[u8]) -> Option<u32> {
    Some(extend_ascii(extend_bytes(0, topic)?, b"#"))
}

/// `index_hash` of a key whose topic has this `index_hash_head`.
pub fn index_hash_from(head: u32, key: &[u8]) -> Option<i32> {
    Some(absolute(extend_bytes(head, key)?))
}

/// `Math.abs` as Java's index uses it: the one number without a positive counterpart becomes 0.
fn absolute(value: u32) -> i32 {
    (value as i32).checked_abs().unwrap_or(0)
}

fn extend_bytes(value: u32, text: &[u8]) -> Option<u32> {
    if text.is_ascii() {
        return Some(extend_ascii(value, text));
    }
    Some(extend(value, std::str::from_utf8(text).ok()?))
}

fn extend(value: u32, text: &str) -> u32 {
    if text.is_ascii() {
        return extend_ascii(value, text.as_bytes());
    }
    text.encode_utf16().fold(value, |value, unit| {
        value.wrapping_mul(31).wrapping_add(u32::from(unit))
    })
}

/// Four characters at a time: one after the other, each would wait for the product of the one before it.
fn extend_ascii(mut value: u32, text: &[u8]) -> u32 {
    let quads = text.chunks_exact(4);
    let rest = quads.remainder();
    for quad in quads {
        let [a, b, c, d] = [quad[0], quad[1], quad[2], quad[3]].map(u32::from);
        let sum = a * POWER_3 + b * POWER_2 + c * 31 + d;
        value = value.wrapping_mul(POWER_4).wrapping_add(sum);
    }
    rest.iter().fold(value, |value, &unit| {
        value.wrapping_mul(31).wrapping_add(u32::from(unit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_java() {
        assert_eq!(java_hash(""), 0);
        assert_eq!(java_hash("TagA"), 2_598_919);
        assert_eq!(java_hash("polygenelubricants"), i32::MIN);
        assert_eq!(java_hash("é"), 233);
        assert_eq!(java_hash("😀"), 0xD83D * 31 + 0xDE00);
        assert_eq!(java_hash_bytes("😀".as_bytes()), Some(java_hash("😀")));
    }

    #[test]
    fn bytes_that_are_not_utf8_have_no_hash() {
        assert_eq!(java_hash_bytes(b"a\xff"), None);
        assert_eq!(
            java_hash_bytes(b"\xed\xa0\x80"),
            None,
            "half of a surrogate pair"
        );
        assert_eq!(index_hash(b"topic", b"\xc3"), None);
        assert_eq!(index_hash(b"\xc3", b"key"), None);
    }

    #[test]
    fn index_hashes_are_absolute() {
        assert_eq!(index_hash(b"T", b"k"), Some(java_hash("T#k").abs()));
        assert_eq!(absolute(0x8000_0000), 0);
        assert_eq!(absolute(0xFFFF_FFFF), 1);
        assert_eq!(absolute(0x7FFF_FFFF), i32::MAX);
    }

    #[test]
    fn four_at_a_time_is_the_same_as_one_by_one() {
        let text = "The quick brown fox jumps over the lazy dog";
        for end in 0..=text.len() {
            let slow = text[..end].bytes().fold(7u32, |value, unit| {
                value.wrapping_mul(31).wrapping_add(u32::from(unit))
            });
            assert_eq!(
                extend_ascii(7, &text.as_bytes()[..end]),
                slow,
                "{end} characters"
            );
        }
    }
}
