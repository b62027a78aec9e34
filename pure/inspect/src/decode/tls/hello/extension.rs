//! Contents of a hello's extensions (RFC 8446 §4.2): names, protocols, lists of numbers.

use super::{
    ALPN, GROUPS, Hello, POINT_FORMATS, SERVER_NAME, SIGNATURES, Step, VERSIONS, is_dtls, is_grease,
};
use crate::Reason;

impl Hello {
    /// Begins an extension of this length.
    pub(super) fn open(&mut self, len: u16) -> Result<(), Reason> {
        // Its own four bytes are not subtracted yet at this point.
        if u32::from(len) > self.body_left {
            return Err(Reason::BadLength);
        }
        self.extension_left = len;
        self.run = len;
        let is_client = self.is_client();
        self.step = match self.extension {
            SERVER_NAME => {
                self.has_sni = true;
                if is_client {
                    Step::NamesLen
                } else {
                    Step::Skip
                }
            }
            ALPN => Step::NamesLen,
            GROUPS | SIGNATURES | POINT_FORMATS if is_client => Step::ListLen,
            VERSIONS if is_client => Step::ListLen,
            VERSIONS => Step::List16,
            _ => Step::Skip,
        };
        self.list_left = len;
        Ok(())
    }

    /// Skips the rest of the extension.
    fn skip(&mut self) {
        self.step = Step::Skip;
        self.run = u16::MAX;
    }

    /// Takes one step inside an extension.
    pub(super) fn inside(&mut self, input: &mut &[u8]) {
        match self.step {
            Step::Skip => {
                self.run = self.run.saturating_sub(input.len() as u16);
                *input = &[];
            }
            Step::ListLen => {
                let is_short = matches!(self.extension, POINT_FORMATS | VERSIONS);
                if let Some(len) = self.int(input, if is_short { 1 } else { 2 }) {
                    self.list_left = len as u16;
                    self.step = match self.extension {
                        POINT_FORMATS => Step::List8,
                        _ => Step::List16,
                    };
                }
            }
            Step::List8 => {
                let (part, _) = input.split_at(input.len().min(self.list_left.into()));
                for format in part {
                    self.formats.push(*format);
                }
                self.list_left -= part.len() as u16;
                *input = &input[part.len()..];
                if self.list_left == 0 {
                    self.skip();
                }
            }
            Step::List16 => {
                if self.list_left < 2 {
                    return self.skip();
                }
                if let Some(item) = self.int(input, 2) {
                    self.list_left -= 2;
                    self.item(item as u16);
                }
            }
            _ => self.inside_names(input),
        }
    }

    /// Takes one step inside a list of names or protocols.
    fn inside_names(&mut self, input: &mut &[u8]) {
        match self.step {
            Step::NamesLen => {
                let is_read = self.int(input, 2).is_some();
                self.step = match self.extension {
                    _ if !is_read => Step::NamesLen,
                    SERVER_NAME => Step::NameType,
                    _ => Step::ProtocolLen,
                };
            }
            Step::NameType => {
                // No other types than host names were ever defined (RFC 6066 §3).
                if let Some(kind) = self.int(input, 1) {
                    self.step = Step::NameLen;
                    if kind != 0 {
                        self.skip();
                    }
                }
            }
            Step::NameLen => {
                if let Some(len) = self.int(input, 2) {
                    self.step = Step::Name;
                    self.run = len as u16;
                    if len == 0 {
                        self.skip();
                    }
                }
            }
            Step::Name => {
                let (part, over) = self.run(input);
                self.sni.push(part);
                if over {
                    self.skip();
                }
            }
            Step::ProtocolLen => {
                if let Some(len) = self.int(input, 1) {
                    if !self.alpn.is_empty() {
                        self.alpn.push(b",");
                    }
                    self.alpn_count = self.alpn_count.saturating_add(1);
                    if len != 0 {
                        self.step = Step::Protocol;
                        self.run = len as u16;
                    }
                }
            }
            Step::Protocol => {
                let is_first = self.alpn_count == 1;
                let starts = is_first && self.alpn.is_empty();
                let (part, over) = self.run(input);
                if let (true, [start, ..]) = (starts, part) {
                    self.alpn_ends[0] = *start;
                }
                if let (true, [.., end]) = (is_first, part) {
                    self.alpn_ends[1] = *end;
                }
                self.alpn.push(part);
                if over {
                    self.step = Step::ProtocolLen;
                }
            }
            _ => {}
        }
    }

    /// Handles an item of a list of numbers.
    fn item(&mut self, item: u16) {
        match self.extension {
            GROUPS => self.groups.push(item),
            SIGNATURES => self.signatures.push(item),
            _ if is_grease(item) => {}
            // Versions of DTLS count down.
            _ if is_dtls(item) && is_dtls(self.version_chosen) => {
                self.version_chosen = self.version_chosen.min(item);
            }
            _ => self.version_chosen = self.version_chosen.max(item),
        }
    }
}
