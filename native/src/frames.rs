//! Frames of the remoting protocol: `i32 length | u8 serialization, u24 header length | header | body`.
//!
//! Source: `brokerset_protocol.commands.CommandReader`, after RocketMQ's `NettyDecoder`.

/// Most bytes of a header, as in `brokerset_protocol.commands`.
const HEADER_SIZE_MAX: usize = 512 * 1024;

/// One whole frame with a JSON header.
#[derive(Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    pub header: &'a [u8],
    pub body: &'a [u8],
    /// Where the next frame begins.
    pub end: usize,
}

fn word(data: &[u8], at: usize) -> Option<usize> {
    let bytes = data.get(at..at + 4)?;
    Some(u32::from_be_bytes(bytes.try_into().ok()?) as usize)
}

/// The frame that begins at `at`; None if it is not all there, has another header than JSON, or is wrong.
pub fn frame_at(data: &[u8], at: usize, frame_size_max: usize) -> Option<Frame<'_>> {
    let length = word(data, at)?;
    let kinds = word(data, at + 4)?;
    if length < 4 || length + 4 > frame_size_max || kinds >> 24 != 0 {
        return None;
    }
    let end = at + 4 + length;
    let header_end = at + 8 + kinds;
    if end > data.len() || header_end > end || kinds > HEADER_SIZE_MAX {
        return None;
    }
    Some(Frame {
        header: &data[at + 8..header_end],
        body: &data[header_end..end],
        end,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(header: &[u8], body: &[u8]) -> Vec<u8> {
        let mut data = Vec::new();
        data.extend_from_slice(&(4 + header.len() as u32 + body.len() as u32).to_be_bytes());
        data.extend_from_slice(&(header.len() as u32).to_be_bytes());
        data.extend_from_slice(header);
        data.extend_from_slice(body);
        data
    }

    #[test]
    fn a_whole_frame_is_taken_apart() {
        let data = frame(b"{}", b"body");
        let found = frame_at(&data, 0, 1024).unwrap();
        assert_eq!(
            (found.header, found.body, found.end),
            (&b"{}"[..], &b"body"[..], data.len())
        );
    }

    #[test]
    fn a_part_of_a_frame_is_declined() {
        let data = frame(b"{}", b"body");
        assert!((0..data.len()).all(|size| frame_at(&data[..size], 0, 1024).is_none()));
    }

    #[test]
    fn binary_headers_large_frames_and_wrong_lengths_are_declined() {
        let mut binary = frame(b"{}", b"");
        binary[4] = 1;
        assert!(frame_at(&binary, 0, 1024).is_none());
        assert!(frame_at(&frame(b"{}", &[0; 100]), 0, 50).is_none());
        let mut long_header = frame(b"{}", b"body");
        long_header[7] = 7;
        assert!(frame_at(&long_header, 0, 1024).is_none());
        assert!(frame_at(&[0, 0, 0, 3, 0, 0, 0, 0], 0, 1024).is_none());
        assert!(frame_at(&[0xff; 16], 0, usize::MAX).is_none());
    }
}
