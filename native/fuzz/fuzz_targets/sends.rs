//! A chunk of input: its frames, the header of each send and pull, the body of a batch, the record of a message.
#![no_main]

use brokerset_native::acks::{SignedAck, read_ack};
use brokerset_native::batches::read_batch;
use brokerset_native::frames::frame_at;
use brokerset_native::headers::{SendHeader, Signed, read_send};
use brokerset_native::pull_headers::{SignedPull, read_pull};
use brokerset_native::records::{Head, Parts, put_record};
use brokerset_native::scan::record_at;
use libfuzzer_sys::fuzz_target;

const FRAME_SIZE_MAX: usize = 1 << 20;
const PROPERTIES_MAX: usize = 0x7fff;

fuzz_target!(|data: &[u8]| {
    let (mut at, mut properties, mut items, mut out) = (0, Vec::new(), Vec::new(), Vec::new());
    while let Some(frame) = frame_at(data, at, FRAME_SIZE_MAX) {
        assert_eq!(frame.end - at, 8 + frame.header.len() + frame.body.len());
        at = frame.end;
        let mut signed_pull = SignedPull::default();
        if let Some(pull) = read_pull(frame.header, &mut signed_pull) {
            let pieces = signed_pull.pieces(b"");
            assert!(pieces.map(<[u8]>::len).sum::<usize>() < frame.header.len());
            assert!(pull.group.len() + pull.topic.len() < frame.header.len());
            continue;
        }
        let mut signed_ack = SignedAck::default();
        if let Some(ack) = read_ack(frame.header, &mut signed_ack) {
            let pieces = signed_ack.pieces(b"");
            assert!(pieces.map(<[u8]>::len).sum::<usize>() < frame.header.len());
            assert!(ack.names.handle.len() + ack.names.topic.len() < frame.header.len());
            continue;
        }
        let mut signed = Signed::default();
        let Some(header) = read_send(frame.header, &mut properties, &mut signed) else {
            continue;
        };
        let pieces = signed.pieces(b"", &properties);
        assert!(pieces.map(<[u8]>::len).sum::<usize>() < frame.header.len());
        assert!(std::str::from_utf8(&properties).is_ok());
        assert!(std::str::from_utf8(header.topic).is_ok());
        assert!(properties.len() + header.topic.len() < frame.header.len());
        if !header.batch {
            check_record(&mut out, &header, frame.body, &properties);
        } else if read_batch(frame.body, &mut items).is_some() {
            for item in &items {
                check_record(&mut out, &header, item.body, item.properties);
            }
        }
    }
});

/// What is appended has the size that was announced, inside and outside, and leaves what is before it alone.
fn check_record(out: &mut Vec<u8>, header: &SendHeader, body: &[u8], properties: &[u8]) {
    if header.topic.len() > 127 || properties.len() > PROPERTIES_MAX - 32 {
        return;
    }
    let topic_field = [&[header.topic.len() as u8], header.topic].concat();
    let head = Head {
        magic: 0xdaa3_20a7,
        queue_id: header.queue_id,
        flag: header.flag,
        queue_offset: 0,
        offset: 0,
        sys_flag: header.sys_flag,
        born_timestamp: header.born_timestamp,
        store_timestamp: 0,
        reconsume_times: header.reconsume_times,
    };
    for with_crc in [false, true] {
        let parts = Parts {
            born_host: &[127, 0, 0, 1, 0, 0, 0, 1],
            store_host: &[127, 0, 0, 1, 0, 0, 0, 2],
            body,
            topic_field: &topic_field,
            properties: &[properties],
            with_crc,
        };
        out.clear();
        out.push(0x5a);
        put_record(out, &head, &parts);
        assert_eq!(out.len() - 1, parts.size());
        assert_eq!(out[0], 0x5a);
        assert_eq!(out[1..5], (parts.size() as u32).to_be_bytes());
        if let Some(record) = record_at(&out[1..], 0, 0, true) {
            assert_eq!((record.size, record.topic), (parts.size(), header.topic));
        }
    }
}
