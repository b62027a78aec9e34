//! Reads payloads from files: captures (pcap, pcapng), whose UDP datagrams are payloads for their
//! destination ports, and text in the format of nmap-payloads, which masscan reads, too.

use wire::file::{Event, Format, Reader};
use wire::{Dissection, LayerKind, dissect};

use super::Given;
use crate::port::PortList;

/// Longest payload: a datagram of 1,500 bytes over IPv6.
pub(super) const LEN_MAX: usize = 1_452;
/// Maximum number of payloads of a scan.
pub(super) const COUNT_MAX: usize = 256;

/// The payloads of a file.
///
/// # Errors
/// The number of a line or the offset of a packet, and what is wrong with it.
pub fn read_payloads(bytes: &[u8]) -> Result<Vec<Given>, String> {
    let found = match Format::sniff(bytes) {
        Some(Format::Pcap | Format::Pcapng) => capture(bytes)?,
        Some(Format::Gzip | Format::Zstd) => return Err("it is compressed".into()),
        None => {
            let text = std::str::from_utf8(bytes);
            text_file(text.map_err(|_| "it is neither a capture nor text")?)?
        }
    };
    match found.is_empty() {
        true => Err("it has no payload for a UDP port".into()),
        false => Ok(found),
    }
}

fn capture(bytes: &[u8]) -> Result<Vec<Given>, String> {
    let (mut reader, mut at) = (Reader::new(), 0);
    let mut out: Vec<Given> = Vec::new();
    loop {
        let rest = bytes.get(at..).unwrap_or(&[]);
        let wrong = |error| format!("{error}");
        match reader.next(rest).map_err(wrong)? {
            Event::Need(_) => {
                reader.finish(rest.len()).map_err(wrong)?;
                return Ok(out);
            }
            Event::Packet(packet) => {
                let data = rest.get(packet.data.clone()).unwrap_or_default();
                if let Some(given) = datagram(packet.link, data)
                    && !out.contains(&given)
                {
                    if out.len() == COUNT_MAX {
                        return Err(format!("it has more than {COUNT_MAX} payloads"));
                    }
                    out.push(given);
                }
                at += packet.used;
            }
            event => at += event.used(),
        }
    }
}

/// The payload of a whole UDP datagram, if it has one.
fn datagram(link: wire::LinkType, packet: &[u8]) -> Option<Given> {
    let mut found = Dissection::EMPTY;
    dissect(link, packet, packet.len() as u32, &mut found);
    let is_whole = found.has(LayerKind::Udp) && found.has_ports() && !found.fragment.is_later();
    let at = usize::from(found.transport_offset);
    let udp = packet.get(at..).filter(|_| is_whole)?;
    let len = usize::from(u16::from_be_bytes([*udp.get(4)?, *udp.get(5)?]));
    let bytes = udp.get(8..len)?;
    (1..=LEN_MAX).contains(&bytes.len()).then(|| Given {
        ports: vec![found.dst_port],
        bytes: bytes.to_vec(),
    })
}

/// A word or a string in quotes, of a line.
#[derive(Debug, PartialEq, Eq)]
enum Token<'a> {
    Word(&'a str),
    Text(Vec<u8>),
}

/// Lines of `udp PORTS "PAYLOAD" ...`, continued on further lines up to the next `udp`; strings
/// that follow each other are one. `source PORT` is ignored: answers are recognized by the source
/// port.
fn text_file(text: &str) -> Result<Vec<Given>, String> {
    let mut out: Vec<Given> = Vec::new();
    let mut expected = Expected::Udp;
    for (number, line) in (1..).zip(text.lines()) {
        let wrong = |why: String| format!("line {number}: {why}");
        let mut rest = line;
        while let Some(token) = next(&mut rest).map_err(wrong)? {
            let is_begun = out.last().is_some_and(|given| !given.bytes.is_empty());
            match (token, expected) {
                (Token::Word(_), Expected::Source) => expected = Expected::More,
                (Token::Word("source"), Expected::More) if is_begun => expected = Expected::Source,
                (Token::Word("udp"), Expected::Udp | Expected::More)
                    if is_begun || out.is_empty() =>
                {
                    expected = Expected::Ports;
                }
                (Token::Word(ports), Expected::Ports) => {
                    let ports = PortList::parse(ports).and_then(|list| list.numbers());
                    if out.len() == COUNT_MAX {
                        return Err(wrong(format!("there are more than {COUNT_MAX} payloads")));
                    }
                    out.push(Given {
                        ports: ports.map_err(wrong)?,
                        bytes: Vec::new(),
                    });
                    expected = Expected::More;
                }
                (Token::Text(text), Expected::More) => {
                    if let Some(given) = out.last_mut() {
                        given.bytes.extend(text);
                        if given.bytes.len() > LEN_MAX {
                            return Err(wrong(format!("it is longer than {LEN_MAX} bytes")));
                        }
                    }
                }
                (token, _) => return Err(wrong(format!("{token:?} is not expected here"))),
            }
        }
    }
    let is_cut = out.last().is_some_and(|given| given.bytes.is_empty());
    match is_cut || matches!(expected, Expected::Ports | Expected::Source) {
        true => Err("the end of the last payload is missing".into()),
        false => Ok(out),
    }
}

/// What may follow.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Expected {
    Udp,
    Ports,
    /// A string, `source`, or the next `udp`.
    More,
    Source,
}

/// Takes the next token of a line; a `#` outside of quotes starts a comment.
fn next<'a>(rest: &mut &'a str) -> Result<Option<Token<'a>>, String> {
    *rest = rest.trim_start();
    if rest.is_empty() || rest.starts_with('#') {
        *rest = "";
        return Ok(None);
    }
    if let Some(quoted) = rest.strip_prefix('"') {
        let (bytes, behind) = string(quoted)?;
        *rest = behind;
        return Ok(Some(Token::Text(bytes)));
    }
    let end = rest.find(|letter: char| letter.is_whitespace() || letter == '"');
    let (word, behind) = rest.split_at(end.unwrap_or(rest.len()));
    *rest = behind;
    Ok(Some(Token::Word(word)))
}

/// The bytes of a string up to its closing quote, with the escapes of C, and what follows it.
fn string(text: &str) -> Result<(Vec<u8>, &str), String> {
    let mut out = Vec::new();
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        let escape = match letter {
            '"' => return Ok((out, &text[at + 1..])),
            '\\' => letters.next().map(|(_, letter)| letter),
            letter => {
                out.extend(letter.encode_utf8(&mut [0; 4]).as_bytes());
                continue;
            }
        };
        out.push(match escape {
            Some('n') => b'\n',
            Some('r') => b'\r',
            Some('t') => b'\t',
            Some('a') => 7,
            Some('b') => 8,
            Some('v') => 11,
            Some('f') => 12,
            Some('0') => 0,
            Some(letter @ ('\\' | '"' | '\'')) => letter as u8,
            Some('x') => {
                let digits = [letters.next(), letters.next()];
                let digit = |digit: Option<(usize, char)>| digit?.1.to_digit(16);
                match digits.map(digit) {
                    [Some(high), Some(low)] => (high * 16 + low) as u8,
                    _ => return Err("\\x is not followed by two hexadecimal digits".into()),
                }
            }
            other => return Err(format!("unknown escape \\{}", other.unwrap_or(' '))),
        });
    }
    Err("the closing quote is missing".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_in_text_are_for_their_ports() {
        let text = r#"# DNS
udp 53,5353-5354
  # a comment
  "\x00\x01a\n"
  "b#\"" # end
source 53
udp 7 "\r\n\0"
"#;
        let given = read_payloads(text.as_bytes()).unwrap();
        let expected = [
            (vec![53, 5353, 5354], b"\0\x01a\nb#\"".to_vec()),
            (vec![7], b"\r\n\0".to_vec()),
        ];
        let given: Vec<_> = given.into_iter().map(|of| (of.ports, of.bytes)).collect();
        assert_eq!(given, expected);
    }

    #[test]
    fn an_invalid_line_is_named() {
        for (text, part) in [
            ("", "no payload"),
            ("udp 53 \"a", "line 1: the closing quote"),
            ("\nudp 53 \"\\xg0\"", "line 2"),
            ("udp 53 \"\\q\"", "escape"),
            ("udp 70000 \"a\"", "line 1"),
            ("udp T:53 \"a\"", "protocol"),
            ("udp 53\nudp 54 \"a\"", "line 2"),
            ("udp 53 \"a\" udp 54", "missing"),
            ("tcp 53 \"a\"", "line 1"),
            ("\"a\"", "line 1"),
            ("udp", "missing"),
        ] {
            let why = read_payloads(text.as_bytes()).unwrap_err();
            assert!(why.contains(part), "{text}: {why}");
        }
        assert!(
            read_payloads(&[0x1f, 0x8b, 8, 0])
                .unwrap_err()
                .contains("compressed")
        );
        assert!(read_payloads(b"\xff\xfe").is_err());
    }

    #[test]
    fn datagrams_of_a_capture_are_payloads_for_their_destination_ports() {
        let mut file = vec![0; wire::file::pcap::HEADER_LEN];
        let header = file.first_chunk_mut().unwrap();
        let precision = wire::file::pcap::Precision::Microseconds;
        wire::file::pcap::emit_header(header, wire::LinkType::ETHERNET, 65_535, precision);
        // Twice the same, and one that is a fragment.
        for (port, fragment) in [(53, 0), (53, 0), (161, 0), (161, 1)] {
            let mut packet = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
            packet.extend([0x45, 0, 0, 33, 0, 1, 0, fragment, 64, 17, 0, 0]);
            packet.extend([192, 0, 2, 1, 192, 0, 2, 2, 0x9c, 0x40, 0, port, 0, 13, 0, 0]);
            packet.extend(b"hello");
            // Padding of Ethernet.
            packet.resize(60, 0);
            let len = (packet.len() as u32).to_le_bytes();
            file.extend([&[0; 8], &len[..], &len[..], &packet[..]].concat());
        }
        let given = read_payloads(&file).unwrap();
        let given: Vec<_> = given.into_iter().map(|of| (of.ports, of.bytes)).collect();
        let hello = b"hello".to_vec();
        assert_eq!(given, [(vec![53], hello.clone()), (vec![161], hello)]);
        // What is read of a file that is cut off is the beginning.
        for len in 0..file.len() {
            let part = read_payloads(&file[..len]).unwrap_or_default();
            let part: Vec<_> = part.into_iter().map(|of| (of.ports, of.bytes)).collect();
            assert!(given.starts_with(&part), "{len}: {part:?}");
        }
    }
}
