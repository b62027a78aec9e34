//! Applies decoders to flows: reassembly, conversations, budgets, slots.

mod reading;
mod stats;

use crate::application::Application;
use crate::conversation::{Conversation, End, Tools};
use crate::decode::{Arena, Direction, Reason};
use crate::identify::{Decoders, Identifier};
use crate::ports::Transport;
use crate::slab::Slab;
use crate::stream::{Blocks, Part, Stream};
use crate::transaction::{Log, Tally, Transactions};

use reading::{Reading, Reported};

pub use stats::InspectorStats;

/// Number of a flow that has not been inspected yet.
pub const NONE: u32 = 0;

/// Flag in the number of a flow that needs no further look.
pub const DONE: u32 = 1 << 31;

/// Flag in the number of a UDP flow in which nothing was recognised yet. It has no slot; the bits
/// below hold its packet count and the directions seen.
pub(crate) const LOOSE: u32 = 1 << 30;
const LOOSE_COUNT: u32 = 0xffff;
const LOOSE_FROM_SHIFT: u32 = 16;

/// Configuration of an inspector.
#[derive(Clone, Copy, Debug)]
pub struct InspectorConfig {
    /// Decoders to use.
    pub decoders: Decoders,
    /// Maximum number of concurrent flows with state.
    pub flow_count_max: u32,
    /// Number of pages of [`PAGE_LEN`](crate::decode::PAGE_LEN) bytes for decoder states. A page
    /// has room for one flow of TLS, or for several of most other protocols.
    pub page_count: u32,
    /// Maximum number of TCP segments kept because they arrived early.
    pub held_count_max: u32,
    /// Maximum number of concurrent flows whose transactions after the first are kept.
    pub log_count_max: u32,
    /// Maximum number of packets with payload inspected per flow, before its first transaction has
    /// ended.
    pub packet_count_max: u16,
    /// Maximum number of packets inspected or skipped after that.
    pub follow_count_max: u32,
    /// Maximum payload inspected per flow in bytes, before its first transaction has ended.
    pub byte_count_max: u32,
    /// Number of packets after which a flow with one unidentified direction is abandoned.
    pub unknown_count_max: u16,
}

impl Default for InspectorConfig {
    /// All decoders; 2^16 flows, 2^11 pages for those being read: 60 MiB.
    fn default() -> Self {
        InspectorConfig {
            decoders: Decoders::ALL,
            flow_count_max: 1 << 16,
            page_count: 1 << 11,
            held_count_max: 1 << 9,
            log_count_max: 1 << 12,
            packet_count_max: 40,
            follow_count_max: 1 << 20,
            byte_count_max: 1 << 16,
            unknown_count_max: 6,
        }
    }
}

impl InspectorConfig {
    /// Memory of an inspector with this configuration in bytes.
    pub fn memory_len(&self) -> usize {
        Slab::<Flow>::memory_len(self.flow_count_max)
            + Arena::memory_len(self.page_count)
            + Blocks::memory_len(self.held_count_max)
            + Slab::<Log>::memory_len(self.log_count_max)
            + Identifier::new(self.decoders).memory_len()
            + size_of::<Inspector>()
    }
}

/// A packet of a flow, as seen by decoders.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// Transport protocol.
    pub transport: Transport,
    /// Direction of the packet.
    pub from: Direction,
    /// Time of arrival in nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// Ports of the initiator and the responder.
    pub ports: [u16; 2],
    /// TCP sequence number.
    pub sequence: u32,
    /// TCP: whether it has SYN.
    pub is_syn: bool,
    /// TCP: sequence number of this direction's first byte, if known from elsewhere, such as a SYN
    /// that was not passed.
    pub begins: Option<u32>,
    /// Captured payload.
    pub payload: &'a [u8],
    /// Length of the payload on the wire.
    pub payload_len: u32,
}

/// State of a flow.
struct Flow {
    application: Application,
    conversation: Conversation,
    stream: Stream,
    tally: Tally,
    /// Time of the last packet inspected: data read at the end arrived with it or earlier.
    time_ns: u64,
    ports: [u16; 2],
    is_over: bool,
    packets: u16,
    /// Packets in a direction that has been read, while the other is awaited; and all after the
    /// first transaction.
    passed_over: u32,
    bytes: u32,
}

/// Maximum number of packets in a completely read direction that do not count as inspected: the
/// reply to an upload comes after all of it.
const PASSED_OVER_MAX: u32 = 4096;

/// Memory per flow with state in bytes, until it ends.
pub const FLOW_LEN: usize = size_of::<Flow>();

const _: () = assert!(FLOW_LEN <= 1192);

impl Flow {
    const NEW: Flow = Flow {
        application: Application::EMPTY,
        conversation: Conversation::NEW,
        stream: Stream::NEW,
        tally: Tally::NEW,
        time_ns: 0,
        ports: [0; 2],
        is_over: false,
        packets: 0,
        passed_over: 0,
        bytes: 0,
    };

    /// Counts an inspected segment.
    #[inline]
    fn count(&mut self, segment: &Segment<'_>, is_followed: bool) {
        match is_followed {
            true => self.passed_over = self.passed_over.saturating_add(1),
            false => {
                self.packets += 1;
                self.bytes = self.bytes.saturating_add(segment.payload_len);
            }
        }
        (self.time_ns, self.ports) = (segment.time_ns, segment.ports);
    }

    /// Whether the flow's budget is used up.
    #[inline]
    fn is_spent(&self, is_followed: bool, config: &InspectorConfig) -> bool {
        match is_followed {
            true => self.passed_over >= config.follow_count_max,
            false => self.packets >= config.packet_count_max || self.bytes >= config.byte_count_max,
        }
    }

    /// Whether the bytes of a segment do not matter: its direction has been read, or they are
    /// within what is skipped.
    #[inline]
    fn passes_over(&mut self, segment: &Segment<'_>, tools: &mut Tools) -> bool {
        if !self.conversation.wants(segment.from, tools) {
            return true;
        }
        let len = segment.payload_len;
        let skips = self.conversation.skips(segment.from, tools);
        if skips == 0 || skips < len || segment.is_syn {
            return false;
        }
        let is_next = self.stream.skip(segment.from, segment.sequence, len);
        if is_next {
            self.conversation.skip(segment.from, len, tools);
        }
        is_next
    }

    /// Resets it without touching all of its bytes.
    fn clear(&mut self) {
        self.application.clear();
        self.conversation.clear();
        self.stream = Stream::NEW;
        self.tally = Tally::NEW;
        self.is_over = false;
        self.packets = 0;
        self.passed_over = 0;
        self.bytes = 0;
    }
}

/// The decoders of one thread, with the state of its flows.
pub struct Inspector {
    config: InspectorConfig,
    flows: Slab<Flow>,
    tools: Tools,
    blocks: Blocks,
    logs: Slab<Log>,
    stats: InspectorStats,
}

impl Inspector {
    /// Creates an inspector and reserves all its memory.
    pub fn new(config: &InspectorConfig) -> Inspector {
        Inspector {
            config: *config,
            flows: Slab::new(config.flow_count_max.min(LOOSE - 1)),
            tools: Tools::new(config.decoders, config.page_count),
            blocks: Blocks::new(config.held_count_max),
            logs: Slab::new(config.log_count_max),
            stats: InspectorStats::default(),
        }
    }

    /// Maximum memory it uses in bytes.
    pub fn memory_len(&self) -> usize {
        self.config.memory_len()
    }

    /// The counters so far.
    pub fn stats(&self) -> InspectorStats {
        InspectorStats {
            live: self.flows.len() as u64,
            no_room_segment: self.blocks.refused_count(),
            no_room_follow: self.tools.unfollowed_count(),
            ..self.stats
        }
    }

    /// Whether no flow has a slot of any kind.
    #[doc(hidden)]
    pub fn is_idle(&self) -> bool {
        self.flows.len() + self.tools.arena().len() + self.blocks.len() + self.logs.len() == 0
    }

    /// Inspects a packet of a flow. `flow` is the number that the caller keeps with the flow:
    /// [`NONE`] before its first packet. Packets of a flow whose number has [`DONE`] need not be
    /// passed.
    pub fn packet(&mut self, flow: &mut u32, segment: &Segment<'_>) {
        if *flow & DONE != 0 {
            return;
        }
        let has_content = !segment.payload.is_empty() || segment.payload_len != 0;
        if *flow == NONE {
            // A SYN alone gets no slot: the next packet shows where the stream begins, unless the
            // first segment is lost or late.
            if !has_content {
                return;
            }
        }
        if segment.transport == Transport::Udp && (*flow == NONE || *flow & LOOSE != 0) {
            if !self.tools.knows_datagram(segment.payload, segment.ports) {
                return self.pass_datagram(flow, segment.from);
            }
            let before = core::mem::replace(flow, NONE);
            self.stats.flows -= u64::from(before != NONE);
            self.open(flow);
            if let Some(slot) = self.flows.get_mut((*flow & !DONE).wrapping_sub(1)) {
                slot.packets = (before & LOOSE_COUNT) as u16;
            }
        } else if *flow == NONE {
            self.open(flow);
        }
        if *flow & DONE != 0 {
            return;
        }
        let index = *flow - 1;
        let Some(slot) = self.flows.get_mut(index) else {
            *flow = DONE;
            return;
        };
        let is_followed = slot.conversation.is_followed();
        if segment.transport == Transport::Tcp
            && slot.passes_over(segment, &mut self.tools)
            && (is_followed || slot.passed_over < PASSED_OVER_MAX)
        {
            slot.passed_over += 1;
            if is_followed && slot.passed_over >= self.config.follow_count_max {
                self.stats.rejected[Reason::Limit as usize] += 1;
                self.close(flow);
            }
            return;
        }
        self.stats.packets += 1;
        slot.count(segment, is_followed);
        let (mut reading, stream) =
            Reading::of(slot, &mut self.tools, &mut self.logs, &self.config);
        let mut end = match segment.transport {
            Transport::Tcp => {
                let part = Part {
                    sequence: segment.sequence,
                    is_syn: segment.is_syn,
                    begins: segment.begins,
                    bytes: segment.payload,
                    len: segment.payload_len,
                };
                stream.segment(segment.from, &part, &mut self.blocks, &mut reading)
            }
            Transport::Udp => reading.datagram(segment.from, segment.payload),
        };
        if end.is_none() && slot.is_spent(is_followed, &self.config) {
            end = Some(End::Rejected(Reason::Limit));
        }
        if let Some(end) = end {
            self.stats.count(end);
            self.close(flow);
        }
    }

    /// Counts a datagram of an unidentified flow that no decoder recognizes.
    fn pass_datagram(&mut self, flow: &mut u32, from: Direction) {
        self.stats.flows += u64::from(*flow == NONE);
        self.stats.packets += 1;
        let count = (*flow & LOOSE_COUNT) + 1;
        let seen = *flow >> LOOSE_FROM_SHIFT & 3 | 1 << from as u32;
        let most = self
            .config
            .unknown_count_max
            .min(self.config.packet_count_max);
        if seen == 3 || count >= u32::from(most) {
            self.stats.rejected[Reason::Unknown as usize] += 1;
            *flow = DONE;
        } else {
            *flow = LOOSE | seen << LOOSE_FROM_SHIFT | count;
        }
    }

    /// Allocates a slot for a flow, if there is one.
    fn open(&mut self, flow: &mut u32) {
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

    /// Sets the sequence number of the first byte in a direction of a TCP connection: for a caller
    /// that will not have the SYN when the next segment arrives.
    pub fn begin(&mut self, flow: &mut u32, from: Direction, sequence: u32) {
        if *flow == NONE {
            self.open(flow);
        }
        if *flow & DONE == 0
            && let Some(slot) = self.flows.get_mut(*flow - 1)
        {
            slot.stream.begin(from, sequence);
        }
    }

    /// Marks the flow as needing no further look.
    fn close(&mut self, flow: &mut u32) {
        let index = *flow - 1;
        *flow |= DONE;
        let Some(slot) = self.flows.get_mut(index) else {
            return;
        };
        slot.is_over = true;
        slot.stream.release(&mut self.blocks);
        let mut reported = Reported {
            application: &mut slot.application,
            tally: &mut slot.tally,
            logs: &mut self.logs,
        };
        slot.conversation.finish(&mut self.tools, &mut reported);
        if slot.application.is_empty() {
            slot.tally.release(&mut self.logs);
            self.flows.give(index);
            *flow = DONE;
        }
    }

    /// Stops reading the flow: the memory needed for reading is freed. Its application stays
    /// available until [`Inspector::end`].
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

    /// The application of a flow, by number.
    pub fn application(&self, flow: u32) -> Option<&Application> {
        let index = (flow & !DONE).checked_sub(1)?;
        let application = &self.flows.get(index)?.application;
        (!application.is_empty()).then_some(application)
    }

    /// The transactions of a flow, by number, if there was more than one. Call [`Inspector::rest`]
    /// first once no more packets follow, which reports the remaining ones.
    pub fn transactions(&self, flow: u32) -> Option<Transactions<'_>> {
        let index = (flow & !DONE).checked_sub(1)?;
        self.flows.get(index)?.tally.transactions(&self.logs)
    }

    /// Ends the flow and passes its application to `look` for the last time. Its number is then
    /// [`NONE`].
    pub fn end<T>(&mut self, flow: &mut u32, look: impl FnOnce(&Application) -> T) -> Option<T> {
        let number = core::mem::replace(flow, NONE);
        let mut known = number;
        let index = (number & !DONE).checked_sub(1)?;
        self.rest(&mut known);
        let index = (known & !DONE).checked_sub(1).map(|_| index)?;
        let slot = self.flows.get_mut(index)?;
        let result = look(&slot.application);
        slot.tally.release(&mut self.logs);
        self.flows.give(index);
        Some(result)
    }

    /// Reads data that still wait for missing segments, which will not arrive any more.
    fn last(&mut self, index: u32) {
        let Some(slot) = self.flows.get_mut(index) else {
            return;
        };
        let (mut reading, stream) =
            Reading::of(slot, &mut self.tools, &mut self.logs, &self.config);
        for from in [Direction::Forward, Direction::Reverse] {
            if stream.flush(from, &mut self.blocks, &mut reading).is_some() {
                return;
            }
        }
    }
}
