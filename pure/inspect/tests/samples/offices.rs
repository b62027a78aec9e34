//! Sample conversations of directories, desktops, shares, media and NetBIOS names.

use super::{Sample, answer, chrome, records, sized8, sized16};
use barewire_inspect::Direction::{Forward, Reverse};
use barewire_inspect::Transport::{Tcp, Udp};

/// A BER element, with its length in one byte or, if `is_long`, in four.
fn ber(tag: u8, is_long: bool, parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.concat();
    let len = (body.len() as u32).to_be_bytes();
    match is_long || body.len() > 127 {
        true => [&[tag, 0x84][..], &len, &body].concat(),
        false => [&[tag, len[3]][..], &body].concat(),
    }
}

/// An LDAP message with this operation.
fn ldap(id: u8, tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let operation = ber(tag, id.is_multiple_of(2), parts);
    ber(0x30, id.is_multiple_of(2), &[&[2, 1, id], &operation])
}

fn octets(bytes: &[u8]) -> Vec<u8> {
    ber(4, false, &[bytes])
}

fn result(id: u8, tag: u8, code: u8) -> Vec<u8> {
    ldap(id, tag, &[&[10, 1, code], &octets(b""), &octets(b"")])
}

fn search(id: u8, base: &[u8]) -> Vec<u8> {
    // Scope, aliases, limits, types only, a filter for what has a class; no attributes.
    let rest = b"\x0a\x01\x02\x0a\x01\0\x02\x01\0\x02\x01\0\x01\x01\0\x87\x0bobjectClass\x30\0";
    ldap(id, 0x63, &[&octets(base), rest])
}

fn directories() -> Vec<Sample> {
    let bind = |id, how: &[u8]| {
        let name = octets(b"cn=admin,dc=example,dc=org");
        ldap(id, 0x60, &[&[2, 1, 3], &name, how])
    };
    let simple = ber(0x80, false, &[b"secret"]);
    let sasl = |token: &[u8]| ber(0xa3, false, &[&octets(b"GSS-SPNEGO"), token]);
    let entry = ldap(4, 0x64, &[&octets(b"cn=x"), &ber(0x30, true, &[&[7; 700]])]);
    let upgrade = ber(0x80, false, &[b"1.3.6.1.4.1.1466.20037"]);
    vec![
        Sample::new("ldap", Tcp, 389)
            .with(Forward, bind(1, &simple))
            .with(Reverse, result(1, 0x61, 49))
            .with(Forward, search(4, b"dc=example,dc=org"))
            .with(Reverse, &entry)
            .with(Reverse, result(4, 0x65, 32))
            .with(Forward, ldap(5, 0x42, &[])),
        Sample::new("ldap-sasl", Tcp, 9999)
            .with(Forward, bind(1, &sasl(&octets(b"one"))))
            .with(Reverse, result(1, 0x61, 14))
            .with(Forward, bind(2, &sasl(&octets(b"two"))))
            .with(Reverse, result(2, 0x61, 0))
            // What follows is wrapped.
            .with(Forward, b"\0\0\0\x05abcde")
            .with(Reverse, b"\0\0\0\x02ab"),
        Sample::new("ldap-starttls", Tcp, 389)
            .with(Forward, ldap(1, 0x77, &[&upgrade]))
            .with(Reverse, result(1, 0x78, 2))
            .with(Forward, ldap(2, 0x77, &[&upgrade]))
            .with(Reverse, result(2, 0x78, 0))
            .with(Forward, records(&chrome(), 5000))
            .with(Reverse, records(&answer(), 5000)),
        Sample::new("cldap", Udp, 389)
            .with(Forward, search(1, b""))
            .with(
                Reverse,
                [
                    ldap(1, 0x64, &[&octets(b""), &ber(0x30, false, &[])]),
                    result(1, 0x65, 0),
                ]
                .concat(),
            ),
    ]
}

/// A connection request or confirm in TPKT.
fn x224(kind: u8, parts: &[&[u8]]) -> Vec<u8> {
    let rest = parts.concat();
    let len = rest.len() as u8;
    let head = [3, 0, 0, len + 11, len + 6, kind, 0, 0, 0x12, 0x34, 0];
    [&head[..], &rest].concat()
}

fn desktops() -> Vec<Sample> {
    let negotiation = |kind, number| [kind, 0, 8, 0, number, 0, 0, 0];
    let asks = negotiation(1, 11);
    vec![
        Sample::new("rdp", Tcp, 3389)
            .with(Forward, x224(0xe0, &[b"Cookie: mstshash=alice\r\n", &asks]))
            .with(Reverse, x224(0xd0, &[&negotiation(2, 2)]))
            .with(Forward, records(&chrome(), 5000))
            .with(Reverse, records(&answer(), 5000)),
        Sample::new("rdp-refused", Tcp, 9999)
            .with(
                Forward,
                x224(0xe0, &[b"Cookie: msts=3640205228.15629.0000\r\n", &asks]),
            )
            .with(Reverse, x224(0xd0, &[&negotiation(3, 5)])),
        Sample::new("rdp-plain", Tcp, 9999)
            .with(Forward, x224(0xe0, &[&negotiation(1, 0)]))
            .with(Reverse, x224(0xd0, &[&negotiation(2, 0)])),
        // Siemens' S7 begins like it.
        Sample::new("x224", Tcp, 102)
            .with(
                Forward,
                x224(0xe0, &[b"\xc0\x01\x0a\xc1\x02\x01\x00\xc2\x02\x01\x02"]),
            )
            .with(
                Reverse,
                x224(0xd0, &[b"\xc0\x01\x0a\xc1\x02\x01\x00\xc2\x02\x01\x02"]),
            ),
    ]
}

fn utf16(text: &str) -> Vec<u8> {
    text.encode_utf16().flat_map(u16::to_le_bytes).collect()
}

/// A message in a session service packet.
fn session(message: &[u8]) -> Vec<u8> {
    [&(message.len() as u32).to_be_bytes()[..], message].concat()
}

fn smb2(command: u16, flags: u32, body: &[u8]) -> Vec<u8> {
    let mut message = b"\xfeSMB\x40\0\0\0\0\0\0\0".to_vec();
    message.extend(command.to_le_bytes());
    message.extend([1, 0]);
    message.extend(flags.to_le_bytes());
    message.resize(64, 0);
    message.extend(body);
    session(&message)
}

fn negotiated(dialect: u16) -> Vec<u8> {
    let mut body = vec![65, 0, 1, 0];
    body.extend(dialect.to_le_bytes());
    body.resize(64, 0);
    smb2(0, 1, &body)
}

fn tree(path: &str) -> Vec<u8> {
    let path = utf16(path);
    let head = [9, 0, 0, 0, 72, 0, path.len() as u8, 0];
    smb2(3, 0, &[&head[..], &path].concat())
}

/// An NTLM AUTHENTICATE message: 88 bytes of head, then its names and responses.
fn ntlm() -> Vec<u8> {
    let parts = [
        vec![],
        vec![0x77; 100],
        utf16("EXAMPLE"),
        utf16("álice"),
        utf16("DESK"),
    ];
    let (mut message, mut payload) = (b"NTLMSSP\0\x03\0\0\0".to_vec(), Vec::new());
    for part in parts {
        let len = (part.len() as u16).to_le_bytes();
        message.extend([len, len].concat());
        message.extend((88 + payload.len() as u32).to_le_bytes());
        payload.extend(part);
    }
    message.extend([0; 8]);
    message.extend([1, 2, 0, 0]);
    message.resize(88, 0);
    [message, payload].concat()
}

/// An SMB 1 message: a command, with words and bytes.
fn smb1(command: u8, flags: u8, rest: &[&[u8]]) -> Vec<u8> {
    let mut message = b"\xffSMB".to_vec();
    message.push(command);
    message.extend([0, 0, 0, 0, flags, 0, 0]);
    message.resize(32, 0);
    message.extend(rest.concat());
    session(&message)
}

fn counted(words: &[u8], bytes: &[u8]) -> Vec<u8> {
    let count = (bytes.len() as u16).to_le_bytes();
    [&[words.len() as u8 / 2], words, &count, bytes].concat()
}

fn shares() -> Vec<Sample> {
    let dialects = b"\x02PC NETWORK PROGRAM 1.0\0\x02NT LM 0.12\0\x02SMB 2.002\0\x02SMB 2.???\0";
    let offer = smb1(0x72, 0x18, &[&counted(&[], dialects)]);
    let token = [ntlm(), vec![0; 900]].concat();
    let len = (token.len() as u16).to_le_bytes();
    let mut sign_on = vec![25, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 88, 0, len[0], len[1]];
    sign_on.resize(24, 0);
    sign_on.extend(token);

    let called = [&sized8(&netbios_name(b"*SMBSERVER", 0x20)[..])[..], &[0]].concat();
    let calling = [&sized8(&netbios_name(b"DESK", 0)[..])[..], &[0]].concat();
    let request = [&[0x81, 0], &sized16(&[called, calling].concat())[..]].concat();
    // Two passwords of four bytes; the next command is at 75.
    let mut words = vec![0x75, 0, 92, 0];
    words.resize(14, 0);
    words.extend([4, 0, 4, 0]);
    words.resize(26, 0);
    let old = counted(&words, b"pw11pw22bob\0EXAMPLE\0Unix\0Samba\0");
    assert_eq!(32 + old.len(), 92);
    let connect = counted(
        &[0xff, 0, 0, 0, 0, 0, 1, 0],
        b"\0\\\\SERVER\\FILES\0?????\0",
    );
    let mut chosen = vec![1, 0];
    chosen.resize(34, 0);
    vec![
        Sample::new("smb", Tcp, 445)
            .with(Forward, &offer)
            .with(Reverse, negotiated(0x02ff))
            .with(Forward, smb2(0, 0, &[36; 60]))
            .with(Reverse, negotiated(0x0311))
            .with(Forward, smb2(1, 0, &sign_on))
            .with(Reverse, smb2(1, 1, &[9, 0, 0, 0, 0, 0, 0, 0]))
            .with(Forward, tree("\\\\server\\IPC$"))
            .with(Reverse, smb2(3, 1, &[16; 16]))
            .with(Forward, tree("\\\\server\\files")),
        Sample::new("smb-encrypted", Tcp, 9999)
            .with(Forward, smb2(0, 0, &[36; 60]))
            .with(Reverse, negotiated(0x0302))
            .with(
                Forward,
                session(&[b"\xfdSMB".to_vec(), vec![1; 90]].concat()),
            )
            .with(
                Reverse,
                session(&[b"\xfdSMB".to_vec(), vec![2; 90]].concat()),
            ),
        Sample::new("smb-1", Tcp, 139)
            .with(Forward, request)
            .with(Reverse, b"\x82\0\0\0")
            .with(Forward, &offer)
            .with(Reverse, smb1(0x72, 0x98, &[&counted(&chosen, b"")]))
            .with(Forward, b"\x85\0\0\0")
            .with(Forward, smb1(0x73, 0x18, &[&old, &connect])),
    ]
}

fn media() -> Vec<Sample> {
    let ask = |sequence: u8, line: &str, rest: &str| {
        format!("{line} RTSP/1.0\r\nCSeq: {sequence}\r\n{rest}\r\n")
    };
    let say = |sequence: u8, rest: &str| {
        format!("RTSP/1.0 200 OK\r\nCSeq: {sequence}\r\nServer: camera/1\r\n{rest}\r\n")
    };
    let url = "rtsp://192.0.2.1/live";
    let stream = |start: u16, payload_type: u8| {
        (0..5).map(move |nth: u16| {
            let [high, low] = start.wrapping_add(nth).to_be_bytes();
            let clock = (u32::from(nth) * 160).to_be_bytes();
            let head = [0x80, payload_type, high, low];
            [&head[..], &clock, &[1, 2, 3, payload_type], &[0xd5; 160]].concat()
        })
    };
    let mut call = Sample::new("rtp", Udp, 9999);
    for (one, other) in stream(65_533, 8).zip(stream(7, 8)) {
        // Each packet twice, as from taps at two places.
        call = call.with(Forward, &one).with(Forward, one);
        call = call.with(Reverse, &other).with(Reverse, other);
    }
    // Packets that look like RTP one by one.
    let mut noise = Sample::new("rtp-alike", Udp, 9999);
    for packet in stream(7, 8).chain(stream(12, 8)) {
        noise = noise.with(Forward, &packet).with(Forward, &packet);
        let mut other = packet.clone();
        other[2] ^= 0x80;
        noise = noise.with(Forward, &other);
    }
    let report = [
        &b"\x80\xc8\0\x06\x01\x02\x03\x04"[..],
        &[7; 20],
        b"\x81\xca\0\x03\x01\x02\x03\x04\x01\x04a@bc\0\0",
    ];
    let report = report.concat();
    vec![
        Sample::new("rtsp", Tcp, 9999)
            .with(
                Forward,
                ask(1, &format!("OPTIONS {url}"), "User-Agent: player/2\r\n"),
            )
            .with(Reverse, say(1, "Public: PLAY\r\n"))
            .with(
                Forward,
                ask(2, &format!("DESCRIBE {url}"), "")
                    + &ask(3, &format!("SETUP {url}/1"), "User-Agent: other\r\n"),
            )
            .with(
                Reverse,
                "RTSP/1.0 461 No\r\nCSeq: 3\r\n\r\n".to_owned()
                    + &say(2, "Content-Length: 6\r\n")
                    + "v=0\r\n\n",
            )
            .with(Reverse, "$\0\0\x0bRTSP/1.0 20$\x01\0\0")
            .with(Reverse, ask(1, "ANNOUNCE rtsp://c/", ""))
            .with(Forward, "RTSP/1.0 501 No\r\nCSeq: 1\r\n\r\n")
            .with(Forward, ask(4, &format!("TEARDOWN {url}"), "")),
        Sample::new("rtsp-star", Tcp, 554).with(Forward, ask(1, "OPTIONS *", "")),
        call,
        noise,
        Sample::new("rtcp", Udp, 9999).with(Forward, report),
    ]
}

/// The encoded letters of a name: 15 characters and a suffix.
fn netbios_name(text: &[u8], suffix: u8) -> Vec<u8> {
    let mut name = text.to_vec();
    name.resize(15, b' ');
    name.push(suffix);
    let halves = name.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    halves.map(|half| b'A' + half).collect()
}

fn names() -> Vec<Sample> {
    let name = |text, suffix| [&[32][..], &netbios_name(text, suffix), &[0]].concat();
    let host = name(b"HOST", 0x20);
    let query = [
        &b"\x12\x34\x01\x10\0\x01\0\0\0\0\0\0"[..],
        &host,
        b"\0\x20\0\x01",
    ];
    let response = [
        &b"\x12\x34\x85\x83\0\0\0\x01\0\0\0\0"[..],
        &host,
        b"\0\x0a\0\x01\0\0\0\0\0\0",
    ];
    let datagram = [
        &b"\x11\x0a\x12\x34\xc0\0\x02\x07\0\x8a\0\x48\0\0"[..],
        &name(b"DESK", 0),
        &name(b"WORKGROUP", 0x1d),
        b"\xffSMB",
    ];
    let scoped = [
        &b"\x12\x34\x29\x10\0\x01\0\0\0\0\0\x01\x20"[..],
        &netbios_name(b"A", 0x1d),
        b"\x03lab\0\0\x20\0\x01",
    ];
    vec![
        Sample::new("nbns", Udp, 137)
            .with(Forward, query.concat())
            .with(Reverse, response.concat()),
        Sample::new("nbns-scope", Udp, 137).with(Forward, scoped.concat()),
        Sample::new("nbdgm", Udp, 138).with(Forward, datagram.concat()),
    ]
}

/// All samples of this file.
pub fn all() -> Vec<Sample> {
    let groups = [directories(), desktops(), shares(), media(), names()];
    groups.into_iter().flatten().collect()
}
