//! Decoding of one flow: identification by its first bytes, its decoder, and protocol changes.
//!
//! This joins [`identify`](crate::identify) and [`decode`](crate::decode) without any notion of
//! packets: a program that has the bytes of a flow in order (the flow probe through a
//! [`Stream`](crate::Stream), a scanner through its own TCP, an inspection engine) passes them to a
//! [`Conversation`]. The conversations of a thread share its [`Tools`].

use core::mem::replace;

use crate::decode::{
    Arena, Context, Direction, EARLY_MAX, Early, Handle, Kind, Next, Origin, Progress,
    ProtocolSwitch, Reason, Scratch,
};
use crate::field::{Field, FieldSink, Protocol, Value};
use crate::identify::{Decoders, Found, Identifier, Row, StreamStart};
use crate::ports::Transport;

/// Maximum number of nested protocols followed in one flow.
pub const DEPTH_MAX: u8 = 4;

/// State shared by all conversations of a thread.
pub struct Tools {
    identifier: Identifier,
    arena: Arena,
    scratch: Scratch,
    unfollowed: u64,
}

impl Tools {
    /// Creates tools for these decoders, with this many pages for their states.
    pub fn new(decoders: Decoders, page_count: u32) -> Tools {
        Tools {
            identifier: Identifier::new(decoders),
            arena: Arena::new(page_count),
            scratch: Scratch::new(),
            unfollowed: 0,
        }
    }

    /// Memory they use, at most, with this many pages, in bytes.
    pub fn memory_len(&self, page_count: u32) -> usize {
        size_of::<Tools>() + self.identifier.memory_len() + Arena::memory_len(page_count)
    }

    /// Whether a decoder recognizes the start of a datagram.
    pub(crate) fn knows_datagram(&self, bytes: &[u8], ports: [u16; 2]) -> bool {
        matches!(self.identifier.datagram(bytes, ports), Found::Known(_))
    }

    /// Number of flows of which only the first transaction was read, because half of the pages were
    /// in use.
    pub fn unfollowed_count(&self) -> u64 {
        self.unfollowed
    }

    /// The states of all conversations.
    pub fn arena(&self) -> &Arena {
        &self.arena
    }
}

impl core::fmt::Debug for Tools {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let mut tools = f.debug_struct("Tools");
        tools.field("identifier", &self.identifier);
        tools.field("arena", &self.arena).finish_non_exhaustive()
    }
}

/// Result of reading a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The decoder has all the data it needs.
    Done,
    /// The decoder rejected the flow, or no decoder recognizes either direction.
    Rejected(Reason),
    /// There was no room for a state.
    NoRoom,
}

/// State of one flow. The state of its decoder, if it has one, is in [`Tools`]: release it with
/// [`Conversation::finish`] or [`Conversation::release`].
#[derive(Debug)]
pub struct Conversation {
    beginnings: [StreamStart; 2],
    /// Directions that began with unknown data.
    is_unknown: [bool; 2],
    row: Option<Row>,
    depth: u8,
    /// Whether the data being read are nested in a protocol named before.
    is_inner: bool,
    is_followed: bool,
    state: Handle,
}

/// Forwards fields of nested protocols, without changing the flow's name.
struct Inner<'a>(&'a mut dyn FieldSink);

impl FieldSink for Inner<'_> {
    fn named(&mut self, protocol: Protocol) {
        let name = Value::text(protocol.name().as_bytes());
        self.0.field(Field::InnerProtocol, name);
    }

    fn field(&mut self, field: Field, value: Value<'_>) {
        self.0.field(field, value);
    }

    fn transaction(&mut self, _is_first: bool, fields: &[(Field, Value<'_>)]) {
        // The fields already contain the outer protocol's first transaction.
        self.0.transaction(false, fields);
    }
}

impl Conversation {
    /// A conversation without any data.
    pub const NEW: Conversation = Conversation {
        beginnings: [StreamStart::NEW, StreamStart::NEW],
        is_unknown: [false; 2],
        row: None,
        depth: 0,
        is_inner: false,
        is_followed: false,
        state: Handle::NONE,
    };

    /// Resets it without touching all of its bytes. Its decoder's state must have been released.
    pub fn clear(&mut self) {
        self.restart();
        self.depth = 0;
        self.is_inner = false;
        self.is_followed = false;
        self.state = Handle::NONE;
    }

    fn restart(&mut self) {
        for beginning in &mut self.beginnings {
            beginning.clear();
        }
        self.is_unknown = [false; 2];
        self.row = None;
    }

    /// The flow's decoder, once it is known.
    pub fn row(&self) -> Option<Row> {
        self.row
    }

    /// Whether a direction began with data that no decoder recognizes, or with a gap. The other one
    /// may still identify the flow.
    pub fn is_unknown(&self, from: Direction) -> bool {
        self.row.is_none() && self.is_unknown[from as usize]
    }

    /// Whether its decoder requested room for further transactions, and was granted it.
    pub fn is_followed(&self) -> bool {
        self.is_followed
    }

    /// Whether more bytes of a stream's direction are needed.
    #[inline]
    pub fn wants(&self, from: Direction, tools: &mut Tools) -> bool {
        let state = tools.arena.get_mut(self.state);
        state.is_none_or(|state| state.wants(from))
    }

    /// Number of bytes in a stream's direction that need not be passed: [`Conversation::skip`] is
    /// enough.
    #[inline]
    pub fn skips(&self, from: Direction, tools: &mut Tools) -> u32 {
        let state = tools.arena.get_mut(self.state);
        state.map_or(0, |state| state.skips(from))
    }

    /// Skips this many bytes of a direction, at most [`Conversation::skips`].
    pub fn skip(&mut self, from: Direction, len: u32, tools: &mut Tools) {
        if let Some(state) = tools.arena.get_mut(self.state) {
            state.skip(from, len);
        }
    }

    /// Reads the next bytes of a stream's direction.
    pub fn stream(
        &mut self,
        origin: &Origin,
        bytes: &[u8],
        tools: &mut Tools,
        out: &mut dyn FieldSink,
    ) -> Option<End> {
        if self.row.is_some() {
            return self.feed(origin, bytes, Transport::Tcp, tools, out);
        }
        let at = origin.from as usize;
        if self.is_unknown[at] {
            return self.unknown(Reason::Unknown);
        }
        let beginning = &mut self.beginnings[at];
        let (found, used) = tools.identifier.stream(beginning, bytes, origin.ports);
        match found {
            Found::Undecided => None,
            Found::Known(row) => {
                let rest = bytes.get(used..).unwrap_or(&[]);
                self.begin(row, origin, rest, tools, out)
            }
            Found::Unknown => {
                self.is_unknown[at] = true;
                self.unknown(Reason::Unknown)
            }
        }
    }

    /// Reports that this many bytes of a stream's direction are missing.
    pub fn gap(
        &mut self,
        from: Direction,
        len: u32,
        tools: &mut Tools,
        out: &mut dyn FieldSink,
    ) -> Option<End> {
        if self.row.is_none() {
            // The start is lost; the other direction may identify the flow.
            self.is_unknown[from as usize] = true;
            return self.unknown(Reason::Gap);
        }
        let state = tools.arena.get_mut(self.state)?;
        let progress = match self.is_inner {
            true => state.gap(from, len, &mut Inner(out)),
            false => state.gap(from, len, out),
        };
        ended(progress)
    }

    /// Reads a datagram, or as much of it as was captured.
    pub fn datagram(
        &mut self,
        origin: &Origin,
        bytes: &[u8],
        tools: &mut Tools,
        out: &mut dyn FieldSink,
    ) -> Option<End> {
        if self.row.is_none() {
            let Found::Known(row) = tools.identifier.datagram(bytes, origin.ports) else {
                self.is_unknown[origin.from as usize] = true;
                return self.unknown(Reason::Unknown);
            };
            self.name(row, out);
            if !self.take(row, Transport::Udp, tools) {
                return Some(End::NoRoom);
            }
        }
        self.feed(origin, bytes, Transport::Udp, tools, out)
    }

    /// Ends the flow: what was held back is reported, and the state is released.
    pub fn finish(&mut self, tools: &mut Tools, out: &mut dyn FieldSink) {
        if let Some(state) = tools.arena.get_mut(self.state) {
            match self.is_inner {
                true => state.end(&mut Inner(out)),
                false => state.end(out),
            }
        }
        self.release(tools);
    }

    /// Releases the state.
    pub fn release(&mut self, tools: &mut Tools) {
        tools.arena.give(replace(&mut self.state, Handle::NONE));
    }

    /// The end of the flow if both directions began with unknown data.
    fn unknown(&self, reason: Reason) -> Option<End> {
        (self.is_unknown == [true; 2]).then_some(End::Rejected(reason))
    }

    /// Allocates a state for a decoder.
    fn take(&mut self, row: Row, transport: Transport, tools: &mut Tools) -> bool {
        self.row = Some(row);
        match tools.arena.take(Kind { row, transport }) {
            Some(handle) => self.state = handle,
            None => return false,
        }
        true
    }

    /// Names the flow for a decoder of a single protocol, which need not do so itself.
    fn name(&self, row: Row, out: &mut dyn FieldSink) {
        match (row.row().protocols, self.is_inner) {
            ([protocol], true) => Inner(out).named(*protocol),
            ([protocol], false) => out.named(*protocol),
            _ => {}
        }
    }

    /// Begins decoding an identified stream: reads what was kept of it, then the rest.
    fn begin(
        &mut self,
        row: Row,
        origin: &Origin,
        rest: &[u8],
        tools: &mut Tools,
        out: &mut dyn FieldSink,
    ) -> Option<End> {
        self.name(row, out);
        if !self.take(row, Transport::Tcp, tools) {
            return Some(End::NoRoom);
        }
        let other = Origin {
            from: origin.from.other(),
            ..*origin
        };
        let this = self.beginnings[origin.from as usize];
        let early = self.beginnings[other.from as usize];
        let is_lost = self.is_unknown[other.from as usize];
        if let Some(end) = self.feed(origin, this.bytes(), Transport::Tcp, tools, out) {
            return Some(end);
        }
        let end = if is_lost {
            self.gap(other.from, 1, tools, out)
        } else if early.bytes().is_empty() {
            None
        } else {
            self.stream(&other, early.bytes(), tools, out)
        };
        if end.is_some() || rest.is_empty() {
            return end;
        }
        self.stream(origin, rest, tools, out)
    }

    fn feed(
        &mut self,
        origin: &Origin,
        bytes: &[u8],
        transport: Transport,
        tools: &mut Tools,
        out: &mut dyn FieldSink,
    ) -> Option<End> {
        let mut rest = bytes;
        loop {
            let Tools { arena, scratch, .. } = &mut *tools;
            let mut context = Context {
                origin: *origin,
                // The fields reported first always have room.
                may_follow: arena.is_half_empty(),
                is_followed: false,
                is_refused: false,
                scratch,
            };
            let state = arena.get_mut(self.state)?;
            let progress = match self.is_inner {
                true => state.feed(&mut context, rest, &mut Inner(out)),
                false => state.feed(&mut context, rest, out),
            };
            self.is_followed |= context.is_followed;
            tools.unfollowed += u64::from(context.is_refused);
            let Progress::ProtocolSwitch(ProtocolSwitch { next, used }) = progress else {
                return ended(progress);
            };
            rest = rest.get(used..).unwrap_or(&[]);
            let early = tools.arena.get_mut(self.state)?;
            let early = EarlyCopy::of(early.early(origin.from.other()));
            self.finish(tools, out);
            self.depth += 1;
            if self.depth > DEPTH_MAX {
                return Some(End::Rejected(Reason::TooLong));
            }
            // Both sides start again.
            self.restart();
            match next {
                Next::Decoder(row) => {
                    if !self.take(row, transport, tools) {
                        return Some(End::NoRoom);
                    }
                    if rest.is_empty() {
                        return None;
                    }
                }
                Next::Identify => {
                    self.is_inner = true;
                    return match (rest.is_empty(), transport) {
                        (_, Transport::Tcp) => {
                            let end = self.early(&early, origin, tools, out);
                            if end.is_some() || rest.is_empty() {
                                return end;
                            }
                            self.stream(origin, rest, tools, out)
                        }
                        (true, Transport::Udp) => None,
                        (false, Transport::Udp) => self.datagram(origin, rest, tools, out),
                    };
                }
            }
        }
    }

    /// Reads what the other direction had sent before the protocol change.
    fn early(
        &mut self,
        early: &EarlyCopy,
        origin: &Origin,
        tools: &mut Tools,
        out: &mut dyn FieldSink,
    ) -> Option<End> {
        let other = Origin {
            from: origin.from.other(),
            ..*origin
        };
        let bytes = &early.bytes[..early.len];
        if !bytes.is_empty()
            && let Some(end) = self.stream(&other, bytes, tools, out)
        {
            return Some(end);
        }
        match early.is_cut {
            true => self.gap(other.from, 1, tools, out),
            false => None,
        }
    }
}

/// A copy of [`Early`], whose decoder is about to be released.
struct EarlyCopy {
    bytes: [u8; EARLY_MAX],
    len: usize,
    is_cut: bool,
}

impl EarlyCopy {
    fn of(early: Early<'_>) -> EarlyCopy {
        let len = early.bytes.len().min(EARLY_MAX);
        let mut copy = EarlyCopy {
            bytes: [0; EARLY_MAX],
            len,
            is_cut: early.is_cut || len < early.bytes.len(),
        };
        copy.bytes[..len].copy_from_slice(&early.bytes[..len]);
        copy
    }
}

fn ended(progress: Progress) -> Option<End> {
    match progress {
        Progress::Need(_) => None,
        Progress::Done => Some(End::Done),
        Progress::Reject(reason) => Some(End::Rejected(reason)),
        // No decoder can start within a gap.
        Progress::ProtocolSwitch(_) => Some(End::Rejected(Reason::Gap)),
    }
}
