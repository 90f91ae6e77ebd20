//! Which properties make a message unusual: what the broker must change, refuse, or do something about.
//!
//! Source: `brokerset_broker.requests.send`. Like there, a name counts wherever it stands, even inside a value.

use std::sync::LazyLock;

use memchr::memchr_iter;
use memchr::memmem::Finder;

/// Names that stand in properties only if something is to be done, but for the two without an underscore.
static WITH_UNDERSCORE: LazyLock<Vec<Finder<'static>>> = LazyLock::new(|| {
    [
        "TRAN_MSG",
        "TIMER_",
        "MSG_REGION",
        "TRACE_ON",
        "POP_CK",
        "INNER_",
        "__LITE_TOPIC",
        "_SYS_MSG_PRIORITY_",
        "__CRC32#",
    ]
    .map(Finder::new)
    .into_iter()
    .collect()
});
static DELAY: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("DELAY"));
static CLUSTER: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("CLUSTER"));
static NO_WAIT: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("WAIT\x01false"));
static UNIQ_KEY: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("UNIQ_KEY\x01"));

const UNIQ_KEY_SIZE: usize = 9;

/// Whether nothing needs to be done about a message with these properties.
pub fn is_plain(properties: &[u8]) -> bool {
    if DELAY.find(properties).is_some() || CLUSTER.find(properties).is_some() {
        return false;
    }
    // Nearly every message has UNIQ_KEY, and most have no other underscore.
    let another = memchr_iter(b'_', properties).any(|at| at == 0 || properties[at - 1] != b'Q');
    !another
        || WITH_UNDERSCORE
            .iter()
            .all(|name| name.find(properties).is_none())
}

/// Whether the answer may not wait for the disk, as far as a quick search can tell.
pub fn may_not_wait(properties: &[u8]) -> bool {
    NO_WAIT.find(properties).is_some()
}

/// The id that the client made, if it is the first that looks like one, and needs no escapes in JSON.
pub fn unique_id(properties: &[u8]) -> Option<&[u8]> {
    let start = if properties.starts_with(b"UNIQ_KEY\x01") {
        0
    } else {
        UNIQ_KEY.find(properties)?
    };
    if start > 0 && properties[start - 1] != 2 {
        return None;
    }
    let rest = &properties[start + UNIQ_KEY_SIZE..];
    let id = &rest[..memchr::memchr(2, rest)?];
    (!id.is_empty() && id.iter().all(u8::is_ascii_alphanumeric)).then_some(id)
}

/// Whether properties have more than one UNIQ_KEY, or one where none can begin: then they must be taken apart.
pub fn has_one_unique_id(properties: &[u8]) -> bool {
    UNIQ_KEY.find_iter(properties).count() == 1
}

/// Whether the properties hold an id at all.
pub fn mentions_unique_id(properties: &[u8]) -> bool {
    UNIQ_KEY.find(properties).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_makes_a_message_unusual_wherever_it_stands() {
        for name in [
            "DELAY",
            "TRAN_MSG",
            "TIMER_",
            "CLUSTER",
            "MSG_REGION",
            "TRACE_ON",
            "POP_CK",
            "INNER_",
            "__LITE_TOPIC",
            "_SYS_MSG_PRIORITY_",
            "__CRC32#",
        ] {
            for text in [
                name.to_owned(),
                format!("UNIQ_KEY\x01AB\x02{name}\x01x\x02"),
                format!("A\x01x{name}y\x02"),
            ] {
                assert!(!is_plain(text.as_bytes()), "{text}");
            }
        }
    }

    #[test]
    fn other_properties_are_plain() {
        assert!(is_plain(b""));
        assert!(is_plain(
            b"UNIQ_KEY\x01AB\x02WAIT\x01true\x02TAGS\x01a\x02KEYS\x01k1 k2\x02"
        ));
        assert!(is_plain(b"my_own\x01x_y\x02"));
    }

    #[test]
    fn the_id_is_found_as_python_finds_it() {
        assert_eq!(unique_id(b"UNIQ_KEY\x01AB\x02"), Some(&b"AB"[..]));
        assert_eq!(unique_id(b"A\x01b\x02UNIQ_KEY\x01AB\x02"), Some(&b"AB"[..]));
        for text in [
            "",
            "A\x01UNIQ_KEY\x01AB\x02",
            "UNIQ_KEY\x01\x02",
            "UNIQ_KEY\x01A",
            "UNIQ_KEY\x01A-B\x02",
        ] {
            assert_eq!(unique_id(text.as_bytes()), None, "{text}");
        }
    }
}
