//! Client and server hello (RFC 8446 §4.1, RFC 5246 §7.4.1), read byte by byte.
//!
//! The data for names and fingerprints are kept in lists of fixed size; a hello with longer lists
//! has no fingerprints, because they would be wrong. Everything else is skipped, whatever its
//! length.

mod extension;
mod list;

use super::fingerprint::{self, Carrier};
use crate::Reason;
use crate::field::{Field, FieldSink, Value};
use crate::text::Text;

pub(super) use list::List;

pub(super) const CLIENT_HELLO: u8 = 1;
pub(super) const SERVER_HELLO: u8 = 2;

const TLS_1_2: u16 = 0x0303;
const DTLS_1_2: u16 = 0xfefd;

/// Whether a version is DTLS: its numbers are complemented, 1.0 is 0xfeff.
fn is_dtls(version: u16) -> bool {
    version >> 8 == 0xfe
}

/// The random of a HelloRetryRequest: the SHA-256 of "HelloRetryRequest" (RFC 8446 §4.1.3).
const RETRY: [u8; 32] = [
    0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91,
    0xc2, 0xa2, 0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
];

/// Extensions (IANA, TLS ExtensionType Values).
pub(super) const SERVER_NAME: u16 = 0;
const GROUPS: u16 = 10;
const POINT_FORMATS: u16 = 11;
const SIGNATURES: u16 = 13;
pub(super) const ALPN: u16 = 16;
const VERSIONS: u16 = 43;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Kind,
    Len,
    Version,
    Random,
    SessionLen,
    Session,
    /// DTLS only (RFC 6347 §4.2.1).
    CookieLen,
    Cookie,
    CiphersLen,
    Cipher,
    CompressionsLen,
    Compressions,
    ExtensionsLen,
    Extension,
    ExtensionLen,
    // The remaining steps are inside an extension.
    Skip,
    ListLen,
    List8,
    List16,
    NamesLen,
    NameType,
    NameLen,
    Name,
    ProtocolLen,
    Protocol,
}

impl Step {
    fn is_inside(self) -> bool {
        self as u8 >= Step::Skip as u8
    }
}

/// A hello, complete or being read.
pub(crate) struct Hello {
    step: Step,
    kind: u8,
    /// Bytes of a number read so far, and the number.
    got: u8,
    number: u32,
    /// Number of bytes to skip, or to read into a text.
    run: u16,
    /// Bytes still to come of the message, of its extensions, and of the extension.
    body_left: u32,
    extensions_left: u16,
    extension_left: u16,
    extension: u16,
    /// Bytes of the list still to come.
    list_left: u16,
    random_at: u8,
    is_retry: bool,
    has_cookie: bool,
    pub(super) has_sni: bool,
    pub(super) alpn_count: u8,
    /// First and last byte of the first protocol.
    pub(super) alpn_ends: [u8; 2],
    pub(super) version: u16,
    /// The highest of supported_versions, or the one selected.
    pub(super) version_chosen: u16,
    pub(super) ciphers: List<u16, 400>,
    pub(super) extensions: List<u16, 64>,
    pub(super) groups: List<u16, 40>,
    pub(super) formats: List<u8, 8>,
    pub(super) signatures: List<u16, 48>,
    sni: Text<255>,
    alpn: Text<64>,
}

/// Whether a value is reserved for GREASE (RFC 8701): both bytes are 0x?a and equal.
pub(super) fn is_grease(value: u16) -> bool {
    value & 0x0f0f == 0x0a0a && value >> 8 == value & 0xff
}

impl Hello {
    pub(crate) fn new() -> Hello {
        Hello {
            step: Step::Kind,
            kind: 0,
            got: 0,
            number: 0,
            run: 0,
            body_left: 0,
            extensions_left: 0,
            extension_left: 0,
            extension: 0,
            list_left: 0,
            random_at: 0,
            is_retry: false,
            has_cookie: false,
            has_sni: false,
            alpn_count: 0,
            alpn_ends: [0; 2],
            version: 0,
            version_chosen: 0,
            ciphers: List::new(),
            extensions: List::new(),
            groups: List::new(),
            formats: List::new(),
            signatures: List::new(),
            sni: Text::EMPTY,
            alpn: Text::EMPTY,
        }
    }

    /// Resets it without touching the contents of its lists.
    pub(crate) fn clear(&mut self) {
        // Destructured, so that a new field is not forgotten.
        let Hello {
            step,
            kind,
            got,
            number,
            run,
            body_left,
            extensions_left,
            extension_left,
            extension,
            list_left,
            random_at,
            is_retry,
            has_cookie,
            has_sni,
            alpn_count,
            alpn_ends,
            version,
            version_chosen,
            ciphers,
            extensions,
            groups,
            formats,
            signatures,
            sni,
            alpn,
        } = self;
        *step = Step::Kind;
        (*kind, *got, *number, *run, *body_left) = (0, 0, 0, 0, 0);
        (*extensions_left, *extension_left, *extension) = (0, 0, 0);
        (*list_left, *random_at, *is_retry, *has_cookie) = (0, 0, false, false);
        (*has_sni, *alpn_count, *alpn_ends) = (false, 0, [0; 2]);
        (*version, *version_chosen) = (0, 0);
        ciphers.clear();
        extensions.clear();
        groups.clear();
        formats.clear();
        signatures.clear();
        sni.clear();
        alpn.clear();
    }

    /// Prepares for a DTLS hello, in which a client's session is followed by a cookie.
    pub(crate) fn expect_cookie(&mut self) {
        self.has_cookie = true;
    }

    /// Whether it is (or will be) a client's hello.
    pub(crate) fn is_client(&self) -> bool {
        self.kind == CLIENT_HELLO
    }

    /// Minimum number of bytes needed to continue.
    pub(super) fn need(&self) -> usize {
        match self.step {
            Step::Kind | Step::Len => 1,
            _ => (self.body_left as usize).max(1),
        }
    }

    /// Reads handshake bytes. Returns true when the hello is complete; what follows it is ignored.
    ///
    /// # Errors
    /// If this is not a hello, or one that contradicts itself.
    pub(crate) fn feed(&mut self, mut input: &[u8]) -> Result<bool, Reason> {
        self.take(&mut input)
    }

    /// The same, but data after the hello stay in `input`, except for [`Hello::left`] bytes that
    /// belong to the same message.
    pub(super) fn take(&mut self, input: &mut &[u8]) -> Result<bool, Reason> {
        loop {
            if self.step == Step::Kind || self.step == Step::Len {
                if input.is_empty() {
                    return Ok(false);
                }
                self.begin(input)?;
                continue;
            }
            if self.body_left == 0 {
                // It may end before the extensions, or after them; not in the middle of a field.
                let whole = matches!(self.step, Step::ExtensionsLen | Step::Extension)
                    || (self.step.is_inside() && self.extension_left == 0);
                return match whole && self.got == 0 {
                    true => Ok(true),
                    false => Err(Reason::BadLength),
                };
            }
            let is_inside = self.step.is_inside();
            if is_inside && self.extension_left == 0 {
                self.step = Step::Extension;
                self.got = 0;
                self.number = 0;
                continue;
            }
            if self.step == Step::Extension && self.extensions_left == 0 && self.got == 0 {
                // Unknown data after the extensions.
                return Ok(true);
            }
            if input.is_empty() {
                return Ok(false);
            }
            let mut limit = input.len().min(self.body_left as usize);
            if is_inside {
                limit = limit.min(self.extension_left.into());
            }
            let (part, _) = input.split_at(limit);
            let mut rest = part;
            let in_extensions =
                is_inside || matches!(self.step, Step::Extension | Step::ExtensionLen);
            self.one(&mut rest)?;
            let used = limit - rest.len();
            self.body_left -= used as u32;
            if in_extensions {
                self.extensions_left = self.extensions_left.saturating_sub(used as u16);
            }
            if is_inside {
                self.extension_left -= used as u16;
            }
            *input = &input[used..];
        }
    }

    /// Number of bytes after a complete hello, with unknown meaning.
    pub(super) fn left(&self) -> u32 {
        self.body_left
    }

    /// Whether the messages after it are unencrypted and may include a certificate: those of a
    /// server, up to TLS 1.2.
    pub(crate) fn has_certificate(&self) -> bool {
        let version = self.effective_version();
        self.kind == SERVER_HELLO && (version <= TLS_1_2 || version >= DTLS_1_2)
    }

    /// Handles a gap of this many bytes. Returns true if they would have been skipped.
    pub(crate) fn gap(&mut self, len: u32) -> bool {
        let is_inside = self.step.is_inside();
        let passes = matches!(
            self.step,
            Step::Session | Step::Cookie | Step::Compressions | Step::Skip
        ) || (self.step == Step::Random && self.kind == CLIENT_HELLO);
        let room = if is_inside {
            self.extension_left
        } else {
            self.run
        };
        if !passes || len > self.run.into() || len > room.into() || len > self.body_left {
            return false;
        }
        let len16 = len as u16;
        self.run -= len16;
        self.body_left -= len;
        if is_inside {
            self.extension_left -= len16;
            self.extensions_left = self.extensions_left.saturating_sub(len16);
        } else if self.run == 0 {
            self.after_run();
        }
        true
    }

    fn begin(&mut self, input: &mut &[u8]) -> Result<(), Reason> {
        if self.step == Step::Kind {
            if let Some(kind) = self.int(input, 1) {
                self.kind = kind as u8;
                if !matches!(self.kind, CLIENT_HELLO | SERVER_HELLO) {
                    return Err(Reason::BadValue);
                }
                self.step = Step::Len;
            }
        } else if let Some(len) = self.int(input, 3) {
            self.body_left = len;
            // Version, random, session: at least 35 bytes.
            if len < 35 {
                return Err(Reason::BadLength);
            }
            self.step = Step::Version;
        }
        Ok(())
    }

    /// Reads a number of this many bytes, once they are present.
    #[inline]
    fn int(&mut self, input: &mut &[u8], width: u8) -> Option<u32> {
        while self.got < width {
            let (byte, rest) = input.split_first()?;
            self.number = self.number << 8 | u32::from(*byte);
            self.got += 1;
            *input = rest;
        }
        self.got = 0;
        Some(core::mem::take(&mut self.number))
    }

    /// Reads part of the run; returns true at its end.
    fn run<'a>(&mut self, input: &mut &'a [u8]) -> (&'a [u8], bool) {
        let (part, rest) = input.split_at(input.len().min(self.run.into()));
        self.run -= part.len() as u16;
        *input = rest;
        (part, self.run == 0)
    }

    fn go(&mut self, step: Step, run: u32) {
        self.step = step;
        self.run = run as u16;
        if run == 0 {
            self.after_run();
        }
    }

    /// Moves to the step after skipped data.
    fn after_run(&mut self) {
        self.step = match self.step {
            // TLS 1.3 up to draft 21 has neither session nor compression here.
            Step::Random if self.is_draft_answer() => Step::Cipher,
            Step::Random => Step::SessionLen,
            Step::Session if self.kind == SERVER_HELLO => Step::Cipher,
            Step::Session if self.has_cookie => Step::CookieLen,
            Step::Session | Step::Cookie => Step::CiphersLen,
            Step::Compressions => Step::ExtensionsLen,
            other => other,
        };
    }

    fn is_draft_answer(&self) -> bool {
        self.kind == SERVER_HELLO && self.version >> 8 == 0x7f
    }

    /// Takes one step over part of the message, which is not empty.
    fn one(&mut self, input: &mut &[u8]) -> Result<(), Reason> {
        match self.step {
            Step::Kind | Step::Len => {}
            Step::Version => {
                if let Some(version) = self.int(input, 2) {
                    self.version = version as u16;
                    self.is_retry = self.kind == SERVER_HELLO;
                    self.go(Step::Random, 32);
                }
            }
            Step::Random => {
                let (part, over) = self.run(input);
                let at = usize::from(self.random_at).min(32);
                let expected = RETRY.get(at..at + part.len());
                self.is_retry &= expected == Some(part);
                self.random_at += part.len() as u8;
                if over {
                    self.after_run();
                }
            }
            Step::SessionLen => {
                if let Some(len) = self.int(input, 1) {
                    if len > 32 {
                        return Err(Reason::BadLength);
                    }
                    self.go(Step::Session, len);
                }
            }
            Step::CookieLen => {
                if let Some(len) = self.int(input, 1) {
                    self.go(Step::Cookie, len);
                }
            }
            Step::Session | Step::Cookie | Step::Compressions => {
                if self.run(input).1 {
                    self.after_run();
                }
            }
            _ => self.one_of_lists(input)?,
        }
        Ok(())
    }

    /// Takes one step over cipher suites, compression methods or extensions.
    fn one_of_lists(&mut self, input: &mut &[u8]) -> Result<(), Reason> {
        match self.step {
            Step::CiphersLen => {
                if let Some(len) = self.int(input, 2) {
                    if len == 0 || len & 1 != 0 || len > self.body_left {
                        return Err(Reason::BadLength);
                    }
                    self.list_left = len as u16;
                    self.step = Step::Cipher;
                }
            }
            Step::Cipher => self.cipher(input),
            Step::CompressionsLen => {
                if let Some(len) = self.int(input, 1) {
                    self.go(Step::Compressions, len);
                }
            }
            Step::ExtensionsLen => {
                if let Some(len) = self.int(input, 2) {
                    self.extensions_left = len as u16;
                    self.step = Step::Extension;
                }
            }
            Step::Extension => {
                if let Some(extension) = self.int(input, 2) {
                    self.extension = extension as u16;
                    self.extensions.push(self.extension);
                    self.step = Step::ExtensionLen;
                }
            }
            Step::ExtensionLen => {
                if let Some(len) = self.int(input, 2) {
                    self.open(len as u16)?;
                }
            }
            _ => self.inside(input),
        }
        Ok(())
    }

    fn cipher(&mut self, input: &mut &[u8]) {
        if self.kind == SERVER_HELLO {
            if let Some(cipher) = self.int(input, 2) {
                self.ciphers.push(cipher as u16);
                // The compression method.
                match self.is_draft_answer() {
                    true => self.step = Step::ExtensionsLen,
                    false => self.go(Step::Compressions, 1),
                }
            }
            return;
        }
        while let Some(cipher) = self.int(input, 2) {
            self.ciphers.push(cipher as u16);
            self.list_left -= 2;
            if self.list_left == 0 {
                self.step = Step::CompressionsLen;
                return;
            }
        }
    }

    /// The effective version.
    pub(super) fn effective_version(&self) -> u16 {
        match self.version_chosen {
            0 => self.version,
            chosen => chosen,
        }
    }

    /// Whether all of it was kept, so that fingerprints are right.
    fn is_whole(&self) -> bool {
        !(self.ciphers.is_cut
            || self.extensions.is_cut
            || self.groups.is_cut
            || self.formats.is_cut
            || self.signatures.is_cut)
    }

    /// Reports its fields. It must be complete.
    pub(crate) fn report(&self, carrier: Carrier, out: &mut dyn FieldSink) {
        let number = |number: u16| Value::Number(number.into());
        if self.is_client() {
            out.field(Field::TlsVersionOffered, number(self.effective_version()));
            if !self.sni.is_empty() {
                out.field(Field::TlsSni, self.sni.value());
            }
            if !self.alpn.is_empty() {
                out.field(Field::TlsAlpn, self.alpn.value());
            }
            if self.is_whole() {
                out.field(Field::Ja3, Value::Digest(fingerprint::ja3(self)));
                out.field(Field::Ja4, Value::text(&fingerprint::ja4(self, carrier)));
            }
            return;
        }
        out.field(Field::TlsVersion, number(self.effective_version()));
        if let Some(cipher) = self.ciphers.items().first() {
            out.field(Field::TlsCipher, number(*cipher));
        }
        if !self.alpn.is_empty() {
            out.field(Field::TlsAlpnChosen, self.alpn.value());
        }
        if self.is_retry {
            out.field(Field::TlsRetry, Value::Number(1));
        }
        if self.is_whole() {
            out.field(Field::Ja3s, Value::Digest(fingerprint::ja3s(self)));
            out.field(Field::Ja4s, Value::text(&fingerprint::ja4s(self, carrier)));
        }
    }
}
