//! Further connections to a service: with TLS, if the first one shows that it is spoken there, and
//! to the other names of the address.

use std::sync::Arc;

use super::connection::{Connection, Ending, Ends, What};
use super::hello::Hello;
use super::{Banner, BannerGrabber};

/// What a server says that expects TLS, in a response to a plain request.
const WORDS: [&[u8]; 3] = [b"https", b"tls", b"ssl"];
/// Content type of an alert, and the first byte of its version (RFC 8446 §5.1).
const ALERT: &[u8] = &[21, 3];

/// Whether the end of a connection without TLS suggests to try it: silence, an alert, or a response
/// that says so.
fn suggests_tls(banner: &Banner) -> bool {
    let start = &banner.start;
    if start.is_empty() || start.starts_with(ALERT) {
        return true;
    }
    // 400, and other errors of the client.
    let is_refused = start.starts_with(b"HTTP/1.") && start.get(8..10) == Some(b" 4");
    let lower = start.to_ascii_lowercase();
    let has = |word: &[u8]| lower.windows(word.len()).any(|part| part == word);
    is_refused && WORDS.iter().any(|word| has(word))
}

impl BannerGrabber<'_> {
    /// Reports the banner of a connection that has ended, or opens another one in its place.
    /// Returns whether the connection was replaced.
    pub(super) fn again(
        &mut self,
        slot: u32,
        banner: Banner,
        now_ns: u64,
        report: &mut dyn FnMut(Banner),
    ) -> bool {
        let Some(connection) = self.table.get_mut(slot) else {
            return false;
        };
        let (before, hello) = (connection.take_fallback(), connection.hello().clone());
        let ends = connection.ends().clone();
        let may_go_on = banner.ending != Ending::Stopped;
        if may_go_on && !hello.is_tls() && !banner.has_tls() && suggests_tls(&banner) {
            self.connect(slot, ends, Hello::tls(), Some(banner), now_ns);
            return true;
        }
        let banner = match before {
            Some(before) if !banner.has_tls() && before.byte_count != 0 => {
                self.counted.silent += 1;
                before
            }
            Some(_) => {
                self.counted.silent += 1;
                banner
            }
            None => banner,
        };
        let name = self.name_after(&ends);
        let name = name.filter(|_| may_go_on && hello.has_names());
        self.report(banner, report);
        let Some(name) = name else {
            return false;
        };
        let ends = Ends {
            name: Some(name),
            ..ends
        };
        // What the first name has shown holds for the others.
        self.connect(slot, ends, hello, None, now_ns);
        true
    }

    /// The next name of a target's address.
    fn name_after(&self, ends: &Ends) -> Option<Arc<str>> {
        let names = self.grab.names.get(&ends.target.addr)?;
        let at = names
            .iter()
            .position(|name| Some(name) == ends.name.as_ref())?;
        names.get(at + 1).cloned()
    }

    /// Replaces a connection by one from another port. The old one is reset.
    fn connect(
        &mut self,
        slot: u32,
        ends: Ends,
        hello: Hello,
        before: Option<Banner>,
        now_ns: u64,
    ) {
        let Some(old) = self.table.get(slot) else {
            return;
        };
        let reset = old.outgoing(What::Reset, u32::MAX);
        self.push(reset);
        let ends = Ends {
            local_port: self.plan.source().port_after(ends.local_port),
            // Not to be guessed, as the cookie it is made of.
            base: ends.base.wrapping_mul(0x9e37_79b1).wrapping_add(1 << 16),
            ..ends
        };
        let first = self.first(hello, &ends);
        let mut connection = Connection::opening(ends, first, before, now_ns);
        let step = connection.begin(now_ns);
        let outgoing = step.send.map(|what| connection.outgoing(what, slot));
        self.counted.connections += 1;
        self.table.replace(slot, connection);
        if let Some(outgoing) = outgoing {
            self.push(outgoing);
        }
    }
}
