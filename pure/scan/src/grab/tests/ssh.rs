//! Host keys of SSH servers, by every key exchange and at any port.

use super::*;

const IDENTIFICATION: &[u8] = b"SSH-2.0-x\r\n";
const KEX_REPLY: u8 = 31;

fn string(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_be_bytes()[..], bytes].concat()
}

/// A packet without encryption (RFC 4253 §6).
fn packet(payload: &[u8]) -> Vec<u8> {
    let padding = 4 + (8 - (9 + payload.len()) % 8) % 8;
    let len = (1 + payload.len() + padding) as u32;
    let head = [&len.to_be_bytes()[..], &[padding as u8], payload].concat();
    [head, vec![0; padding]].concat()
}

/// A server's algorithms, of which only those of the key exchange count.
fn algorithms(exchanges: &str) -> Vec<u8> {
    let head = [&[20][..], &[3; 16], &string(exchanges.as_bytes())].concat();
    let lists = string(b"any").repeat(9);
    packet(&[head, lists, vec![0; 5]].concat())
}

/// A server's reply with its host key.
fn host_key() -> Vec<u8> {
    let key = [string(b"ssh-ed25519"), string(&[5; 32])].concat();
    let parts = [string(&key), string(&[9; 32]), string(&[1; 83])].concat();
    packet(&[&[KEX_REPLY][..], &parts].concat())
}

fn who() -> Identity {
    Identity {
        random: [7; 32],
        user_agent: Identity::USER_AGENT.into(),
        contact: Some("me@x".into()),
    }
}

/// What a client sends to a server that has this list, at every cut of it: replies only become
/// longer.
fn replies(port: u16, start: &[u8]) -> Vec<u8> {
    let reply = |len: usize| Hello::of(port, &[]).reply(&start[..len], &who());
    let whole = reply(start.len());
    for len in 0..start.len() {
        assert!(whole.starts_with(&reply(len)), "{port} after {len}");
    }
    whole
}

/// The client's key in a packet of a key exchange.
fn key(packet: &[u8]) -> Option<&[u8]> {
    let (head, rest) = packet.split_at_checked(10)?;
    let len = u32::from_be_bytes(head[6..].try_into().unwrap()) as usize;
    assert_eq!(head[5], 30);
    assert_eq!(packet.len() % 8, 0);
    assert_eq!(
        u32::from_be_bytes(head[..4].try_into().unwrap()) as usize,
        packet.len() - 4
    );
    rest.get(..len)
}

#[test]
fn the_key_is_that_of_the_first_exchange_of_ours_that_the_server_has() {
    let groups = tls::group::GROUPS;
    let number = &[0x5a; 4][..];
    for (list, expected) in [
        (
            "curve25519-sha256,ecdh-sha2-nistp256",
            Some(groups[0].share),
        ),
        (
            "ecdh-sha2-nistp256,curve25519-sha256",
            Some(groups[0].share),
        ),
        (
            "mlkem768x25519-sha256,curve25519-sha256@libssh.org",
            Some(groups[0].share),
        ),
        (
            "ecdh-sha2-nistp521,ecdh-sha2-nistp256",
            Some(groups[1].share),
        ),
        ("ecdh-sha2-nistp384", Some(groups[2].share)),
        (
            "ecdh-sha2-nistp521,diffie-hellman-group14-sha256",
            Some(groups[3].share),
        ),
        (
            "diffie-hellman-group1-sha1,diffie-hellman-group14-sha1",
            Some(number),
        ),
        // Names that begin alike are others.
        (
            "curve25519-sha256x,ecdh-sha2-nistp256",
            Some(groups[1].share),
        ),
        ("curve25519", None),
        ("diffie-hellman-group-exchange-sha256", None),
        ("", None),
    ] {
        let start = [IDENTIFICATION, &algorithms(list)].concat();
        let reply = replies(22, &start);
        assert_eq!(key(&reply), expected, "{list}");
        // Elsewhere identification and algorithms of the client precede it.
        let greeted = replies(9999, &start);
        let target = Scene::new("9999").target(22);
        let hello = Hello::of(22, &[]).bytes(
            &To {
                target: &target,
                name: None,
            },
            &who(),
        );
        assert_eq!(greeted, [hello, reply].concat(), "{list}");
    }
}

#[test]
fn only_servers_of_version_2_get_a_key() {
    let list = algorithms("ecdh-sha2-nistp256");
    let reply = |line: &[u8], rest: &[u8]| replies(22, &[line, rest].concat()).len();
    assert_eq!(reply(b"SSH-2.0-x\n", &list), 80);
    assert_eq!(reply(b"SSH-1.99-x\n", &list), 80);
    assert_eq!(reply(b"SSH-1.5-x\n", &list), 0);
    // Lines of text may precede the version (RFC 4253 section 4.2).
    assert_eq!(reply(b"Hello\nSSH-2.0-x\n", &list), 80);
    let mut other = list.clone();
    other[5] = 21;
    assert_eq!(reply(b"SSH-2.0-x\n", &other), 0);
    // The list has no end: only the exchange that nothing can precede is certain.
    let mut endless = algorithms("ecdh-sha2-nistp256,x");
    endless[22..26].fill(0xff);
    assert_eq!(reply(b"SSH-2.0-x\n", &endless), 0);
    let mut endless = algorithms("curve25519-sha256,x");
    endless[22..26].fill(0xff);
    assert_eq!(reply(b"SSH-2.0-x\n", &endless), 48);
    assert_eq!(replies(9999, b"SSH-1.5-x\n"), b"");
}

#[test]
fn host_keys_are_read_at_any_port_however_the_stream_is_cut() {
    let says = [
        IDENTIFICATION,
        &algorithms("ecdh-sha2-nistp256"),
        &host_key(),
    ]
    .concat();
    for port in [22, 25, 9999] {
        let manner = Manner {
            closes: false,
            ..Manner::says(&says)
        };
        let whole = converse(port, &manner, Wire::default());
        let expected = json(&whole.banners[0]);
        assert!(
            expected.contains(r#""ssh_host_key":"ssh-ed25519""#),
            "{expected}"
        );
        assert!(whole.server.heard.starts_with(b"SSH-2.0-barewire\r\n"));
        for first in 1..says.len() {
            let manner = Manner {
                pieces: (first, 7),
                ..manner.clone()
            };
            let outcome = converse(port, &manner, Wire::default());
            assert_eq!(json(&outcome.banners[0]), expected, "{port}: {first}");
            assert_eq!(outcome.server.heard, whole.server.heard, "{port}: {first}");
        }
    }
}
