//! Answers to sends: pieces of text that Python gives, and numbers between them.

/// The fixed pieces of an answer: before the queue id, the transaction id, the message ids, the queue offset
/// and the opaque, and behind that. Without a transaction id its piece is not there.
pub struct Template {
    pub queue_id: Vec<u8>,
    pub transaction_id: Option<Vec<u8>>,
    pub message_ids: Vec<u8>,
    pub queue_offset: Vec<u8>,
    pub opaque: Vec<u8>,
    pub end: Vec<u8>,
}

/// What an answer to one send says.
pub struct Stored<'a> {
    pub queue_id: i32,
    pub unique_id: &'a [u8],
    /// Offsets of the records.
    pub offsets: &'a [i64],
    pub queue_offset: i64,
    pub opaque: i32,
}

impl Template {
    /// Appends one frame. `host` is the broker's address in hexadecimal, with which message ids begin.
    pub fn put(&self, out: &mut Vec<u8>, host: &[u8], stored: &Stored) {
        let start = out.len();
        out.extend_from_slice(&[0; 8]);
        out.extend_from_slice(&self.queue_id);
        put_decimal(out, stored.queue_id.into());
        if let Some(piece) = &self.transaction_id {
            out.extend_from_slice(piece);
            out.extend_from_slice(stored.unique_id);
        }
        out.extend_from_slice(&self.message_ids);
        for (number, offset) in stored.offsets.iter().enumerate() {
            if number > 0 {
                out.push(b',');
            }
            out.extend_from_slice(host);
            put_hexadecimal(out, *offset as u64);
        }
        out.extend_from_slice(&self.queue_offset);
        put_decimal(out, stored.queue_offset);
        out.extend_from_slice(&self.opaque);
        put_decimal(out, stored.opaque.into());
        out.extend_from_slice(&self.end);
        put_sizes(out, start);
    }
}

/// The fixed pieces of an answer to a message that waits for its time: before the queue id, the message id, the
/// queue offset, the transaction id, the recall handle and the opaque, and behind that.
pub struct WaitingTemplate {
    pub pieces: [Vec<u8>; 7],
}

impl WaitingTemplate {
    /// Appends one frame for the one message of `stored`; `put_handle` appends the recall handle.
    pub fn put(
        &self,
        out: &mut Vec<u8>,
        host: &[u8],
        stored: &Stored,
        put_handle: impl FnOnce(&mut Vec<u8>),
    ) {
        let [
            queue_id,
            message_id,
            queue_offset,
            transaction_id,
            handle,
            opaque,
            end,
        ] = &self.pieces;
        let start = out.len();
        out.extend_from_slice(&[0; 8]);
        out.extend_from_slice(queue_id);
        put_decimal(out, stored.queue_id.into());
        out.extend_from_slice(message_id);
        for offset in stored.offsets {
            out.extend_from_slice(host);
            put_hexadecimal(out, *offset as u64);
        }
        out.extend_from_slice(queue_offset);
        put_decimal(out, stored.queue_offset);
        out.extend_from_slice(transaction_id);
        out.extend_from_slice(stored.unique_id);
        out.extend_from_slice(handle);
        put_handle(out);
        out.extend_from_slice(opaque);
        put_decimal(out, stored.opaque.into());
        out.extend_from_slice(end);
        put_sizes(out, start);
    }
}

/// The two lengths of a frame without a body that begins at `start`.
fn put_sizes(out: &mut [u8], start: usize) {
    let header_size = (out.len() - start - 8) as u32;
    out[start..start + 4].copy_from_slice(&(header_size + 4).to_be_bytes());
    out[start + 4..start + 8].copy_from_slice(&header_size.to_be_bytes());
}

pub fn put_decimal(out: &mut Vec<u8>, number: i64) {
    if number < 0 {
        out.push(b'-');
    }
    let mut rest = number.unsigned_abs();
    let mut digits = [0; 20];
    let mut first = digits.len();
    loop {
        first -= 1;
        digits[first] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[first..]);
}

/// Sixteen digits.
fn put_hexadecimal(out: &mut Vec<u8>, number: u64) {
    for shift in (0..16).rev() {
        out.push(b"0123456789ABCDEF"[(number >> (4 * shift)) as usize & 15]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_python_writes_them() {
        for number in [0, 7, -1, 10, i64::MAX, i64::MIN] {
            let mut out = Vec::new();
            put_decimal(&mut out, number);
            assert_eq!(out, number.to_string().into_bytes());
            out.clear();
            put_hexadecimal(&mut out, number as u64);
            assert_eq!(out, format!("{number:016X}").into_bytes());
        }
    }
}
