//! Generated sample conversations: at least one per decoder.

// Each test binary uses its part.
#![allow(dead_code)]

use barewire_inspect::Direction::{self, Forward, Reverse};
use barewire_inspect::Transport::{self, Tcp, Udp};
use barewire_inspect::laws;

mod offices;
pub mod secured;
mod services;
mod texts;

/// A conversation.
pub struct Sample {
    pub name: &'static str,
    pub transport: Transport,
    pub ports: [u16; 2],
    pub pieces: Vec<(Direction, Vec<u8>)>,
}

impl Sample {
    fn new(name: &'static str, transport: Transport, port: u16) -> Sample {
        Sample {
            name,
            transport,
            ports: [40_000, port],
            pieces: Vec::new(),
        }
    }

    fn with(mut self, from: Direction, bytes: impl AsRef<[u8]>) -> Sample {
        self.pieces.push((from, bytes.as_ref().to_vec()));
        self
    }

    pub fn pieces(&self) -> Vec<laws::Piece<'_>> {
        self.pieces
            .iter()
            .map(|(from, bytes)| (*from, &bytes[..]))
            .collect()
    }
}

fn sized8(bytes: &[u8]) -> Vec<u8> {
    [&[bytes.len() as u8], bytes].concat()
}

fn sized16(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat()
}

fn words(numbers: &[u16]) -> Vec<u8> {
    numbers
        .iter()
        .flat_map(|number| number.to_be_bytes())
        .collect()
}

/// A handshake message with the fields common to all hellos.
fn handshake(kind: u8, body: &[u8]) -> Vec<u8> {
    let len = (body.len() as u32).to_be_bytes();
    [&[kind], &len[1..], body].concat()
}

fn extensions(list: &[(u16, Vec<u8>)]) -> Vec<u8> {
    let bytes = list
        .iter()
        .flat_map(|(number, body)| [&number.to_be_bytes()[..], &sized16(body)].concat());
    sized16(&bytes.collect::<Vec<u8>>())
}

pub fn client_hello(ciphers: &[u16], list: &[(u16, Vec<u8>)]) -> Vec<u8> {
    let mut body = vec![3, 3];
    body.extend([0x5a; 32]);
    body.extend(sized8(&[7; 32]));
    body.extend(sized16(&words(ciphers)));
    body.extend(sized8(&[0]));
    body.extend(extensions(list));
    handshake(1, &body)
}

pub fn server_hello(cipher: u16, list: &[(u16, Vec<u8>)]) -> Vec<u8> {
    let mut body = vec![3, 3];
    body.extend([0xa5; 32]);
    body.extend(sized8(&[7; 32]));
    body.extend(words(&[cipher]));
    body.push(0);
    body.extend(extensions(list));
    handshake(2, &body)
}

/// Splits a handshake into records of at most `len` bytes.
fn records(handshake: &[u8], len: usize) -> Vec<u8> {
    let record = |part: &[u8]| [&[22, 3, 1][..], &sized16(part)].concat();
    handshake.chunks(len).flat_map(record).collect()
}

pub fn sni(name: &[u8]) -> (u16, Vec<u8>) {
    (0, sized16(&[&[0][..], &sized16(name)].concat()))
}

pub fn alpn(names: &[&[u8]]) -> (u16, Vec<u8>) {
    let list: Vec<u8> = names.iter().flat_map(|name| sized8(name)).collect();
    (16, sized16(&list))
}

/// The example hello in the description of JA4: Chrome, with GREASE.
pub fn chrome() -> Vec<u8> {
    let ciphers = [
        0x2a2a, 0x1301, 0x1302, 0x1303, 0xc02b, 0xc02f, 0xc02c, 0xc030, 0xcca9, 0xcca8, 0xc013,
        0xc014, 0x009c, 0x009d, 0x002f, 0x0035,
    ];
    let signatures = [
        0x0403, 0x0804, 0x0401, 0x0503, 0x0805, 0x0501, 0x0806, 0x0601,
    ];
    let list = [
        (0xdada, vec![]),
        (0x001b, vec![2, 0, 2]),
        sni(b"example.org"),
        (0x0033, vec![0x33; 1200]),
        alpn(&[b"h2", b"http/1.1"]),
        (0x4469, vec![0, 3, 2, b'h', b'2']),
        (0x0017, vec![]),
        (0x002d, vec![1, 1]),
        (0x000d, sized16(&words(&signatures))),
        (0x0005, vec![1, 0, 0, 0, 0]),
        (0x0023, vec![]),
        (0x0012, vec![]),
        (0x002b, sized8(&words(&[0xfafa, 0x0304, 0x0303]))),
        (0xff01, vec![0]),
        (0x000b, sized8(&[0])),
        (0x000a, sized16(&words(&[0x3a3a, 0x001d, 0x0017, 0x0018]))),
        (0x0015, vec![0; 90]),
    ];
    client_hello(&ciphers, &list)
}

pub fn answer() -> Vec<u8> {
    server_hello(
        0x1301,
        &[(0x0033, vec![1; 36]), (0x002b, vec![3, 4]), alpn(&[b"h2"])],
    )
}

fn tls() -> Vec<Sample> {
    let small = client_hello(&[0xc02f], &[sni(b"a.example"), alpn(&[b"x"])]);
    vec![
        Sample::new("tls", Tcp, 443)
            .with(Forward, records(&chrome(), 16_000))
            .with(Reverse, records(&answer(), 16_000)),
        Sample::new("tls-records", Tcp, 9999)
            .with(Forward, &records(&small, 9)[..40])
            .with(Forward, &records(&small, 9)[40..])
            .with(Reverse, records(&answer(), 7)),
        Sample::new("tls-bare", Tcp, 443)
            .with(
                Forward,
                records(&handshake(1, &client_hello(&[5], &[])[4..][..73]), 99),
            )
            .with(Reverse, [21, 3, 1, 0, 2, 2, 40]),
        Sample::new("tls-encrypted", Tcp, 443).with(Forward, [23, 3, 3, 0, 3, 9, 9, 9, 23, 3, 3]),
    ]
}

fn crypto(offset: u16, data: &[u8]) -> Vec<u8> {
    let head = [6, 0x40 | (offset >> 8) as u8, offset as u8];
    let len = (data.len() as u16 | 0x4000).to_be_bytes();
    [&head[..], &len, data].concat()
}

fn quic() -> Vec<Sample> {
    let hello = chrome();
    let (a, b, c) = (&hello[..300], &hello[300..1000], &hello[1000..]);
    let one = [crypto(300, b), vec![1, 0, 0], crypto(1000, &c[..50])].concat();
    let two = [crypto(0, a), crypto(1040, &c[40..])].concat();
    let seal = laws::quic_datagram;
    let mut samples = Vec::new();
    for (name, version) in [("quic-v1", 1), ("quic-v2", 0x6b33_43cf)] {
        let sample = Sample::new(name, Udp, 443)
            .with(Forward, seal(version, b"first id", false, 0, &one))
            .with(Forward, seal(version, b"first id", false, 1, &two))
            .with(
                Reverse,
                seal(version, b"first id", true, 0, &crypto(0, &answer())),
            );
        samples.push(sample);
    }
    // Facebook's number for draft 27, and one that forces negotiation.
    for (name, version) in [("quic-mvfst", 0xface_b002), ("quic-forced", 0x1a2a_3a4a)] {
        let frames = crypto(0, &hello[..1100]);
        let rest = crypto(1100, &hello[1100..]);
        let sample = Sample::new(name, Udp, 443)
            .with(Forward, seal(version, b"first id", false, 0, &frames))
            .with(Forward, seal(version, b"first id", false, 1, &rest));
        samples.push(sample);
    }
    // Google's frames: its CRYPTO, after an acknowledgement of one packet in the answer.
    let google = |offset, data: &[u8]| {
        let mut frame = crypto(offset, data);
        frame[0] = 8;
        frame
    };
    let t051 = u32::from_be_bytes(*b"T051");
    let acknowledged = [&[0x40, 1, 0, 0, 1, 0][..], &google(0, &answer())].concat();
    samples.push(
        Sample::new("quic-t051", Udp, 443)
            .with(
                Forward,
                seal(t051, b"first id", false, 0, &google(0, &hello[..1100])),
            )
            .with(
                Forward,
                seal(t051, b"first id", false, 1, &google(1100, &hello[1100..])),
            )
            .with(Reverse, seal(t051, b"first id", true, 0, &acknowledged)),
    );
    samples
}

/// The same frames before protection.
pub fn quic_frames() -> Vec<(Direction, Vec<u8>)> {
    let hello = chrome();
    vec![
        (Forward, crypto(700, &hello[700..])),
        (
            Forward,
            [crypto(0, &hello[..700]), vec![1, 2, 0, 0, 0, 0]].concat(),
        ),
        (Reverse, crypto(0, &answer())),
    ]
}

/// Data and their direction.
pub type Pieces = Vec<(Direction, Vec<u8>)>;

/// The same handshake in other orders and among other frames (RFC 9000 section 19), one packet per
/// piece, by name: valid variants, and those that only an attacker sends.
pub fn quic_frame_orders() -> Vec<(&'static str, Pieces)> {
    let hello = chrome();
    let part = |from: usize, to: usize| crypto(from as u16, &hello[from..to.min(hello.len())]);
    let len = hello.len();
    let whole = |frames: Vec<Vec<u8>>| vec![(Forward, frames.concat())];
    // Every third run of 50 bytes first, then the others: as browsers shuffle theirs.
    let shuffled = |start: usize| (start..len).step_by(150).map(|at| part(at, at + 50));
    // ACK of two ranges, with and without ECN counts; CONNECTION_CLOSE with a phrase.
    let ack = vec![2, 9, 0, 1, 2, 1, 0];
    let ack_ecn = vec![3, 9, 0, 0, 2, 1, 2, 3];
    let close = [&[0x1c, 0x41, 0x28, 6, 3][..], b"bye"].concat();
    let mut repeated = part(0, len);
    repeated.extend(crypto(10, &[0xff; 100]));
    vec![
        ("frames", quic_frames()),
        (
            "frames-shuffled",
            whole((0..3).rev().flat_map(|n| shuffled(n * 50)).collect()),
        ),
        (
            "frames-overlapping",
            whole((0..len).step_by(40).map(|at| part(at, at + 90)).collect()),
        ),
        (
            "frames-among-others",
            vec![
                (Forward, [vec![0; 40], vec![1], part(0, 300)].concat()),
                (Reverse, [ack, crypto(0, &answer())].concat()),
                (Forward, [ack_ecn, part(300, len), vec![0; 9]].concat()),
                (Reverse, close),
            ],
        ),
        (
            "frames-with-a-gap",
            whole(vec![part(0, 200), part(201, len)]),
        ),
        ("frames-that-contradict", whole(vec![repeated])),
        (
            "frames-beyond-any-stream",
            // Offsets of eight bytes, the largest there is and one that overflows with its length.
            whole(vec![
                [&[6][..], &[0xff; 8], &[0x40, 4], b"abcd"].concat(),
                [&[6, 0xff][..], &[0xff; 7], &[0xff; 8]].concat(),
            ]),
        ),
        (
            "frames-unknown",
            whole(vec![vec![0x30, 1, 2, 3], part(0, len)]),
        ),
    ]
}

fn kexinit(lists: [&str; 8]) -> Vec<u8> {
    let mut body = vec![20];
    body.extend([9; 16]);
    for list in lists {
        body.extend((list.len() as u32).to_be_bytes());
        body.extend(list.as_bytes());
    }
    body.extend([0; 13]);
    let len = (body.len() as u32 + 5).to_be_bytes();
    [&len[..], &[4], &body, &[0; 4]].concat()
}

/// Lists offered by both sides of the SSH sample.
pub const LISTS: [&str; 8] = [
    "kex-a,kex-b",
    "rsa",
    "aes,des",
    "aes2",
    "mac",
    "mac2",
    "none",
    "zlib",
];

fn binary() -> Vec<Sample> {
    let client = [b"SSH-2.0-Client_1.0 hello\r\n", &kexinit(LISTS)[..]].concat();
    let server = [b"SSH-2.0-Server\n", &kexinit(LISTS)[..]].concat();
    let connect = b"\x10\x12\x00\x04MQTT\x04\x02\x00\x3c\x00\x06client";
    let connect5 = b"\x10\x11\x00\x04MQTT\x05\x02\x00\x3c\x02\x21\x00\x00\x02id";
    vec![
        Sample::new("ssh", Tcp, 22)
            .with(Reverse, server)
            .with(Forward, client),
        Sample::new("ssh-1", Tcp, 22)
            .with(Reverse, "SSH-1.5-old\n")
            .with(Forward, "SSH-1.5-x\n"),
        Sample::new("mqtt", Tcp, 1883)
            .with(Forward, connect)
            .with(Reverse, b"\x20\x02\x00\x05"),
        Sample::new("mqtt-5", Tcp, 9999)
            .with(Forward, connect5)
            .with(Reverse, b"\x20\x03\0\0\0"),
        Sample::new("unknown", Tcp, 9999)
            .with(Forward, b"\0\x01\x02what")
            .with(Reverse, [9; 40]),
    ]
}

pub fn dns_query() -> Vec<u8> {
    let name = b"\x03www\x07example\x03org\0";
    [
        &b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0"[..],
        name,
        b"\0\x1c\0\x01",
    ]
    .concat()
}

pub fn dns_response() -> Vec<u8> {
    let mut message = dns_query();
    message[2..8].copy_from_slice(&[0x81, 0x80, 0, 1, 0, 3]);
    message.extend(b"\xc0\x0c\0\x05\0\x01\0\0\0\x09\0\x04\x01a\xc0\x10");
    message.extend(b"\xc0\x2d\0\x1c\0\x01\0\0\0\x09\0\x10");
    message.extend([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    message.extend(b"\xc0\x2d\0\x01\0\x01\0\0\0\x09\0\x04\xc0\0\x02\x07");
    message
}

fn dns() -> Vec<Sample> {
    let (query, response) = (dns_query(), dns_response());
    let announcement =
        b"\0\0\x84\0\0\0\0\x01\0\0\0\0\x04host\x05local\0\0\x01\x80\x01\0\0\0\x78\0\x04\
        \xc0\0\x02\x07";
    vec![
        Sample::new("dns", Udp, 53)
            .with(Forward, &query)
            .with(Reverse, &response),
        Sample::new("dns-elsewhere", Udp, 9999)
            .with(Forward, &query)
            .with(Reverse, &response),
        Sample::new("mdns", Udp, 5353).with(Forward, &response),
        Sample::new("mdns-announced", Udp, 5353)
            .with(Forward, announcement)
            .with(Forward, announcement)
            .with(Forward, &query),
        Sample::new("dns-forwarder", Udp, 53)
            .with(Forward, asked(1, b"\x01a\0", 1))
            .with(Forward, asked(2, b"\x01b\0", 1))
            .with(Forward, asked(3, b"\x01c\0", 1))
            .with(Forward, asked(4, b"\x01d\0", 1))
            .with(Forward, asked(5, b"\x01e\0", 1))
            .with(Forward, asked(6, b"\x01f\0", 1))
            .with(Forward, asked(2, b"\x01b\0", 1))
            .with(Reverse, nothing(1, b"\x01a\0", 1))
            .with(Reverse, nothing(2, b"\x01B\0", 1))
            .with(Reverse, nothing(3, b"\x01c\0", 1))
            .with(Reverse, nothing(4, b"\x01d\0", 1))
            .with(Reverse, nothing(5, b"\x01e\0", 1))
            .with(Reverse, nothing(6, b"\x01f\0", 1)),
        Sample::new("dns-many", Udp, 53)
            .with(Forward, &query)
            .with(Forward, asked(2, b"\x03two\0", 28))
            .with(Forward, asked(3, b"\x05never\0", 1))
            .with(Forward, asked(2, b"\x03two\0", 28))
            .with(Reverse, nothing(2, b"\x03two\0", 28))
            .with(Reverse, &response)
            .with(Reverse, nothing(9, b"\x06unused\0", 16)),
        Sample::new("dns-tcp", Tcp, 53)
            .with(Forward, sized16(&query))
            .with(Reverse, sized16(&response)),
    ]
}

fn datagrams() -> Vec<Sample> {
    let mut ntp = [0; 48];
    ntp[0] = 0x23;
    let mut clock = ntp;
    clock[..2].copy_from_slice(&[0x24, 1]);
    clock[12..16].copy_from_slice(b"GPS\0");
    let mut dhcp = vec![0; 240];
    dhcp[..3].copy_from_slice(&[1, 1, 6]);
    dhcp[28..34].copy_from_slice(&[2, 0, 0, 0, 0, 0xaf]);
    dhcp[236..].copy_from_slice(&[99, 130, 83, 99]);
    let options =
        b"\x35\x01\x03\x0c\x04host\0\x32\x04\xc0\0\x02\x09\x37\x03\x01\x03\x06\x3c\x02MS\xff";
    dhcp.extend(options);
    vec![
        Sample::new("ntp", Udp, 123)
            .with(Forward, ntp)
            .with(Reverse, clock),
        Sample::new("dhcp", Udp, 67).with(Forward, dhcp),
        Sample::new("ssdp", Udp, 1900)
            .with(Forward, SEARCH)
            .with(Reverse, FOUND),
        Sample::new("ssdp-notify", Udp, 1900).with(
            Forward,
            b"NOTIFY * HTTP/1.1\r\nNT: upnp:rootdevice\r\nSERVER: box\r\nLOCATION: http://a/",
        ),
        Sample::new("wireguard", Udp, 9999)
            .with(Forward, wireguard(1, &[7], 148))
            .with(Reverse, wireguard(2, &[9, 7], 92)),
        Sample::new("wireguard-long", Udp, 51820).with(Forward, wireguard(1, &[7], 149)),
        Sample::new("noise", Udp, 9999)
            .with(Forward, [1; 60])
            .with(Reverse, [2; 60]),
    ]
}

const SEARCH: &[u8] = b"M-SEARCH * HTTP/1.1\r\nHOST: 239.255.255.250:1900\r\nMX: 1\r\n\
    MAN: \"ssdp:discover\"\r\nST: ssdp:all\r\nUser-Agent: seeker\r\n\r\n";
const FOUND: &[u8] = b"HTTP/1.1 200 OK\r\nST: upnp:rootdevice\r\nServer: box/1\r\n\
    Location: http://192.0.2.1/d.xml\r\n\r\n";

/// A WireGuard handshake message: indices, a key and the rest.
fn wireguard(kind: u8, indices: &[u32], len: usize) -> Vec<u8> {
    let mut bytes = vec![kind, 0, 0, 0];
    bytes.extend(indices.iter().flat_map(|index| index.to_le_bytes()));
    bytes.resize(len, 0x55);
    bytes
}

/// Builds a question.
fn asked(id: u8, name: &[u8], kind: u8) -> Vec<u8> {
    let head = [0, id, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    [&head[..], name, &[0, kind, 0, 1]].concat()
}

/// Builds the answer that the name does not exist.
fn nothing(id: u8, name: &[u8], kind: u8) -> Vec<u8> {
    let mut bytes = asked(id, name, kind);
    bytes[2..4].copy_from_slice(&[0x81, 0x83]);
    bytes
}

/// All samples.
pub fn all() -> Vec<Sample> {
    let groups = [
        tls(),
        secured::all(),
        quic(),
        texts::http(),
        texts::others(),
        binary(),
        dns(),
        datagrams(),
        offices::all(),
        services::all(),
    ];
    groups.into_iter().flatten().collect()
}
