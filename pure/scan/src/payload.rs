//! Payloads of UDP probes: requests that the usual service of a port answers.
//!
//! A request may have an identification that answers echo. It is keyed, and verified.

mod check;
mod file;
mod rows;

use std::borrow::Cow;

pub use file::read_payloads;

/// Position and encoding of up to 32 keyed bits in a payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Id {
    /// No identification.
    #[default]
    None,
    /// 16 bits at this offset.
    Bits16(usize),
    /// 32 bits at this offset.
    Bits32(usize),
    /// A positive four-byte integer at this offset, minimal in BER.
    Positive(usize),
    /// Eight hexadecimal digits at this offset.
    Hex(usize),
}

impl Id {
    /// The same, `by` bytes further on.
    pub(crate) fn moved(self, by: usize) -> Self {
        match self {
            Self::None => Self::None,
            Self::Bits16(at) => Self::Bits16(at + by),
            Self::Bits32(at) => Self::Bits32(at + by),
            Self::Positive(at) => Self::Positive(at + by),
            Self::Hex(at) => Self::Hex(at + by),
        }
    }

    /// Its offset, its bytes, and their number.
    pub(crate) fn bytes(self, key: u32) -> (usize, [u8; 8], usize) {
        let mut bytes = [0; 8];
        let (at, len) = match self {
            Self::None => (0, 0),
            Self::Bits16(at) => {
                bytes[..2].copy_from_slice(&(key as u16).to_be_bytes());
                (at, 2)
            }
            Self::Bits32(at) => {
                bytes[..4].copy_from_slice(&key.to_be_bytes());
                (at, 4)
            }
            Self::Positive(at) => {
                bytes[..4].copy_from_slice(&positive(key).to_be_bytes());
                (at, 4)
            }
            Self::Hex(at) => {
                bytes = hex(key);
                (at, 8)
            }
        };
        (at, bytes, len)
    }
}

/// 30 bits as an integer that needs all four bytes.
fn positive(key: u32) -> u32 {
    (key & 0x3fff_ffff) | 0x4000_0000
}

fn hex(key: u32) -> [u8; 8] {
    core::array::from_fn(|n| b"0123456789abcdef"[(key >> (28 - 4 * n)) as usize & 15])
}

/// A request.
#[derive(Clone, Debug)]
pub struct Payload {
    /// Name of the request.
    pub name: Cow<'static, str>,
    /// Ports whose usual service answers it; empty: all ports without a request of their own.
    pub ports: Cow<'static, [u16]>,
    /// The bytes of the request, with zeros in place of the identification.
    pub bytes: Cow<'static, [u8]>,
    /// Position of the identification.
    pub id: Id,
    /// Whether data answer the request with this key: false if their identification differs, `None`
    /// if they belong to another protocol.
    check: fn(data: &[u8], key: u32) -> Option<bool>,
    /// Whether the service may answer from another port.
    pub is_from_any_port: bool,
    /// Whether the user gave it.
    pub is_given: bool,
}

/// A payload from a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    /// Ports that it is sent to.
    pub ports: Vec<u16>,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

impl Payload {
    /// Whether data answer this request with this key: false if their identification differs,
    /// `None` if the data cannot show it.
    pub fn is_answer(&self, data: &[u8], key: u32) -> Option<bool> {
        (self.check)(data, key)
    }

    fn is_same(&self, other: &Self) -> bool {
        (&self.name, &self.ports, &self.bytes, self.id)
            == (&other.name, &other.ports, &other.bytes, other.id)
    }
}

/// The requests of a scan; the first is empty, for ports without a request of their own.
#[derive(Clone, Debug)]
pub struct Payloads(Vec<Payload>);

impl PartialEq for Payloads {
    fn eq(&self, other: &Self) -> bool {
        self.0.len() == other.0.len() && self.0.iter().zip(&other.0).all(|(a, b)| a.is_same(b))
    }
}

impl Eq for Payloads {}

impl Payloads {
    /// The built-in requests.
    pub fn built_in() -> Self {
        Self(rows::all())
    }

    /// Adds payloads. They replace the built-in requests for their ports; several for one port are
    /// all sent.
    ///
    /// # Errors
    /// If there are too many, or one is too long, as a sentence without a full stop.
    pub fn with(mut self, given: Vec<Given>) -> Result<Self, String> {
        if given.len() > file::COUNT_MAX {
            return Err(format!("there are more than {} payloads", file::COUNT_MAX));
        }
        let mut given_ports = vec![false; 1 << 16];
        for port in given.iter().flat_map(|given| &given.ports) {
            given_ports[usize::from(*port)] = true;
        }
        let mut number = 0;
        self.0.retain_mut(|payload| {
            number += 1;
            let is_free = |port: &u16| !given_ports[usize::from(*port)];
            payload.ports = payload.ports.iter().copied().filter(is_free).collect();
            // The first one is for ports without a request of their own.
            number == 1 || !payload.ports.is_empty()
        });
        for Given { ports, bytes } in given {
            if bytes.len() > file::LEN_MAX {
                return Err(format!("a payload is longer than {} bytes", file::LEN_MAX));
            }
            self.0.push(Payload {
                name: Cow::Borrowed("given"),
                ports: Cow::Owned(ports),
                bytes: Cow::Owned(bytes),
                id: Id::None,
                check: check::any,
                is_from_any_port: false,
                is_given: true,
            });
        }
        Ok(self)
    }

    /// All requests.
    pub fn as_slice(&self) -> &[Payload] {
        &self.0
    }

    /// Indices of the requests for a port, at least one.
    pub fn numbers_of(&self, port: u16) -> impl Iterator<Item = u16> {
        let has = move |payload: &Payload| payload.ports.contains(&port);
        let has_own = self.0.iter().any(has);
        let numbers = (0u16..).zip(&self.0);
        numbers.filter_map(move |(number, payload)| match has_own {
            true => has(payload).then_some(number),
            false => (number == 0).then_some(number),
        })
    }
}

#[cfg(test)]
mod tests;
