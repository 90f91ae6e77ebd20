//! Records of the commit log, written.
//!
//! Source: `brokerset_formats.records`, after RocketMQ's `MessageExtEncoder`.

/// The property behind all others, with a CRC over the whole record: `__CRC32#`, 0x01, ten digits, 0x02.
pub const PROPERTY_CRC_NAME: &[u8] = b"__CRC32#\x01";
pub const PROPERTY_CRC_SIZE: usize = PROPERTY_CRC_NAME.len() + 11;

/// Bytes of a record before its body, without the hosts.
const FIXED_SIZE_WITHOUT_HOSTS: usize = 72;

/// What a record has before its body, but for what follows from the other arguments of `put_record`.
pub struct Head {
    pub magic: u32,
    pub queue_id: i32,
    pub flag: i32,
    pub queue_offset: i64,
    pub offset: i64,
    pub sys_flag: i32,
    pub born_timestamp: i64,
    pub store_timestamp: i64,
    pub reconsume_times: i32,
}

/// The parts of a record that are bytes.
pub struct Parts<'a> {
    pub born_host: &'a [u8],
    pub store_host: &'a [u8],
    pub body: &'a [u8],
    /// The topic with its length before it.
    pub topic_field: &'a [u8],
    /// Raw, in pieces; a CRC follows them if wanted.
    pub properties: &'a [&'a [u8]],
    pub with_crc: bool,
}

impl Parts<'_> {
    fn properties_size(&self) -> usize {
        let size: usize = self.properties.iter().map(|piece| piece.len()).sum();
        size + if self.with_crc { PROPERTY_CRC_SIZE } else { 0 }
    }

    /// Bytes of the whole record.
    pub fn size(&self) -> usize {
        FIXED_SIZE_WITHOUT_HOSTS
            + self.born_host.len()
            + self.store_host.len()
            + self.body.len()
            + self.topic_field.len()
            + 2
            + self.properties_size()
    }
}

/// CRC-32 without its top bit, as `UtilAll.crc32` of Java stores it.
pub fn crc31(data: &[u8]) -> u32 {
    crc32fast::hash(data) & 0x7fff_ffff
}

/// Appends one record to `out`.
pub fn put_record(out: &mut Vec<u8>, head: &Head, parts: &Parts) {
    put_record_of(out, head, parts, 0);
}

/// The same for a record that names a prepared transaction by its offset in the log.
pub fn put_record_of(out: &mut Vec<u8>, head: &Head, parts: &Parts, prepared_offset: i64) {
    let start = out.len();
    out.reserve(parts.size());
    out.extend_from_slice(&(parts.size() as u32).to_be_bytes());
    out.extend_from_slice(&head.magic.to_be_bytes());
    out.extend_from_slice(&crc31(parts.body).to_be_bytes());
    out.extend_from_slice(&head.queue_id.to_be_bytes());
    out.extend_from_slice(&head.flag.to_be_bytes());
    out.extend_from_slice(&head.queue_offset.to_be_bytes());
    out.extend_from_slice(&head.offset.to_be_bytes());
    out.extend_from_slice(&head.sys_flag.to_be_bytes());
    out.extend_from_slice(&head.born_timestamp.to_be_bytes());
    out.extend_from_slice(parts.born_host);
    out.extend_from_slice(&head.store_timestamp.to_be_bytes());
    out.extend_from_slice(parts.store_host);
    out.extend_from_slice(&head.reconsume_times.to_be_bytes());
    out.extend_from_slice(&prepared_offset.to_be_bytes());
    out.extend_from_slice(&(parts.body.len() as u32).to_be_bytes());
    out.extend_from_slice(parts.body);
    out.extend_from_slice(parts.topic_field);
    out.extend_from_slice(&(parts.properties_size() as u16).to_be_bytes());
    for piece in parts.properties {
        out.extend_from_slice(piece);
    }
    if parts.with_crc {
        let crc = crc31(&out[start..]);
        put_property_crc(out, crc);
    }
}

/// The ten digits stand last one first, as Java writes them.
fn put_property_crc(out: &mut Vec<u8>, crc: u32) {
    out.extend_from_slice(PROPERTY_CRC_NAME);
    let mut rest = crc;
    for _ in 0..10 {
        out.push(b'0' + (rest % 10) as u8);
        rest /= 10;
    }
    out.push(2);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_has_the_size_that_it_says() {
        let head = Head {
            magic: 0xdaa3_20a7,
            queue_id: 1,
            flag: 2,
            queue_offset: 3,
            offset: 4,
            sys_flag: 5,
            born_timestamp: 6,
            store_timestamp: 7,
            reconsume_times: 8,
        };
        for with_crc in [false, true] {
            let parts = Parts {
                born_host: &[1; 8],
                store_host: &[2; 20],
                body: b"body",
                topic_field: b"\x01T",
                properties: &[b"A\x01B\x02", b"C\x01D\x02"],
                with_crc,
            };
            let mut out = vec![9];
            put_record(&mut out, &head, &parts);
            assert_eq!(out.len() - 1, parts.size());
            assert_eq!(out[1..5], (parts.size() as u32).to_be_bytes());
            assert!(out.ends_with(b"\x02"));
        }
    }

    #[test]
    fn digits_of_the_crc_stand_last_one_first() {
        let mut out = Vec::new();
        put_property_crc(&mut out, 1_234_567);
        assert_eq!(out, b"__CRC32#\x017654321000\x02");
    }
}
