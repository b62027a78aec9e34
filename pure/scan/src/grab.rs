//! Banner grabbing with a small user-space TCP.
//!
//! The host's kernel has no state for these connections: the port receives their segments before
//! the kernel does (XDP), or a firewall rule drops the kernel's resets. A [`BannerGrabber`] opens a
//! connection for each SYN+ACK that answers a probe of this scan, sends a [`hello`], passes
//! in-order data to the decoders of `inspect`, and closes with a FIN.
//!
//! Memory is bounded by the number of connections. Nothing is reassembled: out-of-order data is
//! dropped and acknowledged up to the gap (RFC 9293 §3.10.7.4, RFC 5681 §4.2), so the server
//! retransmits it. Only the first bytes from a server are kept, for the report.

mod again;
mod banner;
mod certificates;
mod connection;
mod datagram;
mod fields;
pub mod hello;
mod page;
pub(crate) mod segment;
mod starttls;
mod table;
#[cfg(test)]
mod tests;
pub(crate) mod tls;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use inspect::Tools;
use wire::{Dissection, LayerKind, LinkType, Mac, dissect};

use crate::answer::{AnswerClassifier, State};
use crate::cookie::{Cookies, ProbeTarget};
use crate::hops::NextHops;
use crate::plan::Plan;
use crate::probe::Probe;

pub use banner::Banner;
pub use certificates::Certificate;
pub use connection::Ending;
use connection::{Connection, Ends, Step};
pub use datagram::DatagramReader;
pub use fields::CertificateFields;
pub use hello::{Given, GivenHello, HELLO_LEN_MAX, IDENTITY_MAX, Identity, service_names};
use hello::{Hello, To};
use segment::{ACK, Incoming, Outgoing, RST, SYN, Sender};
use table::Table;

/// Names by address.
pub type Names = HashMap<IpAddr, Vec<Arc<str>>>;

/// Limits and settings of connections.
#[derive(Clone, Debug)]
pub struct GrabOptions {
    /// Maximum number of open connections.
    pub connection_count_max: u32,
    /// Maximum duration of a connection.
    pub timeout_ns: u64,
    /// What the scanner says about itself.
    pub identity: Identity,
    /// Whether the certificates of TLS servers are kept.
    pub keeps_certificates: bool,
    /// The names by which targets were given.
    pub names: Names,
    /// What is said first to some ports; the last one of a port counts.
    pub hellos: Vec<Given>,
}

/// Counters of banner grabbing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GrabCounts {
    /// Connections opened.
    pub connections: u64,
    /// Connections with a banner.
    pub banners: u64,
    /// Connections without a banner, and how they ended.
    pub silent: u64,
    /// Open ports that were not connected to, because too many connections were open.
    pub refused: u64,
    /// Segments sent.
    pub segments: u64,
    /// Segments retransmitted.
    pub repeated: u64,
    /// Segments that arrived out of order, and were dropped.
    pub early: u64,
    /// Segments received for a connection after its first SYN+ACK, late ones included.
    pub received: u64,
}

/// Maximum number of segments that wait to be sent; excess ones are dropped as if lost in transit.
const OUT_MAX: usize = 1 << 15;
/// More bytes than any connection sends.
const SENT_MAX: u32 = 1 << 16;
/// Number of connections remembered, so that none is opened twice.
const KNOWN_MAX: usize = 1 << 22;

/// The connections of a scan.
pub struct BannerGrabber<'p> {
    classifier: AnswerClassifier<'p>,
    cookies: &'p Cookies,
    plan: &'p Plan,
    hops: &'p NextHops,
    sender: Sender,
    grab: GrabOptions,
    tools: Tools,
    table: Table,
    known: std::collections::HashSet<ProbeTarget>,
    known_certificates: certificates::Reported,
    out: std::collections::VecDeque<Outgoing>,
    counted: GrabCounts,
}

impl<'p> BannerGrabber<'p> {
    /// Without connections; segments have this source MAC address and TTL, as the probes do.
    pub fn new(
        plan: &'p Plan,
        cookies: &'p Cookies,
        hops: &'p NextHops,
        (src_mac, ttl): (Mac, u8),
        grab: GrabOptions,
    ) -> Self {
        let pages = grab.connection_count_max.max(1);
        Self {
            classifier: AnswerClassifier::new(plan, cookies),
            sender: Sender::new(*plan.source(), src_mac, ttl),
            cookies,
            plan,
            hops,
            tools: Tools::new(inspect::Decoders::ALL, pages),
            table: Table::new(grab.connection_count_max),
            known: Default::default(),
            known_certificates: Default::default(),
            out: Default::default(),
            counted: GrabCounts::default(),
            grab,
        }
    }

    /// Number of open connections.
    pub fn open_count(&self) -> usize {
        self.table.len()
    }

    /// The counters so far.
    pub fn counted(&self) -> &GrabCounts {
        &self.counted
    }

    /// When [`tick`](Self::tick) is due, if ever.
    pub fn due_ns(&self) -> Option<u64> {
        self.table.due_ns()
    }

    /// Handles an Ethernet packet. Banners of ended connections are passed to `report`.
    pub fn receive(&mut self, packet: &[u8], now_ns: u64, report: &mut dyn FnMut(Banner)) {
        let mut found = Dissection::EMPTY;
        dissect(LinkType::ETHERNET, packet, packet.len() as u32, &mut found);
        let Some(incoming) = Incoming::of(&found, packet) else {
            return;
        };
        if !found.has(LayerKind::Tcp) || found.dst_addr().is_none_or(|dst| !self.is_own(dst)) {
            return;
        }
        let target = ProbeTarget {
            addr: incoming.from,
            probe: Probe::Syn,
            port: incoming.from_port,
        };
        if let Some(slot) = self.table.find(&target) {
            let connection = self.table.get(slot);
            let is_old = connection.is_some_and(|one| one.ends().local_port != incoming.to_port);
            // One before the present connection, from another port.
            return match is_old {
                true => self.reset(&target, &incoming),
                false => self.deliver(slot, &incoming, now_ns, report),
            };
        }
        if self.opens(packet, &target) {
            return self.open(target, &incoming, now_ns);
        }
        self.reset(&target, &incoming);
    }

    fn is_own(&self, addr: IpAddr) -> bool {
        self.plan.source().is_own(addr)
    }

    /// Whether a packet is the first SYN+ACK that answers a probe.
    fn opens(&self, packet: &[u8], target: &ProbeTarget) -> bool {
        let answer = self.classifier.classify(packet);
        answer.is_some_and(|answer| answer.state == State::Open) && !self.known.contains(target)
    }

    fn open(&mut self, target: ProbeTarget, incoming: &Incoming<'_>, now_ns: u64) {
        let cookie = self.cookies.of(&target);
        let ends = Ends {
            target,
            name: self
                .grab
                .names
                .get(&target.addr)
                .and_then(|names| names.first())
                .cloned(),
            own: self.own_addr(target.addr),
            local_port: self.plan.source().port(&cookie),
            base: cookie.seq.wrapping_add(1),
            timeout_ns: self.grab.timeout_ns,
            keeps_chain: self.grab.keeps_certificates,
        };
        let first = self.first(Hello::of(target.port, &self.grab.hellos), &ends);
        let mut connection = Connection::accepted(ends, incoming, first, now_ns);
        if self.known.len() >= KNOWN_MAX || self.table.is_full() {
            self.counted.refused += 1;
            return self.reset(&target, incoming);
        }
        self.known.insert(target);
        self.counted.connections += 1;
        let step = connection.begin(now_ns);
        let slot = self.table.insert(connection);
        self.act(slot, step, now_ns, &mut |_| {});
    }

    /// A hello, and what it says.
    fn first(&self, hello: Hello, ends: &Ends) -> (Hello, Vec<u8>) {
        let to = To {
            target: &ends.target,
            name: ends.name.as_deref(),
        };
        let said = hello.bytes(&to, &self.grab.identity);
        (hello, said)
    }

    /// Our address on the way to another one.
    fn own_addr(&self, to: IpAddr) -> IpAddr {
        let source = self.plan.source();
        let own = match to {
            IpAddr::V4(_) => source.ipv4.map(IpAddr::V4),
            IpAddr::V6(_) => source.ipv6.map(IpAddr::V6),
        };
        own.unwrap_or(to)
    }

    fn deliver(
        &mut self,
        slot: u32,
        incoming: &Incoming<'_>,
        now_ns: u64,
        report: &mut dyn FnMut(Banner),
    ) {
        let Some(connection) = self.table.get_mut(slot) else {
            return;
        };
        // A repeated SYN+ACK counts as a repeated answer.
        self.counted.received += u64::from(incoming.flags & SYN == 0 || connection.is_opening());
        let early = connection.early_count();
        let aids = (&mut self.tools, &self.grab.identity);
        let step = connection.receive(incoming, now_ns, aids);
        self.counted.early += connection.early_count() - early;
        self.act(slot, step, now_ns, report);
    }

    /// Resets a segment that belongs to no connection, as any host does (RFC 9293 §3.10.7.1), so
    /// that the peer need not wait for its timer. Only targets of this scan are sent resets, to the
    /// ports it uses, and only if they acknowledge what it may have sent: another scan may have
    /// connections to the same targets.
    fn reset(&mut self, target: &ProbeTarget, incoming: &Incoming<'_>) {
        let cookie = self.cookies.of(target);
        let is_asked = self.plan.contains(target)
            && self.plan.source().port(&cookie) == incoming.to_port
            && incoming.ack.wrapping_sub(cookie.seq.wrapping_add(1)) <= SENT_MAX;
        // A reset is of a connection if there was one, or else of a closed port.
        let is_of_connection = incoming.flags & RST == 0 || self.known.contains(target);
        let is_late = is_asked && incoming.flags & SYN == 0 && is_of_connection;
        self.counted.received += u64::from(is_late);
        if incoming.flags & RST != 0 || incoming.flags & ACK == 0 || !is_asked {
            return;
        }
        self.push(Outgoing {
            addr: target.addr,
            port: target.port,
            local_port: incoming.to_port,
            seq: incoming.ack,
            ack: 0,
            flags: RST,
            slot: u32::MAX,
            data: (0, 0),
        });
    }

    fn push(&mut self, outgoing: Outgoing) {
        if self.out.len() < OUT_MAX {
            self.out.push_back(outgoing);
        }
    }

    /// Carries out the step of a connection.
    fn act(&mut self, slot: u32, step: Step, now_ns: u64, report: &mut dyn FnMut(Banner)) {
        let Some(connection) = self.table.get_mut(slot) else {
            return;
        };
        self.counted.repeated += u64::from(step.is_repeated);
        let banner = step
            .ended
            .map(|ending| connection.banner(ending, &mut self.tools));
        if let Some(banner) = banner
            && self.again(slot, banner, now_ns, report)
        {
            return;
        }
        let Some(connection) = self.table.get_mut(slot) else {
            return;
        };
        let outgoing = step.send.map(|what| connection.outgoing(what, slot));
        if let Some(outgoing) = outgoing {
            self.push(outgoing);
        }
        if step.is_over {
            self.table.remove(slot);
        } else {
            self.table.reschedule(slot);
        }
    }

    /// Reports the banner of a service, if it has said anything.
    fn report(&mut self, mut banner: Banner, report: &mut dyn FnMut(Banner)) {
        let known = &mut self.known_certificates;
        let certificates = &mut banner.certificates;
        certificates.retain(|certificate| known.is_new(&certificate.sha256));
        match banner.byte_count {
            0 => self.counted.silent += 1,
            _ => {
                self.counted.banners += 1;
                report(banner);
            }
        }
    }

    /// Handles expired timers.
    pub fn tick(&mut self, now_ns: u64, report: &mut dyn FnMut(Banner)) {
        while let Some(slot) = self.table.pop_due(now_ns) {
            let Some(connection) = self.table.get_mut(slot) else {
                continue;
            };
            let step = connection.tick(now_ns, &self.grab.identity);
            self.act(slot, step, now_ns, report);
        }
    }

    /// Ends all connections: their banners so far are reported, and they are reset.
    pub fn close_all(&mut self, report: &mut dyn FnMut(Banner)) {
        for slot in self.table.slots() {
            if let Some(connection) = self.table.get_mut(slot) {
                let step = connection.abort(Ending::Stopped);
                self.act(slot, step, u64::MAX, report);
            }
        }
    }

    /// Length of the next segment in bytes, if one waits to be sent.
    pub fn next_len(&mut self) -> Option<usize> {
        while let Some(outgoing) = self.out.front() {
            if self.hops.mac(outgoing.addr).is_some() && self.is_current(outgoing) {
                return Some(self.sender.len(outgoing));
            }
            self.out.pop_front();
        }
        None
    }

    /// Whether the connection of a segment with data still owns its slot.
    fn is_current(&self, outgoing: &Outgoing) -> bool {
        let (at, len) = outgoing.data;
        len == 0 || self.data(outgoing).len() == usize::from(len) && at.checked_add(len).is_some()
    }

    fn data(&self, outgoing: &Outgoing) -> &[u8] {
        let (at, len) = outgoing.data;
        let connection = self.table.get(outgoing.slot);
        let connection =
            connection.filter(|one| one.is_at(outgoing.addr, (outgoing.port, outgoing.local_port)));
        connection.map_or(&[], |one| one.said(at, len))
    }

    /// Writes the segment of [`next_len`](Self::next_len); `None` if it does not fit.
    pub fn write(&mut self, out: &mut [u8]) -> Option<usize> {
        let outgoing = *self.out.front()?;
        let mac = self.hops.mac(outgoing.addr)?;
        let data = self.data(&outgoing);
        let len = self.sender.write(&outgoing, data, mac, out)?;
        self.out.pop_front();
        self.counted.segments += 1;
        Some(len)
    }
}
