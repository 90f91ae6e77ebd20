//! The texts of a request's header fields, as they are signed, and who signs.
//!
//! Source: `brokerset_acl.signatures.content`: the values in the order of their names, in which capitals come first.

use crate::headers::Reader;

/// Of a request with at most `N` fields besides `AccessKey` and `Signature`.
#[derive(Debug)]
pub struct SignedFields<'a, const N: usize> {
    pub access_key: Option<&'a [u8]>,
    pub signature: Option<&'a [u8]>,
    /// In the order of the names; empty where there is none.
    values: [&'a [u8]; N],
}

impl<const N: usize> Default for SignedFields<'_, N> {
    fn default() -> Self {
        Self {
            access_key: None,
            signature: None,
            values: [&[]; N],
        }
    }
}

impl<'a, const N: usize> SignedFields<'a, N> {
    /// What is signed of the header. A request with a body signs that behind it.
    pub fn pieces<'s>(&'s self, access_key: &'s [u8]) -> impl Iterator<Item = &'s [u8]> {
        [access_key].into_iter().chain(self.values.iter().copied())
    }

    /// Reads the object `extFields`, whose fields have these names, sorted; any other one is declined.
    ///
    /// `read` reads the value of the field of a name, and returns what is written there. Of a repeated field the last
    /// one counts.
    pub fn read(
        &mut self,
        reader: &mut Reader<'a>,
        names: &[&[u8]; N],
        mut read: impl FnMut(&mut Reader<'a>, &[u8]) -> Option<Option<&'a [u8]>>,
    ) -> Option<()> {
        reader.open()?;
        loop {
            match reader.key()? {
                b"AccessKey" => self.access_key = reader.text_or_null()?,
                b"Signature" => self.signature = reader.text_or_null()?,
                name => {
                    let place = names.binary_search(&name).ok()?;
                    self.values[place] = read(reader, name)?.unwrap_or_default();
                }
            }
            if !reader.more()? {
                return Some(());
            }
        }
    }
}
