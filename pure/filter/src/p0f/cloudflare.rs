//! Compiles signatures as Cloudflare's bpftools does, to an expression with the same verdicts as
//! its `bpfgen`.
//!
//! Differences from p0f: only listed quirks are tested, and `id+` is not tested together with `df`;
//! the SYN flag is not tested, nor the protocol in IPv6; the length of IP options is in words; a
//! segment size or scale of 0 is not tested; `mss*n` means the segment size alone, and `mtu*n`
//! means 1500; the lowest TTL is one higher. Padding after `eol` is compared in chunks of 4, 2 or 1
//! bytes over its whole length, so an odd length reads past the header.

use super::parse::{self, Field};
use super::{Payload, Quirks, Signature, TcpOption, Version, Window};
use crate::{Error, Result};

/// Returns the expression for a signature of one IP version.
///
/// # Errors
/// Where the text is not a signature, or uses a feature that bpftools does not have.
pub fn cloudflare(text: &str) -> Result<String> {
    let (signature, at) = parse::fields(text)?;
    let refuse = |field: Field, what: &str| Err(Error::new(at[field as usize].clone(), what));
    if signature.version == Version::Any {
        return Err(Error::new(0..1, "this dialect needs an IP version").expected("4 or 6"));
    }
    if signature.ip_options > 10 {
        return refuse(
            Field::IpOptions,
            "this dialect counts IP options in words, at most 10",
        );
    }
    let unknown = |o: &&TcpOption| matches!(o, TcpOption::Sack | TcpOption::Other(_));
    if let Some(option) = signature.layout.iter().find(unknown) {
        return refuse(
            Field::Layout,
            &format!("this dialect does not support {option}"),
        );
    }
    let needs = |option, quirks: &[Quirks]| {
        let is_listed = quirks.iter().any(|quirk| signature.quirks.has(*quirk));
        is_listed && !signature.layout.contains(&option)
    };
    let is_multiple = matches!(signature.window, Window::Mss(_));
    let has_mss = signature.layout.contains(&TcpOption::Mss);
    if !has_mss && (is_multiple || signature.mss.is_some_and(|mss| mss != 0)) {
        return refuse(Field::Mss, "a segment size requires the option mss");
    }
    let has_scale = signature.layout.contains(&TcpOption::WindowScale);
    if !has_scale && signature.scale.is_some_and(|scale| scale != 0) {
        return refuse(Field::Scale, "a scale requires the option ws");
    }
    if signature.window == Window::Multiple(0) {
        return refuse(Field::Window, "nothing is a multiple of 0");
    }
    let is_v4 = signature.version == Version::V4;
    let linux: &[Quirks] = if is_v4 { &[Quirks::LINUX] } else { &[] };
    if needs(
        TcpOption::Timestamp,
        &[Quirks::TS1_ZERO, Quirks::TS2_NONZERO],
    ) || needs(TcpOption::Timestamp, linux)
        || needs(TcpOption::WindowScale, &[Quirks::EXCESSIVE_SCALE])
    {
        return refuse(Field::Quirks, "a quirk requires its option");
    }
    Ok(Clauses::of(&signature).join(" and "))
}

/// Clauses that must all be true.
struct Clauses<'a> {
    signature: &'a Signature,
    list: Vec<String>,
}

impl Clauses<'_> {
    fn of(signature: &Signature) -> Vec<String> {
        let list = Vec::new();
        let mut clauses = Clauses { signature, list };
        clauses.ip();
        clauses.window();
        clauses.options();
        clauses.ip_quirks();
        clauses.tcp_quirks();
        clauses.payload();
        clauses.list
    }

    fn add(&mut self, clause: String) {
        self.list.push(clause);
    }

    fn is_v4(&self) -> bool {
        self.signature.version == Version::V4
    }

    fn has(&self, quirk: Quirks) -> bool {
        self.signature.quirks.has(quirk)
    }

    /// Access to bytes of the TCP header; in IPv6, it starts 40 bytes after the start of the IP
    /// header.
    fn tcp(&self, at: u32, len: u32) -> String {
        match self.is_v4() {
            true => format!("tcp[{at}:{len}]"),
            false => format!("ip6[{}:{len}]", 40 + at),
        }
    }

    /// The options, each with its kind and its offset in the TCP header, and the offset of their
    /// end.
    fn places(&self) -> (Vec<(TcpOption, u32, u32)>, u32) {
        let mut at = 20;
        let mut places = Vec::new();
        for &option in &self.signature.layout {
            let (kind, len) = match option {
                TcpOption::End(_) => (0, 1),
                TcpOption::Nop => (1, 1),
                TcpOption::Mss => (2, 4),
                TcpOption::WindowScale => (3, 3),
                TcpOption::SackPermitted => (4, 2),
                _ => (8, 10),
            };
            places.push((option, kind, at));
            at += len;
        }
        (places, at)
    }

    /// Access to bytes of the first option of a kind.
    fn option(&self, option: TcpOption, offset: u32, len: u32) -> String {
        let (places, _) = self.places();
        let at = places.iter().find(|place| place.0 == option);
        self.tcp(at.map_or(0, |place| place.2) + offset, len)
    }

    fn ip(&mut self) {
        let (version, ttl) = match self.is_v4() {
            true => ("ip", "ip[8]"),
            false => ("ip6", "ip6[7]"),
        };
        self.add(version.to_owned());
        if !self.signature.any_distance {
            let most = i32::from(self.signature.ttl);
            self.add(format!("{ttl} <= {most}"));
            if most > 32 {
                // Below 35 the number is negative, which compares as larger than every TTL.
                self.add(format!("{ttl} > {}", most - 35));
            }
        }
        if self.is_v4() {
            let words = 5 + self.signature.ip_options;
            self.add(format!("ip[0] & 0xf = {words}"));
        }
    }

    fn window(&mut self) {
        let window = self.tcp(14, 2);
        let mss = self.option(TcpOption::Mss, 2, 2);
        if let Some(value @ 1..) = self.signature.mss {
            self.add(format!("{mss} = {value}"));
        }
        match self.signature.window {
            Window::Any => {}
            Window::Exact(value) => self.add(format!("{window} = {value}")),
            Window::Multiple(of) => self.add(format!("({window} % {of}) = 0")),
            Window::Mss(times) => self.add(format!("{window} = {mss} * {times}")),
            Window::Mtu(times) => self.add(format!("{window} = {}", 1500 * u32::from(times))),
        }
        if let Some(value @ 1..) = self.signature.scale {
            let scale = self.option(TcpOption::WindowScale, 2, 1);
            self.add(format!("{scale} = {value}"));
        }
    }

    fn options(&mut self) {
        let (places, mut at) = self.places();
        let padding = match self.signature.layout.last() {
            Some(TcpOption::End(padding)) => u32::from(*padding),
            _ => 0,
        };
        if !self.has(Quirks::BAD) {
            let words = 5 + (at + padding - 20).div_ceil(4);
            self.add(format!("{} >> 4 = {words}", self.tcp(12, 1)));
        }
        for (_, kind, at) in places {
            self.add(format!("{} = {kind}", self.tcp(at, 1)));
        }
        let chunk = match padding {
            4.. => 4,
            2.. => 2,
            _ => 1,
        };
        let jump = if self.has(Quirks::OPT_NONZERO) {
            "!="
        } else {
            "="
        };
        for _ in 0..padding.div_ceil(chunk) {
            self.add(format!("{} {jump} 0", self.tcp(at, chunk)));
            at += chunk;
        }
    }

    fn ip_quirks(&mut self) {
        if !self.is_v4() {
            if self.has(Quirks::FLOW) {
                self.add("ip6[2:2] != 0".to_owned());
            }
            return;
        }
        let is_set = |is_set: bool| if is_set { "!=" } else { "=" };
        let (df, id) = if self.has(Quirks::DF) {
            (Some("!="), None)
        } else if self.has(Quirks::ID_NONZERO) {
            (Some("!="), Some("!="))
        } else if self.has(Quirks::ID_ZERO) {
            (Some("="), Some("="))
        } else {
            (None, None)
        };
        for (field, jump) in [("ip[6] & 0x40", df), ("ip[4:2]", id)] {
            if let Some(jump) = jump {
                self.add(format!("{field} {jump} 0"));
            }
        }
        if self.has(Quirks::ECN) {
            self.add("ip[1] & 2 != 0".to_owned());
        }
        let reserved = is_set(self.has(Quirks::RESERVED));
        self.add(format!("ip[6] & 0x80 {reserved} 0"));
    }

    fn tcp_quirks(&mut self) {
        let mut list = Vec::new();
        let mut test = |field: String, is_zero: bool| {
            list.push(format!("{field} {} 0", if is_zero { "=" } else { "!=" }));
        };
        let flag = |bit: u32| format!("{} & {bit}", self.tcp(13, 1));
        if self.has(Quirks::SEQ_ZERO) {
            test(self.tcp(4, 4), true);
        }
        if self.has(Quirks::ACK_NONZERO) {
            test(flag(16), true);
            test(self.tcp(8, 4), false);
        } else if self.has(Quirks::ACK_ZERO) {
            test(flag(16), false);
            test(self.tcp(8, 4), true);
        }
        if self.has(Quirks::URG_POINTER) {
            test(flag(32), true);
            test(self.tcp(18, 2), false);
        } else if self.has(Quirks::URG) {
            test(flag(32), false);
        }
        if self.has(Quirks::PUSH) {
            test(flag(8), false);
        }
        if self.has(Quirks::TS1_ZERO) {
            test(self.option(TcpOption::Timestamp, 2, 4), true);
        }
        if self.has(Quirks::TS2_NONZERO) {
            test(self.option(TcpOption::Timestamp, 6, 4), false);
        }
        if self.has(Quirks::EXCESSIVE_SCALE) {
            list.push(format!(
                "{} > 14",
                self.option(TcpOption::WindowScale, 2, 1)
            ));
        }
        if self.has(Quirks::LINUX) && self.is_v4() {
            let (seq, ts1) = (self.tcp(4, 4), self.option(TcpOption::Timestamp, 2, 4));
            list.push(format!("ip[4:2] = (({seq} ^ {ts1}) & 0xffff)"));
        }
        self.list.extend(list);
    }

    fn payload(&mut self) {
        let jump = match self.signature.payload {
            Payload::Any => return,
            Payload::None => "=",
            Payload::Some => "!=",
        };
        let tcp = format!("({} >> 4) * 4", self.tcp(12, 1));
        self.add(match self.is_v4() {
            true => format!("(ip[2:2] - (ip[0] & 0xf) * 4) - {tcp} {jump} 0"),
            false => format!("ip6[4:2] - {tcp} {jump} 0"),
        });
    }
}
