//! Identifies the decoder of a flow by its first bytes.
//!
//! The rows of [`DECODERS`] list the bytes that their protocols begin with, as [`Pattern`]s. An
//! [`Identifier`] is an automaton built from all of them once: each byte is one step, regardless of
//! the number of rows, and most protocols without a decoder are rejected after one or two bytes. If
//! a row has a check, it is called once a pattern of the row has matched.
//!
//! The result is a row, [`Row`]; the decoder reports the flow's protocol once it has read further.

use alloc::vec::Vec;

use crate::decode::{DECODERS, DecoderRow, FIRST_MAX, First, Match};
use crate::ports::Transport;
use crate::set::{Set, words};

mod machine;
mod pattern;

use machine::Machine;
pub use pattern::{Byte, Pattern};

/// A set of rows.
pub(crate) type Rows = Set<{ words(DECODERS.len()) }>;

/// A set of decoders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decoders(Rows);

impl Decoders {
    /// The empty set.
    pub const NONE: Decoders = Decoders(Rows::NONE);

    /// All decoders.
    pub const ALL: Decoders = {
        let mut rows = Rows::NONE;
        let mut at = 0;
        while at < DECODERS.len() {
            rows.insert(at);
            at += 1;
        }
        Decoders(rows)
    };

    /// Adds the decoder with this name (that of a row, or of a protocol that it recognises), or all
    /// of them for `all`.
    pub fn with(self, name: &str) -> Option<Decoders> {
        if name == "all" {
            return Some(Decoders::ALL);
        }
        let at = DECODERS.iter().position(|row| {
            row.name == name || row.protocols.iter().any(|protocol| protocol.name() == name)
        })?;
        let mut rows = self.0;
        rows.insert(at);
        Some(Decoders(rows))
    }

    /// The union of both sets.
    pub const fn or(self, other: Decoders) -> Decoders {
        Decoders(self.0.or(other.0))
    }

    /// Whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0.is_empty()
    }
}

/// Index of a row in [`DECODERS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row(pub(crate) u16);

impl Row {
    /// The row of a decoder by name, for constants.
    ///
    /// # Panics
    /// If there is none.
    pub const fn of(name: &str) -> Row {
        let mut at = 0;
        while at < DECODERS.len() {
            if is_same(DECODERS[at].name.as_bytes(), name.as_bytes()) {
                return Row(at as u16);
            }
            at += 1;
        }
        panic!("no decoder has this name");
    }

    /// The row in the table.
    pub fn row(self) -> &'static DecoderRow {
        &DECODERS[usize::from(self.0).min(DECODERS.len() - 1)]
    }
}

const fn is_same(one: &[u8], other: &[u8]) -> bool {
    let mut at = 0;
    while at < one.len() && at < other.len() && one[at] == other[at] {
        at += 1;
    }
    at == one.len() && at == other.len()
}

/// Result of identifying the first bytes of a direction, or a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// No decoder recognizes them.
    Unknown,
    /// More bytes are needed.
    Undecided,
    /// The beginning of this decoder's protocol.
    Known(Row),
}

/// The first bytes of one direction of a stream, as far as they are known.
#[derive(Clone, Copy, Debug)]
pub struct StreamStart {
    bytes: [u8; FIRST_MAX],
    len: u8,
    state: u16,
}

impl StreamStart {
    /// A beginning without any bytes.
    pub const NEW: StreamStart = StreamStart {
        bytes: [0; FIRST_MAX],
        len: 0,
        state: machine::START,
    };

    /// Resets it without touching its bytes.
    pub(crate) fn clear(&mut self) {
        self.len = 0;
        self.state = machine::START;
    }

    /// The bytes seen, at most [`FIRST_MAX`].
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len).min(FIRST_MAX)]
    }
}

/// Automaton over first bytes, for a set of decoders.
pub struct Identifier {
    tcp: Machine,
    udp: Machine,
}

impl Identifier {
    /// Builds the automaton of these decoders. This allocates.
    pub fn new(decoders: Decoders) -> Identifier {
        let rows = || {
            decoders
                .0
                .iter()
                .filter_map(|at| Some((at, DECODERS.get(at)?)))
        };
        let of = |transport: Transport| {
            let patterns: Vec<(usize, &Pattern)> = rows()
                .filter(|(_, row)| row.transports.contains(&transport))
                .flat_map(|(at, row)| row.starts.iter().map(move |pattern| (at, pattern)))
                .collect();
            Machine::new(&patterns)
        };
        Identifier {
            tcp: of(Transport::Tcp),
            udp: of(Transport::Udp),
        }
    }

    /// Memory it uses in bytes.
    pub fn memory_len(&self) -> usize {
        self.tcp.memory_len() + self.udp.memory_len()
    }

    /// Reads the next bytes of one direction of a stream until it is identified, and returns how
    /// many were read. `ports` are those of the initiator and the responder. The result does not
    /// depend on segmentation.
    pub fn stream(
        &self,
        beginning: &mut StreamStart,
        bytes: &[u8],
        ports: [u16; 2],
    ) -> (Found, usize) {
        // Rows that have returned `No`; more bytes do not change that.
        let mut refused = Rows::NONE;
        for (at, byte) in bytes.iter().enumerate() {
            let len = usize::from(beginning.len);
            let Some(place) = beginning.bytes.get_mut(len) else {
                return (Found::Unknown, at);
            };
            *place = *byte;
            beginning.len += 1;
            beginning.state = self.tcp.step(beginning.state, *byte);
            let is_last = len + 1 == FIRST_MAX;
            if !self.tcp.asks(beginning.state, refused) {
                // No new row to check: only whether more bytes are needed.
                match self.tcp.is_settled(beginning.state) || is_last {
                    true => return (Found::Unknown, at + 1),
                    false => continue,
                }
            }
            let first = First {
                bytes: &beginning.bytes[..=len],
                transport: Transport::Tcp,
                ports,
            };
            match self.tcp.ask(beginning.state, &first, &mut refused) {
                Found::Undecided if !is_last => {}
                Found::Undecided | Found::Unknown => return (Found::Unknown, at + 1),
                known => return (known, at + 1),
            }
        }
        (Found::Undecided, bytes.len())
    }

    /// Identifies a datagram.
    pub fn datagram(&self, bytes: &[u8], ports: [u16; 2]) -> Found {
        let mut state = machine::START;
        for byte in bytes.iter().take(FIRST_MAX) {
            state = self.udp.step(state, *byte);
            if self.udp.is_settled(state) {
                break;
            }
        }
        let first = First {
            bytes,
            transport: Transport::Udp,
            ports,
        };
        match self.udp.ask(state, &first, &mut { Rows::NONE }) {
            // There is no more data.
            Found::Undecided => Found::Unknown,
            found => found,
        }
    }
}

impl core::fmt::Debug for Identifier {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let states = (self.tcp.state_count(), self.udp.state_count());
        f.debug_struct("Identifier")
            .field("states", &states)
            .finish()
    }
}

/// Calls the check of a row.
fn check(row: usize, first: &First<'_>) -> Match {
    match DECODERS.get(row) {
        Some(row) => row.check.map_or(Match::Yes, |check| check(first)),
        None => Match::No,
    }
}

#[cfg(test)]
mod tests;
