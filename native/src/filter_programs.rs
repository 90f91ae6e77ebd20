//! Compiled SQL92 expressions, evaluated on the raw properties of a record.
//!
//! Source: `brokerset_broker.filters.evaluation`, of which this has what most expressions consist of: comparisons
//! of a property with a constant. `filters/native_programs.py` writes the programs. What is not clear from bytes
//! alone (a number that is no short run of digits, above all) is left to Python: the value is then `Ask`.

use std::collections::HashMap;

use memchr::{memchr, memmem};

/// What an expression is for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    False,
    True,
    Null,
    /// Only Python knows.
    Ask,
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        if value { Value::True } else { Value::False }
    }
}

/// Digits of a number that is the same as each of Java's types, and its own decimal text.
const DIGITS_MAX: usize = 9;

/// Levels of an expression; a deeper one is declined.
const DEPTH_MAX: usize = 128;

/// Up to so many names are compared one by one.
const FEW_NAMES: usize = 8;

/// Number of a property among those that an expression asks for.
type Name = usize;

#[derive(Debug)]
enum Node {
    Constant(Value),
    /// A property where a condition is expected.
    Cast(Name),
    Not(Box<Node>),
    All(Vec<Node>),
    Any(Vec<Node>),
    IsNull(Name),
    EqualText(Name, Vec<u8>, Value),
    EqualNumber(Name, i64, Value),
    Compare(Name, u8, f64),
    Between(Name, f64, f64, bool),
    In(Name, Vec<Vec<u8>>, bool),
    Text(Name, u8, Vec<u8>, bool),
}

/// A whole expression.
#[derive(Debug)]
pub struct Program {
    root: Node,
    names: Names,
}

/// The properties that an expression asks for, each once.
#[derive(Debug, Default)]
struct Names {
    list: Vec<Vec<u8>>,
    numbers: HashMap<Vec<u8>, Name>,
}

/// The values of these properties in a message.
type Values<'a> = [Option<&'a [u8]>];

impl Program {
    /// Read what `native_programs.py` has written; None for anything else.
    pub fn read(mut code: &[u8]) -> Option<Self> {
        let mut names = Names::default();
        let root = node(&mut code, &mut names, DEPTH_MAX)?;
        code.is_empty().then_some(Self { root, names })
    }

    /// What it is for a message with these raw properties, which are read once, however often it asks for them.
    pub fn evaluate(&self, properties: &[u8]) -> Value {
        let mut few = [None; FEW_NAMES];
        let mut many = Vec::new();
        let count = self.names.list.len();
        let values = if count <= FEW_NAMES {
            &mut few[..count]
        } else {
            many.resize(count, None);
            &mut many[..]
        };
        self.names.find(properties, values);
        self.root.evaluate(values)
    }
}

impl Names {
    fn number(&mut self, name: Vec<u8>) -> Name {
        let next = self.list.len();
        *self.numbers.entry(name).or_insert_with_key(|name| {
            self.list.push(name.clone());
            next
        })
    }

    /// Fills in the values: of a repeated name the last one that is not empty.
    fn find<'a>(&self, raw: &'a [u8], values: &mut Values<'a>) {
        let mut rest = raw;
        loop {
            let end = memchr(2, rest);
            let pair = &rest[..end.unwrap_or(rest.len())];
            if let Some((name, value)) = self.property(pair) {
                values[name] = Some(value);
            }
            match end {
                Some(end) => rest = &rest[end + 1..],
                None => return,
            }
        }
    }

    fn property<'a>(&self, pair: &'a [u8]) -> Option<(Name, &'a [u8])> {
        if self.list.len() <= FEW_NAMES {
            return self.list.iter().enumerate().find_map(|(number, name)| {
                let is_it = pair.len() > name.len() + 1 && pair[name.len()] == 1;
                (is_it && pair.starts_with(name)).then(|| (number, &pair[name.len() + 1..]))
            });
        }
        let end = memchr(1, pair)?;
        let number = *self.numbers.get(&pair[..end])?;
        (end + 1 < pair.len()).then(|| (number, &pair[end + 1..]))
    }
}

fn take<'a>(code: &mut &'a [u8], size: usize) -> Option<&'a [u8]> {
    let (taken, rest) = code.split_at_checked(size)?;
    *code = rest;
    Some(taken)
}

fn byte(code: &mut &[u8]) -> Option<u8> {
    take(code, 1).map(|taken| taken[0])
}

fn number(code: &mut &[u8]) -> Option<usize> {
    take(code, 4).map(|taken| u32::from_be_bytes([taken[0], taken[1], taken[2], taken[3]]) as usize)
}

fn text(code: &mut &[u8]) -> Option<Vec<u8>> {
    let size = number(code)?;
    take(code, size).map(<[u8]>::to_vec)
}

/// A name that an identifier can be: where a property begins is clear from its bytes alone.
fn name(code: &mut &[u8], names: &mut Names) -> Option<Name> {
    let name = text(code)?;
    (!name.contains(&1) && !name.contains(&2)).then(|| names.number(name))
}

fn eight(code: &mut &[u8]) -> Option<[u8; 8]> {
    take(code, 8)?.try_into().ok()
}

fn flag(code: &mut &[u8]) -> Option<bool> {
    match byte(code)? {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

fn constant(code: &mut &[u8]) -> Option<Value> {
    match byte(code)? {
        0 => Some(Value::False),
        1 => Some(Value::True),
        2 => Some(Value::Null),
        _ => None,
    }
}

fn node(code: &mut &[u8], names: &mut Names, depth: usize) -> Option<Node> {
    let depth = depth.checked_sub(1)?;
    Some(match byte(code)? {
        0 => Node::Constant(constant(code)?),
        1 => Node::Cast(name(code, names)?),
        2 => Node::Not(Box::new(node(code, names, depth)?)),
        3 => Node::All(nodes(code, names, depth)?),
        4 => Node::Any(nodes(code, names, depth)?),
        5 => Node::IsNull(name(code, names)?),
        6 => Node::EqualText(name(code, names)?, text(code)?, constant(code)?),
        7 => Node::EqualNumber(
            name(code, names)?,
            i64::from_be_bytes(eight(code)?),
            constant(code)?,
        ),
        8 => Node::Compare(
            name(code, names)?,
            byte(code)?,
            f64::from_be_bytes(eight(code)?),
        ),
        9 => Node::Between(
            name(code, names)?,
            f64::from_be_bytes(eight(code)?),
            f64::from_be_bytes(eight(code)?),
            flag(code)?,
        ),
        10 => {
            let name = name(code, names)?;
            let count = number(code)?;
            let mut values = Vec::new();
            for _ in 0..count {
                values.push(text(code)?);
            }
            Node::In(name, values, flag(code)?)
        }
        11 => Node::Text(name(code, names)?, byte(code)?, text(code)?, flag(code)?),
        _ => return None,
    })
}

fn nodes(code: &mut &[u8], names: &mut Names, depth: usize) -> Option<Vec<Node>> {
    let count = number(code)?;
    let mut found = Vec::new();
    for _ in 0..count {
        found.push(node(code, names, depth)?);
    }
    Some(found)
}

impl Node {
    fn evaluate(&self, values: &Values) -> Value {
        match self {
            Node::Constant(value) => *value,
            Node::Cast(name) => match values[*name] {
                None => Value::Null,
                Some(_) => Value::False,
            },
            Node::Not(operand) => match operand.evaluate(values) {
                Value::True => Value::False,
                Value::False => Value::True,
                other => other,
            },
            Node::All(terms) => decided_by(Value::False, Value::True, terms, values),
            Node::Any(terms) => decided_by(Value::True, Value::False, terms, values),
            Node::IsNull(name) => values[*name].is_none().into(),
            Node::EqualText(name, literal, missing) => match values[*name] {
                None => *missing,
                Some(value) => (value == literal.as_slice()).into(),
            },
            Node::EqualNumber(name, wanted, missing) => match values[*name] {
                None => *missing,
                Some(value) => digits(value).map_or(Value::Ask, |found| (found == *wanted).into()),
            },
            Node::Compare(name, order, limit) => match values[*name] {
                None => Value::Null,
                Some(value) => digits(value).map_or(Value::Ask, |found| {
                    let found = found as f64;
                    match order {
                        0 => (found > *limit).into(),
                        1 => (found >= *limit).into(),
                        2 => (found < *limit).into(),
                        3 => (found <= *limit).into(),
                        _ => Value::Ask,
                    }
                }),
            },
            Node::Between(name, low, high, negated) => match values[*name] {
                None => Value::Null,
                Some(value) => digits(value).map_or(Value::Ask, |found| {
                    let found = found as f64;
                    ((*low <= found && found <= *high) != *negated).into()
                }),
            },
            Node::In(name, wanted, negated) => match values[*name] {
                None => Value::Null,
                Some(value) => (wanted.iter().any(|one| one == value) != *negated).into(),
            },
            Node::Text(name, search, literal, negated) => match values[*name] {
                None => Value::False,
                Some(value) => match search {
                    0 => (memmem::find(value, literal).is_some() != *negated).into(),
                    1 => (value.starts_with(literal) != *negated).into(),
                    2 => (value.ends_with(literal) != *negated).into(),
                    _ => Value::Ask,
                },
            },
        }
    }
}

/// AND (false decides) or OR (true does): terms behind the one that decides are not evaluated.
fn decided_by(decisive: Value, otherwise: Value, terms: &[Node], values: &Values) -> Value {
    let mut result = otherwise;
    for term in terms {
        match term.evaluate(values) {
            Value::Ask => return Value::Ask,
            value if value == decisive => return decisive,
            Value::Null => result = Value::Null,
            _ => {}
        }
    }
    result
}

/// The number that a few digits are; None for any other text.
fn digits(value: &[u8]) -> Option<i64> {
    if value.len() > DIGITS_MAX {
        return None;
    }
    value.iter().try_fold(0i64, |sum, byte| {
        byte.is_ascii_digit()
            .then(|| sum * 10 + i64::from(byte - b'0'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const RAW: &[u8] = b"a\x015\x02color\x01c3\x02e\x01\x02a\x01\x02far\x0112345678901\x02x\x01y";

    fn put(code: &mut Vec<u8>, text: &[u8]) {
        code.extend_from_slice(&(text.len() as u32).to_be_bytes());
        code.extend_from_slice(text);
    }

    fn equal_text(name: &[u8], literal: &[u8]) -> Vec<u8> {
        let mut code = vec![6];
        put(&mut code, name);
        put(&mut code, literal);
        code.push(2);
        code
    }

    fn compare(name: &[u8], order: u8, limit: f64) -> Vec<u8> {
        let mut code = vec![8];
        put(&mut code, name);
        code.push(order);
        code.extend_from_slice(&limit.to_be_bytes());
        code
    }

    fn both(op: u8, terms: &[Vec<u8>]) -> Vec<u8> {
        let mut code = vec![op];
        code.extend_from_slice(&(terms.len() as u32).to_be_bytes());
        code.extend(terms.concat());
        code
    }

    fn evaluate(code: &[u8]) -> Value {
        Program::read(code).unwrap().evaluate(RAW)
    }

    #[test]
    fn the_last_value_that_is_not_empty_counts() {
        for others in [0, FEW_NAMES] {
            let mut names = Names::default();
            for number in 0..others {
                names.number(format!("other{number}").into_bytes());
            }
            let mut find = |raw: &'static [u8], name: &[u8]| {
                let number = names.number(name.to_vec());
                let mut values = vec![None; names.list.len()];
                names.find(raw, &mut values);
                values[number]
            };
            assert_eq!(find(RAW, b"a"), Some(&b"5"[..]));
            assert_eq!(find(b"a\x011\x02a\x012", b"a"), Some(&b"2"[..]));
            assert_eq!(find(RAW, b"e"), None);
            assert_eq!(find(RAW, b"col"), None);
            assert_eq!(find(RAW, b"x"), Some(&b"y"[..]));
            assert_eq!(find(b"", b"x"), None);
        }
    }

    #[test]
    fn comparisons_know_null_and_what_to_ask() {
        assert_eq!(evaluate(&equal_text(b"color", b"c3")), Value::True);
        assert_eq!(evaluate(&equal_text(b"color", b"c4")), Value::False);
        assert_eq!(evaluate(&equal_text(b"absent", b"c3")), Value::Null);
        assert_eq!(evaluate(&compare(b"a", 0, 4.5)), Value::True);
        assert_eq!(evaluate(&compare(b"a", 3, 4.5)), Value::False);
        assert_eq!(evaluate(&compare(b"x", 0, 1.0)), Value::Ask);
        assert_eq!(evaluate(&compare(b"far", 0, 1.0)), Value::Ask);
    }

    #[test]
    fn a_term_behind_the_one_that_decides_is_not_evaluated() {
        let (no, ask, null) = (
            equal_text(b"color", b"c4"),
            compare(b"x", 0, 1.0),
            equal_text(b"absent", b"c3"),
        );
        assert_eq!(evaluate(&both(3, &[no.clone(), ask.clone()])), Value::False);
        assert_eq!(evaluate(&both(3, &[ask, no.clone()])), Value::Ask);
        assert_eq!(evaluate(&both(4, &[no.clone(), null.clone()])), Value::Null);
        assert_eq!(evaluate(&both(3, &[null, no])), Value::False);
    }

    #[test]
    fn what_is_no_program_is_declined() {
        let whole = both(3, &[equal_text(b"color", b"c3"), compare(b"a", 0, 4.5)]);
        assert!((0..whole.len()).all(|size| Program::read(&whole[..size]).is_none()));
        assert!(Program::read(&[whole, vec![0]].concat()).is_none());
        assert!(Program::read(&[99]).is_none());
        assert!(Program::read(&[vec![2; DEPTH_MAX], vec![0, 1]].concat()).is_none());
    }
}
