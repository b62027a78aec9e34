//! Decoders joined to flows: order, identification, budgets, slots.

use crate::application::Application;
use crate::decode::{
    self, DecoderKind, Direction, FIRST_MAX, First, Origin, Progress, Reason, Scratch, Small, State,
};
use crate::identify::{Found, identify};
use crate::ports::Transport;
use crate::slab::Slab;
use crate::stream::{Block, Offer, Order};

pub use crate::identify::Decoders;

/// The number of a flow of which nothing was seen yet.
pub const NONE: u32 = 0;

/// Set in the number of a flow that needs no further look.
pub const DONE: u32 = 1 << 31;

/// How an inspector is made.
#[derive(Clone, Copy, Debug)]
pub struct InspectorConfig {
    /// Which decoders.
    pub decoders: Decoders,
    /// Flows at one time of which something may be known.
    pub flow_count_max: u32,
    /// Flows at one time that a stream or QUIC decoder reads.
    pub state_count_max: u32,
    /// TCP segments at one time that came too early.
    pub held_count_max: u32,
    /// Packets with payload of a flow that are looked at.
    pub packet_count_max: u16,
    /// Bytes of payload of a flow that are looked at.
    pub byte_count_max: u32,
    /// Packets after which a flow of which one direction began with nothing known is given up.
    pub unknown_count_max: u16,
}

impl Default for InspectorConfig {
    /// All decoders; 2^16 flows, 2^11 of them being read: 55 MiB.
    fn default() -> Self {
        InspectorConfig {
            decoders: Decoders::ALL,
            flow_count_max: 1 << 16,
            state_count_max: 1 << 11,
            held_count_max: 1 << 9,
            packet_count_max: 40,
            byte_count_max: 1 << 16,
            unknown_count_max: 6,
        }
    }
}

impl InspectorConfig {
    /// Bytes that an inspector made like this takes.
    pub fn memory_len(&self) -> usize {
        Slab::<Flow>::memory_len(self.flow_count_max)
            + Slab::<State>::memory_len(self.state_count_max)
            + Slab::<Block>::memory_len(self.held_count_max)
            + size_of::<Inspector>()
    }
}

/// What an inspector has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InspectorStats {
    /// Packets looked at.
    pub packets: u64,
    /// Flows looked at.
    pub flows: u64,
    /// Flows whose decoder was content.
    pub done: u64,
    /// Flows given up, by [`Reason`].
    pub rejected: [u64; Reason::COUNT],
    /// Flows that ended before either.
    pub unfinished: u64,
    /// Flows not looked at because all slots for flows were taken.
    pub no_room_flow: u64,
    /// Flows not read because all slots for decoders were taken.
    pub no_room_state: u64,
    /// Segments that came too early and could not be kept.
    pub no_room_segment: u64,
    /// Flows at this time that have a slot.
    pub live: u64,
}

impl InspectorStats {
    /// Adds another inspector's counts.
    pub fn add(&mut self, other: &InspectorStats) {
        self.packets += other.packets;
        self.flows += other.flows;
        self.done += other.done;
        for (sum, count) in self.rejected.iter_mut().zip(other.rejected) {
            *sum += count;
        }
        self.unfinished += other.unfinished;
        self.no_room_flow += other.no_room_flow;
        self.no_room_state += other.no_room_state;
        self.no_room_segment += other.no_room_segment;
        self.live += other.live;
    }

    /// Flows looked at less those that are accounted for: 0.
    pub fn imbalance(&self) -> i64 {
        let rejected: u64 = self.rejected.iter().sum();
        let known = self.done + rejected + self.unfinished + self.no_room_flow + self.no_room_state;
        self.flows.wrapping_sub(known) as i64
    }
}

/// A packet of a flow, as far as decoders care.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// What carries it.
    pub transport: Transport,
    /// Who sent it.
    pub from: Direction,
    /// When, in nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// Ports of the initiator and of the other side.
    pub ports: [u16; 2],
    /// TCP sequence number.
    pub sequence: u32,
    /// TCP: whether it has SYN.
    pub is_syn: bool,
    /// TCP: the number of the first byte of this direction, where it is known from elsewhere, such
    /// as a SYN that was not given.
    pub begins: Option<u32>,
    /// Payload, as much as was captured.
    pub payload: &'a [u8],
    /// Bytes of payload on the wire.
    pub payload_len: u32,
}

/// What is kept of a flow.
struct Flow {
    application: Application,
    small: Small,
    orders: [Order; 2],
    first: [[u8; FIRST_MAX]; 2],
    first_len: [u8; 2],
    /// A direction that began with nothing known.
    is_unknown: [bool; 2],
    kind: Option<DecoderKind>,
    is_over: bool,
    packets: u16,
    /// Packets of a direction that was read, while the other is waited for.
    passed_over: u16,
    bytes: u32,
    /// Slot of the decoder, [`NO_STATE`] without one.
    state: u32,
}

/// Packets of a direction that has been read which do not count as looked at: the answer to what
/// is sent up comes after all of it.
const PASSED_OVER_MAX: u16 = 4096;

const NO_STATE: u32 = u32::MAX;

/// Bytes of a flow that something is known of, until it ends.
pub const FLOW_LEN: usize = size_of::<Flow>();

const _: () = assert!(FLOW_LEN <= 704);

impl Flow {
    const NEW: Flow = Flow {
        application: Application::EMPTY,
        small: Small::NEW,
        orders: [Order::NEW, Order::NEW],
        first: [[0; FIRST_MAX]; 2],
        first_len: [0; 2],
        is_unknown: [false; 2],
        kind: None,
        is_over: false,
        packets: 0,
        passed_over: 0,
        bytes: 0,
        state: NO_STATE,
    };

    /// As new, without touching all of its bytes.
    fn clear(&mut self) {
        self.application.clear();
        self.small = Small::NEW;
        self.orders = [Order::NEW, Order::NEW];
        self.first_len = [0; 2];
        self.is_unknown = [false; 2];
        self.kind = None;
        self.is_over = false;
        self.packets = 0;
        self.passed_over = 0;
        self.bytes = 0;
        self.state = NO_STATE;
    }
}

/// How the look at a flow ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Done,
    Rejected(Reason),
    NoState,
}

/// The decoders of one thread, with what they know of its flows.
pub struct Inspector {
    config: InspectorConfig,
    flows: Slab<Flow>,
    states: Slab<State>,
    blocks: Slab<Block>,
    scratch: Scratch,
    stats: InspectorStats,
}

impl Inspector {
    /// An inspector with all its memory.
    pub fn new(config: &InspectorConfig) -> Inspector {
        Inspector {
            config: *config,
            flows: Slab::new(config.flow_count_max.min(DONE >> 1)),
            states: Slab::new(config.state_count_max),
            blocks: Slab::new(config.held_count_max),
            scratch: Scratch::new(),
            stats: InspectorStats::default(),
        }
    }

    /// Bytes of memory that it takes and will ever take.
    pub fn memory_len(&self) -> usize {
        self.config.memory_len()
    }

    /// What was counted so far.
    pub fn stats(&self) -> InspectorStats {
        InspectorStats {
            live: self.flows.len() as u64,
            ..self.stats
        }
    }

    /// Whether no flow has a slot of any kind.
    #[doc(hidden)]
    pub fn is_idle(&self) -> bool {
        self.flows.len() + self.states.len() + self.blocks.len() == 0
    }

    /// Takes a packet of a flow. `flow` is the number that the caller keeps with the flow: [`NONE`]
    /// before its first packet. Packets of a flow whose number has [`DONE`] need not be given.
    pub fn packet(&mut self, flow: &mut u32, segment: &Segment<'_>) {
        if *flow & DONE != 0 {
            return;
        }
        let has_content = !segment.payload.is_empty() || segment.payload_len != 0;
        if *flow == NONE {
            // A SYN alone is not worth a slot: the next packet tells where the stream begins, but
            // for a lost or late first segment.
            if !has_content {
                return;
            }
            self.stats.flows += 1;
            let Some(index) = self.flows.take(|| Flow::NEW) else {
                self.stats.no_room_flow += 1;
                *flow = DONE;
                return;
            };
            if let Some(slot) = self.flows.get_mut(index) {
                slot.clear();
            }
            *flow = index + 1;
        }
        let index = *flow - 1;
        let Some(slot) = self.flows.get_mut(index) else {
            *flow = DONE;
            return;
        };
        let is_passed_over = segment.transport == Transport::Tcp
            && self
                .states
                .get_mut(slot.state)
                .is_some_and(|state| !state.wants(segment.from));
        if is_passed_over && slot.passed_over < PASSED_OVER_MAX {
            slot.passed_over += 1;
            return;
        }
        self.stats.packets += 1;
        slot.packets += 1;
        slot.bytes = slot.bytes.saturating_add(segment.payload_len);
        let mut reader = Reader {
            flow: &mut *slot,
            states: &mut self.states,
            scratch: &mut self.scratch,
            config: &self.config,
        };
        let mut end = match segment.transport {
            Transport::Tcp => {
                reader.tcp(segment, &mut self.blocks, &mut self.stats.no_room_segment)
            }
            Transport::Udp => reader.udp(segment),
        };
        let is_spent = slot.packets >= self.config.packet_count_max
            || slot.bytes >= self.config.byte_count_max;
        if end.is_none() && is_spent {
            end = Some(End::Rejected(Reason::Limit));
        }
        if let Some(end) = end {
            match end {
                End::Done => self.stats.done += 1,
                End::Rejected(reason) => self.stats.rejected[reason as usize] += 1,
                End::NoState => self.stats.no_room_state += 1,
            }
            self.close(flow);
        }
    }

    /// The flow needs no further look.
    fn close(&mut self, flow: &mut u32) {
        let index = *flow - 1;
        *flow |= DONE;
        let Some(slot) = self.flows.get_mut(index) else {
            return;
        };
        slot.is_over = true;
        for order in &mut slot.orders {
            order.release(&mut self.blocks);
        }
        if slot.state != NO_STATE {
            self.states.give(slot.state);
            slot.state = NO_STATE;
        }
        if slot.application.is_empty() {
            self.flows.give(index);
            *flow = DONE;
        }
    }

    /// No more of the flow will be given: what reading it takes is free for others. What is known
    /// of it stays, until [`Inspector::end`].
    pub fn rest(&mut self, flow: &mut u32) {
        if *flow & DONE != 0 {
            return;
        }
        let Some(index) = flow.checked_sub(1) else {
            return;
        };
        self.last(index);
        self.stats.unfinished += 1;
        self.close(flow);
    }

    /// What is known of a flow, by its number.
    pub fn application(&self, flow: u32) -> Option<&Application> {
        let index = (flow & !DONE).checked_sub(1)?;
        let application = &self.flows.get(index)?.application;
        (!application.is_empty()).then_some(application)
    }

    /// The flow has ended: what is known of it, for the last time. Its number is [`NONE`] then.
    pub fn end<T>(&mut self, flow: &mut u32, look: impl FnOnce(&Application) -> T) -> Option<T> {
        let number = core::mem::replace(flow, NONE);
        let mut known = number;
        let index = (number & !DONE).checked_sub(1)?;
        self.rest(&mut known);
        let index = (known & !DONE).checked_sub(1).map(|_| index)?;
        let result = look(&self.flows.get(index)?.application);
        self.flows.give(index);
        Some(result)
    }

    /// What still waits for something before it is read now: that will not come any more.
    fn last(&mut self, index: u32) {
        let Some(slot) = self.flows.get_mut(index) else {
            return;
        };
        for from in [Direction::Forward, Direction::Reverse] {
            let mut reader = Reader {
                flow: slot,
                states: &mut self.states,
                scratch: &mut self.scratch,
                config: &self.config,
            };
            let origin = Origin {
                from,
                time_ns: 0,
                ports: [0; 2],
            };
            if reader.flush(&origin, &mut self.blocks).is_some() {
                return;
            }
        }
    }
}

/// One flow and what it needs to be read.
struct Reader<'a> {
    flow: &'a mut Flow,
    states: &'a mut Slab<State>,
    scratch: &'a mut Scratch,
    config: &'a InspectorConfig,
}

impl Reader<'_> {
    fn tcp(
        &mut self,
        segment: &Segment<'_>,
        blocks: &mut Slab<Block>,
        no_room: &mut u64,
    ) -> Option<End> {
        let at = segment.from as usize;
        let origin = Origin {
            from: segment.from,
            time_ns: segment.time_ns,
            ports: segment.ports,
        };
        let mut sequence = segment.sequence;
        if let Some(begins) = segment.begins {
            self.flow.orders[at].begin(begins, sequence);
        }
        if segment.is_syn {
            self.flow.orders[at].syn(sequence);
            sequence = sequence.wrapping_add(1);
        }
        let payload = segment.payload;
        if payload.is_empty() {
            return None;
        }
        // At most once round for each segment held, and once more.
        for _ in 0..=crate::stream::HELD_MAX + 1 {
            match self.flow.orders[at].offer(sequence, payload, blocks, no_room) {
                Offer::Old | Offer::Held => return None,
                Offer::Far => return Some(End::Rejected(Reason::Gap)),
                Offer::Next(from) => {
                    let bytes = payload.get(from..).unwrap_or(&[]);
                    self.flow.orders[at].advance(bytes.len());
                    if let Some(end) = self.stream(&origin, bytes) {
                        return Some(end);
                    }
                    let missing = segment.payload_len.saturating_sub(payload.len() as u32);
                    if missing != 0 {
                        self.flow.orders[at].advance(missing as usize);
                        if let Some(end) = self.gap(&origin, missing) {
                            return Some(end);
                        }
                    }
                    return self.ready(&origin, blocks);
                }
                Offer::Gap(len) => {
                    if let Some(end) = self.gap(&origin, len) {
                        return Some(end);
                    }
                    if let Some(end) = self.ready(&origin, blocks) {
                        return Some(end);
                    }
                }
            }
        }
        None
    }

    /// Delivers the held segments whose turn it is.
    fn ready(&mut self, origin: &Origin, blocks: &mut Slab<Block>) -> Option<End> {
        let at = origin.from as usize;
        while let Some((index, from)) = self.flow.orders[at].ready(blocks) {
            let mut end = None;
            if let Some(block) = blocks.get(index) {
                let bytes = block.bytes().get(from..).unwrap_or(&[]);
                self.flow.orders[at].advance(bytes.len());
                end = self.stream(origin, bytes);
            }
            blocks.give(index);
            if end.is_some() {
                return end;
            }
        }
        None
    }

    /// Delivers all held segments, with gaps between them.
    fn flush(&mut self, origin: &Origin, blocks: &mut Slab<Block>) -> Option<End> {
        let at = origin.from as usize;
        for _ in 0..=crate::stream::HELD_MAX {
            let len = self.flow.orders[at].skip(blocks)?;
            if let Some(end) = self.gap(origin, len) {
                return Some(end);
            }
            if let Some(end) = self.ready(origin, blocks) {
                return Some(end);
            }
        }
        None
    }

    fn gap(&mut self, origin: &Origin, len: u32) -> Option<End> {
        let at = origin.from as usize;
        if self.flow.kind.is_none() {
            // The beginning is lost; the other direction may tell.
            self.flow.is_unknown[at] = true;
            return self.unknown(Reason::Gap);
        }
        let state = self.states.get_mut(self.flow.state)?;
        ended(state.gap(origin.from, len, &mut self.flow.application))
    }

    /// One direction began with nothing known.
    fn unknown(&self, reason: Reason) -> Option<End> {
        let both = self.flow.is_unknown == [true; 2];
        let is_late = self.flow.packets >= self.config.unknown_count_max;
        (both || is_late).then_some(End::Rejected(reason))
    }

    /// Bytes of a stream, in order.
    fn stream(&mut self, origin: &Origin, bytes: &[u8]) -> Option<End> {
        if self.flow.kind.is_some() {
            return self.feed(origin, bytes);
        }
        let at = origin.from as usize;
        if self.flow.is_unknown[at] {
            return self.unknown(Reason::Unknown);
        }
        let (mut rest, mut left) = (bytes, self.config.decoders);
        // Byte by byte, so that it makes no difference where the stream is cut.
        while let Some((byte, behind)) = rest.split_first() {
            rest = behind;
            let len = usize::from(self.flow.first_len[at]);
            let Some(place) = self.flow.first[at].get_mut(len) else {
                break;
            };
            *place = *byte;
            self.flow.first_len[at] += 1;
            let first = First {
                bytes: &self.flow.first[at][..=len],
                transport: Transport::Tcp,
                ports: origin.ports,
            };
            match identify(&first, &mut left, &mut self.flow.application) {
                Found::Undecided if len + 1 < FIRST_MAX => {}
                Found::Known(kind) => return self.begin(kind, origin, rest),
                Found::Undecided | Found::Unknown => {
                    self.flow.is_unknown[at] = true;
                    return self.unknown(Reason::Unknown);
                }
            }
        }
        None
    }

    fn make(&mut self, kind: DecoderKind) -> bool {
        self.flow.kind = Some(kind);
        let Some(index) = self.states.take(|| State::None) else {
            return false;
        };
        self.flow.state = index;
        if let Some(state) = self.states.get_mut(index) {
            state.renew(kind);
        }
        true
    }

    /// The beginning is known: what was kept of it is read, then the rest.
    fn begin(&mut self, kind: DecoderKind, origin: &Origin, rest: &[u8]) -> Option<End> {
        if !self.make(kind) {
            return Some(End::NoState);
        }
        let state = self.states.get_mut(self.flow.state)?;
        let out = &mut self.flow.application;
        let this = origin.from;
        let other = Origin {
            from: this.other(),
            ..*origin
        };
        let first = |from: Direction| {
            let len = usize::from(self.flow.first_len[from as usize]).min(FIRST_MAX);
            &self.flow.first[from as usize][..len]
        };
        if let Some(end) = ended(state.feed(*origin, first(this), out)) {
            return Some(end);
        }
        let early = first(other.from);
        let progress = if self.flow.is_unknown[other.from as usize] {
            state.gap(other.from, 1, out)
        } else if early.is_empty() {
            Progress::Need(1)
        } else {
            state.feed(other, early, out)
        };
        if let Some(end) = ended(progress) {
            return Some(end);
        }
        if rest.is_empty() {
            return None;
        }
        self.feed(origin, rest)
    }

    fn feed(&mut self, origin: &Origin, bytes: &[u8]) -> Option<End> {
        let mut rest = bytes;
        loop {
            let state = self.states.get_mut(self.flow.state)?;
            // Mail a line at a time: behind a line that says yes to STARTTLS comes TLS, wherever
            // the stream is cut.
            let line = match state {
                State::Mail(_) => rest.iter().position(|byte| *byte == b'\n'),
                _ => None,
            };
            let (now, later) = rest.split_at(line.map_or(rest.len(), |at| at + 1));
            let progress = state.feed(*origin, now, &mut self.flow.application);
            if progress == Progress::Done
                && let State::Mail(mail) = state
                && mail.goes_on_in_tls()
            {
                // Both sides begin anew.
                state.renew(DecoderKind::Tls);
            } else if let Some(end) = ended(progress) {
                return Some(end);
            }
            if later.is_empty() {
                return None;
            }
            rest = later;
        }
    }

    fn udp(&mut self, segment: &Segment<'_>) -> Option<End> {
        let origin = Origin {
            from: segment.from,
            time_ns: segment.time_ns,
            ports: segment.ports,
        };
        let kind = match self.flow.kind {
            Some(kind) => kind,
            None => {
                let first = First {
                    bytes: segment.payload,
                    transport: Transport::Udp,
                    ports: segment.ports,
                };
                let mut left = self.config.decoders;
                match identify(&first, &mut left, &mut self.flow.application) {
                    Found::Known(kind) => {
                        self.flow.kind = Some(kind);
                        if kind == DecoderKind::Quic && !self.make(kind) {
                            return Some(End::NoState);
                        }
                        kind
                    }
                    _ => {
                        self.flow.is_unknown[segment.from as usize] = true;
                        return self.unknown(Reason::Unknown);
                    }
                }
            }
        };
        ended(decode::datagram(
            kind,
            &mut self.flow.small,
            self.states.get_mut(self.flow.state),
            self.scratch,
            origin,
            segment.payload,
            &mut self.flow.application,
        ))
    }
}

fn ended(progress: Progress) -> Option<End> {
    match progress {
        Progress::Need(_) => None,
        Progress::Done => Some(End::Done),
        Progress::Reject(reason) => Some(End::Rejected(reason)),
    }
}
