//! Sample TLS handshakes up to 1.2, which show the server's certificate.

use super::{Sample, alpn, client_hello, handshake, records, server_hello, sized16, sni};
use barewire_inspect::Direction::{Forward, Reverse};
use barewire_inspect::Transport::{Tcp, Udp};

/// A DER element (X.690 section 8.1) with these contents.
pub fn der(tag: u8, contents: &[&[u8]]) -> Vec<u8> {
    let contents = contents.concat();
    let len = match contents.len() {
        len @ ..0x80 => vec![len as u8],
        len @ ..0x100 => vec![0x81, len as u8],
        len => vec![0x82, (len >> 8) as u8, len as u8],
    };
    [&[tag][..], &len, &contents].concat()
}

/// A distinguished name: a country, an organisation and a common name.
fn distinguished(common_name: &[u8]) -> Vec<u8> {
    let attribute = |kind: u8, tag: u8, value: &[u8]| {
        let identifier = der(6, &[&[0x55, 4, kind]]);
        der(0x31, &[&der(0x30, &[&identifier, &der(tag, &[value])])])
    };
    let parts = [
        attribute(6, 0x13, b"XX"),
        attribute(10, 0x0c, b"Some Organisation"),
        attribute(3, 0x0c, common_name),
        attribute(3, 0x0c, b"a second one"),
    ];
    der(0x30, &[&parts.concat()])
}

/// The extension subjectAltName.
pub fn alternative_names(names: &[(u8, &[u8])]) -> Vec<u8> {
    let names: Vec<u8> = names
        .iter()
        .flat_map(|(tag, name)| der(*tag, &[name]))
        .collect();
    let value = der(4, &[&der(0x30, &[&names])]);
    der(0x30, &[&der(6, &[&[0x55, 29, 17]]), &value])
}

/// An unsigned certificate with these extensions.
pub fn certificate(extensions: &[Vec<u8>]) -> Vec<u8> {
    let algorithm = der(0x30, &[&der(6, &[&[42, 134, 72, 206, 61, 4, 3, 2]])]);
    let usage = der(
        0x30,
        &[
            &der(6, &[&[0x55, 29, 15]]),
            &der(1, &[&[0xff]]),
            &der(4, &[&[3, 2, 7, 0x80]]),
        ],
    );
    let extensions = [&usage[..], &extensions.concat()].concat();
    let validity = [
        der(0x17, &[b"240229235959Z"]),
        der(0x18, &[b"20991231000000Z"]),
    ];
    let signed = der(
        0x30,
        &[
            &der(0xa0, &[&der(2, &[&[2]])]),
            &der(2, &[&[1; 16]]),
            &algorithm,
            &distinguished(b"Some Issuer"),
            &der(0x30, &[&validity.concat()]),
            &distinguished(b"www.example.org"),
            &der(0x30, &[&algorithm, &der(3, &[&[4; 66]])]),
            &der(0xa3, &[&der(0x30, &[&extensions])]),
        ],
    );
    der(0x30, &[&signed, &algorithm, &der(3, &[&[0x30; 72]])])
}

fn sized24(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_be_bytes()[1..], bytes].concat()
}

/// A certificate message with the given leaf and another certificate.
pub fn certificates(leaf: &[u8]) -> Vec<u8> {
    let chain = [sized24(leaf), sized24(&[0x30, 0])].concat();
    handshake(11, &sized24(&chain))
}

/// The first flight of a server whose certificate has seven names.
pub fn flight() -> Vec<u8> {
    let names: [(u8, &[u8]); 7] = [
        (0x82, b"www.example.org"),
        (0x81, b"mail@example.org"),
        (0x87, &[192, 0, 2, 1]),
        (0x82, b"*.example.org"),
        (
            0x87,
            &[0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
        ),
        (0x82, b"fifth.example.org"),
        (0x82, b"sixth.example.org"),
    ];
    let leaf = certificate(&[alternative_names(&names)]);
    [
        server_hello(0xc02f, &[alpn(&[b"x"])]),
        // Supplemental data (RFC 4680).
        handshake(23, &[0; 5]),
        certificates(&leaf),
        handshake(12, &[9; 80]),
        handshake(14, &[]),
    ]
    .concat()
}

const CONNECT: &[u8] = b"CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n\r\n";
const GRANTED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";

/// A client that sends a long hello before the proxy has replied.
pub fn impatient() -> Sample {
    let hello = client_hello(&[0xc02f], &[(0x0015, vec![0; 400]), sni(b"a.example")]);
    Sample::new("http-connect-early-long", Tcp, 8080)
        .with(Forward, [CONNECT, &records(&hello, 2000)].concat())
        .with(Reverse, [GRANTED, &records(&flight(), 300)].concat())
}

/// TLS through an HTTP proxy whose client does not wait for replies.
fn proxied() -> Vec<Sample> {
    const GET: &[u8] = b"GET /first HTTP/1.1\r\nHost: h\r\n\r\n";
    const REFUSED: &[u8] = b"HTTP/1.1 407 Who\r\nContent-Length: 2\r\n\r\nno";
    const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    let hello = records(&client_hello(&[0xc02f], &[sni(b"a.example")]), 500);
    let flight = records(&flight(), 300);
    vec![
        Sample::new("http-connect-early", Tcp, 8080)
            .with(Forward, [CONNECT, &hello].concat())
            .with(Reverse, [GRANTED, &flight].concat()),
        Sample::new("http-connect-pipelined", Tcp, 8080)
            .with(Forward, [GET, CONNECT].concat())
            .with(Reverse, OK)
            .with(Forward, &hello[..20])
            .with(Reverse, GRANTED)
            .with(Forward, &hello[20..])
            .with(Reverse, flight),
        Sample::new("http-connect-refused", Tcp, 8080)
            .with(Forward, [CONNECT, &GET[..20]].concat())
            .with(Reverse, REFUSED)
            .with(Forward, &GET[20..])
            .with(Reverse, OK),
    ]
}

/// A client's requests to a SOCKS proxy, and the responses.
fn socks() -> Vec<Sample> {
    let hello = records(&client_hello(&[0xc02f], &[sni(b"a.example")]), 500);
    let flight = records(&flight(), 300);
    let by_name = [&[5, 1, 0, 3, 9][..], b"a.example", &[1, 0xbb]].concat();
    let granted = [5, 0, 0, 1, 192, 0, 2, 9, 0x80, 0];
    let granted_4 = [0, 90, 0, 0, 0, 0, 0, 0];
    let by_name_4 = [&[4, 1, 0, 80, 0, 0, 0, 1][..], b"me\0a.example\0"].concat();
    let v6 = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    vec![
        Sample::new("socks-5", Tcp, 9999)
            .with(Forward, [5, 2, 0, 2])
            .with(Reverse, [5, 2])
            .with(Forward, b"\x01\x04user\x08password")
            .with(Reverse, [1, 0])
            .with(Forward, &by_name)
            .with(Reverse, granted)
            .with(Forward, &hello)
            .with(Reverse, &flight),
        // All of the client's at once.
        Sample::new("socks-5-early", Tcp, 1080)
            .with(Forward, [&[5, 1, 0][..], &by_name, &hello].concat())
            .with(Reverse, [&[5, 0][..], &granted, &flight].concat()),
        Sample::new("socks-5-refused", Tcp, 1080)
            .with(Forward, [5, 1, 0])
            .with(Reverse, [5, 0])
            .with(Forward, [&[5, 1, 0, 4][..], &v6, &[0, 80]].concat())
            .with(Reverse, [5, 4, 0, 3, 1, b'x', 0, 0]),
        Sample::new("socks-5-none", Tcp, 9999)
            .with(Forward, [5, 3, 0, 1, 2])
            .with(Reverse, [5, 0xff]),
        Sample::new("socks-5-udp", Tcp, 1080)
            .with(Forward, [5, 1, 0])
            .with(Reverse, [5, 0])
            .with(Forward, [5, 3, 0, 1, 0, 0, 0, 0, 0, 0])
            .with(Reverse, granted),
        Sample::new("socks-5-kerberos", Tcp, 1080)
            .with(Forward, [5, 1, 1])
            .with(Reverse, [5, 1])
            .with(Forward, [1, 1, 0, 2, 9, 9]),
        // An answer of some other protocol.
        Sample::new("socks-not", Tcp, 9999)
            .with(Forward, [5, 1, 0])
            .with(Reverse, b"\x15\x00 no"),
        Sample::new("socks-4", Tcp, 9999)
            .with(Forward, [4, 1, 0, 80, 192, 0, 2, 1, 0])
            .with(Reverse, granted_4)
            .with(Forward, b"GET /inside HTTP/1.1\r\nHost: h\r\n\r\n")
            .with(Reverse, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
        Sample::new("socks-4a", Tcp, 1080)
            .with(Forward, &by_name_4)
            .with(Reverse, [0, 91, 0, 0, 0, 0, 0, 0]),
        Sample::new("socks-4-bind", Tcp, 1080)
            .with(Forward, [4, 2, 0, 20, 192, 0, 2, 1, b'u', 0])
            .with(Reverse, granted_4)
            .with(Reverse, granted_4)
            .with(Reverse, b"SSH-2.0-peer\r\n"),
        // Only one direction was seen: it is identified by its port.
        Sample::new("socks-alone", Tcp, 1080).with(Forward, [&[5, 1, 0][..], &by_name].concat()),
    ]
}

/// DTLS 1.2 records, one for each fragment of a message, given by its range.
fn datagram(sequence: u16, message: &[u8], parts: &[(usize, usize)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (from, to) in parts {
        let number = |number: usize| (number as u32).to_be_bytes()[1..].to_vec();
        let body = message.get(4..).unwrap_or(&[]);
        let (from, to) = (*from, (*to).min(body.len()));
        let head = [
            &message[..4],
            &sequence.to_be_bytes(),
            &number(from),
            &number(to - from),
        ];
        let fragment = [&head.concat()[..], &body[from..to]].concat();
        bytes.extend([22, 0xfe, 0xfd, 0, 0, 0, 0, 0, 0, 0, 1]);
        bytes.extend(sized16(&fragment));
    }
    bytes
}

/// A DTLS hello with a cookie.
fn dtls_hello(cookie: &[u8], list: &[(u16, Vec<u8>)]) -> Vec<u8> {
    let hello = client_hello(&[0xc02b], list);
    // Kind, length, version, random, session; ciphers and what follows.
    let (head, rest) = hello[4..].split_at(2 + 32 + 33);
    handshake(
        1,
        &[&[0xfe, 0xfd], &head[2..], &super::sized8(cookie), rest].concat(),
    )
}

fn dtls_answer(list: &[(u16, Vec<u8>)]) -> Vec<u8> {
    let mut answer = server_hello(0xc02b, list);
    answer[4..6].copy_from_slice(&[0xfe, 0xfd]);
    answer
}

fn dtls() -> Vec<Sample> {
    const ALL: &[(usize, usize)] = &[(0, usize::MAX)];
    let offered = [sni(b"a.example"), alpn(&[b"webrtc"])];
    let bare = dtls_hello(&[], &offered);
    let hello = dtls_hello(&[7; 20], &offered);
    let verify = handshake(3, &[&[0xfe, 0xff, 20][..], &[7; 20]].concat());
    let leaf = certificate(&[alternative_names(&[(0x82, b"a.example")])]);
    let certificates = certificates(&leaf);
    let answer = dtls_answer(&[alpn(&[b"webrtc"])]);
    let done = handshake(14, &[]);
    let newer = [
        (0x002b, super::sized8(&[0xfe, 0xfc, 0xfe, 0xfd])),
        sni(b"a.example"),
    ];
    let newer = dtls_hello(&[], &newer);
    let newest = dtls_answer(&[(0x002b, vec![0xfe, 0xfc])]);
    vec![
        Sample::new("dtls", Udp, 9999)
            .with(Forward, datagram(0, &bare, ALL))
            .with(Reverse, datagram(0, &verify, ALL))
            .with(Forward, datagram(1, &hello, ALL))
            .with(
                Reverse,
                [
                    datagram(1, &answer, ALL),
                    datagram(2, &certificates, &[(0, 300)]),
                ]
                .concat(),
            )
            .with(Reverse, datagram(2, &certificates, &[(300, usize::MAX)]))
            .with(Reverse, datagram(3, &done, ALL)),
        // Fragments in another order, overlapping, one of them twice.
        Sample::new("dtls-fragments", Udp, 9999)
            .with(Forward, datagram(0, &hello, &[(90, 200), (20, 60)]))
            .with(Forward, datagram(0, &hello, &[(0, 30), (20, 60), (50, 90)]))
            .with(Reverse, datagram(0, &answer, &[(40, 500), (0, 40)]))
            .with(
                Reverse,
                datagram(1, &certificates, &[(400, 5000), (200, 450)]),
            )
            .with(Reverse, datagram(1, &certificates, &[(0, 200)])),
        // A fragment is missing: nothing is reported about the client.
        Sample::new("dtls-lost", Udp, 9999)
            .with(Forward, datagram(0, &hello, &[(0, 30), (60, 500)]))
            .with(Reverse, datagram(0, &answer, ALL))
            .with(Reverse, [20, 0xfe, 0xfd, 0, 0, 0, 0, 0, 0, 0, 2, 0, 1, 1]),
        Sample::new("dtls-1.3", Udp, 9999)
            .with(Forward, datagram(0, &newer, ALL))
            .with(Reverse, datagram(0, &newest, ALL)),
        Sample::new("dtls-encrypted", Udp, 9999)
            .with(
                Forward,
                [23, 0xfe, 0xfd, 0, 1, 0, 0, 0, 0, 0, 9, 0, 2, 8, 8],
            )
            .with(
                Reverse,
                [23, 0xfe, 0xfd, 0, 1, 0, 0, 0, 0, 0, 9, 0, 2, 8, 8],
            ),
        Sample::new("dtls-short", Udp, 9999).with(
            Forward,
            [23, 0xfe, 0xfd, 0, 1, 0, 0, 0, 0, 0, 9, 0, 3, 8, 8],
        ),
    ]
}

pub fn all() -> Vec<Sample> {
    let hello = client_hello(&[0xc02f], &[sni(b"a.example"), alpn(&[b"x"])]);
    let hello = || records(&hello, 500);
    let answer = server_hello(0xc02f, &[]);
    let bare = certificate(&[]);
    let truncated = [
        &answer[..],
        &handshake(11, &sized24(&sized24(&bare[..bare.len() - 200]))),
    ]
    .concat();
    let mut samples = proxied();
    samples.extend(socks());
    samples.extend(dtls());
    samples.extend([
        Sample::new("tls-certificate", Tcp, 443)
            .with(Forward, hello())
            .with(Reverse, records(&flight(), 300)),
        Sample::new("tls-certificate-bare", Tcp, 9999)
            .with(Forward, hello())
            .with(
                Reverse,
                records(&[&answer[..], &certificates(&bare)].concat(), 16_000),
            ),
        Sample::new("tls-certificate-none", Tcp, 443)
            .with(Forward, hello())
            .with(
                Reverse,
                records(&[&answer[..], &handshake(11, &[0; 3])].concat(), 16_000),
            ),
        // Longer than the enclosing message.
        Sample::new("tls-certificate-short", Tcp, 443)
            .with(Forward, hello())
            .with(Reverse, records(&truncated, 16_000)),
        Sample::new("tls-resumed", Tcp, 443)
            .with(Forward, hello())
            .with(Reverse, records(&answer, 16_000))
            .with(Reverse, [20, 3, 3, 0, 1, 1])
            .with(Reverse, [&[22, 3, 3][..], &sized16(&[11; 40])].concat()),
    ]);
    samples
}
