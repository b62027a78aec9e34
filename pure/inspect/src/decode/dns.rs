//! DNS (RFC 1035) over UDP and TCP, multicast DNS (RFC 6762) and LLMNR (RFC 4795): the first
//! question and its answer; for DNS each question of the flow with its answer.
//!
//! Compression pointers are followed backwards only, so that names end (§4.1.4: a pointer points to
//! a prior occurrence); a name has at most 255 bytes.

mod message;

use message::{HEADER_LEN, Header, Name, answers, is_message, question};

use super::{Context, Decode, First, Match, Origin, Progress, Reason};
use crate::field::{Field, FieldSink, Protocol, Value};
use crate::identify::Pattern;
use crate::ports::Transport;
use crate::text::Text;

const PORT: u16 = 53;
const PORT_MDNS: u16 = 5353;
const PORT_LLMNR: u16 = 5355;

/// Maximum number of bytes kept of a message over TCP.
const KEPT: usize = 1024;

/// The first bytes of a question are not specific: ports, and the whole message, decide.
pub(super) const STARTS: &[Pattern] = &[Pattern::ANY];

pub(super) fn first(first: &First<'_>) -> Match {
    if first.transport == Transport::Tcp {
        // Without the port, two bytes of length and a header are not enough to identify it.
        if !first.has_port(PORT) {
            return Match::No;
        }
        let Some((len, rest)) = first.bytes.split_first_chunk::<2>() else {
            return Match::Maybe;
        };
        let fits = usize::from(u16::from_be_bytes(*len)) >= HEADER_LEN;
        return match Header::parse(rest) {
            _ if !fits => Match::No,
            None => Match::Maybe,
            Some(header) if header.is_plausible() => Match::Yes,
            Some(_) => Match::No,
        };
    }
    let is_known = first.has_port(PORT) || first.has_port(PORT_MDNS) || first.has_port(PORT_LLMNR);
    // NetBIOS names have the same form (RFC 1002 §4.2).
    let fits = match is_known {
        true => Header::parse(first.bytes).is_some_and(|header| header.is_plausible()),
        false => !first.has_port(137) && is_message(first.bytes),
    };
    match fits {
        true => Match::Yes,
        false => Match::No,
    }
}

/// Maximum number of pending questions.
const PENDING_MAX: usize = 4;

/// A question that waits for its answer.
#[derive(Clone)]
struct Pending {
    is_first: bool,
    id: u16,
    kind: u16,
    time_ns: u64,
    name: Text<64>,
}

/// Maximum number of earlier questions remembered that were reported without an answer.
const GIVEN_UP_MAX: usize = 16;

/// Hash (FNV-1a) that identifies a flow's question, ignoring case: some clients randomize the case,
/// and some servers answer in another. Never 0.
fn sum(id: u16, kind: u16, name: &[u8]) -> u32 {
    let [high, low] = id.to_be_bytes();
    let [kind_high, kind_low] = kind.to_be_bytes();
    let head = [high, low, kind_high, kind_low];
    let bytes = head.iter().copied();
    let bytes = bytes.chain(name.iter().map(u8::to_ascii_lowercase));
    let step = |sum: u32, byte| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    bytes.fold(0x811c_9dc5, step).max(1)
}

// The documentation states this number of states per page.
const _: () = assert!(super::arena::slots_of::<Datagrams>() == 11);

/// State of a flow's questions.
#[derive(Clone)]
pub(crate) struct Datagrams {
    /// Identifier and time of the first question.
    asked: Option<(u16, u64)>,
    /// Multicast: an announcement was reported, but no question was seen yet.
    is_announced: bool,
    /// Whether the first question has its answer: further ones are reported as transactions only.
    is_selected: bool,
    /// Whether the flow may be read past its first transaction; `None`: not requested yet.
    follows: Option<bool>,
    /// Whether any transaction was reported, and one as the first.
    has_ended: bool,
    has_first: bool,
    pending_count: u8,
    /// Pending questions, oldest first.
    pending: [Pending; PENDING_MAX],
    /// Hashes of questions that were reported without their answers, the oldest replaced first; 0:
    /// none.
    given_up: [u32; GIVEN_UP_MAX],
    given_up_next: u8,
}

impl Datagrams {
    const NEW: Datagrams = Datagrams {
        asked: None,
        is_announced: false,
        is_selected: false,
        follows: None,
        has_ended: false,
        has_first: false,
        pending_count: 0,
        pending: [const {
            Pending {
                is_first: false,
                id: 0,
                kind: 0,
                time_ns: 0,
                name: Text::EMPTY,
            }
        }; PENDING_MAX],
        given_up: [0; GIVEN_UP_MAX],
        given_up_next: 0,
    };

    fn datagram(
        &mut self,
        context: &mut Context<'_>,
        message: &[u8],
        out: &mut dyn FieldSink,
    ) -> Progress {
        let origin = context.origin;
        let Some(header) = Header::parse(message).filter(Header::is_plausible) else {
            return match self.is_selected {
                true => Progress::Need(HEADER_LEN),
                false => Progress::Reject(Reason::BadValue),
            };
        };
        let protocol = if origin.ports.contains(&PORT_MDNS) {
            Protocol::Mdns
        } else if origin.ports.contains(&PORT_LLMNR) {
            Protocol::Llmnr
        } else {
            Protocol::Dns
        };
        out.named(protocol);
        let was_asked = self.asked.is_some();
        let progress = match (self.is_selected, header.is_response()) {
            (true, _) => Progress::Need(HEADER_LEN),
            (false, true) => self.response(&header, protocol, &origin, message, out),
            (false, false) => self.query(&header, &origin, message, out),
        };
        // Multicast questions and answers cannot be matched.
        if protocol != Protocol::Dns {
            return progress;
        }
        match header.is_response() {
            true => self.answer(&header, &origin, message, !was_asked, out),
            false => self.ask(&header, &origin, message, out),
        }
        if progress != Progress::Done {
            // The first question may never be answered, but others are.
            if self.has_ended && matches!(progress, Progress::Need(_)) {
                self.follows.get_or_insert_with(|| context.follow());
            }
            return progress;
        }
        self.is_selected = true;
        match *self.follows.get_or_insert_with(|| context.follow()) {
            true => Progress::Need(HEADER_LEN),
            false => Progress::Done,
        }
    }

    /// Begins a transaction with a question, unless it is a retransmission.
    fn ask(&mut self, header: &Header, origin: &Origin, message: &[u8], out: &mut dyn FieldSink) {
        let mut text = Name::EMPTY;
        let Ok((kind, _, _)) = question(message, &mut text) else {
            return;
        };
        let mut name = Text::EMPTY;
        name.push(text.bytes());
        let waiting = &self.pending[..usize::from(self.pending_count).min(PENDING_MAX)];
        let is_same = |other: &Pending| {
            (other.id, other.kind) == (header.id, kind) && other.name.bytes() == name.bytes()
        };
        if waiting.iter().any(is_same) {
            return;
        }
        if self.given_up.contains(&sum(header.id, kind, name.bytes())) {
            return;
        }
        if waiting.len() == PENDING_MAX {
            let oldest = &waiting[0];
            let place = usize::from(self.given_up_next) % GIVEN_UP_MAX;
            self.given_up[place] = sum(oldest.id, oldest.kind, oldest.name.bytes());
            self.given_up_next = self.given_up_next.wrapping_add(1);
            self.reported(0, None, out);
        }
        let at = usize::from(self.pending_count).min(PENDING_MAX - 1);
        self.pending[at] = Pending {
            is_first: !core::mem::replace(&mut self.has_first, true),
            id: header.id,
            kind,
            time_ns: origin.time_ns,
            name,
        };
        self.pending_count += 1;
    }

    /// Ends the transaction of the answered question.
    fn answer(
        &mut self,
        header: &Header,
        origin: &Origin,
        message: &[u8],
        is_first: bool,
        out: &mut dyn FieldSink,
    ) {
        let mut text = Name::EMPTY;
        let asked = match header.questions {
            0 => None,
            _ => question(message, &mut text).ok(),
        };
        if let Some((kind, _, _)) = asked {
            let mut name: Text<64> = Text::EMPTY;
            name.push(text.bytes());
            let sum = sum(header.id, kind, name.bytes());
            if let Some(known) = self.given_up.iter_mut().find(|known| **known == sum) {
                *known = 0;
                return;
            }
        }
        let code = Value::Number((header.flags & 15).into());
        let count = Value::Number(header.answers.into());
        let waiting = &self.pending[..usize::from(self.pending_count).min(PENDING_MAX)];
        let fits = |other: &Pending| {
            let is_same = |(kind, _, _)| kind == other.kind;
            other.id == header.id && asked.is_none_or(is_same)
        };
        if let Some(at) = waiting.iter().position(fits) {
            let latency_ns = origin.time_ns.saturating_sub(waiting[at].time_ns);
            let latency = Value::Number(latency_ns);
            return self.reported(at, Some([code, count, latency]), out);
        }
        if let Some((kind, _, _)) = asked {
            let fields = [
                (Field::DnsName, text.value()),
                (Field::DnsType, Value::Number(kind.into())),
                (Field::DnsRcode, code),
                (Field::DnsAnswers, count),
            ];
            self.has_ended = true;
            let is_first = is_first && !core::mem::replace(&mut self.has_first, true);
            out.transaction(is_first, &fields);
        }
    }

    /// Reports the end of a transaction, with code, number of answers and latency if it was
    /// answered.
    fn reported(&mut self, at: usize, answer: Option<[Value<'_>; 3]>, out: &mut dyn FieldSink) {
        let Some(pending) = self.pending.get(at) else {
            return;
        };
        let kind = Value::Number(pending.kind.into());
        let asked = [
            (Field::DnsName, pending.name.value()),
            (Field::DnsType, kind),
        ];
        match answer {
            Some([code, count, latency]) => out.transaction(
                pending.is_first,
                &[
                    asked[0],
                    asked[1],
                    (Field::DnsRcode, code),
                    (Field::DnsAnswers, count),
                    (Field::DnsLatencyNs, latency),
                ],
            ),
            None => out.transaction(pending.is_first, &asked),
        }
        self.has_ended = true;
        self.pending[at..].rotate_left(1);
        self.pending_count = self.pending_count.saturating_sub(1);
    }

    fn tell_unanswered(&mut self, out: &mut dyn FieldSink) {
        while self.pending_count != 0 {
            self.reported(0, None, out);
        }
    }

    fn query(
        &mut self,
        header: &Header,
        origin: &Origin,
        message: &[u8],
        out: &mut dyn FieldSink,
    ) -> Progress {
        if self.asked.is_some() {
            return Progress::Need(HEADER_LEN);
        }
        let mut text = Name::EMPTY;
        match question(message, &mut text) {
            Ok((kind, _, _)) => {
                self.asked = Some((header.id, origin.time_ns));
                out.field(Field::DnsName, text.value());
                out.field(Field::DnsType, Value::Number(kind.into()));
                match self.is_announced {
                    true => Progress::Done,
                    false => Progress::Need(HEADER_LEN),
                }
            }
            Err(reason) => Progress::Reject(reason),
        }
    }

    fn response(
        &mut self,
        header: &Header,
        protocol: Protocol,
        origin: &Origin,
        message: &[u8],
        out: &mut dyn FieldSink,
    ) -> Progress {
        let is_mdns = protocol == Protocol::Mdns;
        if self.is_announced {
            return Progress::Need(HEADER_LEN);
        }
        if let Some((id, time_ns)) = self.asked
            && !is_mdns
        {
            if id != header.id {
                return Progress::Need(HEADER_LEN);
            }
            let latency_ns = origin.time_ns.saturating_sub(time_ns);
            out.field(Field::DnsLatencyNs, Value::Number(latency_ns));
        }
        out.field(Field::DnsRcode, Value::Number((header.flags & 15).into()));
        out.field(Field::DnsAnswers, Value::Number(header.answers.into()));
        match answers(header, message, out) {
            // RFC 6762 §6: responses have no question, and announcing hosts also send questions.
            Ok(()) if is_mdns && header.questions == 0 && self.asked.is_none() => {
                self.is_announced = true;
                Progress::Need(HEADER_LEN)
            }
            Ok(()) => Progress::Done,
            Err(reason) => Progress::Reject(reason),
        }
    }
}

/// A message over TCP, being received.
struct Message {
    head: [u8; 2],
    head_len: u8,
    is_over: bool,
    /// Number of bytes still missing.
    left: u16,
    len: u16,
    bytes: [u8; KEPT],
}

/// State of a connection.
pub(crate) struct Stream {
    sides: [Message; 2],
    datagrams: Datagrams,
}

impl Message {
    /// Reads input up to the end of the message. Returns true when it is complete.
    fn take(&mut self, input: &mut &[u8]) -> bool {
        while self.head_len < 2 {
            let Some((byte, rest)) = input.split_first() else {
                return false;
            };
            self.head[usize::from(self.head_len)] = *byte;
            self.head_len += 1;
            *input = rest;
            if self.head_len == 2 {
                self.left = u16::from_be_bytes(self.head);
                self.len = 0;
            }
        }
        let (part, rest) = input.split_at(input.len().min(self.left.into()));
        *input = rest;
        self.left -= part.len() as u16;
        let at = usize::from(self.len).min(KEPT);
        let len = part.len().min(KEPT - at);
        self.bytes[at..at + len].copy_from_slice(&part[..len]);
        self.len = (at + len) as u16;
        self.left == 0
    }
}

impl Decode for Datagrams {
    fn new() -> Datagrams {
        Datagrams::NEW
    }

    fn feed(
        &mut self,
        context: &mut Context<'_>,
        input: &[u8],
        out: &mut dyn FieldSink,
    ) -> Progress {
        self.datagram(context, input, out)
    }

    fn clear(&mut self) {
        // The rest of the message is not read.
        self.asked = None;
        (self.is_announced, self.is_selected, self.has_first) = (false, false, false);
        (self.follows, self.has_ended) = (None, false);
        (self.given_up, self.given_up_next) = ([0; GIVEN_UP_MAX], 0);
        self.pending_count = 0;
    }

    fn end(&mut self, out: &mut dyn FieldSink) {
        self.tell_unanswered(out);
    }
}

impl Decode for Stream {
    fn new() -> Stream {
        let message = || Message {
            head: [0; 2],
            head_len: 0,
            is_over: false,
            left: 0,
            len: 0,
            bytes: [0; KEPT],
        };
        Stream {
            sides: [message(), message()],
            datagrams: Datagrams::NEW,
        }
    }

    fn clear(&mut self) {
        for side in &mut self.sides {
            let Message {
                head: _,
                head_len,
                is_over,
                left,
                len,
                bytes: _,
            } = side;
            (*head_len, *is_over, *left, *len) = (0, false, 0, 0);
        }
        self.datagrams.clear();
    }

    fn end(&mut self, out: &mut dyn FieldSink) {
        self.datagrams.tell_unanswered(out);
    }

    fn feed(
        &mut self,
        context: &mut Context<'_>,
        input: &[u8],
        out: &mut dyn FieldSink,
    ) -> Progress {
        let origin = context.origin;
        let mut input = input;
        let side = &mut self.sides[origin.from as usize];
        while !input.is_empty() && !side.is_over {
            if !side.take(&mut input) {
                continue;
            }
            side.head_len = 0;
            let bytes = &side.bytes[..usize::from(side.len).min(KEPT)];
            match self.datagrams.datagram(context, bytes, out) {
                Progress::Need(_) => {}
                // The end of a long message was not kept: what was reported is valid.
                Progress::Reject(Reason::BadLength) if bytes.len() == KEPT => {
                    return Progress::Done;
                }
                over => return over,
            }
        }
        Progress::Need(2)
    }
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use super::*;
    use crate::{Application, Direction};

    #[test]
    fn the_answer_belongs_to_the_first_question() {
        let question = |id: u8, name: &[u8]| {
            let mut bytes = std::vec![0, id, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
            bytes.extend(name);
            bytes.extend([0, 1, 0, 1]);
            bytes
        };
        let answer = |id: u8, name: &[u8]| {
            let mut bytes = question(id, name);
            bytes[2..4].copy_from_slice(&[0x81, 0x83]);
            bytes[7] = 1;
            bytes.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 9, 0, 4, 192, 0, 2, 7]);
            bytes
        };
        let (one, two) = (b"\x01a\x02bc\0", b"\x01x\0");
        let mut a = Application::EMPTY;
        let mut flow = Datagrams::NEW;
        let mut scratch = super::super::Scratch::new();
        let mut give = |flow: &mut Datagrams, time_ns, message: &[u8], a: &mut Application| {
            let mut context = Context {
                origin: Origin {
                    from: Direction::Forward,
                    time_ns,
                    ports: [4000, 53],
                },
                may_follow: false,
                is_followed: false,
                is_refused: false,
                scratch: &mut scratch,
            };
            flow.datagram(&mut context, message, a)
        };
        let need = Progress::Need(HEADER_LEN);
        assert_eq!(give(&mut flow, 10, &question(1, one), &mut a), need);
        assert_eq!(give(&mut flow, 20, &question(2, two), &mut a), need);
        assert_eq!(give(&mut flow, 30, &answer(2, two), &mut a), need);
        assert_eq!(give(&mut flow, 45, &answer(1, one), &mut a), Progress::Done);
        assert_eq!(a.get(Field::DnsName), Some(Value::text(b"a.bc")));
        assert_eq!(a.get(Field::DnsRcode), Some(Value::Number(3)));
        assert_eq!(a.get(Field::DnsLatencyNs), Some(Value::Number(35)));
        let addr = Ipv4Addr::new(192, 0, 2, 7).into();
        assert_eq!(a.get(Field::DnsAnswer), Some(Value::Address(addr)));
        for message in [question(1, one), answer(7, two)] {
            assert!(is_message(&message));
            assert!(!is_message(&message[..message.len() - 1]));
        }
    }
}
