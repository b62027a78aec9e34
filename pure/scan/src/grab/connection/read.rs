//! What a connection does with the server's data: decoders, TLS, the reply, the page, the banner.

use inspect::{Conversation, Direction, Origin, Protocol, Tools};

use super::{Connection, Ending, Reading, START_LEN};
use crate::grab::Banner;
use crate::grab::certificates::{CHAIN_MAX, Certificates};
use crate::grab::fields::{CertificateFields, OfServer};
use crate::grab::hello::{self, Identity, To};
use crate::grab::starttls::{Dialog, Say};
use crate::grab::tls::{Handshake, Out};

impl Connection {
    /// Reads the server's next bytes as TLS.
    pub(super) fn begin_tls(&mut self, is_later: bool) {
        let has_alpn = hello::tls::has_alpn(self.target.port, is_later);
        self.handshake = Some(Box::new(Handshake::new(self.ends.name.clone(), has_alpn)));
        let count_max = if self.ends.keeps_chain { CHAIN_MAX } else { 1 };
        self.certificates = Some(Box::new(Certificates::new(count_max)));
    }

    /// Reads the next bytes from the server.
    pub(super) fn read(&mut self, bytes: &[u8], now_ns: u64, tools: &mut Tools) {
        self.byte_count += bytes.len() as u64;
        // The text in front of TLS is kept.
        if self.byte_count <= self.plain_len {
            let room = START_LEN - self.start.len();
            self.start.extend(&bytes[..bytes.len().min(room)]);
        }
        if self.handshake.is_none() {
            self.page.read(bytes);
        }
        match self.reading {
            Reading::Undecided => {
                // These few bytes are all still in `start`.
                if let Some(is_answer) = self.hello.is_answered_by(&self.start) {
                    self.reading = Reading::Decoding;
                    self.decode_start(is_answer, bytes, now_ns, tools);
                }
            }
            Reading::Decoding => self.decode(Direction::Reverse, bytes, now_ns, tools),
            Reading::Over(_) => {}
        }
        self.handshake(bytes);
    }

    /// Reads the next bytes as a TLS server's handshake and certificates. Encrypted messages follow
    /// what the decoder reads of it.
    fn handshake(&mut self, bytes: &[u8]) {
        if let Some(handshake) = &mut self.handshake {
            let mut out = Out {
                fields: &mut OfServer {
                    application: &mut self.application,
                    keeps_certificate: false,
                },
                certificates: self.certificates.as_deref_mut(),
            };
            let (at, end) = self.tls_hello;
            let said = self.said.get(at..end).unwrap_or(&[]);
            if let Some(second) = handshake.read(bytes, said, &mut out) {
                self.reply_len += second.len();
                self.said.extend(second);
            }
        }
        let is_encrypted = self
            .handshake
            .as_ref()
            .is_some_and(|one| one.is_encrypted());
        if let Some(certificates) = self.certificates.as_mut().filter(|_| !is_encrypted) {
            certificates.read(bytes);
        }
    }

    /// Asks for TLS, or continues to, after these bytes of the server.
    pub(super) fn request_tls(
        &mut self,
        bytes: &[u8],
        now_ns: u64,
        (tools, who): (&mut Tools, &Identity),
    ) {
        let mut bytes = bytes;
        if self.dialog.is_none() && self.said.is_empty() && self.handshake.is_none() {
            self.dialog = Dialog::of(self.application.protocol(), self.ends.own).map(Box::new);
            // All that has been sent so far is in `start`, or it is no greeting.
            bytes = &self.start;
        }
        let Some(dialog) = &mut self.dialog else {
            return;
        };
        let is_tls = match dialog.read(bytes) {
            Say::Nothing => return,
            Say::Bytes(bytes) => {
                self.say(&bytes, now_ns, tools);
                return;
            }
            Say::Tls(before) => {
                self.say(&before, now_ns, tools);
                true
            }
        };
        if is_tls {
            self.plain_len = self.byte_count;
            let to = To {
                target: &self.ends.target,
                name: self.ends.name.as_deref(),
            };
            let hello = hello::tls::first(&to, who, true);
            self.tls_hello = (self.said.len(), self.said.len() + hello.len());
            self.say(&hello, now_ns, tools);
            self.begin_tls(true);
        }
    }

    /// Appends bytes to those that are said.
    fn say(&mut self, bytes: &[u8], now_ns: u64, tools: &mut Tools) {
        self.said.extend(bytes);
        self.reply_len += bytes.len();
        self.decode(Direction::Forward, bytes, now_ns, tools);
    }

    /// Appends the reply to what the server has sent.
    pub(super) fn reply(&mut self, now_ns: u64, (tools, who): (&mut Tools, &Identity)) {
        if self.said.len() != self.hello_len + self.reply_len {
            return;
        }
        self.begin_ssh(now_ns, tools);
        let reply = self.hello.reply(&self.start, who);
        if let Some(new @ [_, ..]) = reply.get(self.reply_len..) {
            self.say(new, now_ns, tools);
        }
    }

    /// Begins to decode at a server's identification of SSH, if text precedes it.
    fn begin_ssh(&mut self, now_ns: u64, tools: &mut Tools) {
        let may_be = self.said.is_empty() || self.hello.name() == Some("ssh");
        let is_whole = self.byte_count == self.start.len() as u64;
        if !may_be || !is_whole || self.application.protocol() != Protocol::Unknown {
            return;
        }
        let start = std::mem::take(&mut self.start);
        let found = hello::identification(&start);
        if found.len() != start.len() {
            let mut sink = OfServer {
                application: &mut self.application,
                keeps_certificate: false,
            };
            self.conversation.finish(tools, &mut sink);
            self.conversation = Conversation::NEW;
            self.application.clear();
            self.reading = Reading::Decoding;
            let said = std::mem::take(&mut self.said);
            self.decode(Direction::Forward, &said, now_ns, tools);
            self.said = said;
            self.decode(Direction::Reverse, found, now_ns, tools);
        }
        self.start = start;
    }

    /// Passes the bytes held back in `start` to the decoders, then the rest of `last`, with which
    /// it ends.
    fn decode_start(&mut self, is_answer: bool, last: &[u8], now_ns: u64, tools: &mut Tools) {
        if is_answer && !self.said.is_empty() {
            let said = std::mem::take(&mut self.said);
            self.decode(Direction::Forward, &said, now_ns, tools);
            self.said = said;
        }
        let held = (self.byte_count - last.len() as u64) as usize;
        let start = std::mem::take(&mut self.start);
        self.decode(Direction::Reverse, &start[..held], now_ns, tools);
        self.start = start;
        self.decode(Direction::Reverse, last, now_ns, tools);
    }

    fn decode(&mut self, from: Direction, bytes: &[u8], now_ns: u64, tools: &mut Tools) {
        if self.reading != Reading::Decoding || bytes.is_empty() {
            return;
        }
        let origin = Origin {
            from,
            time_ns: now_ns,
            ports: [self.local_port, self.target.port],
        };
        let mut sink = OfServer {
            application: &mut self.application,
            keeps_certificate: false,
        };
        let end = self.conversation.stream(&origin, bytes, tools, &mut sink);
        if let Some(end) = end {
            self.reading = Reading::Over(end);
        }
    }

    /// Whether certificates may follow: the decoders need no more than the first one's fields, and
    /// no encrypted ones.
    fn awaits_certificates(&self) -> bool {
        let handshake = self.handshake.as_ref();
        let kept = self.certificates.as_ref();
        handshake.is_some_and(|handshake| !handshake.is_over())
            || kept.is_some_and(|kept| !kept.is_over())
    }

    /// Whether something may follow that the decoders do not need.
    pub(super) fn awaits_more(&self) -> bool {
        let is_asked = self
            .dialog
            .as_ref()
            .is_some_and(|dialog| dialog.is_awaited());
        is_asked || self.page.awaits_title() || self.awaits_certificates()
    }

    /// Whether nothing that follows is needed.
    pub(super) fn is_read(&self) -> bool {
        let is_decoded = matches!(self.reading, Reading::Over(_))
            || self.conversation.is_unknown(Direction::Reverse);
        is_decoded && !self.awaits_more()
    }

    /// Takes the banner out of the connection.
    pub fn banner(&mut self, ending: Ending, tools: &mut Tools) -> Banner {
        if self.reading == Reading::Undecided && !self.start.is_empty() {
            self.reading = Reading::Decoding;
            self.decode_start(false, &[], 0, tools);
        }
        let mut sink = OfServer {
            application: &mut self.application,
            keeps_certificate: false,
        };
        self.conversation.finish(tools, &mut sink);
        let certificates = self.certificates.take();
        let first = certificates.as_ref().map(|kept| kept.first());
        Banner {
            application: self.application.clone(),
            name: self.ends.name.clone(),
            title: self.page.title().map(<[u8]>::to_vec),
            byte_count: self.byte_count,
            certificate: first.map_or_else(Default::default, CertificateFields::of),
            certificates: match (self.ends.keeps_chain, certificates) {
                (true, Some(kept)) => kept.found,
                _ => Vec::new(),
            },
            ..Banner::new(self.target, &std::mem::take(&mut self.start), ending)
        }
    }
}
