//! A test of one field: the values that it accepts, and its syntax in an expression.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use super::Packet;
use super::packet::{Field, Form, Role, TCP};

/// Maximum number of values that a field is tested for.
pub(super) const VALUES_MAX: usize = 8;
/// Minimum number of packets per value for a set of values not to be chance.
const PACKETS_PER_VALUE: usize = 4;
/// Minimum number of packets for a constant, a prefix or equal bits not to be chance.
const PACKETS_MIN: usize = 8;
/// Minimum prefix length, for IPv4 and IPv6.
const PREFIX_MIN: [u32; 2] = [8, 16];

/// Values of a field that a test accepts.
#[derive(Clone, Debug, Eq, PartialEq)]
enum Takes {
    /// One of these values, in ascending order.
    OneOf(Vec<u128>),
    /// All values but these.
    NoneOf(Vec<u128>),
    Between(u128, u128),
    /// Values with these leading bits.
    Prefix(u128, u32),
    /// Values with these bits under a mask.
    Bits {
        mask: u128,
        value: u128,
    },
}

/// A test of one field of a packet; its `Display` form is the expression.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Test {
    field: Field,
    takes: Takes,
}

/// Which properties may be tested.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Effort {
    /// Only properties that the next packets share.
    Lasting,
    /// Also ranges and bits of fields that may change from run to run.
    Fragile,
}

impl Test {
    /// Name of the field, such as "window".
    pub fn field(&self) -> &'static str {
        self.field.name
    }

    pub(super) fn is_of_transport(&self) -> bool {
        self.field.in_transport
    }

    /// Number of bytes after the IP header that it needs.
    pub(super) fn reach(&self) -> usize {
        match self.field.in_transport {
            true => self.field.at + self.field.len,
            false => 0,
        }
    }

    /// Whether a packet of the class passes the test.
    pub(super) fn takes(&self, packet: &Packet<'_>) -> bool {
        let Some(value) = self.field.value(packet) else {
            return false;
        };
        match &self.takes {
            Takes::OneOf(values) => values.contains(&value),
            Takes::NoneOf(values) => !values.contains(&value),
            Takes::Between(least, most) => (least..=most).contains(&&value),
            Takes::Prefix(prefix, len) => {
                let shift = 8 * self.field.len as u32 - len;
                value >> shift == prefix >> shift
            }
            Takes::Bits { mask, value: bits } => value & mask == *bits,
        }
    }

    /// Tests for bytes that all packets have in common.
    pub(super) fn of_word(field: Field, value: u128) -> Test {
        let takes = Takes::OneOf(vec![value]);
        Test { field, takes }
    }

    /// Tests for all values but these.
    pub(super) fn excluding(field: Field, mut values: Vec<u128>) -> Test {
        values.sort_unstable();
        values.dedup();
        let takes = Takes::NoneOf(values);
        Test { field, takes }
    }

    /// Tests for what the values of a field have in common, if anything.
    pub(super) fn of_values(field: Field, values: &[u128], effort: Effort) -> Option<Test> {
        let takes = common(&field, values, effort)?;
        Some(Test { field, takes })
    }
}

fn common(field: &Field, values: &[u128], effort: Effort) -> Option<Takes> {
    let mut distinct = values.to_vec();
    distinct.sort_unstable();
    distinct.dedup();
    let (least, most) = (*distinct.first()?, *distinct.last()?);
    let is_constant = least == most;
    let is_enough = values.len() >= PACKETS_MIN;
    if is_constant && (field.role != Role::Volatile || is_enough) {
        return Some(Takes::OneOf(distinct));
    }
    let is_few = distinct.len() <= VALUES_MAX && values.len() >= PACKETS_PER_VALUE * distinct.len();
    // Adjacent ports are those of a sender that goes through them: the next packets have others.
    let is_walk = field.role == Role::Chosen && most - least < 2 * distinct.len() as u128;
    if is_few && !is_walk && field.role != Role::Volatile {
        return Some(Takes::OneOf(distinct));
    }
    match field.role {
        Role::Size => return Some(Takes::Between(least, most)),
        Role::Address => {
            let bits = 8 * field.len as u32;
            let len = (least ^ most).leading_zeros() - (128 - bits);
            let is_prefix = is_enough && len >= PREFIX_MIN[usize::from(field.class.is_v6)];
            return is_prefix.then(|| Takes::Prefix(least >> (bits - len) << (bits - len), len));
        }
        _ => {}
    }
    if effort == Effort::Lasting {
        return None;
    }
    let same = values
        .iter()
        .fold(field.mask, |mask, v| mask & !(v ^ least));
    let bits = is_enough && same.count_ones() * 2 >= field.mask.count_ones();
    Some(match bits {
        true => Takes::Bits {
            mask: same,
            value: least & same,
        },
        false => Takes::Between(least, most),
    })
}

impl Test {
    /// The syntax that compares the field with a number.
    fn compare(&self, operator: &str, value: u128) -> String {
        let field = &self.field;
        let load = field.load();
        match field.mask == field.full() {
            true => format!("{load} {operator} {}", self.number(value)),
            false => {
                let mask = field.mask;
                format!("{load} & {mask:#x} {operator} {value:#x}")
            }
        }
    }

    /// Formats bytes in hexadecimal, and quantities in decimal.
    fn number(&self, value: u128) -> String {
        let field = &self.field;
        let is_flags = field.name == "TCP flags";
        match field.role {
            _ if is_flags && field.class.protocol == TCP => flags(value),
            Role::Size => value.to_string(),
            _ if matches!(
                field.name,
                "window" | "urgent pointer" | "ICMP type" | "ICMP code"
            ) =>
            {
                value.to_string()
            }
            _ => format!("{value:#x}"),
        }
    }

    fn one(&self, value: u128) -> String {
        match self.field.form {
            Form::Bytes => self.compare("=", value),
            Form::Address { is_source } => {
                let way = way(is_source);
                format!("{way} host {}", address(value, self.field.class.is_v6))
            }
            Form::Port { is_source } => format!("{} port {value}", way(is_source)),
        }
    }
}

fn way(is_source: bool) -> &'static str {
    match is_source {
        true => "src",
        false => "dst",
    }
}

fn address(value: u128, is_v6: bool) -> String {
    match is_v6 {
        true => Ipv6Addr::from_bits(value).to_string(),
        false => Ipv4Addr::from_bits(value as u32).to_string(),
    }
}

/// Formats TCP flags by name: `tcp-syn|tcp-ack`.
fn flags(value: u128) -> String {
    const NAMES: [&str; 8] = ["fin", "syn", "rst", "push", "ack", "urg", "ece", "cwr"];
    let names = NAMES.iter().enumerate();
    let set = names.filter(|(bit, _)| value >> bit & 1 != 0);
    let text: Vec<String> = set.map(|(_, name)| format!("tcp-{name}")).collect();
    match text.is_empty() {
        true => "0".to_owned(),
        false => text.join("|"),
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.takes {
            Takes::OneOf(values) => match values[..] {
                [value] => f.write_str(&self.one(value)),
                _ => {
                    let all: Vec<String> = values.iter().map(|value| self.one(*value)).collect();
                    write!(f, "({})", all.join(" or "))
                }
            },
            Takes::NoneOf(values) => {
                let all: Vec<String> = values
                    .iter()
                    .map(|value| match self.field.form {
                        Form::Bytes => self.compare("!=", *value),
                        _ => format!("not {}", self.one(*value)),
                    })
                    .collect();
                f.write_str(&all.join(" and "))
            }
            Takes::Between(least, most) => match self.field.form {
                Form::Port { is_source } => {
                    write!(f, "{} portrange {least}-{most}", way(is_source))
                }
                _ => {
                    let (least, most) = (self.compare(">=", *least), self.compare("<=", *most));
                    write!(f, "{least} and {most}")
                }
            },
            Takes::Prefix(prefix, len) => {
                let Form::Address { is_source } = self.field.form else {
                    return Err(fmt::Error);
                };
                let prefix = address(*prefix, self.field.class.is_v6);
                write!(f, "{} net {prefix}/{len}", way(is_source))
            }
            Takes::Bits { mask, value } => {
                write!(f, "{} & {mask:#x} = {value:#x}", self.field.load())
            }
        }
    }
}
