//! Transactions of netfilter's netlink protocol (`include/uapi/linux/netfilter/nfnetlink.h`): all
//! messages between a begin and an end take effect, or none does.

use std::os::fd::AsRawFd as _;

use super::{ANSWER_TIMEOUT_MS, HEADER_LEN, Message, NLM_F_REQUEST, NLMSG_ERROR, Socket};
use super::{check_error, messages};
use crate::{Error, ErrorKind, Result};

const NFNL_MSG_BATCH_BEGIN: u16 = 0x10;
const NFNL_MSG_BATCH_END: u16 = 0x11;

impl Socket {
    /// A socket for netfilter.
    pub fn netfilter() -> Result<Self> {
        Self::open(libc::NETLINK_NETFILTER)
    }

    /// Sends messages to a subsystem of netfilter as one transaction. `what` completes "cannot …"
    /// in the error.
    ///
    /// # Errors
    /// What the kernel refuses; `Io` after five seconds of silence.
    pub fn transaction(&mut self, what: &str, subsystem: u16, requests: &[Message]) -> Result<()> {
        let first = self.sequence.wrapping_add(1);
        let [high, low] = subsystem.to_be_bytes();
        // `struct nfgenmsg`: no family, version 0, the subsystem. The kernel acknowledges the
        // messages in between; not all versions acknowledge these.
        let limit = |kind| {
            let mut message = Message::new(kind, 0).raw(&[0, 0, high, low]);
            message.bytes[6..8].copy_from_slice(&NLM_F_REQUEST.to_ne_bytes());
            message
        };
        let begin = limit(NFNL_MSG_BATCH_BEGIN);
        let end = limit(NFNL_MSG_BATCH_END);
        let mut bytes = Vec::new();
        for message in [&begin].into_iter().chain(requests).chain([&end]) {
            self.sequence = self.sequence.wrapping_add(1);
            let at = bytes.len();
            bytes.extend(&message.bytes);
            let len = (bytes.len() - at) as u32;
            bytes[at..at + 4].copy_from_slice(&len.to_ne_bytes());
            bytes[at + 8..at + 12].copy_from_slice(&self.sequence.to_ne_bytes());
            debug_assert!(len as usize >= HEADER_LEN && len.is_multiple_of(4));
        }
        // SAFETY: the buffer is live and as long as stated.
        let sent =
            unsafe { libc::send(self.fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0) };
        if sent < 0 {
            return Err(Error::last_os(what));
        }
        let mut left = requests.len();
        while left > 0 {
            if !self.wait(ANSWER_TIMEOUT_MS)? {
                let why = "the kernel does not answer";
                return Err(Error::new(ErrorKind::Io, what, why));
            }
            let len = self.receive(0).map_err(|e| Error::from_io(what, e))?;
            for (head, body) in messages(&self.buffer[..len]) {
                let number = head.sequence.wrapping_sub(first);
                if head.kind != NLMSG_ERROR || number > requests.len() as u32 + 1 {
                    continue;
                }
                check_error(what, head.flags, body)?;
                left = left.saturating_sub(usize::from(number != 0));
            }
        }
        Ok(())
    }
}
