//! The JSON header of a pull (PULL_MESSAGE, LITE_PULL_MESSAGE), read in one pass without a tree.
//!
//! Source: `brokerset_broker.requests.pull`, after RocketMQ's `PullMessageRequestHeader`. Declined is what
//! `headers` declines, a pull that wants no answer, and one that filters by anything but tags.

use crate::headers::{Reader, not_negative, read_request};

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

/// Reads a header. None: declined.
pub fn read_pull(header: &[u8]) -> Option<PullHeader<'_>> {
    let request = read_request(header, read_fields)?;
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

/// The object `extFields`. Of a repeated field the last one counts.
fn read_fields<'a>(reader: &mut Reader<'a>) -> Option<Fields<'a>> {
    let mut fields = Fields::default();
    reader.open()?;
    loop {
        match reader.key()? {
            b"consumerGroup" => fields.group = reader.text_or_null()?,
            b"topic" => fields.topic = reader.text_or_null()?,
            b"queueId" => fields.queue_id = reader.padded_number_in_text()?,
            b"queueOffset" => fields.queue_offset = reader.padded_number_in_text()?,
            b"maxMsgNums" => fields.messages_max = reader.padded_number_in_text()?,
            b"sysFlag" => fields.sys_flag = reader.padded_number_in_text()?,
            b"commitOffset" => fields.commit_offset = reader.padded_number_in_text()?,
            b"suspendTimeoutMillis" => fields.suspend_ms = reader.padded_number_in_text()?,
            b"maxMsgBytes" => fields.bytes_max = reader.padded_number_in_text()?,
            b"subscription" => fields.subscription = reader.text_or_null()?,
            b"subVersion" => fields.subscription_version = reader.padded_number_in_text()?,
            b"expressionType" => fields.expression_type = reader.text_or_null()?,
            // Broker name and namespace, and what proxies tell of themselves: nobody reads them.
            b"bname" | b"lo" | b"ns" | b"nsd" | b"requestSource" | b"proxyFrowardClientId" => {
                _ = reader.text_or_null()?
            }
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

    const JAVA: &str = r#"{"code":11,"extFields":{"queueId":"3","maxMsgNums":"32","sysFlag":"6","suspendTimeoutMillis":"15000","commitOffset":"0","topic":"T","queueOffset":"70","expressionType":"TAG","subVersion":"17","consumerGroup":"G","subscription":"*","bname":"b-0"},"flag":0,"language":"JAVA","opaque":9,"serializeTypeCurrentRPC":"JSON","version":513}"#;

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
