//! The JSON header of the end of a transaction (END_TRANSACTION), read in one pass without a tree.
//!
//! Source: `brokerset_protocol.headers.send.EndTransaction`, after RocketMQ's `EndTransactionRequestHeader`. Read are
//! commits and rollbacks; who does not know the state, and what `headers` declines, is declined.

use crate::headers::{Reader, read_request};

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
    /// Of the message and of the transaction; empty where it has none.
    pub ids: [&'a [u8]; 2],
}

#[derive(Default)]
struct Fields<'a> {
    group: Option<&'a [u8]>,
    half_offset: Option<i64>,
    half_queue_offset: Option<i64>,
    kind: Option<i64>,
    message_id: Option<&'a [u8]>,
    transaction_id: Option<&'a [u8]>,
}

/// Reads a header. None: declined.
pub fn read_end(header: &[u8]) -> Option<End<'_>> {
    let request = read_request(header, read_fields)?;
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
        ids: [
            fields.message_id?,
            fields.transaction_id.unwrap_or_default(),
        ],
    })
}

/// The object `extFields`. Of a repeated field the last one counts.
fn read_fields<'a>(reader: &mut Reader<'a>) -> Option<Fields<'a>> {
    let mut fields = Fields::default();
    reader.open()?;
    loop {
        match reader.key()? {
            b"producerGroup" => fields.group = reader.text_or_null()?,
            b"commitLogOffset" => fields.half_offset = reader.number_in_text()?,
            b"tranStateTableOffset" => fields.half_queue_offset = reader.number_in_text()?,
            b"commitOrRollback" => fields.kind = reader.number_in_text()?,
            b"msgId" => fields.message_id = reader.text_or_null()?,
            b"transactionId" => fields.transaction_id = reader.text_or_null()?,
            // Whether it answers a check matters only for halves with an immunity, which are declined.
            b"fromTransactionCheck" => match reader.text_or_null()? {
                None | Some(b"true" | b"false") => {}
                Some(_) => return None,
            },
            // Topic, broker name and namespace: nobody reads them.
            b"topic" | b"bname" | b"lo" | b"ns" | b"nsd" => drop(reader.text_or_null()?),
            _ => return None,
        }
        if !reader.more()? {
            return Some(fields);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
