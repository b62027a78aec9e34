//! A test of one field: the values that it accepts, and its syntax in an expression.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use super::Packet;
use super::packet::{Field, Form, Role, TCP};

/// Maximum number of values that a field is tested for.
pub(super) const VALUES_MAX: usize = 8;
/// Minimum number of packets per value for a set of values not to be chance.
pub(super) const PACKETS_PER_VALUE: usize = 4;
/// Minimum number of packets for a constant, a prefix or equal bits not to be chance.
pub(super) const PACKETS_MIN: usize = 8;
/// Minimum prefix length, for IPv4 and IPv6.
pub(super) const PREFIX_MIN: [u32; 2] = [8, 16];

/// Values of a field that a test accepts.
#[derive(Clone, Debug, Eq, PartialEq)]
enum Takes {
    /// One of these values, in ascending order.
    OneOf(Vec<u128>),
    /// All values but these.
    NoneOf(Vec<u128>),
    Between(u128, u128),
    /// Values with the leading bits of one of these prefixes, each with its length.
    Prefixes(Vec<(u128, u32)>),
    /// Values in none of these prefixes.
    NoPrefix(Vec<(u128, u32)>),
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

    pub(super) fn of(&self) -> &Field {
        &self.field
    }

    /// Whether it fails for a fragment, which has no transport header. `not dst port 53` does not.
    pub(super) fn excludes_fragments(&self) -> bool {
        let is_port = matches!(self.field.form, Form::Port { .. });
        self.field.in_transport && !(is_port && self.is_exclusion())
    }

    /// Whether both test the same bytes.
    pub(super) fn is_of_same_bytes(&self, other: &Test) -> bool {
        let place = |field: &Field| (field.in_transport, field.at, field.len, field.mask);
        place(&self.field) == place(&other.field)
    }

    /// Whether it accepts a list of values.
    pub(super) fn is_list(&self) -> bool {
        matches!(self.takes, Takes::OneOf(_))
    }

    /// Whether it accepts a list of values, or of prefixes, and not all others.
    pub(super) fn is_positive_list(&self) -> bool {
        matches!(self.takes, Takes::OneOf(_) | Takes::Prefixes(_))
    }

    /// Whether it accepts everything but a list.
    pub(super) fn is_exclusion(&self) -> bool {
        matches!(self.takes, Takes::NoneOf(_) | Takes::NoPrefix(_))
    }

    /// Whether it accepts all sources but some networks.
    pub(super) fn is_of_senders(&self) -> bool {
        matches!(self.takes, Takes::NoPrefix(_)) && self.field.name == "source address"
    }

    /// Whether it accepts a range.
    pub(super) fn is_range(&self) -> bool {
        matches!(self.takes, Takes::Between(..) | Takes::Bits { .. })
    }

    /// Whether it accepts nothing but TCP flags with SYN.
    pub(super) fn is_syn(&self) -> bool {
        let is_all = |values: &[u128]| values.iter().all(|value| value & 2 != 0);
        matches!(&self.takes, Takes::OneOf(values) if is_all(values))
    }

    /// Where TCP's options end, if it tests their length.
    pub(super) fn options_end(&self) -> Option<usize> {
        match &self.takes {
            Takes::OneOf(values) if self.field.name == "data offset" => {
                values.iter().min().map(|value| (value >> 4) as usize * 4)
            }
            _ => None,
        }
    }

    /// Number of values, prefixes or ends of a range that were chosen for it.
    pub(super) fn choice_count(&self) -> usize {
        match &self.takes {
            Takes::OneOf(values) | Takes::NoneOf(values) => values.len(),
            Takes::Prefixes(all) | Takes::NoPrefix(all) => all.len(),
            Takes::Between(..) => 2,
            Takes::Bits { .. } => 1,
        }
    }

    /// How much it narrows its field: the bits of the field that its values have in common.
    pub(super) fn bits(&self) -> f64 {
        let of = |count: u128| f64::from(self.field.mask.count_ones()) - (count as f64).log2();
        match &self.takes {
            Takes::OneOf(values) => of(values.len() as u128),
            Takes::Between(least, most) => of(most - least + 1),
            Takes::Prefixes(all) => all
                .iter()
                .map(|(_, len)| f64::from(*len))
                .fold(128.0, f64::min),
            Takes::Bits { mask, .. } => mask.count_ones().into(),
            Takes::NoneOf(_) | Takes::NoPrefix(_) => 0.0,
        }
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
        let value = self.field.value(packet);
        value.is_some_and(|value| self.takes_value(value))
    }

    /// Whether it accepts a value of its field.
    pub(super) fn takes_value(&self, value: u128) -> bool {
        let bits = 8 * self.field.len as u32;
        let is_in = |(prefix, len): &(u128, u32)| value >> (bits - len) == prefix >> (bits - len);
        match &self.takes {
            Takes::OneOf(values) => values.contains(&value),
            Takes::NoneOf(values) => !values.contains(&value),
            Takes::Between(least, most) => (least..=most).contains(&&value),
            Takes::Prefixes(all) => all.iter().any(is_in),
            Takes::NoPrefix(all) => !all.iter().any(is_in),
            Takes::Bits { mask, value: bits } => value & mask == *bits,
        }
    }

    /// Tests for one of these values.
    pub(super) fn one_of(field: Field, mut values: Vec<u128>) -> Test {
        values.sort_unstable();
        let takes = Takes::OneOf(values);
        Test { field, takes }
    }

    /// Tests for a range.
    pub(super) fn between(field: Field, least: u128, most: u128) -> Test {
        let takes = Takes::Between(least, most);
        Test { field, takes }
    }

    /// Tests for addresses inside these prefixes, or outside all of them.
    pub(super) fn of_prefixes(field: Field, all: Vec<(u128, u32)>, inside: bool) -> Test {
        let takes = match inside {
            true => Takes::Prefixes(all),
            false => Takes::NoPrefix(all),
        };
        Test { field, takes }
    }

    /// The same test of a length or TTL with a wider range, if the packets that it was made from
    /// are so few that the next ones will exceed it.
    pub(super) fn widened(&self, packet_count: usize) -> Option<Test> {
        let Takes::Between(least, most) = self.takes else {
            return None;
        };
        let range = most - least;
        let margin = (range * 3 / packet_count.max(1) as u128).min(range / 8);
        let is_size = self.field.role == Role::Size && margin > 0;
        is_size.then(|| {
            let most = (most + margin).min(self.field.mask);
            Test::between(self.field, least.saturating_sub(margin), most)
        })
    }

    /// Tests for all values but these.
    pub(super) fn excluding(field: Field, mut values: Vec<u128>) -> Test {
        values.sort_unstable();
        values.dedup();
        let takes = Takes::NoneOf(values);
        Test { field, takes }
    }

    /// Tests for what the values of a number of packets have in common, if anything: the different
    /// values of a field, in ascending order.
    pub(super) fn of_values(
        field: Field,
        distinct: &[u128],
        packet_count: usize,
        effort: Effort,
    ) -> Option<Test> {
        let takes = common(&field, distinct, packet_count, effort)?;
        Some(Test { field, takes })
    }
}

/// Whether these are the ports of a sender that goes through them: the next packets have others.
pub(super) fn is_walk(field: &Field, least: u128, most: u128, count: usize) -> bool {
    field.role == Role::Chosen && count > 1 && most - least < 2 * count as u128
}

fn common(field: &Field, distinct: &[u128], packet_count: usize, effort: Effort) -> Option<Takes> {
    let (least, most) = (*distinct.first()?, *distinct.last()?);
    let is_constant = least == most;
    let is_enough = packet_count >= PACKETS_MIN;
    if is_constant && (field.role != Role::Volatile || is_enough) {
        return Some(Takes::OneOf(distinct.to_vec()));
    }
    let is_few = distinct.len() <= VALUES_MAX && packet_count >= PACKETS_PER_VALUE * distinct.len();
    let is_walk = is_walk(field, least, most, distinct.len());
    if is_few && !is_walk && field.role != Role::Volatile {
        return Some(Takes::OneOf(distinct.to_vec()));
    }
    match field.role {
        Role::Size => return Some(Takes::Between(least, most)),
        Role::Address => {
            let bits = 8 * field.len as u32;
            let len = (least ^ most).leading_zeros() - (128 - bits);
            let is_prefix = is_enough && len >= PREFIX_MIN[usize::from(field.class.is_v6)];
            return is_prefix.then(|| {
                let prefix = least >> (bits - len) << (bits - len);
                Takes::Prefixes(vec![(prefix, len)])
            });
        }
        _ => {}
    }
    if effort == Effort::Lasting {
        return None;
    }
    let same = distinct
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

    /// A network, or a host if no bit is left.
    fn prefix(&self, (prefix, len): (u128, u32)) -> String {
        let text = address(prefix, self.field.class.is_v6);
        let way = way(self.field.name.starts_with("source"));
        match len as usize == 8 * self.field.len {
            true => format!("{way} host {text}"),
            false => format!("{way} net {text}/{len}"),
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
            Takes::Prefixes(all) => {
                let all: Vec<String> = all.iter().map(|prefix| self.prefix(*prefix)).collect();
                match &all[..] {
                    [one] => f.write_str(one),
                    _ => write!(f, "({})", all.join(" or ")),
                }
            }
            Takes::NoPrefix(all) => {
                let not = |prefix| format!("not {}", self.prefix(prefix));
                let all: Vec<String> = all.iter().copied().map(not).collect();
                f.write_str(&all.join(" and "))
            }
            Takes::Bits { mask, value } => {
                write!(f, "{} & {mask:#x} = {value:#x}", self.field.load())
            }
        }
    }
}
