//! The application of a flow: its protocol and decoded fields, in 1,000 bytes.

use alloc::borrow::Cow;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::field::{FIELDS, Field, FieldSink, Kind, Protocol, Value};
use crate::set::{Set, words};
use crate::transaction::Transactions;

/// Room for the fields of an application in bytes.
const ROOM: usize = 1000;
/// Part of the room that decoders may fill. The rest is for the number of transactions.
const FILLED_MAX: usize = 984;
/// Part that names of a certificate may fill: their number and the fingerprint follow them.
const NAMES_FILLED_MAX: usize = FILLED_MAX - 80;

type Present = Set<{ words(FIELDS.len()) }>;

/// A set of fields, with room for each of [`FIELDS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FieldSet(Present);

impl FieldSet {
    /// No field.
    pub const NONE: FieldSet = FieldSet(Present::NONE);

    /// Whether each of these fields is in another set.
    pub fn is_subset(self, other: FieldSet) -> bool {
        self.0.without(other.0).is_empty()
    }
}

impl FromIterator<Field> for FieldSet {
    fn from_iter<I: IntoIterator<Item = Field>>(fields: I) -> FieldSet {
        let mut set = Present::NONE;
        fields
            .into_iter()
            .for_each(|field| set.insert(field as usize));
        FieldSet(set)
    }
}

/// Length of a field's head: the low byte of the field's number; then two flags, four more bits of
/// the number, and the length.
const HEAD: usize = 3;
const CUT: u16 = 0x8000;
const ADDRESS: u16 = 0x4000;
const NUMBER_SHIFT: u32 = 10;
const LEN_MAX: usize = (1 << NUMBER_SHIFT) - 1;

const _: () = assert!(ROOM <= LEN_MAX && FIELDS.len() <= 1 << 12);

/// What the decoders found in the first packets of a flow.
///
/// Fields are in the order in which they were found. A field that does not repeat is kept once, as
/// first found. Text longer than its row allows, or than there is room for, is truncated and
/// marked; what does not fit at all is counted in [`Application::lost`].
#[derive(Clone)]
pub struct Application {
    protocol: Protocol,
    lost: u8,
    len: u16,
    /// The fields present.
    present: Present,
    room: [u8; ROOM],
}

const _: () = assert!(size_of::<Application>() == ROOM + 8 + size_of::<Present>());

impl Application {
    /// An application without any fields.
    pub const EMPTY: Application = Application {
        protocol: Protocol::Unknown,
        lost: 0,
        len: 0,
        present: Present::NONE,
        room: [0; ROOM],
    };

    /// Clears it without touching the unused bytes.
    pub fn clear(&mut self) {
        self.protocol = Protocol::Unknown;
        self.lost = 0;
        self.len = 0;
        self.present = Present::NONE;
    }

    /// The flow's protocol, identified by its contents.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Number of fields that did not fit, at most 255.
    pub fn lost(&self) -> u8 {
        self.lost
    }

    /// Whether nothing was found.
    pub fn is_empty(&self) -> bool {
        self.len == 0 && self.protocol == Protocol::Unknown
    }

    /// The fields that are present.
    pub fn field_set(&self) -> FieldSet {
        FieldSet(self.present)
    }

    /// Whether the field is present.
    pub fn has(&self, field: Field) -> bool {
        self.present.has(field as usize)
    }

    /// The first value of a field.
    pub fn get(&self, field: Field) -> Option<Value<'_>> {
        if !self.has(field) {
            return None;
        }
        self.fields()
            .find(|(other, _)| *other == field)
            .map(|(_, value)| value)
    }

    /// The most informative field: a name, a path, a greeting.
    pub fn headline(&self) -> Option<Value<'_>> {
        const FIRST: [Field; 29] = [
            Field::TlsSni,
            Field::HttpHost,
            Field::SocksTarget,
            Field::DnsName,
            Field::SshServer,
            Field::SipUri,
            Field::MailFrom,
            Field::MailHelo,
            Field::MailGreeting,
            Field::MqttClientId,
            Field::DhcpHostName,
            Field::NtpReference,
            Field::HttpPath,
            Field::SmbTree,
            Field::RtspUrl,
            Field::RdpUser,
            Field::LdapBase,
            Field::LdapBindDn,
            Field::NetbiosName,
            Field::NetbiosDestination,
            Field::MysqlDatabase,
            Field::MysqlVersion,
            Field::PostgresqlDatabase,
            Field::PostgresqlUser,
            Field::RedisCommand,
            Field::SnmpSysDescr,
            Field::MemcachedVersion,
            Field::TelnetText,
            Field::VncVersion,
        ];
        FIRST.iter().find_map(|field| self.get(*field))
    }

    /// nDPI's name for the flow, if nDPI was used and identified it.
    pub fn ndpi_name(&self) -> Option<&str> {
        match self.get(Field::Ndpi) {
            Some(Value::Text { bytes, .. }) => core::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    /// Name of the application: the protocol, or nDPI's name if the protocol is unknown.
    pub fn name(&self) -> Option<Cow<'static, str>> {
        match self.protocol {
            Protocol::Unknown => Some(Cow::Owned(self.ndpi_name()?.into())),
            protocol => Some(Cow::Borrowed(protocol.name())),
        }
    }

    /// All fields in the order in which they were found.
    pub fn fields(&self) -> Fields<'_> {
        let len = usize::from(self.len).min(ROOM);
        Fields {
            rest: &self.room[..len],
        }
    }

    /// The protocol and the fields as bytes, as short as possible. [`Application::from_bytes`]
    /// reads them back.
    pub fn bytes(&self) -> (Protocol, &[u8]) {
        let len = usize::from(self.len).min(ROOM);
        (self.protocol, &self.room[..len])
    }

    /// Reads the result of [`Application::bytes`].
    pub fn from_bytes(protocol: Protocol, bytes: &[u8]) -> Application {
        let mut application = Application::EMPTY;
        application.protocol = protocol;
        let transactions = Transactions::of(bytes);
        for (field, value) in Fields::of(bytes) {
            // Serialized fields include the counts of the list, too: those of the list below are
            // used.
            let is_of_list = matches!(field, Field::Transactions | Field::TransactionsLost);
            if transactions.is_none() || !is_of_list {
                application.field(field, value);
            }
        }
        if let Some(transactions) = transactions {
            for (field, count) in [
                (Field::Transactions, transactions.count),
                (Field::TransactionsLost, transactions.lost),
            ] {
                let bytes = count.to_le_bytes();
                let len = 4 - count.leading_zeros() as usize / 8;
                if count != 0 {
                    application.push(field, 0, &bytes[..len], ROOM);
                }
            }
        }
        application
    }

    /// Merges information about the same flow from elsewhere: known fields stay, unknown ones are
    /// added while there is room.
    pub fn merge(&mut self, other: &Application) {
        if self.protocol == Protocol::Unknown {
            self.protocol = other.protocol;
        }
        self.lost = self.lost.saturating_add(other.lost);
        let known = self.present;
        for (field, value) in other.fields() {
            // If one side reported a list in full, the other side's list is the same.
            if !known.has(field as usize) {
                self.field(field, value);
            }
        }
    }

    fn push(&mut self, field: Field, marks: u16, bytes: &[u8], room: usize) -> bool {
        let at = usize::from(self.len);
        let len = bytes.len();
        let place = self.room[..room.min(ROOM)].get_mut(at..at + HEAD + len);
        let Some(place) = place else {
            return false;
        };
        let number = field as u16;
        let [a, b] = (len as u16 | (number >> 8) << NUMBER_SHIFT | marks).to_le_bytes();
        place[..HEAD].copy_from_slice(&[number as u8, a, b]);
        place[HEAD..].copy_from_slice(bytes);
        self.len += (HEAD + len) as u16;
        self.present.insert(field as usize);
        true
    }

    fn push_text(&mut self, field: Field, bytes: &[u8], is_cut: bool) -> bool {
        let filled_max = match field {
            Field::TlsSan => NAMES_FILLED_MAX,
            _ => FILLED_MAX,
        };
        let room = filled_max.saturating_sub(usize::from(self.len) + HEAD);
        let len = bytes.len().min(field.row().len_max.into()).min(room);
        // A single letter is not informative: omit it.
        if len == 0 && !bytes.is_empty() {
            return false;
        }
        let mark = if is_cut || len < bytes.len() { CUT } else { 0 };
        self.push(field, mark, &bytes[..len], FILLED_MAX)
    }
}

impl FieldSink for Application {
    fn named(&mut self, protocol: Protocol) {
        self.protocol = protocol;
    }

    fn field(&mut self, field: Field, value: Value<'_>) {
        if self.has(field) && !field.row().repeats {
            return;
        }
        let fits = match value {
            Value::Number(number) => {
                let bytes = number.to_le_bytes();
                let len = 8 - number.leading_zeros() as usize / 8;
                self.push(field, 0, &bytes[..len], FILLED_MAX)
            }
            Value::Text { bytes, is_cut } => self.push_text(field, bytes, is_cut),
            Value::Digest(digest) => self.push(field, 0, &digest, FILLED_MAX),
            Value::Address(IpAddr::V4(addr)) => {
                self.push(field, ADDRESS, &addr.octets(), FILLED_MAX)
            }
            Value::Address(IpAddr::V6(addr)) => {
                self.push(field, ADDRESS, &addr.octets(), FILLED_MAX)
            }
        };
        if !fits {
            self.lost = self.lost.saturating_add(1);
        }
    }
}

impl core::fmt::Debug for Application {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let mut map = f.debug_map();
        map.entry(&"protocol", &self.protocol.name());
        for (field, value) in self.fields() {
            match value {
                Value::Text { bytes, is_cut: _ } => {
                    map.entry(&field.name(), &format_args!("{}", bytes.escape_ascii()))
                }
                other => map.entry(&field.name(), &other),
            };
        }
        map.finish()
    }
}

/// The fields of an application.
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(crate) fn of(bytes: &'a [u8]) -> Fields<'a> {
        Fields { rest: bytes }
    }

    /// The bytes not read yet.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = (Field, Value<'a>);

    fn next(&mut self) -> Option<(Field, Value<'a>)> {
        let (head, rest) = self.rest.split_first_chunk::<HEAD>()?;
        let marked = u16::from_le_bytes([head[1], head[2]]);
        let high = usize::from(marked >> NUMBER_SHIFT & 15) << 8;
        let row = FIELDS.get(high | usize::from(head[0]))?;
        let (bytes, rest) = rest.split_at_checked(usize::from(marked) & LEN_MAX)?;
        self.rest = rest;
        let value = if marked & ADDRESS != 0 {
            match <[u8; 16]>::try_from(bytes) {
                Ok(octets) => Value::Address(Ipv6Addr::from(octets).into()),
                Err(_) => Value::Address(Ipv4Addr::from(*bytes.first_chunk::<4>()?).into()),
            }
        } else {
            match row.kind {
                Kind::Number | Kind::Version | Kind::Hex | Kind::Time => {
                    let number = bytes.iter().rev().take(8);
                    Value::Number(number.fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
                }
                Kind::Text => Value::Text {
                    bytes,
                    is_cut: marked & CUT != 0,
                },
                Kind::Digest => Value::Digest(*bytes.first_chunk::<16>()?),
            }
        };
        Some((row.field, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn sets_of_fields_are_subsets_of_those_with_more() {
        let all: FieldSet = FIELDS.iter().map(|row| row.field).collect();
        for row in FIELDS {
            let one = FieldSet::from_iter([row.field]);
            let others = FIELDS.iter().map(|other| other.field);
            let others: FieldSet = others.filter(|other| *other != row.field).collect();
            assert!(one.is_subset(all) && one.is_subset(one) && FieldSet::NONE.is_subset(one));
            assert!(
                !one.is_subset(others) && !all.is_subset(others),
                "{}",
                row.name
            );
        }
        let mut a = Application::EMPTY;
        a.field(Field::DnsName, Value::text(b"example.org"));
        assert_eq!(a.field_set(), FieldSet::from_iter([Field::DnsName]));
    }

    #[test]
    fn reported_fields_are_kept_once_and_in_order() {
        let mut a = Application::EMPTY;
        a.named(Protocol::Dns);
        a.field(Field::DnsName, Value::text(b"example.org"));
        a.field(Field::DnsName, Value::text(b"other"));
        a.field(Field::DnsType, Value::Number(0));
        a.field(Field::DnsLatencyNs, Value::Number(u64::MAX));
        let v4 = Value::Address(IpAddr::from([192, 0, 2, 1]));
        let v6 = Value::Address("2001:db8::1".parse().unwrap());
        a.field(Field::DnsAnswer, v4);
        a.field(Field::DnsAnswer, v6);
        a.field(Field::Ja3, Value::Digest([7; 16]));
        let expected = [
            (Field::DnsName, Value::text(b"example.org")),
            (Field::DnsType, Value::Number(0)),
            (Field::DnsLatencyNs, Value::Number(u64::MAX)),
            (Field::DnsAnswer, v4),
            (Field::DnsAnswer, v6),
            (Field::Ja3, Value::Digest([7; 16])),
        ];
        assert_eq!(a.fields().collect::<Vec<_>>(), expected);
        let (protocol, bytes) = a.bytes();
        let copy = Application::from_bytes(protocol, bytes);
        assert_eq!(copy.fields().collect::<Vec<_>>(), expected);
        assert_eq!(a.get(Field::DnsAnswer), Some(v4));
        assert_eq!(a.get(Field::TlsSni), None);
    }

    #[test]
    fn two_halves_are_merged() {
        let (mut one, mut other) = (Application::EMPTY, Application::EMPTY);
        one.named(Protocol::Dns);
        one.field(Field::DnsName, Value::text(b"example.org"));
        other.field(Field::DnsName, Value::text(b"elsewhere"));
        other.field(Field::DnsAnswer, Value::text(b"a"));
        other.field(Field::DnsAnswer, Value::text(b"b"));
        one.merge(&other);
        let fields: Vec<_> = one.fields().collect();
        let expected = [
            (Field::DnsName, Value::text(b"example.org")),
            (Field::DnsAnswer, Value::text(b"a")),
            (Field::DnsAnswer, Value::text(b"b")),
        ];
        assert_eq!(
            (one.protocol(), &fields[..]),
            (Protocol::Dns, &expected[..])
        );
        other.merge(&one);
        assert_eq!(other.protocol(), Protocol::Dns);
        assert_eq!(other.fields().count(), 3);
    }

    #[test]
    fn long_values_are_cut_and_fields_without_room_are_counted() {
        let mut a = Application::EMPTY;
        for _ in 0..2 {
            a.field(Field::DnsAnswer, Value::text(&[b'w'; 241]));
        }
        a.field(Field::HttpPath, Value::text(&[b'x'; 300]));
        a.field(Field::HttpHost, Value::text(&[b'y'; 300]));
        a.field(Field::HttpAgent, Value::text(b"z"));
        let cut = |field| match a.get(field) {
            Some(Value::Text { bytes, is_cut }) => (bytes.len(), is_cut),
            _ => (0, false),
        };
        assert_eq!(cut(Field::HttpPath), (256, true));
        assert_eq!(cut(Field::HttpHost), (FILLED_MAX - 2 * 244 - 256 - 6, true));
        assert_eq!(cut(Field::HttpAgent), (0, false));
        assert_eq!(a.lost(), 1);
        a.clear();
        assert!(a.is_empty() && a.fields().next().is_none());
    }
}
