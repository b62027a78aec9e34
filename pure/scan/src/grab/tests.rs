//! Connections to a test server, written from the RFC: it sends its data in segments, retransmits
//! what is not acknowledged, and never shrinks its window.

use std::net::{IpAddr, Ipv4Addr};

use wire::checksum::Sum;

use super::segment::{FIN, PSH, SYN};
use super::*;
use crate::{AddrRange, FrameOptions, Frames, Options, Order, Payloads, Ports, Source, Targets};

pub(super) mod chain;
mod names;
mod segments;
mod ssh;

const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 9);
const CLIENT: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);
const MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);
const MS: u64 = 1_000_000;

/// Pseudo-random numbers.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn one_in(&mut self, n: u64) -> bool {
        n != 0 && self.next().is_multiple_of(n)
    }
}

/// The parts of a scan.
struct Scene {
    plan: Plan,
    cookies: Cookies,
    hops: NextHops,
    source: Source,
}

impl Scene {
    fn new(ports: &str) -> Self {
        let source = Source {
            ipv4: Some(CLIENT),
            ipv6: None,
            ports: (61_000, 4_000),
        };
        let mut ranges: Vec<AddrRange> = Vec::new();
        crate::parse_line("192.0.2.0/24", &mut ranges).unwrap();
        let targets = Targets::new(ranges, Vec::new()).unwrap();
        let order = Order {
            seed: 1,
            shard: crate::Shard::parse("1/1").unwrap(),
            attempts: 1,
            block: 1,
        };
        Self {
            plan: Plan::new(targets, Ports::tcp(ports).unwrap(), source, order).unwrap(),
            cookies: Cookies::new([3; 16], source),
            hops: NextHops::routers(Some(MAC), None),
            source,
        }
    }

    fn grabber(&self, count: u32) -> BannerGrabber<'_> {
        let grab = GrabOptions {
            connection_count_max: count,
            timeout_ns: 10_000 * MS,
            identity: Identity {
                random: [7; 32],
                user_agent: Identity::USER_AGENT.into(),
                contact: None,
            },
            keeps_certificates: true,
            names: Default::default(),
            hellos: Vec::new(),
        };
        BannerGrabber::new(&self.plan, &self.cookies, &self.hops, (MAC, 64), grab)
    }

    fn target(&self, port: u16) -> ProbeTarget {
        ProbeTarget {
            addr: IpAddr::V4(SERVER),
            probe: Probe::Syn,
            port,
        }
    }

    /// The probe as received by the server.
    fn syn(&self, port: u16) -> Segment {
        let look = FrameOptions {
            src_mac: MAC,
            ttl: 64,
            options: Options::Minimal,
        };
        let frames = Frames::new(self.source, look, &Payloads::built_in());
        let target = self.target(port);
        let mut out = vec![0; 128];
        let cookie = self.cookies.of(&target);
        let len = frames.write((&target, 0), (&cookie, 0), MAC, &mut out);
        let len = len.unwrap();
        Segment::of(&out[..len])
    }
}

/// A segment in either direction.
#[derive(Clone, Debug)]
struct Segment {
    ports: [u16; 2],
    seq: u32,
    ack: u32,
    flags: u16,
    window: u16,
    data: Vec<u8>,
}

impl Segment {
    /// Parses a packet, whose checksums must be right.
    fn of(packet: &[u8]) -> Self {
        let mut found = Dissection::EMPTY;
        dissect(LinkType::ETHERNET, packet, packet.len() as u32, &mut found);
        let tcp = &packet[34..];
        let sum = Sum::new().add_pseudo_ipv4(CLIENT, SERVER, 6, tcp.len() as u16);
        assert_eq!(sum.add_bytes(tcp).finish(), 0);
        assert_eq!(Sum::new().add_bytes(&packet[14..34]).finish(), 0);
        Self {
            ports: [found.src_port, found.dst_port],
            seq: found.tcp_seq,
            ack: found.tcp_ack,
            flags: found.tcp_flags,
            window: found.tcp_window,
            data: found.payload(packet).to_vec(),
        }
    }

    /// Builds the packet that the client receives.
    fn packet(&self) -> Vec<u8> {
        let mut out = vec![0; 12];
        out.extend([8, 0, 0x45, 0]);
        out.extend((40 + self.data.len() as u16).to_be_bytes());
        out.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
        out.extend(SERVER.octets());
        out.extend(CLIENT.octets());
        out.extend(self.ports[0].to_be_bytes());
        out.extend(self.ports[1].to_be_bytes());
        out.extend(self.seq.to_be_bytes());
        out.extend(self.ack.to_be_bytes());
        out.extend([0x50, self.flags as u8]);
        out.extend(self.window.to_be_bytes());
        out.extend([0, 0, 0, 0]);
        out.extend(&self.data);
        let sum = Sum::new().add_pseudo_ipv4(SERVER, CLIENT, 6, (out.len() - 34) as u16);
        let sum = sum.add_bytes(&out[34..]).finish();
        out[50..52].copy_from_slice(&sum.to_be_bytes());
        out
    }
}

/// Behaviour of a server.
#[derive(Clone)]
struct Manner {
    says: Vec<u8>,
    /// Says nothing before it was outcome something.
    answers: bool,
    /// Length of the first segment, and of all others.
    pieces: (usize, usize),
    window: u16,
    closes: bool,
}

impl Manner {
    fn says(text: &[u8]) -> Self {
        Self {
            says: text.to_vec(),
            answers: false,
            pieces: (1_460, 1_460),
            window: 4_096,
            closes: true,
        }
    }
}

/// The server's end of a connection.
struct Server {
    manner: Manner,
    syn: Segment,
    base: u32,
    acked: usize,
    heard: Vec<u8>,
    client_closed: bool,
    was_reset: bool,
    repeat_ns: u64,
}

impl Server {
    fn new(manner: Manner, syn: Segment) -> Self {
        Self {
            manner,
            base: 0xffff_ff00,
            acked: 0,
            heard: Vec::new(),
            client_closed: false,
            was_reset: false,
            repeat_ns: 0,
            syn,
        }
    }

    fn segment(&self, at: usize, flags: u16, data: &[u8]) -> Segment {
        let heard = self.heard.len() as u32 + u32::from(self.client_closed);
        Segment {
            ports: [self.syn.ports[1], self.syn.ports[0]],
            seq: self.base.wrapping_add(1 + at as u32),
            ack: self.syn.seq.wrapping_add(1 + heard),
            flags: flags | ACK,
            window: self.manner.window,
            data: data.to_vec(),
        }
    }

    fn syn_ack(&self) -> Segment {
        Segment {
            seq: self.base,
            ..self.segment(0, SYN, &[])
        }
    }

    /// All unacknowledged segments.
    fn flight(&self) -> Vec<Segment> {
        let mut out = Vec::new();
        if self.manner.answers && self.heard.is_empty() {
            return out;
        }
        let says = &self.manner.says;
        let (first, other) = self.manner.pieces;
        let mut at = 0;
        while at < says.len() {
            let len = if at == 0 { first } else { other };
            let end = says.len().min(at + len.max(1));
            if end > self.acked {
                out.push(self.segment(at, PSH, &says[at..end]));
            }
            at = end;
        }
        let closes = self.manner.closes || self.client_closed;
        if closes && self.acked <= says.len() {
            out.push(self.segment(says.len(), FIN, &[]));
        }
        out
    }

    fn receive(&mut self, segment: &Segment) -> Vec<Segment> {
        if segment.flags & RST != 0 {
            self.was_reset = true;
            return Vec::new();
        }
        let acked = segment.ack.wrapping_sub(self.base.wrapping_add(1)) as usize;
        let is_new = acked > self.acked && acked <= self.manner.says.len() + 1;
        if is_new {
            self.acked = acked;
        }
        let heard = self.heard.len() as u32 + u32::from(self.client_closed);
        let is_next = segment.seq == self.syn.seq.wrapping_add(1 + heard);
        let takes = !segment.data.is_empty() || segment.flags & FIN != 0;
        if is_next {
            assert!(segment.data.len() <= self.manner.window.max(1).into());
            self.heard.extend(&segment.data);
            self.client_closed |= segment.flags & FIN != 0;
        }
        match takes {
            true if self.flight().is_empty() => vec![self.segment(self.acked, 0, &[])],
            true => self.flight(),
            false => Vec::new(),
        }
    }
}

impl Server {
    /// The segments to retransmit.
    fn again(&self, grabber: &BannerGrabber<'_>, now_ns: u64) -> Vec<Segment> {
        if grabber.counted().connections == 0 && now_ns != 0 {
            return vec![self.syn_ack()];
        }
        match grabber.open_count() {
            0 => Vec::new(),
            _ => self.flight(),
        }
    }
}

/// Impairments of the link: one in N segments is lost, duplicated or reordered; 0 for none.
#[derive(Clone, Copy, Default)]
struct Wire {
    loses: u64,
    doubles: u64,
    delays: u64,
    seed: u64,
}

/// Result of a connection.
struct Outcome {
    banners: Vec<Banner>,
    server: Server,
    counted: GrabCounts,
}

/// Runs a connection to its end.
fn converse(port: u16, manner: &Manner, wire: Wire) -> Outcome {
    let scene = Scene::new("1-65535");
    let mut grabber = scene.grabber(4);
    let mut server = Server::new(manner.clone(), scene.syn(port));
    let mut random = Random(wire.seed | 1);
    let mut banners = Vec::new();
    let mut to_client: Vec<(u64, Segment)> = vec![(0, server.syn_ack())];
    let mut to_server: Vec<(u64, Segment)> = Vec::new();
    let mut now_ns = 0;
    while now_ns < 120_000 * MS {
        let mut transit = |queue: &mut Vec<(u64, Segment)>, segment: Segment, now_ns: u64| {
            if random.one_in(wire.loses) {
                return;
            }
            let late = if random.one_in(wire.delays) {
                30 * MS
            } else {
                5 * MS
            };
            if random.one_in(wire.doubles) {
                queue.push((now_ns + late + 9 * MS, segment.clone()));
            }
            queue.push((now_ns + late, segment));
        };
        let arrived = |queue: &mut Vec<(u64, Segment)>| {
            let (now, later) = queue.drain(..).partition(|(at, _)| *at <= now_ns);
            *queue = later;
            Vec::<(u64, Segment)>::into_iter(now)
        };
        for (_, segment) in arrived(&mut to_client) {
            grabber.receive(&segment.packet(), now_ns, &mut |banner| {
                banners.push(banner)
            });
        }
        grabber.tick(now_ns, &mut |banner| banners.push(banner));
        while grabber.next_len().is_some() {
            let mut out = [0; 2_000];
            let len = grabber.write(&mut out).unwrap();
            transit(&mut to_server, Segment::of(&out[..len]), now_ns);
        }
        for (_, segment) in arrived(&mut to_server) {
            for answer in server.receive(&segment) {
                transit(&mut to_client, answer, now_ns);
            }
            server.repeat_ns = now_ns + 200 * MS;
        }
        if now_ns >= server.repeat_ns && !server.was_reset {
            server.repeat_ns = now_ns + 200 * MS;
            for segment in server.again(&grabber, now_ns) {
                transit(&mut to_client, segment, now_ns);
            }
        }
        let is_idle = to_client.is_empty() && to_server.is_empty();
        if is_idle && grabber.open_count() == 0 && grabber.counted().connections != 0 {
            break;
        }
        now_ns += MS;
    }
    assert_eq!(grabber.open_count(), 0, "a connection was left open");
    let counted = *grabber.counted();
    Outcome {
        banners,
        server,
        counted,
    }
}

const SSH: &[u8] = b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n";
const HTTP: &[u8] = b"HTTP/1.1 200 OK\r\nServer: nginx/1.22.1\r\nContent-Type: text/html\r\n\
    Content-Length: 35\r\nConnection: close\r\n\r\n<html><title>hello</title>text</html>";
const SMTP: &[u8] = b"220 mail.example.org ESMTP Postfix (Debian/GNU)\r\n";
const TELNET: &[u8] = b"\xff\xfd\x18\xff\xfb\x01\r\nhost login: ";
const VNC: &[u8] = b"RFB 003.008\n\x02\x01\x02";
const MEMCACHED: &[u8] = b"VERSION 1.6.18\r\n";

fn json(banner: &Banner) -> String {
    let mut out = Vec::new();
    inspect::json(&banner.application, None, &mut out);
    String::from_utf8(out).unwrap()
}

#[test]
fn banners_of_services_that_speak_first_or_answer() {
    for (port, text, name) in [
        (22, SSH, "ssh"),
        (25, SMTP, "smtp"),
        (80, HTTP, "http"),
        (12_345, HTTP, "http"),
        (
            23,
            TELNET,
            r#""telnet_option":["do 24","will 1"],"telnet_text":"host login:""#,
        ),
        (12_347, TELNET, "telnet"),
        (5900, VNC, r#""vnc_version":"003.008","vnc_security":"1,2""#),
        (12_348, VNC, r#""vnc_security":"1,2""#),
        (11_211, MEMCACHED, r#""memcached_version":"1.6.18""#),
        (12_346, SSH, "ssh"),
    ] {
        let manner = Manner {
            answers: text == HTTP,
            closes: text == HTTP,
            ..Manner::says(text)
        };
        let outcome = converse(port, &manner, Wire::default());
        assert_eq!(outcome.banners.len(), 1, "{port}");
        let banner = &outcome.banners[0];
        assert_eq!(banner.start, text);
        assert!(json(banner).contains(name), "{}", json(banner));
        assert!(outcome.server.client_closed && !outcome.server.was_reset);
        assert_eq!(outcome.counted.banners, 1);
    }
}

#[test]
fn a_banner_does_not_depend_on_segmentation() {
    for (port, text) in [
        (22, SSH),
        (80, HTTP),
        (80, SMTP),
        (25, SMTP),
        (23, TELNET),
        (5900, VNC),
        (12_347, VNC),
        (11_211, MEMCACHED),
    ] {
        let whole = converse(port, &Manner::says(text), Wire::default());
        let expected = (json(&whole.banners[0]), text.to_vec());
        for first in 1..text.len() {
            for other in [1_460, 1] {
                let manner = Manner {
                    pieces: (first, other),
                    ..Manner::says(text)
                };
                let outcome = converse(port, &manner, Wire::default());
                let banner = &outcome.banners[0];
                assert_eq!((json(banner), banner.start.clone()), expected, "{first}");
            }
        }
    }
}

#[test]
fn a_banner_arrives_over_a_lossy_link() {
    let mut repeated = 0;
    let mut early = 0;
    for seed in 1..=300u64 {
        let wire = Wire {
            loses: 6,
            doubles: 5,
            delays: 3,
            seed: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        };
        let manner = Manner {
            answers: true,
            pieces: (10, 30),
            ..Manner::says(HTTP)
        };
        let outcome = converse(80, &manner, wire);
        repeated += outcome.counted.repeated;
        early += outcome.counted.early;
        // The hello may be lost five times running; then nothing was said.
        assert!(outcome.banners.len() <= 1);
        if let Some(banner) = outcome.banners.first() {
            assert!(HTTP.starts_with(&banner.start), "{seed}");
            assert!(outcome.server.heard.starts_with(b"GET / HTTP/1.1\r\n"));
            if banner.ending == Ending::Closed {
                assert_eq!(banner.start, HTTP);
            }
        } else {
            assert!(
                outcome.counted.silent == 1 && outcome.counted.repeated >= 4,
                "{seed}"
            );
        }
    }
    assert!(repeated > 100 && early > 100, "{repeated} {early}");
}

#[test]
fn a_window_of_one_byte_is_not_overrun() {
    const INFO: &[u8] = b"*2\r\n$4\r\nINFO\r\n$6\r\nserver\r\n";
    let manner = Manner {
        window: 1,
        answers: false,
        closes: false,
        ..Manner::says(b"")
    };
    let outcome = converse(6379, &manner, Wire::default());
    assert_eq!(outcome.server.heard, INFO);
    let manner = Manner {
        window: 0,
        ..manner
    };
    let outcome = converse(6379, &manner, Wire::default());
    // A probe of the window takes one byte with it, and this server keeps it.
    assert!(INFO.starts_with(&outcome.server.heard));
    // Nor does it answer the second connection, for TLS.
    assert_eq!(
        (outcome.counted.connections, outcome.counted.silent),
        (2, 2)
    );
}

#[test]
fn an_endless_server_is_closed() {
    let manner = Manner::says(&vec![b'x'; 200_000]);
    let outcome = converse(25, &manner, Wire::default());
    let banner = &outcome.banners[0];
    assert_eq!(banner.start.len(), 1_024);
    assert!(banner.byte_count < 50_000);
    assert_eq!(banner.ending, Ending::Enough);
}

#[test]
fn segments_without_a_connection_are_reset_and_a_full_table_refuses() {
    let scene = Scene::new("22");
    let mut grabber = scene.grabber(0);
    let server = Server::new(Manner::says(SSH), scene.syn(22));
    let none = &mut |_| panic!("no banner");
    grabber.receive(&server.syn_ack().packet(), 0, none);
    assert_eq!(grabber.counted().refused, 1);
    let mut out = [0; 100];
    let len = grabber.write(&mut out).unwrap();
    let reset = Segment::of(&out[..len]);
    assert_eq!((reset.flags, reset.seq), (RST, server.syn_ack().ack));
    // Neither a reset nor a segment to another port is answered.
    for (flags, port) in [(RST | ACK, 0), (ACK, 1)] {
        let mut segment = server.segment(0, 0, b"x");
        segment.flags = flags;
        segment.ports[1] = segment.ports[1].wrapping_add(port);
        grabber.receive(&segment.packet(), 0, none);
        assert_eq!(grabber.next_len(), None);
    }
}

#[test]
fn arbitrary_segments_leave_everything_bounded() {
    let scene = Scene::new("1-100");
    let mut random = Random(0x5eed);
    let mut grabber = scene.grabber(8);
    let mut reported = 0;
    let mut now_ns = 0;
    for _ in 0..200_000 {
        let port = 1 + (random.next() % 100) as u16;
        let server = Server::new(Manner::says(SSH), scene.syn(port));
        let mut segment = server.syn_ack();
        if !random.one_in(4) {
            let len = random.next() as usize % 40;
            let data = (0..len).map(|_| random.next() as u8).collect::<Vec<u8>>();
            segment = server.segment(0, random.next() as u16 & 0xff, &data);
            segment.flags &= if random.one_in(2) { 0xff } else { !SYN & !RST };
            segment.seq = segment.seq.wrapping_add((random.next() % 300) as u32);
            segment.ack = segment.ack.wrapping_add((random.next() % 200) as u32);
            segment.window = random.next() as u16;
        }
        grabber.receive(&segment.packet(), now_ns, &mut |_| reported += 1);
        assert!(grabber.open_count() <= 8);
        let mut out = [0; 1_500];
        while grabber.next_len().is_some() {
            grabber.write(&mut out).unwrap();
        }
        now_ns += random.next() % (50 * MS);
        grabber.tick(now_ns, &mut |_| reported += 1);
    }
    grabber.close_all(&mut |_| reported += 1);
    assert_eq!(grabber.open_count(), 0);
    let counted = grabber.counted();
    assert_eq!(counted.banners, reported);
    assert_eq!(counted.connections, counted.banners + counted.silent);
    // To a silent service there may be a second one, which speaks TLS.
    assert!((100..=200).contains(&counted.connections));
}
