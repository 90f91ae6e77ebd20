//! Messages that are put aside when they are sent, as the standard clients send them: halves and timers.
//!
//! Source: `brokerset_broker.requests.plain_halves` and `plain_timers`. Properties end with a separator here. As
//! there, a name that means more makes a message unusual wherever it stands, even inside a value.

use std::sync::LazyLock;

use memchr::memchr;
use memchr::memmem::Finder;

use crate::replies::put_decimal;

/// Bits of sysFlag that a half message may have: those of a plain message, and that it is prepared.
const PREPARED_BITS: i32 = 0x0707;

const VALUE_END: u8 = 2;
const NAME_END: u8 = 1;

type Finders = LazyLock<Vec<Finder<'static>>>;

/// Names that neither of both may have.
static UNUSUAL: Finders = LazyLock::new(|| {
    finders(&[
        "DELAY",
        "TIMER_",
        "CLUSTER",
        "MSG_REGION",
        "TRACE_ON",
        "POP_CK",
        "INNER_",
        "REPLY_TO_CLIENT",
        "__LITE_TOPIC",
        "__CRC32#",
        "_SYS_MSG_PRIORITY_",
        "REAL_",
    ])
});
static UNUSUAL_IN_HALVES: Finders =
    LazyLock::new(|| finders(&["TRAN_P", "TRANSACTION_", "__transactionId__"]));
static UNUSUAL_IN_TIMERS: Finders = LazyLock::new(|| finders(&["TRAN_MSG"]));

static HALF: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("TRAN_MSG\x01true\x02"));
static GROUP: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("PGROUP\x01"));
static KEY: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("UNIQ_KEY\x01"));
static TIMER: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("TIMER_DEL"));
static WISHES: LazyLock<[(Finder<'static>, Wish); 3]> = LazyLock::new(|| {
    [
        ("TIMER_DELAY_MS", Wish::DelayMs as fn(i64) -> Wish),
        ("TIMER_DELIVER_MS", Wish::DeliverMs),
        ("TIMER_DELAY_SEC", Wish::DelaySeconds),
    ]
    .map(|(name, wish)| (Finder::new(name), wish(0)))
});

fn finders(names: &[&'static str]) -> Vec<Finder<'static>> {
    names.iter().map(|name| Finder::new(*name)).collect()
}

/// When a producer wants a message to be delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    DelayMs(i64),
    DeliverMs(i64),
    DelaySeconds(i64),
}

impl Wish {
    fn with(self, number: i64) -> Self {
        match self {
            Self::DelayMs(_) => Self::DelayMs(number),
            Self::DeliverMs(_) => Self::DeliverMs(number),
            Self::DelaySeconds(_) => Self::DelaySeconds(number),
        }
    }

    /// `TIMER_OUT_MS` of a message that is sent at `now_ms`; None unless it has to wait, for `max_delay_ms` at most.
    pub fn out_ms(self, now_ms: i64, slot_ms: i64, max_delay_ms: i64) -> Option<i64> {
        let deliver_ms = match self {
            Self::DelayMs(number) => now_ms.checked_add(number)?,
            Self::DelaySeconds(number) => now_ms.checked_add(number.checked_mul(1000)?)?,
            Self::DeliverMs(number) => number,
        };
        if now_ms < 0 || slot_ms <= 0 || deliver_ms <= now_ms || deliver_ms - now_ms > max_delay_ms
        {
            return None;
        }
        Some((deliver_ms - 1) / slot_ms * slot_ms)
    }
}

/// Whether the properties are a half message's, with one id of a client.
pub fn is_plain_half(properties: &[u8], sys_flag: i32) -> bool {
    if sys_flag & !PREPARED_BITS != 0
        || begins_once(properties, &HALF).is_none()
        || begins_once(properties, &KEY).is_none()
    {
        return false;
    }
    let Some(end) = begins_once(properties, &GROUP) else {
        return false;
    };
    if matches!(properties.get(end), None | Some(&VALUE_END)) {
        return false;
    }
    !has_any(properties, &UNUSUAL) && !has_any(properties, &UNUSUAL_IN_HALVES)
}

/// When a message is to be delivered, if its properties say nothing else that is unusual.
pub fn plain_timer(properties: &[u8]) -> Option<Wish> {
    TIMER.find(properties)?;
    let (start, name_size, wish) = WISHES.iter().find_map(|(name, wish)| {
        let start = name.find(properties)?;
        Some((start, name.needle().len(), *wish))
    })?;
    if start > 0 && properties[start - 1] != VALUE_END {
        return None;
    }
    let begin = start + name_size + 1;
    if properties.get(begin - 1) != Some(&NAME_END) {
        return None;
    }
    let rest = properties.get(begin..)?;
    let digits = &rest[..memchr(VALUE_END, rest)?];
    let wish = wish.with(number(digits)?);
    // What is before ends with a separator, so that no name begins there and ends in what follows.
    let parts = [
        &properties[..start],
        &properties[begin + digits.len() + 1..],
    ];
    for part in parts {
        if has_any(part, &UNUSUAL) || has_any(part, &UNUSUAL_IN_TIMERS) {
            return None;
        }
    }
    let part = match parts.map(|part| KEY.find(part).is_some()) {
        [true, false] => parts[0],
        [false, true] => parts[1],
        _ => return None,
    };
    let end = begins_once(part, &KEY)?;
    (part.get(end)? != &VALUE_END).then_some(wish)
}

/// Behind the needle, if a property begins like this: exactly once, and not inside of another.
fn begins_once(properties: &[u8], needle: &Finder<'static>) -> Option<usize> {
    let start = needle.find(properties)?;
    let end = start + needle.needle().len();
    let is_one = needle.find(&properties[start + 1..]).is_none();
    (is_one && (start == 0 || properties[start - 1] == VALUE_END)).then_some(end)
}

fn has_any(properties: &[u8], names: &[Finder<'static>]) -> bool {
    names.iter().any(|name| name.find(properties).is_some())
}

/// Digits as Python's `int` takes them, if it is no more than an i64.
fn number(digits: &[u8]) -> Option<i64> {
    if digits.is_empty() || digits.len() > 19 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Appends what a half record has besides the properties of its message.
pub fn put_half_properties(out: &mut Vec<u8>, unique_id: &[u8], topic: &[u8], queue_id: i32) {
    put_property(out, b"__transactionId__", unique_id);
    put_real(out, topic, queue_id);
}

/// Appends what a waiting record has besides the properties of its message.
pub fn put_timer_properties(out: &mut Vec<u8>, out_ms: i64, topic: &[u8], queue_id: i32) {
    out.extend_from_slice(b"TIMER_OUT_MS\x01");
    put_decimal(out, out_ms);
    out.push(VALUE_END);
    put_real(out, topic, queue_id);
}

fn put_real(out: &mut Vec<u8>, topic: &[u8], queue_id: i32) {
    put_property(out, b"REAL_TOPIC", topic);
    out.extend_from_slice(b"REAL_QID\x01");
    put_decimal(out, queue_id.into());
    out.push(VALUE_END);
}

fn put_property(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.extend_from_slice(name);
    out.push(NAME_END);
    out.extend_from_slice(value);
    out.push(VALUE_END);
}

/// Appends the handle by which a waiting message can be recalled: see `brokerset_formats.recall_handles`.
pub fn put_recall_handle(
    out: &mut Vec<u8>,
    topic: &[u8],
    broker_name: &[u8],
    out_ms: i64,
    unique_id: &[u8],
) {
    let mut text = b"v1 ".to_vec();
    text.extend_from_slice(topic);
    text.push(b' ');
    text.extend_from_slice(broker_name);
    text.push(b' ');
    put_decimal(&mut text, out_ms + 1);
    text.push(b' ');
    text.extend_from_slice(unique_id);
    put_base64(out, &text);
}

/// Base64 with the alphabet of URLs, and padding.
fn put_base64(out: &mut Vec<u8>, data: &[u8]) {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    for piece in data.chunks(3) {
        let bytes = [
            piece[0],
            piece.get(1).copied().unwrap_or(0),
            piece.get(2).copied().unwrap_or(0),
        ];
        let bits = u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]);
        for place in 0..4 {
            out.push(if place <= piece.len() {
                ALPHABET[(bits >> (18 - 6 * place)) as usize & 63]
            } else {
                b'='
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF_TEXT: &str =
        "TRAN_MSG\x01true\x02PGROUP\x01pg\x02UNIQ_KEY\x01AB\x02WAIT\x01true\x02";

    #[test]
    fn a_half_of_a_standard_client_is_plain() {
        assert!(is_plain_half(HALF_TEXT.as_bytes(), 4));
        assert!(is_plain_half(HALF_TEXT.as_bytes(), 0));
    }

    #[test]
    fn a_half_with_anything_else_is_unusual() {
        assert!(!is_plain_half(HALF_TEXT.as_bytes(), 8));
        for more in [
            "DELAY\x011\x02",
            "TIMER_X\x011\x02",
            "REAL_TOPIC\x01t\x02",
            "TRANSACTION_CHECK_TIMES\x011\x02",
            "TRAN_PREPARED_QUEUE_OFFSET\x011\x02",
            "__transactionId__\x01AB\x02",
            "UNIQ_KEY\x01AC\x02",
            "PGROUP\x01pg\x02",
            "note\x01TRAN_MSG\x01true\x02",
        ] {
            assert!(
                !is_plain_half(format!("{HALF_TEXT}{more}").as_bytes(), 0),
                "{more}"
            );
        }
        for (from, to) in [
            ("PGROUP\x01pg", "PGROUP\x01"),
            ("PGROUP\x01pg\x02", ""),
            ("UNIQ_KEY\x01AB\x02", ""),
            ("true\x02PGROUP", "TRUE\x02PGROUP"),
            ("\x02UNIQ_KEY", "\x02xUNIQ_KEY"),
        ] {
            assert!(
                !is_plain_half(HALF_TEXT.replace(from, to).as_bytes(), 0),
                "{from}"
            );
        }
    }

    #[test]
    fn the_first_wish_in_the_order_of_the_broker_counts() {
        for (text, wish) in [
            (
                "TIMER_DELAY_MS\x015\x02UNIQ_KEY\x01A\x02",
                Some(Wish::DelayMs(5)),
            ),
            (
                "UNIQ_KEY\x01A\x02TIMER_DELAY_SEC\x017\x02",
                Some(Wish::DelaySeconds(7)),
            ),
            (
                "UNIQ_KEY\x01A\x02TIMER_DELIVER_MS\x01007\x02X\x01y\x02",
                Some(Wish::DeliverMs(7)),
            ),
            ("UNIQ_KEY\x01A\x02TIMER_DELAY_MS\x01-5\x02", None),
            ("UNIQ_KEY\x01A\x02TIMER_DELAY_MS\x01\x02", None),
            (
                "UNIQ_KEY\x01A\x02TIMER_DELAY_MS\x019223372036854775808\x02",
                None,
            ),
            (
                "UNIQ_KEY\x01A\x02TIMER_DELAY_MS\x015\x02TIMER_DELAY_SEC\x011\x02",
                None,
            ),
            ("UNIQ_KEY\x01A\x02TIMER_DELAY_MSX\x015\x02", None),
            ("UNIQ_KEY\x01A\x02XTIMER_DELAY_MS\x015\x02", None),
            (
                "UNIQ_KEY\x01A\x02UNIQ_KEY\x01A\x02TIMER_DELAY_MS\x015\x02",
                None,
            ),
            (
                "UNIQ_KEY\x01A\x02TIMER_DELAY_MS\x015\x02UNIQ_KEY\x01A\x02",
                None,
            ),
            ("UNIQ_KEY\x01\x02TIMER_DELAY_MS\x015\x02", None),
            ("TIMER_DELAY_MS\x015\x02", None),
            ("TIMER_DELAY_MS\x02", None),
            (
                "UNIQ_KEY\x01A\x02TRAN_MSG\x01true\x02TIMER_DELAY_MS\x015\x02",
                None,
            ),
        ] {
            assert_eq!(plain_timer(text.as_bytes()), wish, "{text}");
        }
    }

    #[test]
    fn the_slot_is_the_one_that_ends_when_the_message_is_due_or_before() {
        assert_eq!(Wish::DelayMs(1000).out_ms(10_500, 1000, 5000), Some(11_000));
        assert_eq!(
            Wish::DeliverMs(12_000).out_ms(10_500, 1000, 5000),
            Some(11_000)
        );
        assert_eq!(
            Wish::DelaySeconds(5).out_ms(10_500, 100, 5000),
            Some(15_400)
        );
        assert_eq!(Wish::DelaySeconds(6).out_ms(10_500, 1000, 5000), None);
        assert_eq!(Wish::DeliverMs(10_500).out_ms(10_500, 1000, 5000), None);
        assert_eq!(Wish::DelayMs(0).out_ms(10_500, 1000, 5000), None);
        assert_eq!(
            Wish::DelaySeconds(i64::MAX).out_ms(10_500, 1000, 5000),
            None
        );
        assert_eq!(Wish::DelayMs(i64::MAX).out_ms(10_500, 1000, 5000), None);
    }

    #[test]
    fn records_have_the_properties_of_the_broker_behind_the_others() {
        let mut out = b"A\x01b\x02".to_vec();
        put_half_properties(&mut out, b"AB", b"t", 3);
        assert_eq!(
            out,
            b"A\x01b\x02__transactionId__\x01AB\x02REAL_TOPIC\x01t\x02REAL_QID\x013\x02"
        );
        out.clear();
        put_timer_properties(&mut out, 1_000, b"t", 3);
        assert_eq!(
            out,
            b"TIMER_OUT_MS\x011000\x02REAL_TOPIC\x01t\x02REAL_QID\x013\x02"
        );
    }

    #[test]
    fn handles_are_base64_of_the_alphabet_of_urls() {
        for (data, text) in [
            (&b""[..], ""),
            (b"f", "Zg=="),
            (b"fo", "Zm8="),
            (b"foo", "Zm9v"),
            (b"\xfb\xff\xfe", "-__-"),
        ] {
            let mut out = Vec::new();
            put_base64(&mut out, data);
            assert_eq!(out, text.as_bytes());
        }
        let mut out = Vec::new();
        put_recall_handle(&mut out, b"t", b"broker-a", 1_000, b"AB");
        assert_eq!(out, b"djEgdCBicm9rZXItYSAxMDAxIEFC");
    }
}
