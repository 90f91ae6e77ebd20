//! The JSON header of the end of a transaction (END_TRANSACTION), read in one pass without a tree.
//!
//! Source: `brokerset_protocol.headers.send.EndTransaction`, after RocketMQ's `EndTransactionRequestHeader`. Read are
//! commits and rollbacks; who does not know the state, and what `headers` declines, is declined.

use crate::headers::{Reader, read_request};
use crate::signed_fields::SignedFields;

pub const END_TRANSACTION: i64 = 37;

const COMMIT: i64 = 8;
const ROLLBACK: i64 = 12;

/// What an end says.
#[derive(Debug, PartialEq, Eq)]
pub struct End<'a> {
    pub opaque: i32,
    pub oneway: bool,
    /// Else it rolls back.
    pub commits: bool,
    /// Of its half in the commit log.
    pub half_offset: i64,
    pub half_queue_offset: i64,
    pub group: &'a [u8],
    /// That the client names; the half may be for another one. Empty where there is none.
    pub topic: &'a [u8],
    /// Of the message and of the transaction; empty where it has none.
    pub ids: [&'a [u8]; 2],
}

/// What is signed of an end, which has no body.
pub type SignedEnd<'a> = SignedFields<'a, { NAMES.len() }>;

/// Names of all fields that are read, but for who signs and the signature, as they are sorted. Broker name and namespace
/// nobody reads, and the topic only who checks whether it may be sent to.
const NAMES: [&[u8]; 12] = [
    b"bname",
    b"commitLogOffset",
    b"commitOrRollback",
    b"fromTransactionCheck",
    b"lo",
    b"msgId",
    b"ns",
    b"nsd",
    b"producerGroup",
    b"topic",
    b"tranStateTableOffset",
    b"transactionId",
];

#[derive(Default)]
struct Fields<'a> {
    group: Option<&'a [u8]>,
    topic: Option<&'a [u8]>,
    half_offset: Option<i64>,
    half_queue_offset: Option<i64>,
    kind: Option<i64>,
    message_id: Option<&'a [u8]>,
    transaction_id: Option<&'a [u8]>,
}

/// Reads a header; `signed` gets what is signed. None: declined.
pub fn read_end<'a>(header: &'a [u8], signed: &mut SignedEnd<'a>) -> Option<End<'a>> {
    *signed = SignedEnd::default();
    let request = read_request(header, |reader| {
        let mut fields = Fields::default();
        signed.read(reader, &NAMES, |reader, name| {
            read_field(reader, name, &mut fields)
        })?;
        Some(fields)
    })?;
    if request.code != END_TRANSACTION {
        return None;
    }
    let fields = request.fields;
    let kind = fields.kind?;
    if kind != COMMIT && kind != ROLLBACK {
        return None;
    }
    Some(End {
        opaque: request.opaque,
        oneway: request.oneway,
        commits: kind == COMMIT,
        half_offset: fields.half_offset?,
        half_queue_offset: fields.half_queue_offset?,
        group: fields.group?,
        topic: fields.topic.unwrap_or_default(),
        ids: [
            fields.message_id?,
            fields.transaction_id.unwrap_or_default(),
        ],
    })
}

/// Reads the value of a field, and returns what is written there.
fn read_field<'a>(
    reader: &mut Reader<'a>,
    name: &[u8],
    fields: &mut Fields<'a>,
) -> Option<Option<&'a [u8]>> {
    let number = match name {
        b"commitLogOffset" => &mut fields.half_offset,
        b"tranStateTableOffset" => &mut fields.half_queue_offset,
        b"commitOrRollback" => &mut fields.kind,
        _ => {
            let text = reader.text_or_null()?;
            match name {
                b"producerGroup" => fields.group = text,
                b"topic" => fields.topic = text,
                b"msgId" => fields.message_id = text,
                b"transactionId" => fields.transaction_id = text,
                // Whether it answers a check matters only for halves with an immunity, which are declined.
                b"fromTransactionCheck" if !matches!(text, None | Some(b"true" | b"false")) => {
                    return None;
                }
                _ => {}
            }
            return Some(text);
        }
    };
    let (found, text) = reader.number_and_text()?;
    *number = found;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_end(header: &[u8]) -> Option<End<'_>> {
        super::read_end(header, &mut SignedEnd::default())
    }

    #[test]
    fn names_are_sorted() {
        assert!(NAMES.is_sorted());
    }

    #[test]
    fn what_is_signed_are_the_values_by_name() {
        let text = JAVA.replace(
            "{\"topic\"",
            "{\"Signature\":\"s\",\"AccessKey\":\"app\",\"topic\"",
        );
        let mut signed = SignedEnd::default();
        assert!(super::read_end(text.as_bytes(), &mut signed).is_some());
        assert_eq!(signed.signature, Some(&b"s"[..]));
        let pieces: Vec<&[u8]> = signed.pieces(b"app").collect();
        assert_eq!(pieces.concat(), b"appb-07008falseAB12GT7AB12");
    }

    const JAVA: &str = r#"{"code":37,"extFields":{"topic":"T","producerGroup":"G","tranStateTableOffset":"7","commitLogOffset":"700","commitOrRollback":"8","fromTransactionCheck":"false","msgId":"AB12","transactionId":"AB12","bname":"b-0"},"flag":2,"language":"JAVA","opaque":9,"serializeTypeCurrentRPC":"JSON","version":513}"#;

    #[test]
    fn the_header_of_a_java_client_is_read() {
        let wanted = End {
            opaque: 9,
            oneway: true,
            commits: true,
            half_offset: 700,
            half_queue_offset: 7,
            group: b"G",
            topic: b"T",
            ids: [b"AB12", b"AB12"],
        };
        assert_eq!(read_end(JAVA.as_bytes()), Some(wanted));
        let rollback = JAVA.replace("\"8\"", "\"12\"");
        assert!(!read_end(rollback.as_bytes()).unwrap().commits);
    }

    #[test]
    fn every_beginning_of_a_header_is_declined() {
        assert!((0..JAVA.len()).all(|size| read_end(&JAVA.as_bytes()[..size]).is_none()));
    }

    #[test]
    fn unusual_ends_are_declined() {
        for (from, to) in [
            ("\"code\":37", "\"code\":310"),
            ("\"flag\":2", "\"flag\":1"),
            ("\"8\"", "\"0\""),
            ("\"8\"", "\"08\""),
            ("\"700\"", "\"+700\""),
            ("\"7\"", "null"),
            ("\"msgId\":\"AB12\",", ""),
            ("\"producerGroup\":\"G\"", "\"producerGroup\":\"\\u0047\""),
            ("\"false\"", "\"maybe\""),
            ("\"bname\"", "\"other\""),
        ] {
            assert!(JAVA.contains(from), "{from}");
            assert!(
                read_end(JAVA.replace(from, to).as_bytes()).is_none(),
                "{from} -> {to}"
            );
        }
    }
}
