//! SMB 1 (MS-CIFS §2.2.4, MS-SMB §2.2.4): negotiation, session setup and tree connect, also
//! chained.

use super::{Field, FieldSink, Talk, Text, Value, ntlm, wide, word};

const HEADER_LEN: usize = 32;
/// Maximum number of a client's dialects remembered.
pub(super) const OFFERED_MAX: usize = 16;
/// Maximum number of chained commands read.
const CHAIN_MAX: usize = 4;

const NEGOTIATE: u8 = 0x72;
const SESSION_SETUP: u8 = 0x73;
const TREE_CONNECT: u8 = 0x75;
/// In the first flags: a response; in the second: UTF-16 text.
const RESPONSE: u8 = 0x80;
const UNICODE: u16 = 0x8000;

/// Dialects (MS-CIFS §3.2.4.2.2, MS-SMB2 §4.2). Their numbers are indices into this, from 1.
const DIALECTS: &[&[u8]] = &[
    b"PC NETWORK PROGRAM 1.0",
    b"PCLAN1.0",
    b"MICROSOFT NETWORKS 1.03",
    b"MICROSOFT NETWORKS 3.0",
    b"LANMAN1.0",
    b"Windows for Workgroups 3.1a",
    b"LM1.2X002",
    b"DOS LM1.2X002",
    b"LANMAN2.1",
    b"DOS LANMAN2.1",
    b"Samba",
    b"NT LANMAN 1.0",
    b"NT LM 0.12",
];

/// Words and bytes of a command (MS-CIFS §2.2.3.2, §2.2.3.3).
struct Command<'a> {
    words: &'a [u8],
    bytes: &'a [u8],
    /// Offset of the bytes from the header: UTF-16 text is aligned relative to the header.
    at: usize,
}

fn command(message: &[u8], at: usize) -> Option<Command<'_>> {
    let count = usize::from(*message.get(at)?) * 2;
    let words = message.get(at + 1..at + 1 + count)?;
    let at = at + 1 + count + 2;
    let len = usize::from(word(message, at - 2)?);
    let bytes = message.get(at..)?;
    let bytes = bytes.get(..len.min(bytes.len()))?;
    Some(Command { words, bytes, at })
}

/// Text up to a zero, and the offset after it; empty if the zero is missing. UTF-16 text is
/// aligned.
fn text<const N: usize>(command: &Command<'_>, from: usize, is_wide: bool) -> (Text<N>, usize) {
    let from = from + usize::from(is_wide && (command.at + from) % 2 == 1);
    let bytes = command.bytes.get(from..).unwrap_or(&[]);
    if is_wide {
        let end = bytes.chunks_exact(2).position(|pair| pair == [0, 0]);
        let len = end.unwrap_or(0) * 2;
        let found = bytes.get(..len).and_then(wide);
        return (found.unwrap_or(Text::EMPTY), from + len + 2);
    }
    let len = bytes.iter().position(|byte| *byte == 0).unwrap_or(0);
    let mut text = Text::EMPTY;
    text.push(bytes.get(..len).unwrap_or(&[]));
    (text, from + len + 1)
}

impl Talk {
    /// Reads a message; `None` once there is nothing more to read in it.
    pub(super) fn old(&mut self, message: &[u8], out: &mut dyn FieldSink) -> Option<()> {
        let mut kind = *message.get(4)?;
        let is_response = message.get(9)? & RESPONSE != 0;
        let is_wide = word(message, 10)? & UNICODE != 0;
        let mut at = HEADER_LEN;
        for _ in 0..CHAIN_MAX {
            let command = command(message, at)?;
            match (kind, is_response) {
                (NEGOTIATE, false) => self.offers(command.bytes),
                (NEGOTIATE, true) => self.chooses(&command, out)?,
                (SESSION_SETUP, false) => session(&command, is_wide, out)?,
                (TREE_CONNECT, false) => {
                    let password = usize::from(word(command.words, 6)?);
                    let (path, _) = text::<128>(&command, password, is_wide);
                    if !path.is_empty() {
                        self.tree(&path, out);
                    }
                }
                _ => {}
            }
            // The next command and its offset, of those that can be chained.
            let (next, place) = (*command.words.first()?, word(command.words, 2)?);
            if !matches!(kind, SESSION_SETUP | TREE_CONNECT) || next == 0xff {
                return None;
            }
            // Forwards only.
            let place = usize::from(place);
            if place <= at {
                return None;
            }
            (kind, at) = (next, place);
        }
        None
    }

    /// Reads dialects: a byte, a text and a zero each.
    fn offers(&mut self, bytes: &[u8]) {
        self.offered = [0; OFFERED_MAX];
        let names = bytes.split(|byte| *byte == 0);
        for (place, name) in self.offered.iter_mut().zip(names) {
            let name = name.strip_prefix(&[2]).unwrap_or(name);
            let known = DIALECTS.iter().position(|dialect| *dialect == name);
            *place = known.map_or(0, |at| at as u8 + 1);
        }
    }

    fn chooses(&mut self, command: &Command<'_>, out: &mut dyn FieldSink) -> Option<()> {
        let number = *self.offered.get(usize::from(word(command.words, 0)?))?;
        let name = DIALECTS.get(usize::from(number).checked_sub(1)?)?;
        out.field(Field::SmbDialect, Value::text(name));
        Some(())
    }
}

/// Reports the user: from NTLM, or from plain names next to the passwords.
fn session(command: &Command<'_>, is_wide: bool, out: &mut dyn FieldSink) -> Option<()> {
    if command.words.len() != 26 {
        ntlm::report(command.bytes, out);
        return Some(());
    }
    let passwords = usize::from(word(command.words, 14)?) + usize::from(word(command.words, 16)?);
    let (user, end) = text::<64>(command, passwords, is_wide);
    let (domain, _) = text::<64>(command, end, is_wide);
    for (name, field) in [(user, Field::SmbUser), (domain, Field::SmbDomain)] {
        if !name.is_empty() {
            out.field(field, name.value());
        }
    }
    Some(())
}
