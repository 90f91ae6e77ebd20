//! The JSON header of a send (SEND_MESSAGE_V2, SEND_BATCH_MESSAGE), read in one pass without a tree.
//!
//! Source: `brokerset_protocol.commands._decode` and `headers.send.SendMessageV2`, after RocketMQ's
//! `SendMessageRequestHeaderV2`. Read is what clients write; anything else is declined: other fields, numbers
//! in other forms, escapes where nobody needs them.

pub const SEND_MESSAGE_V2: i64 = 310;
pub const SEND_BATCH_MESSAGE: i64 = 320;
const FLAG_ONEWAY: i64 = 2;
/// Fields with one letter as name, and which of them has the properties.
const FIELDS: usize = 14;
const PROPERTIES: usize = 8;

/// What a send needs of its header. The properties are in the buffer that the caller gave.
#[derive(Debug, PartialEq, Eq)]
pub struct SendHeader<'a> {
    pub opaque: i32,
    pub oneway: bool,
    pub batch: bool,
    pub topic: &'a [u8],
    pub queue_id: i32,
    pub sys_flag: i32,
    pub born_timestamp: i64,
    pub flag: i32,
    pub reconsume_times: i32,
}

/// The texts of a send's fields, as they are signed, and the signature. The properties are in the buffer that the
/// caller gave.
#[derive(Debug, Default)]
pub struct Signed<'a> {
    pub access_key: Option<&'a [u8]>,
    pub signature: Option<&'a [u8]>,
    /// Of the fields `a` to `n`; empty where there is none.
    values: [&'a [u8]; FIELDS],
}

impl<'a> Signed<'a> {
    fn put(&mut self, letter: u8, value: Option<&'a [u8]>) {
        self.values[usize::from(letter - b'a')] = value.unwrap_or_default();
    }

    /// What is signed of the header: the values in the order of the names, in which capitals come first.
    pub fn pieces<'s>(
        &'s self,
        access_key: &'s [u8],
        properties: &'s [u8],
    ) -> impl Iterator<Item = &'s [u8]> {
        let (before, behind) = self.values.split_at(PROPERTIES);
        let values = before.iter().copied();
        [access_key]
            .into_iter()
            .chain(values)
            .chain([properties])
            .chain(behind[1..].iter().copied())
    }
}

/// Reads a header; `properties` gets the text of the properties, `signed` what is signed. None: declined.
pub fn read_send<'a>(
    header: &'a [u8],
    properties: &mut Vec<u8>,
    signed: &mut Signed<'a>,
) -> Option<SendHeader<'a>> {
    properties.clear();
    *signed = Signed::default();
    let request = read_request(header, |reader| read_fields(reader, properties, signed))?;
    if request.code != SEND_MESSAGE_V2 && request.code != SEND_BATCH_MESSAGE {
        return None;
    }
    let fields = request.fields;
    Some(SendHeader {
        opaque: request.opaque,
        oneway: request.oneway,
        batch: fields.batch,
        topic: fields.topic?,
        queue_id: i32::try_from(fields.queue_id?).ok().filter(|id| *id >= 0)?,
        sys_flag: not_negative(fields.sys_flag?)?,
        born_timestamp: fields.born_timestamp.filter(|time| *time >= 0)?,
        flag: not_negative(fields.flag?)?,
        reconsume_times: not_negative(fields.reconsume_times.unwrap_or(0))?,
    })
}

/// What every request has in its header, and what `read_fields` made of its `extFields`.
pub struct Request<F> {
    pub code: i64,
    pub opaque: i32,
    pub oneway: bool,
    pub fields: F,
}

/// Reads the header of a request; `read_fields` reads the object `extFields`. None: declined.
pub fn read_request<'a, F>(
    header: &'a [u8],
    mut read_fields: impl FnMut(&mut Reader<'a>) -> Option<F>,
) -> Option<Request<F>> {
    std::str::from_utf8(header).ok()?;
    let mut reader = Reader {
        text: header,
        at: 0,
    };
    let (mut code, mut opaque, mut flag, mut version) = (None, None, None, None);
    let mut fields = None;
    reader.open()?;
    loop {
        match reader.key()? {
            b"code" => code = Some(reader.integer()?),
            b"opaque" => opaque = Some(reader.integer()?),
            b"flag" => flag = Some(reader.integer()?),
            b"version" => version = Some(reader.integer()?),
            b"language" | b"serializeTypeCurrentRPC" => drop(reader.text()?),
            b"remark" => drop(reader.text_or_null()?),
            b"extFields" if fields.is_none() => fields = Some(read_fields(&mut reader)?),
            _ => return None,
        }
        if !reader.more()? {
            break;
        }
    }
    reader.space();
    let flag = flag?;
    version?;
    if reader.at != header.len() || (flag != 0 && flag != FLAG_ONEWAY) {
        return None;
    }
    Some(Request {
        code: code?,
        opaque: i32::try_from(opaque?).ok()?,
        oneway: flag == FLAG_ONEWAY,
        fields: fields?,
    })
}

pub fn not_negative(number: i64) -> Option<i32> {
    i32::try_from(number).ok().filter(|number| *number >= 0)
}

#[derive(Default)]
struct Fields<'a> {
    topic: Option<&'a [u8]>,
    queue_id: Option<i64>,
    sys_flag: Option<i64>,
    born_timestamp: Option<i64>,
    flag: Option<i64>,
    reconsume_times: Option<i64>,
    batch: bool,
}

/// The object `extFields`, with the short names of SEND_MESSAGE_V2. Of a repeated field the last one counts.
fn read_fields<'a>(
    reader: &mut Reader<'a>,
    properties: &mut Vec<u8>,
    signed: &mut Signed<'a>,
) -> Option<Fields<'a>> {
    let mut fields = Fields::default();
    reader.open()?;
    loop {
        match reader.key()? {
            b"AccessKey" => signed.access_key = reader.text_or_null()?,
            b"Signature" => signed.signature = reader.text_or_null()?,
            b"i" => reader.escaped_text_or_null(properties)?,
            [letter @ (b'e'..=b'h' | b'j')] => {
                let text = reader.digits_or_null()?;
                signed.put(*letter, text);
                let number = match text {
                    Some(text) => Some(canonical(text)?),
                    None => None,
                };
                *match letter {
                    b'e' => &mut fields.queue_id,
                    b'f' => &mut fields.sys_flag,
                    b'g' => &mut fields.born_timestamp,
                    b'h' => &mut fields.flag,
                    _ => &mut fields.reconsume_times,
                } = number;
            }
            // Producer group, default topic and its queues, unit mode, limit of retries, broker name: not of
            // interest once the topic is there.
            [letter @ (b'a'..=b'd' | b'k'..=b'n')] => {
                let text = reader.text_or_null()?;
                signed.put(*letter, text);
                match letter {
                    b'b' => fields.topic = text,
                    b'm' => fields.batch = text == Some(b"true"),
                    _ => {}
                }
            }
            _ => return None,
        }
        if !reader.more()? {
            return Some(fields);
        }
    }
}

/// Reads JSON from the beginning on; what it cannot read, or need not read here, is None.
pub struct Reader<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn space(&mut self) {
        while matches!(self.text.get(self.at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn peek(&mut self) -> Option<u8> {
        self.space();
        self.text.get(self.at).copied()
    }

    fn expect(&mut self, wanted: u8) -> Option<()> {
        (self.peek()? == wanted).then(|| self.at += 1)
    }

    /// The beginning of an object that has a field.
    pub fn open(&mut self) -> Option<()> {
        self.expect(b'{')
    }

    /// The name of a field, without escapes.
    pub fn key(&mut self) -> Option<&'a [u8]> {
        let key = self.text()?;
        self.expect(b':')?;
        Some(key)
    }

    /// Whether another field follows, or the object ends here.
    pub fn more(&mut self) -> Option<bool> {
        let next = self.peek()?;
        self.at += 1;
        match next {
            b',' => Some(true),
            b'}' => Some(false),
            _ => None,
        }
    }

    fn null(&mut self) -> Option<()> {
        self.space();
        let end = self.at + 4;
        (self.text.get(self.at..end)? == b"null").then(|| self.at = end)
    }

    /// A text without escapes.
    fn text(&mut self) -> Option<&'a [u8]> {
        self.expect(b'"')?;
        let rest = &self.text[self.at..];
        let size = rest
            .iter()
            .position(|byte| matches!(byte, b'"' | b'\\' | 0..0x20))?;
        if rest[size] != b'"' {
            return None;
        }
        self.at += size + 1;
        Some(&rest[..size])
    }

    /// A text without escapes; null is none.
    pub fn text_or_null(&mut self) -> Option<Option<&'a [u8]>> {
        match self.peek()? {
            b'n' => self.null().map(|()| None),
            _ => self.text().map(Some),
        }
    }

    /// An integer as JSON has it.
    fn integer(&mut self) -> Option<i64> {
        canonical(self.digits())
    }

    /// Digits and signs. What follows may only end them; a fraction or an exponent is met by `more`.
    fn digits(&mut self) -> &'a [u8] {
        self.space();
        let rest = &self.text[self.at..];
        let size = rest
            .iter()
            .position(|byte| !matches!(byte, b'-' | b'0'..=b'9'))
            .unwrap_or(rest.len());
        self.at += size;
        &rest[..size]
    }

    /// A text without escapes, or digits and signs, bare as lax clients write a number; null is none.
    fn digits_or_null(&mut self) -> Option<Option<&'a [u8]>> {
        match self.peek()? {
            b'n' => self.null().map(|()| None),
            b'"' => self.text().map(Some),
            _ => Some(Some(self.digits())),
        }
    }

    /// A number as text, or bare as lax clients write it; null is none.
    pub fn number_in_text(&mut self) -> Option<Option<i64>> {
        self.number_and_text().map(|(number, _)| number)
    }

    /// As `number_in_text`, and what is written there.
    pub fn number_and_text(&mut self) -> Option<(Option<i64>, Option<&'a [u8]>)> {
        match self.digits_or_null()? {
            Some(text) => Some((Some(canonical(text)?), Some(text))),
            None => Some((None, None)),
        }
    }

    /// As `padded_number_in_text`, and what is written there.
    pub fn padded_number_and_text(&mut self) -> Option<(Option<i64>, Option<&'a [u8]>)> {
        let quoted = self.peek()? == b'"';
        match self.digits_or_null()? {
            Some(text) if quoted => Some((Some(decimal(text)?), Some(text))),
            Some(text) => Some((Some(canonical(text)?), Some(text))),
            None => Some((None, None)),
        }
    }

    /// As `number_in_text`, and in a text also with zeros before it, for readers that all take the number only.
    pub fn padded_number_in_text(&mut self) -> Option<Option<i64>> {
        match self.peek()? {
            b'"' => decimal(self.text()?).map(Some),
            _ => self.number_in_text(),
        }
    }

    /// A text, its escapes resolved into `found`; null is the empty text.
    fn escaped_text_or_null(&mut self, found: &mut Vec<u8>) -> Option<()> {
        found.clear();
        if self.peek()? == b'n' {
            return self.null();
        }
        self.expect(b'"')?;
        loop {
            let rest = &self.text[self.at..];
            let size = memchr::memchr2(b'"', b'\\', rest)?;
            let plain = &rest[..size];
            if plain.iter().any(|byte| *byte < 0x20) {
                return None;
            }
            found.extend_from_slice(plain);
            self.at += size + 1;
            if rest[size] == b'"' {
                return Some(());
            }
            let escape = *self.text.get(self.at)?;
            self.at += 1;
            match escape {
                b'"' | b'\\' | b'/' => found.push(escape),
                b'b' => found.push(8),
                b'f' => found.push(12),
                b'n' => found.push(b'\n'),
                b'r' => found.push(b'\r'),
                b't' => found.push(b'\t'),
                b'u' => self.unicode(found)?,
                _ => return None,
            }
        }
    }

    /// The four digits behind `\u`. Halves of a pair are declined.
    fn unicode(&mut self, found: &mut Vec<u8>) -> Option<()> {
        let digits = self.text.get(self.at..self.at + 4)?;
        let mut unit = 0;
        for digit in digits {
            unit = unit << 4 | char::from(*digit).to_digit(16)?;
        }
        self.at += 4;
        if unit < 0x80 {
            found.push(unit as u8);
        } else {
            let mut bytes = [0; 4];
            found.extend_from_slice(char::from_u32(unit)?.encode_utf8(&mut bytes).as_bytes());
        }
        Some(())
    }
}

/// A number in the one form that every reader takes for the same number.
fn canonical(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    if digits.first() == Some(&b'0') && text.len() > 1 {
        return None;
    }
    decimal(text)
}

/// A number, whatever zeros are before it.
fn decimal(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    if digits.is_empty() || digits.len() > 19 {
        return None;
    }
    let mut number: i64 = 0;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        number = number
            .checked_mul(10)?
            .checked_add(i64::from(digit - b'0'))?;
    }
    Some(if digits.len() < text.len() {
        -number
    } else {
        number
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const JAVA: &str = r#"{"code":310,"extFields":{"a":"P","b":"T","c":"TBW102","d":"4","e":"3","f":"0","g":"1700000000000","h":"0","i":"UNIQ_KEY\u0001AB12\u0002WAIT\u0001true\u0002","j":"0","k":"false","m":"false","n":"b-0"},"flag":0,"language":"JAVA","opaque":17,"serializeTypeCurrentRPC":"JSON","version":513}"#;

    fn read(text: &str) -> Option<(SendHeader<'_>, Vec<u8>)> {
        let mut properties = Vec::new();
        read_send(text.as_bytes(), &mut properties, &mut Signed::default())
            .map(|header| (header, properties))
    }

    #[test]
    fn the_header_of_a_java_client_is_read() {
        let (header, properties) = read(JAVA).unwrap();
        let wanted = SendHeader {
            opaque: 17,
            oneway: false,
            batch: false,
            topic: b"T",
            queue_id: 3,
            sys_flag: 0,
            born_timestamp: 1_700_000_000_000,
            flag: 0,
            reconsume_times: 0,
        };
        assert_eq!(header, wanted);
        assert_eq!(properties, b"UNIQ_KEY\x01AB12\x02WAIT\x01true\x02");
    }

    #[test]
    fn spaces_nulls_and_bare_numbers_are_read() {
        let text = JAVA
            .replace(":", " : ")
            .replace("\"j\" : \"0\"", "\"j\" : null")
            .replace("\"3\"", "3");
        let (header, _) = read(&text).unwrap();
        assert_eq!((header.queue_id, header.reconsume_times), (3, 0));
    }

    #[test]
    fn the_remark_of_a_go_client_is_read() {
        for remark in ["\"\"", "\"x\"", "null"] {
            let text = JAVA.replace("\"flag\"", &format!("\"remark\":{remark},\"flag\""));
            assert_eq!(read(&text).unwrap().0.opaque, 17);
        }
    }

    #[test]
    fn every_beginning_of_a_header_is_declined() {
        assert!((0..JAVA.len()).all(|size| read(&JAVA[..size]).is_none()));
        assert!(read(&format!("{JAVA} ")).is_some());
        assert!(read(&format!("{JAVA}x")).is_none());
    }

    #[test]
    fn unusual_headers_are_declined() {
        for (from, to) in [
            ("310", "11"),
            ("\"flag\":0", "\"flag\":1"),
            ("\"flag\":0", "\"flag\":4"),
            ("\"e\":\"3\"", "\"e\":\"03\""),
            ("\"e\":\"3\"", "\"e\":\"+3\""),
            ("\"e\":\"3\"", "\"e\":\"-1\""),
            ("\"e\":\"3\"", "\"e\":\"\""),
            ("\"e\":\"3\"", "\"e\":\"3.0\""),
            ("\"e\":\"3\"", "\"e\":3.0"),
            ("\"e\":\"3\",", ""),
            ("\"g\":\"1700000000000\"", "\"g\":\"99999999999999999999\""),
            ("\"f\":\"0\"", "\"f\":\"2147483648\""),
            ("\"n\":", "\"brokersetForwarded\":"),
            ("\"opaque\":17", "\"opaque\":2147483648"),
            ("\"opaque\":17", "\"opaque\":1e3"),
            ("\"version\":513", "\"version\":513,\"remark\":7"),
            ("\\u0001AB12", "\\ud800AB12"),
            ("\\u0001AB12", "\\x41AB12"),
            ("\"b\":\"T\"", "\"b\":\"\\u0054\""),
        ] {
            assert!(JAVA.contains(from), "{from}");
            assert!(read(&JAVA.replace(from, to)).is_none(), "{from} -> {to}");
        }
    }

    #[test]
    fn the_last_of_a_repeated_field_counts() {
        let text = JAVA.replace(
            "\"j\":\"0\"",
            "\"j\":\"0\",\"e\":\"5\",\"i\":\"A\\u0001B\\n\"",
        );
        let (header, properties) = read(&text).unwrap();
        assert_eq!(
            (header.queue_id, properties.as_slice()),
            (5, &b"A\x01B\n"[..])
        );
    }

    #[test]
    fn characters_of_other_scripts_become_utf8() {
        let (_, properties) = read(&JAVA.replace("AB12", "\\u00e4\\u4e2d\u{1f600}")).unwrap();
        assert_eq!(
            properties,
            "UNIQ_KEY\u{1}ä中\u{1f600}\u{2}WAIT\u{1}true\u{2}".as_bytes()
        );
    }
}
