//! The JSON header of a pull (PULL_MESSAGE, LITE_PULL_MESSAGE), read in one pass without a tree.
//!
//! Source: `brokerset_broker.requests.pull`, after RocketMQ's `PullMessageRequestHeader`. Declined is what
//! `headers` declines, a pull that wants no answer, and one that filters by anything but tags.

use crate::headers::{Reader, not_negative, read_request};
use crate::signed_fields::SignedFields;

pub const PULL_MESSAGE: i64 = 11;
pub const LITE_PULL_MESSAGE: i64 = 361;

/// What a pull asks for.
#[derive(Debug, PartialEq, Eq)]
pub struct PullHeader<'a> {
    pub opaque: i32,
    pub group: &'a str,
    pub topic: &'a str,
    pub queue_id: i64,
    pub queue_offset: i64,
    pub messages_max: i64,
    pub sys_flag: i32,
    pub commit_offset: i64,
    /// How long it may wait for messages, if its flags say that it does.
    pub suspend_ms: i64,
    /// 0: as the broker has it.
    pub bytes_max: i64,
    pub subscription: Option<&'a str>,
    pub subscription_version: i64,
}

/// What is signed of a pull, which has no body.
pub type SignedPull<'a> = SignedFields<'a, { NAMES.len() }>;

/// Names of all fields that are read, but for who signs and the signature, as they are sorted.
const NAMES: [&[u8]; 18] = [
    b"bname",
    b"commitOffset",
    b"consumerGroup",
    b"expressionType",
    b"lo",
    b"maxMsgBytes",
    b"maxMsgNums",
    b"ns",
    b"nsd",
    b"proxyFrowardClientId",
    b"queueId",
    b"queueOffset",
    b"requestSource",
    b"subVersion",
    b"subscription",
    b"suspendTimeoutMillis",
    b"sysFlag",
    b"topic",
];

#[derive(Default)]
struct Fields<'a> {
    group: Option<&'a [u8]>,
    topic: Option<&'a [u8]>,
    queue_id: Option<i64>,
    queue_offset: Option<i64>,
    messages_max: Option<i64>,
    sys_flag: Option<i64>,
    commit_offset: Option<i64>,
    suspend_ms: Option<i64>,
    bytes_max: Option<i64>,
    subscription: Option<&'a [u8]>,
    subscription_version: Option<i64>,
    expression_type: Option<&'a [u8]>,
}

/// Reads a header; `signed` gets what is signed. None: declined.
pub fn read_pull<'a>(header: &'a [u8], signed: &mut SignedPull<'a>) -> Option<PullHeader<'a>> {
    *signed = SignedPull::default();
    let request = read_request(header, |reader| {
        let mut fields = Fields::default();
        signed.read(reader, &NAMES, |reader, name| {
            read_field(reader, name, &mut fields)
        })?;
        Some(fields)
    })?;
    if (request.code != PULL_MESSAGE && request.code != LITE_PULL_MESSAGE) || request.oneway {
        return None;
    }
    let fields = request.fields;
    if !matches!(fields.expression_type, None | Some(b"" | b"TAG")) {
        return None;
    }
    let text = |bytes| std::str::from_utf8(bytes).ok();
    Some(PullHeader {
        opaque: request.opaque,
        group: text(fields.group?)?,
        topic: text(fields.topic?)?,
        queue_id: fields.queue_id?,
        queue_offset: fields.queue_offset?,
        messages_max: fields.messages_max?,
        sys_flag: not_negative(fields.sys_flag?)?,
        commit_offset: fields.commit_offset?,
        suspend_ms: fields.suspend_ms?,
        bytes_max: fields.bytes_max.unwrap_or(0),
        subscription: match fields.subscription {
            Some(bytes) => Some(text(bytes)?),
            None => None,
        },
        subscription_version: fields.subscription_version.unwrap_or(0),
    })
}

/// Reads the value of a field, and returns what is written there.
fn read_field<'a>(
    reader: &mut Reader<'a>,
    name: &[u8],
    fields: &mut Fields<'a>,
) -> Option<Option<&'a [u8]>> {
    let number = match name {
        b"queueId" => &mut fields.queue_id,
        b"queueOffset" => &mut fields.queue_offset,
        b"maxMsgNums" => &mut fields.messages_max,
        b"sysFlag" => &mut fields.sys_flag,
        b"commitOffset" => &mut fields.commit_offset,
        b"suspendTimeoutMillis" => &mut fields.suspend_ms,
        b"maxMsgBytes" => &mut fields.bytes_max,
        b"subVersion" => &mut fields.subscription_version,
        _ => {
            let text = reader.text_or_null()?;
            match name {
                b"consumerGroup" => fields.group = text,
                b"topic" => fields.topic = text,
                b"subscription" => fields.subscription = text,
                b"expressionType" => fields.expression_type = text,
                // Broker name and namespace, and what proxies tell of themselves: nobody reads them.
                _ => {}
            }
            return Some(text);
        }
    };
    let (found, text) = reader.padded_number_and_text()?;
    *number = found;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const JAVA: &str = r#"{"code":11,"extFields":{"queueId":"3","maxMsgNums":"32","sysFlag":"6","suspendTimeoutMillis":"15000","commitOffset":"0","topic":"T","queueOffset":"70","expressionType":"TAG","subVersion":"17","consumerGroup":"G","subscription":"*","bname":"b-0"},"flag":0,"language":"JAVA","opaque":9,"serializeTypeCurrentRPC":"JSON","version":513}"#;

    fn read_pull(header: &[u8]) -> Option<PullHeader<'_>> {
        super::read_pull(header, &mut SignedPull::default())
    }

    #[test]
    fn names_are_sorted() {
        assert!(NAMES.is_sorted());
    }

    #[test]
    fn what_is_signed_are_the_values_by_name_as_they_are_written() {
        let text = JAVA.replace("\"70\"", "\"0070\"").replace(
            "{\"queueId\"",
            "{\"Signature\":\"s\",\"AccessKey\":\"app\",\"queueId\"",
        );
        let mut signed = SignedPull::default();
        assert!(super::read_pull(text.as_bytes(), &mut signed).is_some());
        assert_eq!(signed.signature, Some(&b"s"[..]));
        assert_eq!(signed.access_key, Some(&b"app"[..]));
        let pieces: Vec<&[u8]> = signed.pieces(b"app").collect();
        let wanted = "app|b-0|0|G|TAG|||32||||3|0070||17|*|15000|6|T";
        assert_eq!(pieces.join(&b'|'), wanted.as_bytes());
    }

    #[test]
    fn the_header_of_a_java_client_is_read() {
        let wanted = PullHeader {
            opaque: 9,
            group: "G",
            topic: "T",
            queue_id: 3,
            queue_offset: 70,
            messages_max: 32,
            sys_flag: 6,
            commit_offset: 0,
            suspend_ms: 15_000,
            bytes_max: 0,
            subscription: Some("*"),
            subscription_version: 17,
        };
        assert_eq!(read_pull(JAVA.as_bytes()), Some(wanted));
    }

    #[test]
    fn zeros_before_a_number_are_read_over() {
        for (padded, queue_offset) in [("0000000000000070", 70), ("00", 0), ("-0", 0), ("-007", -7)]
        {
            let text = JAVA.replace("\"70\"", &format!("\"{padded}\""));
            assert_eq!(
                read_pull(text.as_bytes()).unwrap().queue_offset,
                queue_offset
            );
        }
    }

    #[test]
    fn every_beginning_of_a_header_is_declined() {
        assert!((0..JAVA.len()).all(|size| read_pull(&JAVA.as_bytes()[..size]).is_none()));
    }

    #[test]
    fn unusual_pulls_are_declined() {
        for (from, to) in [
            ("\"code\":11", "\"code\":310"),
            ("\"flag\":0", "\"flag\":2"),
            ("\"flag\":0", "\"flag\":1"),
            ("\"TAG\"", "\"SQL92\""),
            ("\"bname\"", "\"pullEpoch\""),
            ("\"topic\":\"T\",", ""),
            ("\"queueOffset\":\"70\"", "\"queueOffset\":\"+70\""),
            ("\"queueOffset\":\"70\"", "\"queueOffset\":\"\""),
            ("\"queueOffset\":\"70\"", "\"queueOffset\":\"0-7\""),
            ("\"queueOffset\":\"70\"", "\"queueOffset\":070"),
            (
                "\"queueOffset\":\"70\"",
                "\"queueOffset\":\"00000000000000000070\"",
            ),
            ("\"queueOffset\":\"70\"", "\"queueOffset\":null"),
            ("\"sysFlag\":\"6\"", "\"sysFlag\":\"-6\""),
            ("\"suspendTimeoutMillis\":\"15000\",", ""),
            ("\"consumerGroup\":\"G\"", "\"consumerGroup\":5"),
        ] {
            assert!(JAVA.contains(from), "{from}");
            assert!(
                read_pull(JAVA.replace(from, to).as_bytes()).is_none(),
                "{from} -> {to}"
            );
        }
    }
}
