//! The body of a batch send: messages of one queue, one after the other.
//!
//! Source: `brokerset_formats.batches`, after RocketMQ's `MessageDecoder.encodeMessages`.

/// Messages in one batch, as in `brokerset_formats.batches`.
const BATCH_ITEMS_MAX: usize = 100_000;

const HEAD_SIZE: usize = 20;

/// One message of a batch.
#[derive(Debug, PartialEq, Eq)]
pub struct Item<'a> {
    pub flag: i32,
    pub body: &'a [u8],
    pub properties: &'a [u8],
}

fn number(body: &[u8], at: usize) -> Option<i32> {
    Some(i32::from_be_bytes(body.get(at..at + 4)?.try_into().ok()?))
}

/// All messages of a batch's body, into `items`. None: declined, as it is not right from end to end.
pub fn read_batch<'a>(body: &'a [u8], items: &mut Vec<Item<'a>>) -> Option<()> {
    items.clear();
    let mut at = 0;
    while at < body.len() {
        if items.len() >= BATCH_ITEMS_MAX {
            return None;
        }
        let size = usize::try_from(number(body, at)?).ok()?;
        let flag = number(body, at + 12)?;
        let body_size = usize::try_from(number(body, at + 16)?).ok()?;
        let body_end = at + HEAD_SIZE + body_size;
        let length = i16::from_be_bytes(body.get(body_end..body_end + 2)?.try_into().ok()?);
        let end = body_end + 2 + usize::try_from(length).ok()?;
        if end > body.len() || size != end - at {
            return None;
        }
        items.push(Item {
            flag,
            body: &body[at + HEAD_SIZE..body_end],
            properties: &body[body_end + 2..end],
        });
        at = end;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(body: &[u8], properties: &[u8]) -> Vec<u8> {
        let mut data = Vec::new();
        let size = (22 + body.len() + properties.len()) as i32;
        for field in [size, 0, 0, 7, body.len() as i32] {
            data.extend_from_slice(&field.to_be_bytes());
        }
        data.extend_from_slice(body);
        data.extend_from_slice(&(properties.len() as i16).to_be_bytes());
        data.extend_from_slice(properties);
        data
    }

    #[test]
    fn all_messages_are_read() {
        let data = [item(b"one", b"A\x01B\x02"), item(b"", b"")].concat();
        let mut items = Vec::new();
        read_batch(&data, &mut items).unwrap();
        assert_eq!(items.len(), 2);
        assert_eq!(
            items[0],
            Item {
                flag: 7,
                body: b"one",
                properties: b"A\x01B\x02"
            }
        );
    }

    #[test]
    fn every_part_of_a_message_is_declined() {
        let data = item(b"one", b"A\x01B\x02");
        let mut items = Vec::new();
        assert!((1..data.len()).all(|size| read_batch(&data[..size], &mut items).is_none()));
    }

    #[test]
    fn wrong_sizes_are_declined() {
        for at in [3, 19, 24] {
            for change in [1u8, 0x80, 0xff] {
                let mut data = item(b"one", b"A\x01B\x02");
                data[at] ^= change;
                assert!(
                    read_batch(&data, &mut Vec::new()).is_none(),
                    "{at} {change}"
                );
            }
        }
        let mut negative = item(b"one", b"");
        negative[16] = 0x80;
        assert!(read_batch(&negative, &mut Vec::new()).is_none());
    }
}
