//! Splits an expression into words as libpcap's scanner does: the longest match wins.

use std::net::Ipv6Addr;
use std::ops::Range;

use crate::{Error, Result};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Token {
    Number(u32),
    /// An IPv4 address of two to four parts.
    Dotted(String),
    Ipv6(Ipv6Addr),
    Mac([u8; 6]),
    /// An ARCNET address: `$` and one or two hexadecimal digits.
    Aid(u8),
    Name(String),
    /// Quoted text, or a file name: only in the extended language.
    Text(Vec<u8>),
    Key(&'static str),
    End,
}

/// Alternative spellings, with the keyword that the parser uses.
#[rustfmt::skip]
const KEYS: &[(&str, &str)] = &[
    ("src", "src"), ("dst", "dst"), ("link", "ether"), ("ether", "ether"), ("ppp", "ether"),
    ("slip", "ether"), ("fddi", "ether"), ("tr", "ether"), ("wlan", "ether"), ("arp", "arp"),
    ("rarp", "rarp"), ("ip", "ip"), ("sctp", "sctp"), ("tcp", "tcp"), ("udp", "udp"),
    ("icmp", "icmp"), ("igmp", "igmp"), ("igrp", "igrp"), ("pim", "pim"), ("vrrp", "vrrp"),
    ("carp", "carp"), ("ip6", "ip6"), ("icmp6", "icmp6"), ("ah", "ah"), ("esp", "esp"),
    ("atalk", "atalk"), ("aarp", "aarp"), ("lat", "lat"), ("sca", "sca"), ("moprc", "moprc"),
    ("mopdl", "mopdl"), ("iso", "iso"), ("esis", "esis"), ("es-is", "esis"), ("isis", "isis"),
    ("is-is", "isis"), ("clnp", "clnp"), ("stp", "stp"), ("ipx", "ipx"), ("netbeui", "netbeui"),
    ("decnet", "decnet"), ("radio", "radio"), ("geneve", "geneve"), ("llc", "llc"),
    ("type", "type"), ("subtype", "subtype"), ("direction", "direction"), ("dir", "direction"),
    ("host", "host"), ("net", "net"), ("mask", "mask"), ("port", "port"),
    ("portrange", "portrange"), ("proto", "proto"), ("protochain", "protochain"),
    ("gateway", "gateway"), ("less", "less"), ("greater", "greater"), ("byte", "byte"),
    ("broadcast", "broadcast"), ("multicast", "multicast"), ("and", "and"), ("or", "or"),
    ("not", "not"), ("len", "len"), ("length", "len"), ("inbound", "inbound"),
    ("outbound", "outbound"), ("ifindex", "ifindex"), ("vlan", "vlan"), ("mpls", "mpls"),
    ("pppoed", "pppoed"), ("pppoes", "pppoes"), ("addr1", "addr1"), ("address1", "addr1"),
    ("addr2", "addr2"), ("address2", "addr2"), ("addr3", "addr3"), ("address3", "addr3"),
    ("addr4", "addr4"), ("address4", "addr4"), ("ra", "ra"), ("ta", "ta"),
    ("l1", "l1"), ("l2", "l2"), ("iih", "iih"), ("lsp", "lsp"), ("snp", "snp"),
    ("csnp", "csnp"), ("psnp", "psnp"), ("ifname", "ifname"), ("on", "ifname"),
    ("rset", "rset"), ("ruleset", "rset"), ("rnr", "rnr"), ("rulenum", "rnr"),
    ("srnr", "srnr"), ("subrulenum", "srnr"), ("reason", "reason"), ("action", "action"),
    ("vpi", "vpi"), ("vci", "vci"), ("lane", "lane"), ("oam", "oam"), ("oamf4", "oam"),
    ("oamf4sc", "oamf4s"), ("oamf4s", "oamf4s"), ("oamf4ec", "oamf4e"), ("oamf4e", "oamf4e"),
    ("metac", "metac"), ("bcc", "bcc"), ("sc", "sc"), ("ilmic", "ilmic"),
    ("connectmsg", "connectmsg"), ("metaconnect", "metaconnect"), ("fisu", "fisu"),
    ("lssu", "lssu"), ("lsu", "lssu"), ("msu", "msu"), ("hfisu", "hfisu"), ("hlssu", "hlssu"),
    ("hmsu", "hmsu"), ("sio", "sio"), ("opc", "opc"), ("dpc", "dpc"), ("sls", "sls"),
    ("hsio", "hsio"), ("hopc", "hopc"), ("hdpc", "hdpc"), ("hsls", "hsls"),
];

/// Named constants of pcap-filter(7).
#[rustfmt::skip]
const CONSTANTS: &[(&str, u32)] = &[
    ("icmptype", 0), ("icmpcode", 1), ("icmp-echoreply", 0), ("icmp-unreach", 3),
    ("icmp-sourcequench", 4), ("icmp-redirect", 5), ("icmp-echo", 8), ("icmp-routeradvert", 9),
    ("icmp-routersolicit", 10), ("icmp-timxceed", 11), ("icmp-paramprob", 12),
    ("icmp-tstamp", 13), ("icmp-tstampreply", 14), ("icmp-ireq", 15), ("icmp-ireqreply", 16),
    ("icmp-maskreq", 17), ("icmp-maskreply", 18), ("icmp6type", 0), ("icmp6code", 1),
    ("icmp6-destinationrunreach", 1), ("icmp6-destinationunreach", 1),
    ("icmp6-packettoobig", 2), ("icmp6-timeexceeded", 3),
    ("icmp6-parameterproblem", 4), ("icmp6-echo", 128), ("icmp6-echoreply", 129),
    ("icmp6-multicastlistenerquery", 130), ("icmp6-multicastlistenerreportv1", 131),
    ("icmp6-multicastlistenerdone", 132), ("icmp6-routersolicit", 133),
    ("icmp6-routeradvert", 134), ("icmp6-neighborsolicit", 135), ("icmp6-neighboradvert", 136),
    ("icmp6-redirect", 137), ("icmp6-routerrenum", 138), ("icmp6-nodeinformationquery", 139),
    ("icmp6-nodeinformationresponse", 140), ("icmp6-ineighbordiscoverysolicit", 141),
    ("icmp6-ineighbordiscoveryadvert", 142), ("icmp6-multicastlistenerreportv2", 143),
    ("icmp6-homeagentdiscoveryrequest", 144), ("icmp6-homeagentdiscoveryreply", 145),
    ("icmp6-mobileprefixsolicit", 146), ("icmp6-mobileprefixadvert", 147),
    ("icmp6-certpathsolicit", 148), ("icmp6-certpathadvert", 149),
    ("icmp6-multicastrouteradvert", 151), ("icmp6-multicastroutersolicit", 152),
    ("icmp6-multicastrouterterm", 153), ("tcpflags", 13), ("tcp-fin", 1), ("tcp-syn", 2),
    ("tcp-rst", 4), ("tcp-push", 8), ("tcp-ack", 16), ("tcp-urg", 32), ("tcp-ece", 64),
    ("tcp-cwr", 128),
];

/// Whether a word is a keyword, and therefore cannot be a host name.
pub fn is_keyword(word: &str) -> bool {
    KEYS.iter().any(|(name, _)| *name == word)
}

/// Operators; a longer one comes before its prefix.
const OPERATORS: &[(&str, &str)] = &[
    ("&&", "and"),
    ("||", "or"),
    ("<<", "<<"),
    (">>", ">>"),
    ("<=", "<="),
    (">=", ">="),
    ("!=", "!="),
    ("==", "="),
    ("!", "not"),
    ("=", "="),
    ("<", "<"),
    (">", ">"),
    ("(", "("),
    (")", ")"),
    ("[", "["),
    ("]", "]"),
    (":", ":"),
    ("+", "+"),
    ("-", "-"),
    ("*", "*"),
    ("/", "/"),
    ("%", "%"),
    ("&", "&"),
    ("|", "|"),
    ("^", "^"),
];

/// Splits an expression in libpcap's or the extended language into tokens; the last one is `End`.
pub(super) fn lex(text: &str, is_extended: bool) -> Result<Vec<(Token, Range<usize>)>> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(c) = text[at..].chars().next() {
        if matches!(c, ' ' | '\t' | '\r' | '\n') {
            at += 1;
            continue;
        }
        let rest = &text[at..];
        let (token, len) = match is_extended {
            true if c == '"' => quoted(rest, at)?,
            true if is_file(&tokens) => {
                let len = run(rest, |b| !b" \t\r\n()".contains(&b));
                match len {
                    0 => token(rest, at)?,
                    _ if is_joined(&rest[..len]) => token(rest, at)?,
                    _ => (Token::Text(rest[..len].into()), len),
                }
            }
            _ => token(rest, at)?,
        };
        tokens.push((token, at..at + len));
        at += len;
    }
    tokens.push((Token::End, text.len()..text.len()));
    Ok(tokens)
}

/// Whether the last tokens are `net file`.
fn is_file(tokens: &[(Token, Range<usize>)]) -> bool {
    let [.., (Token::Key("net"), _), (Token::Name(name), _)] = tokens else {
        return false;
    };
    name == "file"
}

/// Whether a word after `net file` cannot be a file name: libpcap's language may have a network
/// called "file".
fn is_joined(word: &str) -> bool {
    is_keyword(word)
        || ["&&", "||"]
            .iter()
            .any(|operator| word.starts_with(operator))
}

/// Parses quoted text with the escapes `\\`, `\"`, `\n`, `\r`, `\t` and `\x` with two digits.
fn quoted(rest: &str, at: usize) -> Result<(Token, usize)> {
    let mut text = Vec::new();
    let mut bytes = rest.bytes().enumerate().skip(1);
    while let Some((index, byte)) = bytes.next() {
        match byte {
            b'"' => return Ok((Token::Text(text), index + 1)),
            b'\\' => {
                let escaped = bytes.next().map(|(_, byte)| byte);
                let hex = || {
                    let digits = rest.get(index + 2..index + 4)?;
                    let is_hex = digits.bytes().all(|b| b.is_ascii_hexdigit());
                    is_hex.then(|| u8::from_str_radix(digits, 16).ok())?
                };
                let byte = match escaped {
                    Some(b @ (b'"' | b'\\')) => Some(b),
                    Some(b'n') => Some(b'\n'),
                    Some(b'r') => Some(b'\r'),
                    Some(b't') => Some(b'\t'),
                    Some(b'x') => {
                        let byte = hex();
                        bytes.nth(1);
                        byte
                    }
                    _ => None,
                };
                text.push(byte.ok_or_else(|| {
                    Error::new(at + index..at + index + 1, "unknown escape in a text")
                        .expected("expected \\\\, \\\", \\n, \\r, \\t or \\x and two digits")
                })?);
            }
            _ => text.push(byte),
        }
    }
    Err(
        Error::new(at..at + rest.len(), "the closing quotation mark is missing")
            .expected("expected \" at the end of the text"),
    )
}

fn token(rest: &str, at: usize) -> Result<(Token, usize)> {
    let bytes = rest.as_bytes();
    if let Some(escaped) = rest.strip_prefix('\\') {
        let len = run(escaped, |b| !b" !()\n\t".contains(&b));
        if len > 0 && escaped.is_char_boundary(len) {
            return Ok((Token::Name(escaped[..len].to_owned()), len + 1));
        }
    }
    if let Some(hex) = rest.strip_prefix('$') {
        let len = run(hex, |b| b.is_ascii_hexdigit()).min(2);
        if let Ok(address) = u8::from_str_radix(&hex[..len], 16) {
            return Ok((Token::Aid(address), len + 1));
        }
    }
    let word = word(bytes);
    if let Some((address, len)) = ipv6(rest).filter(|&(_, len)| len >= word) {
        return Ok((Token::Ipv6(address), len));
    }
    if let Some((address, len)) = mac(rest).filter(|&(_, len)| len >= word) {
        return Ok((Token::Mac(address), len));
    }
    if word > 0 {
        return Ok((named(&rest[..word], at)?, word));
    }
    for &(spelling, key) in OPERATORS {
        if rest.starts_with(spelling) {
            return Ok((Token::Key(key), spelling.len()));
        }
    }
    let c = rest.chars().next().unwrap_or(' ');
    Err(Error::new(
        at..at + c.len_utf8(),
        format!("{c:?} is not part of any word"),
    )
    .expected("expected a word, a number, an address or an operator"))
}

fn run(text: &str, is: impl Fn(u8) -> bool) -> usize {
    text.bytes().take_while(|&b| is(b)).count()
}

/// Length of the name at the start: letters, digits and `-_.`, not ending in `-` or `_`.
fn word(bytes: &[u8]) -> usize {
    if !bytes.first().is_some_and(u8::is_ascii_alphanumeric) {
        return 0;
    }
    let len = bytes
        .iter()
        .take_while(|b| b.is_ascii_alphanumeric() || b"-_.".contains(b))
        .count();
    bytes[..len]
        .iter()
        .rposition(|b| !b"-_".contains(b))
        .map_or(0, |last| last + 1)
}

fn named(word: &str, at: usize) -> Result<Token> {
    if let Some(&(_, key)) = KEYS.iter().find(|(spelling, _)| *spelling == word) {
        return Ok(Token::Key(key));
    }
    if let Some(&(_, value)) = CONSTANTS.iter().find(|(name, _)| *name == word) {
        return Ok(Token::Number(value));
    }
    let parts = word.split('.').count();
    if parts == 1 && is_number(word) {
        return number(word).map(Token::Number).ok_or_else(|| {
            Error::new(
                at..at + word.len(),
                format!("number {word} is malformed or too large"),
            )
            .expected("expected a number of 32 bits")
        });
    }
    if (2..=4).contains(&parts) && word.split('.').all(is_number) {
        return Ok(Token::Dotted(word.to_owned()));
    }
    Ok(Token::Name(word.to_owned()))
}

fn is_number(word: &str) -> bool {
    match word.strip_prefix("0x").or_else(|| word.strip_prefix("0X")) {
        Some(hex) => !hex.is_empty() && hex.bytes().all(|b| b.is_ascii_hexdigit()),
        None => !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit()),
    }
}

/// Parses a number as in C: `0x` is hexadecimal, a leading 0 octal.
fn number(word: &str) -> Option<u32> {
    if let Some(hex) = word.strip_prefix("0x").or_else(|| word.strip_prefix("0X")) {
        return u32::from_str_radix(hex, 16).ok();
    }
    let base = if word.starts_with('0') { 8 } else { 10 };
    u32::from_str_radix(word, base).ok()
}

fn ipv6(rest: &str) -> Option<(Ipv6Addr, usize)> {
    let len = run(rest, |b| b.is_ascii_hexdigit() || b == b':' || b == b'.').min(45);
    if !rest[..len].contains(':') {
        return None;
    }
    (2..=len)
        .rev()
        .find_map(|len| Some((rest[..len].parse().ok()?, len)))
}

fn mac(rest: &str) -> Option<([u8; 6], usize)> {
    let len = run(rest, |b| b.is_ascii_hexdigit() || b":-.".contains(&b));
    let text = rest.get(..len).filter(|text| text.len() <= 17)?;
    let separator = text.bytes().find(|b| !b.is_ascii_hexdigit());
    let mut address = [0; 6];
    let mut parts = Vec::new();
    match separator {
        None if text.len() == 12 => parts.extend((0..6).map(|i| &text[2 * i..2 * i + 2])),
        None => return None,
        Some(separator) => {
            for part in text.split(separator as char) {
                match part.len() {
                    1 | 2 => parts.push(part),
                    4 if separator == b'.' && text.len() == 14 => {
                        parts.extend([&part[..2], &part[2..]]);
                    }
                    _ => return None,
                }
            }
        }
    }
    if parts.len() != 6 {
        return None;
    }
    for (byte, part) in address.iter_mut().zip(parts) {
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    Some((address, len))
}
