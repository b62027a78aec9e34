//! The messages that a TLS 1.3 server encrypts (RFC 8446 §4.3, §4.4.2), once they are decrypted:
//! the application protocol, and the first certificate.
//!
//! A flow that is only observed cannot be decrypted. A program that has made the connection itself
//! passes it the plain text.

use super::certificate::Certificate;
use super::hello::ALPN;
use crate::Reason;
use crate::field::{Field, FieldSink};
use crate::text::Text;

const ENCRYPTED_EXTENSIONS: u8 = 8;
const CERTIFICATE: u8 = 11;
const CERTIFICATE_REQUEST: u8 = 13;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Kind,
    Len,
    /// The rest of a message.
    Skip,
    // In EncryptedExtensions.
    ExtensionsLen,
    Extension,
    ExtensionLen,
    ExtensionSkip,
    NamesLen,
    NameLen,
    Name,
    // In Certificate.
    ContextLen,
    Context,
    Certificate,
    Over,
}

/// Parser of the handshake messages that follow a TLS 1.3 server's hello. Its input may be cut
/// anywhere; its memory does not depend on the input.
pub struct EncryptedMessages {
    step: Step,
    kind: u8,
    /// Bytes of a number read so far, and the number.
    got: u8,
    number: u32,
    /// Bytes still to come of the message, of its extensions, and of the current field.
    left: u32,
    extensions_left: u32,
    run: u32,
    extension: u16,
    /// Bytes of the extension that follow the name.
    behind_name: u32,
    alpn: Text<64>,
    certificate: Certificate,
}

impl core::fmt::Debug for EncryptedMessages {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let mut messages = f.debug_struct("EncryptedMessages");
        messages.field("step", &self.step).finish_non_exhaustive()
    }
}

impl Default for EncryptedMessages {
    fn default() -> Self {
        Self::new()
    }
}

impl EncryptedMessages {
    /// Before the first message.
    pub const fn new() -> EncryptedMessages {
        EncryptedMessages {
            step: Step::Kind,
            kind: 0,
            got: 0,
            number: 0,
            left: 0,
            extensions_left: 0,
            run: 0,
            extension: 0,
            behind_name: 0,
            alpn: Text::EMPTY,
            certificate: Certificate::new(),
        }
    }

    /// Whether there is no more to read.
    pub fn is_over(&self) -> bool {
        self.step == Step::Over
    }

    /// Reads handshake bytes, and reports the application protocol and the fields of the first
    /// certificate. Returns true when there is no more to read; what follows is ignored.
    ///
    /// # Errors
    /// If a length contradicts another, or the certificate is encoded incorrectly.
    pub fn feed(&mut self, mut input: &[u8], out: &mut dyn FieldSink) -> Result<bool, Reason> {
        let result = self.messages(&mut input, out);
        if !matches!(result, Ok(false)) {
            self.step = Step::Over;
        }
        result
    }

    fn messages(&mut self, input: &mut &[u8], out: &mut dyn FieldSink) -> Result<bool, Reason> {
        loop {
            match self.step {
                Step::Over => return Ok(true),
                Step::Certificate => return self.certificate.feed(input, out),
                Step::Skip | Step::ExtensionSkip | Step::Context | Step::Name => {
                    if !self.run(input, out) {
                        return Ok(false);
                    }
                }
                _ if input.is_empty() => return Ok(false),
                Step::Kind | Step::Len => self.head(input),
                _ => self.number(input)?,
            }
        }
    }

    /// Reads or skips the bytes of a field. Returns true at its end.
    fn run(&mut self, input: &mut &[u8], out: &mut dyn FieldSink) -> bool {
        let (part, rest) = input.split_at(input.len().min(self.run as usize));
        *input = rest;
        self.run -= part.len() as u32;
        if self.step == Step::Name {
            self.alpn.push(part);
        }
        if self.run != 0 {
            return false;
        }
        match self.step {
            Step::Skip => self.step = Step::Kind,
            Step::Context => {
                self.certificate = Certificate::at_list(self.left);
                self.step = Step::Certificate;
            }
            Step::Name => {
                if !self.alpn.is_empty() {
                    out.field(Field::TlsAlpnChosen, self.alpn.value());
                }
                // The list has one name (RFC 7301 §3.1); any other is skipped.
                self.go(Step::ExtensionSkip, self.behind_name);
            }
            _ => self.after_extension(),
        }
        true
    }

    fn go(&mut self, step: Step, run: u32) {
        self.step = step;
        self.run = run;
    }

    fn after_extension(&mut self) {
        match self.extensions_left {
            0 => self.go(Step::Skip, self.left),
            _ => self.step = Step::Extension,
        }
    }

    /// Reads a number of this many bytes, once they are present.
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

    /// Reads type and length of a message.
    fn head(&mut self, input: &mut &[u8]) {
        if self.step == Step::Kind {
            if let Some(kind) = self.int(input, 1) {
                self.kind = kind as u8;
                self.step = Step::Len;
            }
            return;
        }
        let Some(len) = self.int(input, 3) else {
            return;
        };
        self.left = len;
        match self.kind {
            ENCRYPTED_EXTENSIONS => self.step = Step::ExtensionsLen,
            CERTIFICATE => self.step = Step::ContextLen,
            CERTIFICATE_REQUEST => self.go(Step::Skip, len),
            // A resumed session continues with the end of the handshake, without a certificate.
            _ => self.step = Step::Over,
        }
    }

    /// Reads a number within a message.
    fn number(&mut self, input: &mut &[u8]) -> Result<(), Reason> {
        let width = match self.step {
            Step::ContextLen | Step::NameLen => 1,
            _ => 2,
        };
        let Some(number) = self.int(input, width) else {
            return Ok(());
        };
        // The number itself, and what it announces, are part of what surrounds them.
        let within = |outer: u32| {
            let left = outer.checked_sub(u32::from(width));
            left.filter(|left| number <= *left).ok_or(Reason::BadLength)
        };
        match self.step {
            Step::ContextLen => {
                self.left = within(self.left)? - number;
                self.go(Step::Context, number);
            }
            Step::ExtensionsLen => {
                self.left = within(self.left)? - number;
                self.extensions_left = number;
                self.after_extension();
            }
            Step::Extension => {
                self.extension = number as u16;
                self.extensions_left = self
                    .extensions_left
                    .checked_sub(2)
                    .ok_or(Reason::BadLength)?;
                self.step = Step::ExtensionLen;
            }
            Step::ExtensionLen => {
                self.extensions_left = within(self.extensions_left)? - number;
                self.go(Step::ExtensionSkip, number);
                // A second one is not reported.
                if self.extension == ALPN && self.alpn.is_empty() && number != 0 {
                    self.step = Step::NamesLen;
                }
            }
            Step::NamesLen => {
                within(self.run)?;
                self.run -= 2;
                self.step = Step::NameLen;
            }
            _ => {
                self.behind_name = within(self.run)? - number;
                self.go(Step::Name, number);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::format;
    use std::string::String;
    use std::vec::Vec;

    use super::*;
    use crate::field::{Protocol, Value};

    #[derive(Default)]
    struct Seen(Vec<String>);

    impl FieldSink for Seen {
        fn named(&mut self, _: Protocol) {}

        fn field(&mut self, field: Field, value: Value<'_>) {
            self.0.push(format!("{field:?} {value:?}"));
        }
    }

    fn sized(width: usize, bytes: &[u8]) -> Vec<u8> {
        let len = (bytes.len() as u32).to_be_bytes();
        [&len[4 - width..], bytes].concat()
    }

    fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        [&[kind][..], &sized(3, body)].concat()
    }

    fn extension(kind: u16, body: &[u8]) -> Vec<u8> {
        [&kind.to_be_bytes()[..], &sized(2, body)].concat()
    }

    /// A certificate whose issuer is X, valid from 1970 on, without a key.
    fn certificate() -> Vec<u8> {
        let der = |tag: u8, contents: &[u8]| [&[tag][..], &sized(1, contents)].concat();
        let attribute = [der(6, &[0x55, 4, 3]), der(0x0c, b"X")].concat();
        let name = der(0x30, &der(0x31, &der(0x30, &attribute)));
        let validity = der(0x30, &der(0x17, b"700101000000Z").repeat(2));
        let signed = [der(2, &[1]), der(0x30, &[]), name.clone(), validity, name].concat();
        der(0x30, &der(0x30, &signed))
    }

    /// All messages up to the certificate.
    fn flight() -> Vec<u8> {
        let names = sized(2, &sized(1, b"http/1.1"));
        let extensions = [extension(10, &[0, 2, 0, 29]), extension(ALPN, &names)].concat();
        let entry = |der: &[u8]| [sized(3, der), sized(2, &[0; 7])].concat();
        let list = [entry(&certificate()), entry(&[1; 40])].concat();
        let body = [sized(1, &[9; 3]), sized(3, &list)].concat();
        [
            message(ENCRYPTED_EXTENSIONS, &sized(2, &extensions)),
            message(CERTIFICATE_REQUEST, &[0; 50]),
            message(CERTIFICATE, &body),
        ]
        .concat()
    }

    fn read(bytes: &[u8], step: usize) -> (Vec<String>, bool, Option<Reason>) {
        let mut messages = EncryptedMessages::new();
        let mut seen = Seen::default();
        let mut failed = None;
        for part in bytes.chunks(step) {
            if let Err(reason) = messages.feed(part, &mut seen) {
                failed = failed.or(Some(reason));
            }
        }
        (seen.0, messages.is_over(), failed)
    }

    #[test]
    fn protocol_and_certificate_do_not_depend_on_cuts() {
        let flight = flight();
        let (seen, is_over, failed) = read(&flight, flight.len());
        assert!(is_over && failed.is_none(), "{failed:?}");
        let fields: Vec<_> = seen.iter().map(|one| one.split(' ').next()).collect();
        let names = [
            "TlsAlpnChosen",
            "TlsSerial",
            "TlsIssuer",
            "TlsNotBefore",
            "TlsNotAfter",
            "TlsSubject",
            "TlsCertificateSha256",
        ];
        assert_eq!(fields, names.map(Some), "{seen:?}");
        for step in 1..flight.len() {
            assert_eq!(read(&flight, step), (seen.clone(), true, None), "{step}");
        }
    }

    #[test]
    fn lengths_that_contradict_each_other_are_refused() {
        for body in [
            // Longer than the message, than the list, than the extension.
            &[8, 0, 0, 2, 0, 1][..],
            &[8, 0, 0, 6, 0, 4, 0, 16, 0, 1],
            &[8, 0, 0, 5, 0, 3, 0, 16, 0, 0],
            &[8, 0, 0, 8, 0, 6, 0, 16, 0, 2, 0, 1],
            &[8, 0, 0, 9, 0, 7, 0, 16, 0, 3, 0, 1, 1],
            &[8, 0, 0, 1, 0, 0],
            &[11, 0, 0, 1, 1],
            &[11, 0, 0, 4, 0, 0, 0, 1],
        ] {
            for step in [1, 100] {
                let (seen, is_over, failed) = read(body, step);
                assert_eq!((seen.len(), is_over), (0, true), "{body:?}");
                assert_eq!(failed, Some(Reason::BadLength), "{body:?}");
            }
        }
        // The end of a resumed handshake, and a server without a certificate.
        let (_, is_over, failed) = read(&[8, 0, 0, 2, 0, 0, 20, 0, 0, 32], 3);
        assert!(is_over && failed.is_none());
        let (_, is_over, failed) = read(&[11, 0, 0, 4, 0, 0, 0, 0], 3);
        assert!(is_over && failed.is_none());
    }

    #[test]
    fn damaged_messages_give_the_same_in_every_cut() {
        let mut seed = 7_u64;
        for _ in 0..3_000 {
            let mut bytes = flight();
            for _ in 0..3 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let at = (seed >> 33) as usize % bytes.len();
                bytes[at] = (seed >> 8) as u8;
            }
            let whole = read(&bytes, bytes.len());
            assert_eq!(read(&bytes, 1), whole, "{bytes:?}");
        }
    }
}
