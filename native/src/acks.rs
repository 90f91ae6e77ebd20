//! Acks at the beginning of a chunk of input (ACK_MESSAGE), those of one check point together.
//!
//! Source: `brokerset_broker.requests.pop.plain_acks`, after RocketMQ's `AckMessageRequestHeader`. What a handle has
//! before the offset of its message is the same text for all messages of a check point; Python reads it.

use crate::frames::frame_at;
use crate::headers::{Reader, read_request};
use crate::replies::put_decimal;
use crate::signatures::Signers;
use crate::signed_fields::SignedFields;

pub const ACK_MESSAGE: i64 = 200_051;

/// Digits of a number that surely is an i64.
const DIGITS_MAX: usize = 18;
/// Messages from the start of a check point on that one run can name: bits of its map.
const DISTANCES: i64 = 64;

/// What the acks of one check point name alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Names<'a> {
    pub topic: &'a str,
    pub group: &'a str,
    pub queue_id: &'a str,
    /// The handle without the offset of the message and the space before it.
    pub handle: &'a str,
}

/// One ack.
#[derive(Debug, PartialEq, Eq)]
pub struct Ack<'a> {
    pub opaque: i32,
    pub names: Names<'a>,
    /// Of the message, from the start of the check point on: 0 to 63.
    pub distance: u32,
}

/// Neighbours in a chunk that ack different messages of one check point.
#[derive(Debug, PartialEq, Eq)]
pub struct Run<'a> {
    pub names: Names<'a>,
    /// Bit i: the message i behind the start of the check point.
    pub distances: u64,
    /// Behind their last frame.
    pub end: usize,
    pub count: usize,
    /// Frames that say that all is well.
    pub replies: Vec<u8>,
}

/// What is signed of an ack, which has no body.
pub type SignedAck<'a> = SignedFields<'a, { NAMES.len() }>;

/// Names of all fields that are read, but for who signs and the signature, as they are sorted. Broker name and namespace,
/// and what proxies say of themselves, nobody reads.
const NAMES: [&[u8]; 11] = [
    b"bname",
    b"consumerGroup",
    b"extraInfo",
    b"lo",
    b"ns",
    b"nsd",
    b"offset",
    b"proxyFrowardClientId",
    b"queueId",
    b"requestSource",
    b"topic",
];

/// Who may ack, and the address that a chunk comes from.
pub struct Check<'c> {
    pub signers: &'c mut Signers,
    pub source: &'c [u8],
}

#[derive(Default)]
struct Fields<'a> {
    group: Option<&'a [u8]>,
    topic: Option<&'a [u8]>,
    queue_id: Option<&'a [u8]>,
    handle: Option<&'a [u8]>,
    offset: Option<&'a [u8]>,
}

/// Reads a header; `signed` gets what is signed. None: declined.
pub fn read_ack<'a>(header: &'a [u8], signed: &mut SignedAck<'a>) -> Option<Ack<'a>> {
    *signed = SignedAck::default();
    let request = read_request(header, |reader| {
        let mut fields = Fields::default();
        signed.read(reader, &NAMES, |reader, name| {
            read_field(reader, name, &mut fields)
        })?;
        Some(fields)
    })?;
    if request.code != ACK_MESSAGE || request.oneway {
        return None;
    }
    let fields = request.fields;
    let text = |bytes| std::str::from_utf8(bytes).ok();
    let (handle, last) = text(fields.handle?)?.rsplit_once(' ')?;
    if last != text(fields.offset?)? {
        return None;
    }
    let (start, _) = handle.split_once(' ')?;
    let distance = number(last)? - number(start)?;
    if !(0..DISTANCES).contains(&distance) {
        return None;
    }
    Some(Ack {
        opaque: request.opaque,
        names: Names {
            topic: text(fields.topic?)?,
            group: text(fields.group?)?,
            queue_id: text(fields.queue_id?)?,
            handle,
        },
        distance: distance as u32,
    })
}

fn number(text: &str) -> Option<i64> {
    if text.is_empty() || text.len() > DIGITS_MAX || !text.bytes().all(|byte| byte.is_ascii_digit())
    {
        return None;
    }
    text.parse().ok()
}

/// Reads the value of a field, and returns what is written there.
fn read_field<'a>(
    reader: &mut Reader<'a>,
    name: &[u8],
    fields: &mut Fields<'a>,
) -> Option<Option<&'a [u8]>> {
    let text = reader.text_or_null()?;
    match name {
        b"consumerGroup" => fields.group = text,
        b"topic" => fields.topic = text,
        b"queueId" => fields.queue_id = text,
        b"extraInfo" => fields.handle = text,
        b"offset" => fields.offset = text,
        _ => {}
    }
    Some(text)
}

/// The acks at the beginning of `data`, at most `count_max`. `pieces` is the header of an answer, without its opaque.
/// With `check` only those that are signed by somebody who may ack.
pub fn read_runs<'a>(
    data: &'a [u8],
    count_max: usize,
    frame_size_max: usize,
    pieces: &[Vec<u8>; 2],
    mut check: Option<Check<'_>>,
) -> Vec<Run<'a>> {
    let mut runs: Vec<Run<'a>> = Vec::new();
    let (mut at, mut count) = (0, 0);
    let mut signed = SignedAck::default();
    while count < count_max
        && let Some(frame) = frame_at(data, at, frame_size_max)
        && let Some(ack) = read_ack(frame.header, &mut signed)
    {
        if let Some(Check { signers, source }) = &mut check {
            let Names { group, topic, .. } = ack.names;
            let (group, topic) = (group.as_bytes(), topic.as_bytes());
            if !frame.body.is_empty() || !signers.admit_consumer(source, group, topic, &signed) {
                break;
            }
        }
        let bit = 1 << ack.distance;
        match runs.last_mut() {
            Some(run) if run.names == ack.names && run.distances & bit == 0 => {
                run.distances |= bit;
                run.count += 1;
            }
            _ => runs.push(Run {
                names: ack.names,
                distances: bit,
                end: 0,
                count: 1,
                replies: Vec::new(),
            }),
        }
        if let Some(run) = runs.last_mut() {
            run.end = frame.end;
            put_reply(&mut run.replies, pieces, ack.opaque);
        }
        at = frame.end;
        count += 1;
    }
    runs
}

/// Adds the frame of one answer.
fn put_reply(out: &mut Vec<u8>, pieces: &[Vec<u8>; 2], opaque: i32) {
    let begin = out.len();
    out.extend_from_slice(&[0; 8]);
    out.extend_from_slice(&pieces[0]);
    put_decimal(out, i64::from(opaque));
    out.extend_from_slice(&pieces[1]);
    let size = (out.len() - begin - 8) as u32;
    out[begin..begin + 4].copy_from_slice(&(4 + size).to_be_bytes());
    out[begin + 4..begin + 8].copy_from_slice(&size.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_ack(header: &[u8]) -> Option<Ack<'_>> {
        super::read_ack(header, &mut SignedAck::default())
    }

    #[test]
    fn names_are_sorted() {
        assert!(NAMES.is_sorted());
    }

    fn header(opaque: i32, handle: &str, offset: &str) -> String {
        format!(
            r#"{{"code":200051,"extFields":{{"consumerGroup":"G","extraInfo":"{handle}","offset":"{offset}","queueId":"3","topic":"T"}},"flag":0,"language":"JAVA","opaque":{opaque},"serializeTypeCurrentRPC":"JSON","version":513}}"#
        )
    }

    fn frame(header: &str) -> Vec<u8> {
        let mut data = Vec::new();
        data.extend_from_slice(&(4 + header.len() as u32).to_be_bytes());
        data.extend_from_slice(&(header.len() as u32).to_be_bytes());
        data.extend_from_slice(header.as_bytes());
        data
    }

    fn pieces() -> [Vec<u8>; 2] {
        [b"{\"opaque\":".to_vec(), b"}".to_vec()]
    }

    fn runs(data: &[u8], count_max: usize) -> Vec<(String, u64, usize, usize)> {
        read_runs(data, count_max, 1 << 20, &pieces(), None)
            .into_iter()
            .map(|run| {
                (
                    run.names.handle.to_owned(),
                    run.distances,
                    run.end,
                    run.count,
                )
            })
            .collect()
    }

    #[test]
    fn the_header_of_a_java_client_is_read() {
        let text = header(9, "70 1700000000000 60000 1 0 b-0 3 75", "75");
        let wanted = Ack {
            opaque: 9,
            names: Names {
                topic: "T",
                group: "G",
                queue_id: "3",
                handle: "70 1700000000000 60000 1 0 b-0 3",
            },
            distance: 5,
        };
        assert_eq!(read_ack(text.as_bytes()), Some(wanted));
        assert!((0..text.len()).all(|size| read_ack(&text.as_bytes()[..size]).is_none()));
    }

    #[test]
    fn unusual_acks_are_declined() {
        let text = header(9, "70 1 2 1 0 b 3 75", "75");
        for (from, to) in [
            ("200051", "200052"),
            ("\"flag\":0", "\"flag\":2"),
            ("\"offset\":\"75\"", "\"offset\":\"76\""),
            ("\"offset\":\"75\"", "\"offset\":75"),
            ("\"70 1", "\"76 1"),
            ("\"70 1", "\"x 1"),
            ("\"70 1", "\"1 1"),
            ("\"70 1", "\"0000000000000000070 1"),
            ("\"topic\":\"T\"", "\"topic\":null"),
            ("\"topic\":\"T\"", "\"topic\":\"T\",\"liteTopic\":\"L\""),
            ("\"topic\":\"T\"", "\"topic\":\"\\u0054\""),
            ("70 1 2 1 0 b 3 75", "75"),
        ] {
            assert!(text.contains(from), "{from}");
            assert!(
                read_ack(text.replace(from, to).as_bytes()).is_none(),
                "{from} -> {to}"
            );
        }
    }

    #[test]
    fn acks_of_one_check_point_are_one_run() {
        let (one, other) = ("70 1 2 1 0 b 3", "80 1 2 1 0 b 3");
        let acks = [(one, 70), (one, 72), (other, 80), (other, 80), (one, 71)];
        let mut data = Vec::new();
        let mut ends = Vec::new();
        for (opaque, (handle, offset)) in acks.iter().enumerate() {
            let text = header(
                opaque as i32,
                &format!("{handle} {offset}"),
                &offset.to_string(),
            );
            data.extend_from_slice(&frame(&text));
            ends.push(data.len());
        }
        let wanted = [
            (one.to_owned(), 0b101, ends[1], 2),
            (other.to_owned(), 1, ends[2], 1),
            (other.to_owned(), 1, ends[3], 1), // the same once more
            (one.to_owned(), 0b10, ends[4], 1),
        ];
        assert_eq!(runs(&data, 100), wanted);
        assert_eq!(runs(&data, 3), wanted[..2]);
        assert_eq!(runs(&data[..data.len() - 1], 100), wanted[..3]);
        assert_eq!(runs(&data, 0), []);
        let first = &read_runs(&data, 100, 1 << 20, &pieces(), None)[0];
        assert_eq!(
            first.replies,
            b"\0\0\0\x10\0\0\0\x0c{\"opaque\":0}\0\0\0\x10\0\0\0\x0c{\"opaque\":1}"
        );
    }

    #[test]
    fn signed_acks_are_read_up_to_the_first_that_is_not_allowed() {
        let right = |offset: &str| {
            let handle = format!("70 1 2 1 0 b 3 {offset}");
            let signed = format!("appG{handle}{offset}3T");
            signed_by(&header(9, &handle, offset), "app", signed.as_bytes())
        };
        let (first, second) = (frame(&right("70")), frame(&right("71")));
        let altered = frame(
            &right("72")
                .replace("\"72\"", "\"73\"")
                .replace("72\"", "73\""),
        );
        let with_body = {
            let mut with_body = second.clone();
            with_body.push(b'x');
            let size = with_body.len() as u32 - 4;
            with_body[..4].copy_from_slice(&size.to_be_bytes());
            with_body
        };
        let unsigned = frame(&header(9, "70 1 2 1 0 b 3 71", "71"));
        let mut signers = Signers::default();
        signers.allow_consumer(b"app", b"secret", b"G", b"T", b"10.0.0.1");
        let mut count = |behind: &[u8], source: &[u8]| -> usize {
            let data = [&first, behind].concat();
            let check = Check {
                signers: &mut signers,
                source,
            };
            let runs = read_runs(&data, 100, 1 << 20, &pieces(), Some(check));
            runs.iter().map(|run| run.count).sum()
        };

        assert_eq!(count(&second, b"10.0.0.1"), 2);
        for wrong in [&altered, &with_body, &unsigned] {
            assert_eq!(count(wrong, b"10.0.0.1"), 1);
        }
        assert_eq!(count(&second, b"10.0.0.2"), 0);
    }

    #[test]
    fn whoever_may_ack_for_one_group_may_not_for_another() {
        let handle = "70 1 2 1 0 b 3 70";
        let signed = format!("appG{handle}703T");
        let data = frame(&signed_by(
            &header(9, handle, "70"),
            "app",
            signed.as_bytes(),
        ));
        for (group, topic, count) in [
            (b"G", b"T", 1),
            (b"H", b"T", 0),
            (b"G", b"U", 0),
            (b"T", b"G", 0),
        ] {
            let mut signers = Signers::default();
            signers.allow_consumer(b"app", b"secret", group, topic, b"10.0.0.1");
            let check = Check {
                signers: &mut signers,
                source: b"10.0.0.1",
            };
            let runs = read_runs(&data, 100, 1 << 20, &pieces(), Some(check));
            assert_eq!(runs.len(), count, "{group:?} {topic:?}");
        }
    }

    /// The header with a user and its signature of these values, by the password `secret`.
    fn signed_by(header: &str, user: &str, values: &[u8]) -> String {
        let signature = crate::signatures::tests::signature(b"secret", values);
        let fields = format!(r#""extFields":{{"AccessKey":"{user}","Signature":"{signature}","#);
        header.replace(r#""extFields":{"#, &fields)
    }
}
