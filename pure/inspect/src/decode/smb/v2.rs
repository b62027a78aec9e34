//! SMB 2 and 3 (MS-SMB2 §2.2): negotiation, session setup and tree connect, also chained.

use super::{Field, FieldSink, Talk, Value, long, ntlm, wide, word};

const HEADER_LEN: usize = 64;
/// Maximum number of chained commands read.
const CHAIN_MAX: usize = 4;

const NEGOTIATE: u16 = 0;
const SESSION_SETUP: u16 = 1;
const TREE_CONNECT: u16 = 3;
const RESPONSE: u32 = 1;

/// Name of a dialect; `None` for the wildcard "2.???", which the actual one follows.
fn dialect(number: u16) -> Option<&'static str> {
    Some(match number {
        0x0202 => "2.0.2",
        0x0210 => "2.1",
        0x0300 => "3.0",
        0x0302 => "3.0.2",
        0x0311 => "3.1.1",
        _ => return None,
    })
}

impl Talk {
    pub(super) fn v2(&mut self, bytes: &[u8], out: &mut dyn FieldSink) {
        let mut rest = bytes;
        for _ in 0..CHAIN_MAX {
            let next = long(rest, 20).unwrap_or(0) as usize;
            let command = match next {
                0 => Some(rest),
                next => rest.get(..next.min(rest.len())),
            };
            if command.and_then(|bytes| self.command(bytes, out)).is_none() || next == 0 {
                return;
            }
            rest = rest.get(next..).unwrap_or(&[]);
        }
    }

    fn command(&mut self, bytes: &[u8], out: &mut dyn FieldSink) -> Option<()> {
        let body = bytes.get(HEADER_LEN..)?;
        let is_response = long(bytes, 16)? & RESPONSE != 0;
        match (word(bytes, 12)?, is_response) {
            (NEGOTIATE, true) => {
                if let Some(name) = dialect(word(body, 4)?) {
                    out.field(Field::SmbDialect, Value::text(name.as_bytes()));
                }
            }
            (SESSION_SETUP, false) => ntlm::report(body, out),
            (TREE_CONNECT, false) => {
                let (at, len) = (usize::from(word(body, 4)?), usize::from(word(body, 6)?));
                // Relative to the header's first byte.
                let path = wide::<128>(bytes.get(at..at + len)?)?;
                self.tree(&path, out);
            }
            _ => {}
        }
        Some(())
    }
}
