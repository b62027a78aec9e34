//! A connection from the server's SYN+ACK on: the client's side of RFC 9293.

mod read;

use std::net::IpAddr;
use std::sync::Arc;

use inspect::{Application, Conversation, End, Tools};

use super::Banner;
use super::certificates::Certificates;
use super::hello::{Hello, Identity, To};
use super::page::Page;
use super::segment::{ACK, FIN, Incoming, Outgoing, PSH, RST, SYN, WINDOW};
use super::starttls::Dialog;
use super::tls::Handshake;
use crate::cookie::ProbeTarget;

/// Number of bytes kept from the start of the server's data.
pub const START_LEN: usize = 1024;
/// Maximum number of bytes read from a server.
const BYTES_MAX: u64 = 64 << 10;
/// Maximum length of the data of a segment: every host accepts it (RFC 9293 §3.7.1).
const PIECE_LEN: u32 = 536;
/// Initial retransmission timeout (RFC 6298 §2), and the number of retransmissions.
const REPEAT_NS: u64 = 1_000_000_000;
const REPEAT_MAX: u8 = 4;
/// How long to wait for an unknown service to speak before sending a request.
const FIRST_NS: u64 = 1_500_000_000;
/// How long a server may pause before its banner counts as complete.
const QUIET_NS: u64 = 2_000_000_000;
/// The same, once the decoder has all the data it needs.
const QUIET_DONE_NS: u64 = 100_000_000;
/// How long the server may take to close after the FIN.
const CLOSE_NS: u64 = 3_000_000_000;
const NEVER: u64 = u64::MAX;

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The server closed.
    Closed,
    /// The server reset the connection.
    Reset,
    /// The server paused.
    Quiet,
    /// Enough data were read.
    Enough,
    /// The time limit was reached.
    Timeout,
    /// The scan was stopped.
    Stopped,
    /// There was none: the answer is a datagram.
    Datagram,
}

impl Ending {
    /// The name in reports and JSON.
    pub fn word(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Reset => "reset",
            Self::Quiet => "quiet",
            Self::Enough => "enough",
            Self::Timeout => "timeout",
            Self::Stopped => "stopped",
            Self::Datagram => "datagram",
        }
    }
}

/// Segment to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Syn,
    Ack,
    /// Data: the offset of the first byte, and the length.
    Data(u32, u32),
    Fin,
    Reset,
}

/// Actions that follow an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    pub send: Option<What>,
    /// Set when reading has ended, with the reason.
    pub ended: Option<Ending>,
    /// Whether the connection is closed.
    pub is_over: bool,
    /// Whether the segment is a retransmission.
    pub is_repeated: bool,
}

impl Step {
    fn send(what: What) -> Self {
        Self {
            send: Some(what),
            ..Self::default()
        }
    }
}

/// State of decoding the server's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    /// Too few bytes to see whether they answer the hello.
    Undecided,
    /// Being decoded.
    Decoding,
    /// The decoders have finished.
    Over(End),
}

/// The ends of a connection, and how long it lasts.
#[derive(Clone, Debug)]
pub struct Ends {
    pub target: ProbeTarget,
    /// Name of the target, if it was given by one.
    pub name: Option<Arc<str>>,
    pub own: IpAddr,
    pub local_port: u16,
    /// The sequence number after the SYN.
    pub base: u32,
    pub timeout_ns: u64,
    /// Whether the whole chain of certificates is kept.
    pub keeps_chain: bool,
}

/// The state of a connection.
pub struct Connection {
    ends: Ends,
    target: ProbeTarget,
    local_port: u16,
    /// Whether a SYN was sent that has not been answered.
    is_opening: bool,
    /// Maximum length of the data of a segment.
    piece_len: u32,
    /// Sequence number of the first byte sent.
    base: u32,
    /// Bytes sent and acknowledged; the FIN counts as the last one.
    acked: u32,
    sent: u32,
    /// Sequence number of the server's next byte.
    expected: u32,
    window: u16,
    hello: Hello,
    said: Vec<u8>,
    /// How many of these bytes are the hello, and how many the replies that follow it.
    hello_len: usize,
    reply_len: usize,
    /// Where the hello of TLS is.
    tls_hello: (usize, usize),
    /// The request for TLS.
    dialog: Option<Box<Dialog>>,
    /// Bytes that the server sent before TLS was requested with success.
    plain_len: u64,
    page: Page,
    is_closing: bool,
    is_closed_by_peer: bool,
    reading: Reading,
    conversation: Conversation,
    application: Application,
    start: Vec<u8>,
    certificates: Option<Box<Certificates>>,
    /// The key exchange with a TLS server.
    handshake: Option<Box<Handshake>>,
    byte_count: u64,
    early: u64,
    ended: bool,
    deadline_ns: u64,
    quiet_ns: u64,
    repeat_ns: u64,
    repeat_after_ns: u64,
    repeats: u8,
    /// The banner of the connection before this one.
    fallback: Option<Box<Banner>>,
    /// The earliest time at which the table will check this connection.
    pub noted_ns: u64,
}

impl Connection {
    /// Creates a connection before its first segment.
    fn new(ends: Ends, (hello, said): (Hello, Vec<u8>), now_ns: u64) -> Self {
        let is_tls = hello.is_tls();
        let mut connection = Self {
            target: ends.target,
            local_port: ends.local_port,
            is_opening: false,
            piece_len: PIECE_LEN,
            base: ends.base,
            acked: 0,
            sent: 0,
            expected: 0,
            window: 0,
            hello,
            hello_len: said.len(),
            tls_hello: (0, said.len()),
            said,
            reply_len: 0,
            dialog: None,
            plain_len: u64::MAX,
            page: Page::NEW,
            is_closing: false,
            is_closed_by_peer: false,
            reading: Reading::Undecided,
            conversation: Conversation::NEW,
            application: Application::EMPTY,
            start: Vec::new(),
            certificates: None,
            handshake: None,
            byte_count: 0,
            early: 0,
            ended: false,
            deadline_ns: now_ns.saturating_add(ends.timeout_ns),
            quiet_ns: NEVER,
            repeat_ns: NEVER,
            repeat_after_ns: REPEAT_NS,
            repeats: 0,
            fallback: None,
            noted_ns: NEVER,
            ends,
        };
        match connection.hello.name() {
            _ if is_tls => connection.begin_tls(false),
            Some("ldap") => {
                connection.dialog =
                    Dialog::of(inspect::Protocol::Ldap, connection.ends.own).map(Box::new);
            }
            Some("postgresql") => {
                let talk = inspect::Protocol::Postgresql;
                connection.dialog = Dialog::of(talk, connection.ends.own).map(Box::new);
            }
            _ => {}
        }
        connection
    }

    /// A connection that a SYN+ACK has opened.
    pub fn accepted(
        ends: Ends,
        syn_ack: &Incoming<'_>,
        first: (Hello, Vec<u8>),
        now_ns: u64,
    ) -> Self {
        let mut connection = Self::new(ends, first, now_ns);
        connection.accept(syn_ack);
        connection
    }

    /// A connection that is opened by a SYN. If it says less than the banner before it, that one
    /// is reported.
    pub fn opening(
        ends: Ends,
        first: (Hello, Vec<u8>),
        before: Option<Banner>,
        now_ns: u64,
    ) -> Self {
        let mut connection = Self::new(ends, first, now_ns);
        connection.is_opening = true;
        connection.fallback = before.map(Box::new);
        connection.repeat_ns = now_ns + REPEAT_NS;
        connection
    }

    fn accept(&mut self, syn_ack: &Incoming<'_>) {
        self.expected = syn_ack.seq.wrapping_add(1);
        self.window = syn_ack.window;
        let mss = syn_ack.mss.map_or(PIECE_LEN, |mss| u32::from(mss).max(1));
        self.piece_len = PIECE_LEN.min(mss);
    }

    /// The ends of another connection to the same service.
    pub fn ends(&self) -> &Ends {
        &self.ends
    }

    /// What was said first.
    pub fn hello(&self) -> &Hello {
        &self.hello
    }

    /// Whether it was opened by a SYN that has not been answered.
    pub fn is_opening(&self) -> bool {
        self.is_opening
    }

    /// The banner of the connection before this one.
    pub fn take_fallback(&mut self) -> Option<Banner> {
        self.fallback.take().map(|banner| *banner)
    }

    pub fn target(&self) -> &ProbeTarget {
        &self.target
    }

    pub fn is_at(&self, addr: IpAddr, ports: (u16, u16)) -> bool {
        self.target.addr == addr && (self.target.port, self.local_port) == ports
    }

    /// Bytes of the data to send.
    pub fn said(&self, at: u16, len: u16) -> &[u8] {
        let (at, len) = (usize::from(at), usize::from(len));
        self.said.get(at..at + len).unwrap_or(&[])
    }

    /// Number of segments that arrived out of order.
    pub fn early_count(&self) -> u64 {
        self.early
    }

    /// When [`tick`](Self::tick) is due.
    pub fn due_ns(&self) -> u64 {
        self.deadline_ns.min(self.quiet_ns).min(self.repeat_ns)
    }

    /// The first segment: a SYN, or an ACK, with the hello if the client speaks first.
    pub fn begin(&mut self, now_ns: u64) -> Step {
        if self.is_opening {
            return Step::send(What::Syn);
        }
        if self.said.is_empty() {
            if self.hello.is_later() {
                self.quiet_ns = now_ns + FIRST_NS;
            }
            return Step::send(What::Ack);
        }
        Step::send(self.more(now_ns).unwrap_or(What::Ack))
    }

    /// The next data to send, if the window has room and nothing is in flight.
    fn more(&mut self, now_ns: u64) -> Option<What> {
        let left = self.said.len() as u32 - self.sent.min(self.said.len() as u32);
        if left == 0 || self.sent != self.acked {
            return None;
        }
        if self.repeat_ns == NEVER {
            self.repeat_ns = now_ns + self.repeat_after_ns;
        }
        let len = left.min(self.piece_len).min(self.window.into());
        if len == 0 {
            return None;
        }
        let at = self.sent;
        self.sent += len;
        Some(What::Data(at, len))
    }

    /// Handles a segment.
    pub fn receive(
        &mut self,
        incoming: &Incoming<'_>,
        now_ns: u64,
        (tools, who): (&mut Tools, &Identity),
    ) -> Step {
        if incoming.to_port != self.local_port {
            return Step::default();
        }
        if self.is_opening {
            return self.opened(incoming, now_ns);
        }
        let is_next = incoming.seq == self.expected;
        if incoming.flags & RST != 0 {
            // RFC 5961 §3.2: a reset at any other sequence number may be forged.
            return match is_next {
                true => self.over(Ending::Reset),
                false => Step::send(What::Ack),
            };
        }
        if incoming.flags & SYN != 0 {
            // The ACK was lost, or this one is forged (RFC 5961 §4.2).
            return Step::send(What::Ack);
        }
        if incoming.flags & ACK == 0 || !self.acknowledge(incoming) {
            return Step::send(What::Ack);
        }
        let has_fin = incoming.flags & FIN != 0;
        let takes_numbers = has_fin || !incoming.payload.is_empty();
        if takes_numbers {
            self.data(incoming, has_fin, now_ns, (tools, who));
        }
        self.next_step(takes_numbers, now_ns)
    }

    /// Handles the answer to our SYN (RFC 9293 §3.10.7.3).
    fn opened(&mut self, incoming: &Incoming<'_>, now_ns: u64) -> Step {
        if incoming.flags & ACK == 0 || incoming.ack != self.base {
            return Step::default();
        }
        if incoming.flags & RST != 0 {
            return self.over(Ending::Reset);
        }
        if incoming.flags & SYN == 0 {
            return Step::default();
        }
        self.is_opening = false;
        self.accept(incoming);
        self.repeats = 0;
        self.repeat_after_ns = REPEAT_NS;
        self.repeat_ns = NEVER;
        self.begin(now_ns)
    }

    /// Handles the acknowledgment of a segment; false if it acknowledges data that were never sent.
    fn acknowledge(&mut self, incoming: &Incoming<'_>) -> bool {
        let acked = incoming.ack.wrapping_sub(self.base);
        if acked > self.sent {
            // Numbers in the lower half of the sequence space are old.
            return acked > u32::MAX / 2;
        }
        if acked > self.acked {
            self.acked = acked;
            self.repeats = 0;
            self.repeat_after_ns = REPEAT_NS;
            self.repeat_ns = NEVER;
        }
        self.window = incoming.window;
        true
    }

    fn data(
        &mut self,
        incoming: &Incoming<'_>,
        has_fin: bool,
        now_ns: u64,
        (tools, who): (&mut Tools, &Identity),
    ) {
        let old = self.expected.wrapping_sub(incoming.seq);
        if old > u32::MAX / 2 {
            self.early += 1;
            return;
        }
        let Some(fresh) = incoming.payload.get(old as usize..) else {
            return;
        };
        let fresh = &fresh[..fresh.len().min(usize::from(WINDOW))];
        self.expected = self.expected.wrapping_add(fresh.len() as u32);
        if !fresh.is_empty() && !self.ended {
            self.read(fresh, now_ns, tools);
            self.reply(now_ns, (tools, who));
            self.request_tls(fresh, now_ns, (tools, who));
            self.quiet_ns = now_ns
                + match self.reading {
                    Reading::Over(End::Done) if !self.awaits_more() => QUIET_DONE_NS,
                    _ => QUIET_NS,
                };
        }
        let is_all = old as usize + fresh.len() == incoming.payload.len();
        if has_fin && is_all && !self.is_closed_by_peer {
            self.expected = self.expected.wrapping_add(1);
            self.is_closed_by_peer = true;
        }
    }

    /// The step that follows from the current state.
    fn next_step(&mut self, acknowledges: bool, now_ns: u64) -> Step {
        if self.is_closing {
            let is_done = self.acked == self.fin_number() && self.is_closed_by_peer;
            return Step {
                send: acknowledges.then_some(What::Ack),
                is_over: is_done,
                ..Step::default()
            };
        }
        let is_full = self.start.len() == START_LEN && self.is_read();
        if self.is_closed_by_peer {
            return self.close(Ending::Closed, now_ns);
        }
        if is_full || self.byte_count >= BYTES_MAX {
            return self.close(Ending::Enough, now_ns);
        }
        let more = self.more(now_ns);
        Step {
            send: more.or(acknowledges.then_some(What::Ack)),
            ..Step::default()
        }
    }

    /// Number of bytes sent including the FIN.
    fn fin_number(&self) -> u32 {
        self.said.len() as u32 + 1
    }

    /// Closes in order; data not sent yet are discarded.
    fn close(&mut self, ending: Ending, now_ns: u64) -> Step {
        self.said.truncate(self.sent as usize);
        self.is_closing = true;
        self.sent = self.fin_number();
        self.quiet_ns = NEVER;
        self.repeats = 0;
        self.repeat_after_ns = REPEAT_NS;
        self.repeat_ns = now_ns + REPEAT_NS;
        self.deadline_ns = now_ns + CLOSE_NS;
        Step {
            send: Some(What::Fin),
            ended: self.end(ending),
            ..Step::default()
        }
    }

    fn end(&mut self, ending: Ending) -> Option<Ending> {
        (!std::mem::replace(&mut self.ended, true)).then_some(ending)
    }

    fn over(&mut self, ending: Ending) -> Step {
        Step {
            ended: self.end(ending),
            is_over: true,
            ..Step::default()
        }
    }

    /// Aborts the connection with a reset.
    pub fn abort(&mut self, ending: Ending) -> Step {
        Step {
            send: Some(What::Reset),
            ..self.over(ending)
        }
    }

    /// Handles expired timers.
    pub fn tick(&mut self, now_ns: u64, who: &Identity) -> Step {
        if now_ns >= self.deadline_ns {
            return self.abort(Ending::Timeout);
        }
        if now_ns >= self.repeat_ns {
            return self.repeat(now_ns);
        }
        if now_ns >= self.quiet_ns {
            self.quiet_ns = NEVER;
            if self.byte_count != 0 {
                return self.close(Ending::Quiet, now_ns);
            }
            let to = To {
                target: &self.ends.target,
                name: self.ends.name.as_deref(),
            };
            self.said = self.hello.later(&to, who);
            self.hello_len = self.said.len();
            return Step {
                send: self.more(now_ns),
                ..Step::default()
            };
        }
        Step::default()
    }

    /// Retransmits what was not acknowledged, or probes a zero window (RFC 9293 §3.8.6.1).
    fn repeat(&mut self, now_ns: u64) -> Step {
        self.repeats += 1;
        if self.repeats > REPEAT_MAX {
            return self.abort(Ending::Timeout);
        }
        self.repeat_after_ns *= 2;
        self.repeat_ns = now_ns + self.repeat_after_ns;
        if self.is_opening {
            return Step {
                is_repeated: true,
                ..Step::send(What::Syn)
            };
        }
        let left = self.said.len() as u32 - self.acked.min(self.said.len() as u32);
        if left == 0 {
            let is_fin = self.is_closing && self.acked != self.fin_number();
            self.repeat_ns = if is_fin { self.repeat_ns } else { NEVER };
            return Step {
                send: is_fin.then_some(What::Fin),
                is_repeated: is_fin,
                ..Step::default()
            };
        }
        let len = left.min(self.piece_len).min(u32::from(self.window).max(1));
        self.sent = self.sent.max(self.acked + len);
        Step {
            is_repeated: true,
            ..Step::send(What::Data(self.acked, len))
        }
    }

    /// Builds the segment.
    pub fn outgoing(&self, what: What, slot: u32) -> Outgoing {
        let (at, data, flags) = match what {
            What::Syn => (u32::MAX, (0, 0), SYN),
            What::Ack => (self.sent, (0, 0), ACK),
            What::Data(at, len) => (at, (at as u16, len as u16), ACK | PSH),
            What::Fin => (self.fin_number() - 1, (0, 0), ACK | FIN),
            What::Reset => (self.sent, (0, 0), ACK | RST),
        };
        Outgoing {
            addr: self.target.addr,
            port: self.target.port,
            local_port: self.local_port,
            seq: self.base.wrapping_add(at),
            ack: self.expected,
            flags,
            slot,
            data,
        }
    }
}
