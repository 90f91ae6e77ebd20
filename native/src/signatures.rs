//! Signatures of plain requests, and who may do what from where: what Python has decided, until it drops all of it.
//!
//! Source: `brokerset_acl.signatures`, after RocketMQ's `AclUtils.combineRequestContent` and `AclSigner`:
//! base64(HMAC-SHA1(password, values of the header fields by name, then the body)).

use std::collections::{HashMap, HashSet};
use std::hint::black_box;

use sha1::{Digest, Sha1};

use crate::headers::{SendHeader, Signed};
use crate::signed_fields::SignedFields;

/// Users, subjects and addresses together that are known at most; all are forgotten when one more is learnt.
const ALLOWED_MAX: usize = 20_000;

const BLOCK_SIZE: usize = 64;
const DIGEST_SIZE: usize = 20;
const SIGNATURE_SIZE: usize = 28;

/// A key of HMAC-SHA1 (RFC 2104), as the two hash states that every signature begins with.
struct SigningKey {
    inner: Sha1,
    outer: Sha1,
}

impl SigningKey {
    fn new(secret: &[u8]) -> Self {
        let mut block = [0; BLOCK_SIZE];
        if secret.len() > BLOCK_SIZE {
            block[..DIGEST_SIZE].copy_from_slice(&Sha1::digest(secret));
        } else {
            block[..secret.len()].copy_from_slice(secret);
        }
        let begun = |pad: u8| Sha1::new().chain_update(block.map(|byte| byte ^ pad));
        Self {
            inner: begun(0x36),
            outer: begun(0x5c),
        }
    }

    /// The signature of the pieces, one behind the other.
    fn signature<'a>(&self, pieces: impl IntoIterator<Item = &'a [u8]>) -> [u8; SIGNATURE_SIZE] {
        let mut inner = self.inner.clone();
        for piece in pieces {
            inner.update(piece);
        }
        let digest = self.outer.clone().chain_update(inner.finalize()).finalize();
        base64(&digest.into())
    }
}

/// As text, with padding.
fn base64(digest: &[u8; DIGEST_SIZE]) -> [u8; SIGNATURE_SIZE] {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = [b'='; SIGNATURE_SIZE];
    for (number, bytes) in digest.chunks(3).enumerate() {
        let mut bits = 0;
        for (at, byte) in bytes.iter().enumerate() {
            bits |= u32::from(*byte) << (16 - 8 * at);
        }
        for at in 0..=bytes.len() {
            text[4 * number + at] = LETTERS[(bits >> (18 - 6 * at)) as usize & 63];
        }
    }
    text
}

/// Whether two texts are the same; takes as long whichever bytes differ.
fn is_same(expected: &[u8; SIGNATURE_SIZE], claimed: &[u8]) -> bool {
    if claimed.len() != SIGNATURE_SIZE {
        return false;
    }
    let difference = expected
        .iter()
        .zip(claimed)
        .fold(0, |found, (one, other)| black_box(found | (one ^ other)));
    black_box(difference) == 0
}

/// A user that is enabled, and the addresses from which the user may act, by what it is about: the topic of a send or of
/// the end of a transaction, group and topic of a pull or an ack.
struct Signer {
    key: SigningKey,
    subjects: HashMap<Box<[u8]>, HashSet<Box<[u8]>>>,
}

/// What Python has decided about requests of one kind, by name of the user.
#[derive(Default)]
pub struct Signers {
    signers: HashMap<Box<[u8]>, Signer>,
    count: usize,
    subject: Vec<u8>,
}

impl Signers {
    /// A user with this password may do what these requests do about a subject from an address.
    pub fn allow(&mut self, name: &[u8], secret: &[u8], subject: &[u8], source: &[u8]) {
        if self.allowed(name, subject, source).is_some() {
            return;
        }
        if self.count >= ALLOWED_MAX {
            self.forget_all();
        }
        let signer = self.signers.entry(name.into()).or_insert_with(|| Signer {
            key: SigningKey::new(secret),
            subjects: HashMap::new(),
        });
        let sources = signer.subjects.entry(subject.into()).or_default();
        self.count += usize::from(sources.insert(source.into()));
    }

    /// Nobody may do anything until Python has decided again.
    pub fn forget_all(&mut self) {
        self.signers.clear();
        self.count = 0;
    }

    fn allowed(&self, name: &[u8], subject: &[u8], source: &[u8]) -> Option<&Signer> {
        let signer = self.signers.get(name)?;
        let sources = signer.subjects.get(subject)?;
        sources.contains(source).then_some(signer)
    }

    /// Whether the request is signed by somebody who may send to its topic from `source`. `properties` are those
    /// that were read with the header, and nothing has been added to them.
    pub fn admit(
        &self,
        source: &[u8],
        header: &SendHeader<'_>,
        signed: &Signed<'_>,
        properties: &[u8],
        body: &[u8],
    ) -> bool {
        let (Some(name), Some(claimed)) = (signed.access_key, signed.signature) else {
            return false;
        };
        let Some(signer) = self.allowed(name, header.topic, source) else {
            return false;
        };
        let pieces = signed.pieces(name, properties).chain([body]);
        is_same(&signer.key.signature(pieces), claimed)
    }

    /// The user may act as a group about a topic from an address.
    pub fn allow_consumer(
        &mut self,
        name: &[u8],
        secret: &[u8],
        group: &[u8],
        topic: &[u8],
        source: &[u8],
    ) {
        let mut subject = std::mem::take(&mut self.subject);
        put_subject(&mut subject, group, topic);
        self.allow(name, secret, &subject, source);
        self.subject = subject;
    }

    /// Whether a request without a body is signed by somebody who may act as this group about this topic from `source`.
    pub fn admit_consumer<const N: usize>(
        &mut self,
        source: &[u8],
        group: &[u8],
        topic: &[u8],
        signed: &SignedFields<'_, N>,
    ) -> bool {
        put_subject(&mut self.subject, group, topic);
        self.admit_about(source, Some(&self.subject), signed)
    }

    /// Whether a request without a body is signed by a user of whom something is known; if it is about a subject, by one
    /// who may act about that from `source`.
    pub fn admit_about<const N: usize>(
        &self,
        source: &[u8],
        subject: Option<&[u8]>,
        signed: &SignedFields<'_, N>,
    ) -> bool {
        let (Some(name), Some(claimed)) = (signed.access_key, signed.signature) else {
            return false;
        };
        let signer = match subject {
            Some(subject) => self.allowed(name, subject, source),
            None => self.signers.get(name),
        };
        signer.is_some_and(|signer| is_same(&signer.key.signature(signed.pieces(name)), claimed))
    }

    /// Whether a user may act about a subject from an address.
    pub fn may(&self, name: &[u8], subject: &[u8], source: &[u8]) -> bool {
        self.allowed(name, subject, source).is_some()
    }
}

/// What a pull or an ack is about. No name that is read here has the byte in between.
fn put_subject(subject: &mut Vec<u8>, group: &[u8], topic: &[u8]) {
    subject.clear();
    subject.extend_from_slice(group);
    subject.push(0);
    subject.extend_from_slice(topic);
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::headers::read_send;

    /// Signed by `brokerset_acl.signatures` with the password `secret`, over the body `hello`.
    const SIGNED: &str = r#"{"code":310,"extFields":{"AccessKey":"app","Signature":"@SIGNATURE@","a":"P","b":"T","c":"TBW102","d":"4","e":"3","f":"0","g":"1700000000000","h":"0","i":"UNIQ_KEY\u0001AB12\u0002","j":"0","k":"false","m":"false","n":"b-0"},"flag":0,"language":"JAVA","opaque":17,"serializeTypeCurrentRPC":"JSON","version":513}"#;
    const VALUES: &str = "appPTTBW10243017000000000000UNIQ_KEY\u{1}AB12\u{2}0falsefalseb-0hello";

    /// As text.
    pub fn signature(secret: &[u8], signed: &[u8]) -> String {
        String::from_utf8(SigningKey::new(secret).signature([signed]).to_vec()).unwrap()
    }

    fn admits(signers: &Signers, source: &str, text: &str, body: &str) -> bool {
        let (mut properties, mut signed) = (Vec::new(), Signed::default());
        let Some(header) = read_send(text.as_bytes(), &mut properties, &mut signed) else {
            return false;
        };
        signers.admit(
            source.as_bytes(),
            &header,
            &signed,
            &properties,
            body.as_bytes(),
        )
    }

    fn right() -> String {
        SIGNED.replace("@SIGNATURE@", &signature(b"secret", VALUES.as_bytes()))
    }

    fn known() -> Signers {
        let mut signers = Signers::default();
        signers.allow(b"app", b"secret", b"T", b"10.0.0.1");
        signers
    }

    #[test]
    fn the_vectors_of_rfc_2202_are_met() {
        for (secret, signed, digest) in [
            (
                vec![0x0b; 20],
                &b"Hi There"[..],
                "thcxhlUFcmTii8C2+zeMjvFGvgA=",
            ),
            (
                b"Jefe".to_vec(),
                b"what do ya want for nothing?",
                "7/zfauXrL6LSdBbV8YTfnCWafHk=",
            ),
            (
                vec![0xaa; 80],
                b"Test Using Larger Than Block-Size Key - Hash Key First",
                "qkrl4VJy0A6VcFY3zoo7Ve1AIRI=",
            ),
            (
                vec![0xaa; 80],
                b"Test Using Larger Than Block-Size Key and Larger Than One Block-Size Data",
                "6OmdD0UjfXhta7qnllx4CLv/GpE=",
            ),
        ] {
            assert_eq!(signature(&secret, signed), digest);
        }
    }

    #[test]
    fn a_signed_send_of_somebody_who_may_is_admitted() {
        assert!(admits(&known(), "10.0.0.1", &right(), "hello"));
    }

    #[test]
    fn every_altered_byte_of_a_value_or_the_body_is_refused() {
        let (signers, text) = (known(), right());
        let fields = text.find("\"AccessKey\"").unwrap()..text.find("},\"flag\"").unwrap();
        let mut quotes = 0;
        for at in fields {
            if text.as_bytes()[at] == b'"' {
                quotes += 1;
            } else if quotes % 4 == 3 {
                let mut altered = text.clone().into_bytes();
                altered[at] ^= 1;
                let altered = String::from_utf8(altered).unwrap();
                assert!(
                    !admits(&signers, "10.0.0.1", &altered, "hello"),
                    "{altered}"
                );
            }
        }
        assert_eq!(quotes, 4 * 15);
        for body in ["", "hell", "hellp", "hello "] {
            assert!(!admits(&signers, "10.0.0.1", &text, body));
        }
    }

    #[test]
    fn other_users_topics_addresses_and_unsigned_sends_are_not_admitted() {
        let (signers, text) = (known(), right());
        assert!(!admits(&signers, "10.0.0.2", &text, "hello"));
        for (name, secret, topic) in [
            ("app", "secret", "U"),
            ("bob", "secret", "T"),
            ("app", "other", "T"),
        ] {
            let mut others = Signers::default();
            others.allow(
                name.as_bytes(),
                secret.as_bytes(),
                topic.as_bytes(),
                b"10.0.0.1",
            );
            assert!(!admits(&others, "10.0.0.1", &text, "hello"));
        }
        for field in ["AccessKey", "Signature"] {
            let at = text.find(&format!("\"{field}\"")).unwrap();
            let end = at + text[at..].find(',').unwrap() + 1;
            let unsigned = [&text[..at], &text[end..]].concat();
            assert!(!admits(&signers, "10.0.0.1", &unsigned, "hello"));
        }
    }

    #[test]
    fn nobody_is_admitted_once_all_is_forgotten() {
        let mut signers = known();
        signers.forget_all();
        assert!(!admits(&signers, "10.0.0.1", &right(), "hello"));
    }

    #[test]
    fn what_is_known_has_a_bound() {
        let mut signers = known();
        for number in 0..2 * ALLOWED_MAX + 10 {
            signers.allow(b"app", b"secret", b"T", &number.to_be_bytes());
            assert!(signers.count <= ALLOWED_MAX);
        }
    }
}
