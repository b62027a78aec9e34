//! Parses a signature, and checks whether any packet can match it.

use std::ops::Range;

use super::{
    MSS_LEAST, ONLY_V4, OPTIONS_MAX, Payload, QUIRKS, Quirks, Signature, TcpOption, Version, Window,
};
use crate::{Error, Result};

/// Fields of a signature, separated by colons.
const FIELDS: [&str; 8] = [
    "IP version",
    "initial TTL",
    "length of IP options",
    "maximum segment size",
    "window and scale",
    "TCP options",
    "quirks",
    "payload",
];

/// A part of the text, with its position.
#[derive(Clone, Copy)]
struct Piece<'a> {
    text: &'a str,
    start: usize,
}

impl<'a> Piece<'a> {
    fn range(self) -> Range<usize> {
        self.start..self.start + self.text.len()
    }

    fn split(self, separator: char) -> impl Iterator<Item = Piece<'a>> {
        let mut start = self.start;
        self.text.split(separator).map(move |text| {
            let piece = Piece { text, start };
            start += text.len() + separator.len_utf8();
            piece
        })
    }

    fn behind(self, prefix: &str) -> Option<Piece<'a>> {
        let text = self.text.strip_prefix(prefix)?;
        let start = self.start + prefix.len();
        Some(Piece { text, start })
    }

    fn number(self, what: &str, most: u32) -> Result<u32> {
        let digits = !self.text.is_empty() && self.text.bytes().all(|b| b.is_ascii_digit());
        match self.text.parse() {
            Ok(number) if digits && number <= most => Ok(number),
            _ => {
                let an = if what.starts_with(['a', 'e', 'i', 'o']) {
                    "an"
                } else {
                    "a"
                };
                let why = format!("\"{}\" is not {an} {what}", self.text);
                Err(Error::new(self.range(), why).expected(format!("a number from 0 to {most}")))
            }
        }
    }

    fn or_any(self, what: &str, most: u32) -> Result<Option<u32>> {
        match self.text {
            "*" => Ok(None),
            _ => match self.number(what, most) {
                Ok(number) => Ok(Some(number)),
                Err(error) => {
                    let expected = format!("{}, or *", error.expected);
                    Err(error.expected(expected))
                }
            },
        }
    }
}

impl Signature {
    /// Parses a signature.
    ///
    /// # Errors
    /// Where the text is invalid, or why no packet can match it.
    pub fn parse(text: &str) -> Result<Signature> {
        let (signature, at) = fields(text)?;
        match signature.contradiction() {
            Some((field, why)) => {
                let no_packet = format!("no packet matches: {why}");
                Err(Error::new(at[field as usize].clone(), no_packet))
            }
            None => Ok(signature),
        }
    }
    /// Why no packet can match, and in which field.
    fn contradiction(&self) -> Option<(Field, String)> {
        let quirk = |quirk| self.quirks.has(quirk);
        let has = |option| self.layout.contains(&option);
        let no = |field, why: &str| Some((field, why.to_owned()));
        if !self.ip_options.is_multiple_of(4) {
            return no(Field::IpOptions, "IPv4 options come in words of 4 bytes");
        }
        if self.ip_options > 0 && self.version == Version::V6 {
            return no(Field::IpOptions, "IPv6 has no IP options");
        }
        if self.version == Version::V6 && self.quirks != self.quirks.without(ONLY_V4) {
            return no(
                Field::Quirks,
                "df, id+, id-, 0+ and linux are quirks of IPv4",
            );
        }
        if self.version == Version::V4 && quirk(Quirks::FLOW) {
            return no(Field::Quirks, "flow is a quirk of IPv6");
        }
        for (one, other, why) in [
            (Quirks::DF, Quirks::ID_ZERO, "id- and df exclude each other"),
            (
                Quirks::ID_NONZERO,
                Quirks::ID_ZERO,
                "id+ and id- exclude each other",
            ),
            (
                Quirks::ACK_NONZERO,
                Quirks::ACK_ZERO,
                "ack+ and ack- exclude each other",
            ),
            (
                Quirks::URG_POINTER,
                Quirks::URG,
                "uptr+ and urgf+ exclude each other",
            ),
        ] {
            if quirk(one) && quirk(other) {
                return no(Field::Quirks, why);
            }
        }
        if quirk(Quirks::ID_NONZERO) && !quirk(Quirks::DF) {
            return no(Field::Quirks, "id+ requires df");
        }
        self.option_contradiction(has)
    }

    fn option_contradiction(&self, has: impl Fn(TcpOption) -> bool) -> Option<(Field, String)> {
        let quirk = |quirk| self.quirks.has(quirk);
        let no = |field, why: &str| Some((field, why.to_owned()));
        let has_end = self
            .layout
            .iter()
            .any(|o| matches!(o, TcpOption::End(n) if *n > 0));
        if (quirk(Quirks::TS1_ZERO) || quirk(Quirks::TS2_NONZERO) || quirk(Quirks::LINUX))
            && !has(TcpOption::Timestamp)
        {
            return no(Field::Quirks, "ts1-, ts2+ and linux require the option ts");
        }
        if quirk(Quirks::OPT_NONZERO) && !has_end {
            return no(Field::Quirks, "opt+ needs bytes after eol, as in eol+2");
        }
        // The contents of malformed options are unknown.
        if quirk(Quirks::BAD) {
            return None;
        }
        if !has(TcpOption::Mss) && self.mss.is_some_and(|mss| mss != 0) {
            return no(Field::Mss, "a segment size requires the option mss");
        }
        if !has(TcpOption::WindowScale) && self.scale.is_some_and(|scale| scale != 0) {
            return no(Field::Scale, "a scale requires the option ws");
        }
        let excessive = quirk(Quirks::EXCESSIVE_SCALE);
        let scale = match has(TcpOption::WindowScale) {
            true => self.scale,
            false => Some(0),
        };
        if scale.is_some_and(|scale| (scale > 14) != excessive) {
            return no(
                Field::Scale,
                "exws is required if the scale is above 14, and excluded otherwise",
            );
        }
        let mss = match has(TcpOption::Mss) {
            true => self.mss,
            false => Some(0),
        };
        if let Window::Mss(n) | Window::Mtu(n) = self.window {
            if n == 0 {
                return no(Field::Window, "a window of 0 is no multiple");
            }
            if mss.is_some_and(|mss| mss < MSS_LEAST) {
                return no(
                    Field::Window,
                    "multiples need a segment size of at least 100",
                );
            }
        }
        if self.window == Window::Multiple(0) {
            return no(Field::Window, "nothing is a multiple of 0");
        }
        match super::compile::lengths(&self.layout).is_empty() {
            true => no(
                Field::Layout,
                "the options do not fill whole words of 4 bytes, or take more than 40 bytes",
            ),
            false => None,
        }
    }
}

/// Parses the fields of a signature, without checking whether any packet can match it; returns it
/// with the positions of each [`Field`].
pub(super) fn fields(text: &str) -> Result<(Signature, [Range<usize>; 6])> {
    let pieces: Vec<Piece<'_>> = Piece { text, start: 0 }.split(':').collect();
    let Ok(
        [
            version,
            ttl,
            ip_options,
            mss,
            window,
            layout,
            quirks,
            payload,
        ],
    ) = <[Piece<'_>; 8]>::try_from(pieces.as_slice())
    else {
        return Err(wrong_count(text, &pieces));
    };
    let (window, scale) = parse_window(window)?;
    let (initial_ttl, any_distance) = parse_ttl(ttl)?;
    let signature = Signature {
        version: parse_version(version)?,
        ttl: initial_ttl,
        any_distance,
        ip_options: ip_options.number("length of IP options", 40)? as u8,
        mss: mss
            .or_any("maximum segment size", 65_535)?
            .map(|mss| mss as u16),
        window: parse_window_size(window)?,
        scale: scale.or_any("window scale", 255)?.map(|scale| scale as u8),
        layout: parse_layout(layout)?,
        quirks: parse_quirks(quirks)?,
        payload: parse_payload(payload)?,
    };
    let at = [ip_options, mss, window, scale, layout, quirks].map(Piece::range);
    Ok((signature, at))
}

/// Where an error is, by the order of the fields above.
#[derive(Clone, Copy)]
pub(super) enum Field {
    IpOptions,
    Mss,
    Window,
    Scale,
    Layout,
    Quirks,
}

fn wrong_count(text: &str, pieces: &[Piece<'_>]) -> Error {
    let fields = "version:ttl:olen:mss:window,scale:options:quirks:payload";
    let (at, what) = match pieces.get(FIELDS.len()) {
        Some(extra) => (extra.start..text.len(), "more than eight fields".to_owned()),
        None => (
            text.len()..text.len(),
            format!("missing field: {}", FIELDS[pieces.len()]),
        ),
    };
    Error::new(at, what).expected(format!("expected {fields}"))
}

fn parse_version(piece: Piece<'_>) -> Result<Version> {
    match piece.text {
        "4" => Ok(Version::V4),
        "6" => Ok(Version::V6),
        "*" => Ok(Version::Any),
        text => Err(
            Error::new(piece.range(), format!("\"{text}\" is not an IP version"))
                .expected("4, 6 or *"),
        ),
    }
}

fn parse_ttl(piece: Piece<'_>) -> Result<(u8, bool)> {
    let what = "initial TTL";
    if let Some(text) = piece.text.strip_suffix('-') {
        let number = Piece { text, ..piece };
        return Ok((number.number(what, 255)? as u8, true));
    }
    let mut parts = piece.split('+');
    let seen = parts.next().unwrap_or(piece).number(what, 255)?;
    let hops = match parts.next() {
        Some(hops) => hops.number("distance", super::HOPS_MAX.into())?,
        None => 0,
    };
    match (u8::try_from(seen + hops), parts.next()) {
        (Ok(ttl @ 1..), None) => Ok((ttl, false)),
        _ => Err(Error::new(
            piece.range(),
            format!("\"{}\" is not an {what}", piece.text),
        )
        .expected("1 to 255, n+distance or n-")),
    }
}

fn parse_window(piece: Piece<'_>) -> Result<(Piece<'_>, Piece<'_>)> {
    let mut parts = piece.split(',');
    match (parts.next(), parts.next(), parts.next()) {
        (Some(window), Some(scale), None) => Ok((window, scale)),
        _ => Err(Error::new(
            piece.range(),
            format!("\"{}\" is not a window and a scale", piece.text),
        )
        .expected("as in mss*10,6 or *,*")),
    }
}

fn parse_window_size(piece: Piece<'_>) -> Result<Window> {
    let what = "window";
    let number = |piece: Piece<'_>| piece.number(what, 65_535).map(|n| n as u16);
    if piece.text == "*" {
        return Ok(Window::Any);
    }
    if let Some(piece) = piece.behind("%") {
        return Ok(Window::Multiple(number(piece)?));
    }
    if let Some(piece) = piece.behind("mss*") {
        return Ok(Window::Mss(number(piece)?));
    }
    if let Some(piece) = piece.behind("mtu*") {
        return Ok(Window::Mtu(number(piece)?));
    }
    let exact = number(piece).map_err(|error| error.expected("a number, %n, mss*n, mtu*n or *"));
    Ok(Window::Exact(exact?))
}

fn parse_layout(piece: Piece<'_>) -> Result<Vec<TcpOption>> {
    let mut layout = Vec::new();
    if piece.text.is_empty() {
        return Ok(layout);
    }
    for part in piece.split(',') {
        if matches!(layout.last(), Some(TcpOption::End(_))) {
            return Err(Error::new(part.range(), "eol must be the last option"));
        }
        if layout.len() == OPTIONS_MAX {
            return Err(Error::new(
                part.range(),
                format!("more than {OPTIONS_MAX} options"),
            ));
        }
        layout.push(match part.text {
            "nop" => TcpOption::Nop,
            "mss" => TcpOption::Mss,
            "ws" => TcpOption::WindowScale,
            "sok" => TcpOption::SackPermitted,
            "sack" => TcpOption::Sack,
            "ts" => TcpOption::Timestamp,
            text => match (part.behind("eol+"), part.behind("?")) {
                (Some(padding), _) => TcpOption::End(padding.number("number of bytes", 40)? as u8),
                (_, Some(kind)) => other(kind)?,
                _ => {
                    return Err(Error::new(
                        part.range(),
                        format!("\"{text}\" is not a TCP option"),
                    )
                    .expected("nop, mss, ws, sok, sack, ts, eol+n or ?n"));
                }
            },
        });
    }
    Ok(layout)
}

fn other(kind: Piece<'_>) -> Result<TcpOption> {
    match kind.number("kind of option", 255)? {
        0..=5 | 8 => {
            Err(Error::new(kind.range(), "this kind of option has a name").expected("use its name"))
        }
        number => Ok(TcpOption::Other(number as u8)),
    }
}

fn parse_quirks(piece: Piece<'_>) -> Result<Quirks> {
    let mut quirks = Quirks::default();
    if piece.text.is_empty() {
        return Ok(quirks);
    }
    for part in piece.split(',') {
        match QUIRKS.iter().find(|(name, _)| *name == part.text) {
            Some((_, quirk)) => quirks = quirks.with(*quirk),
            None => {
                let names: Vec<_> = QUIRKS.iter().map(|(name, _)| *name).collect();
                let what = format!("\"{}\" is not a quirk", part.text);
                let expected = format!("one of {}", names.join(", "));
                return Err(Error::new(part.range(), what).expected(expected));
            }
        }
    }
    Ok(quirks)
}

fn parse_payload(piece: Piece<'_>) -> Result<Payload> {
    match piece.text {
        "0" => Ok(Payload::None),
        "+" => Ok(Payload::Some),
        "*" => Ok(Payload::Any),
        text => Err(
            Error::new(piece.range(), format!("\"{text}\" is not a payload class"))
                .expected("0, + or *"),
        ),
    }
}
