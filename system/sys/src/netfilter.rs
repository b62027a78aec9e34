//! Packets from netfilter's rules, by netlink: those that rules log (`nfnetlink_log.h`), and those
//! that rules queue for a verdict (`nfnetlink_queue.h`).
//!
//! This file has the socket and the messages that set it up; what arrives is interpreted by its
//! user, with [`split`](crate::netlink::split) and [`attributes`](crate::netlink::attributes).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use crate::netlink::{Message, Socket};
use crate::privileges::{self, Capability};
use crate::{Error, ErrorKind, Result, Unsupported};

/// Numbers of the subsystems, the upper byte of message types.
const NFNL_SUBSYS_QUEUE: u16 = 3;
const NFNL_SUBSYS_ULOG: u16 = 4;

/// Type of a message with a packet that a rule has logged (`NFULNL_MSG_PACKET`).
pub const LOGGED: u16 = NFNL_SUBSYS_ULOG << 8;
/// Type of a message with a packet that a rule has queued (`NFQNL_MSG_PACKET`).
pub const QUEUED: u16 = NFNL_SUBSYS_QUEUE << 8;

const NFULNL_MSG_CONFIG: u16 = 1;
const NFULA_CFG_CMD: u16 = 1;
const NFULA_CFG_MODE: u16 = 2;
const NFULA_CFG_NLBUFSIZ: u16 = 3;
const NFULA_CFG_TIMEOUT: u16 = 4;
const NFULA_CFG_QTHRESH: u16 = 5;
const NFULA_CFG_FLAGS: u16 = 6;
const NFULNL_CFG_CMD_BIND: u8 = 1;
const NFULNL_COPY_PACKET: u8 = 2;
const NFULNL_CFG_F_SEQ: u16 = 1;

const NFQNL_MSG_VERDICT_BATCH: u16 = 3;
const NFQNL_MSG_CONFIG: u16 = 2;
const NFQA_VERDICT_HDR: u16 = 2;
const NFQA_CFG_CMD: u16 = 1;
const NFQA_CFG_PARAMS: u16 = 2;
const NFQA_CFG_QUEUE_MAXLEN: u16 = 3;
const NFQA_CFG_MASK: u16 = 4;
const NFQA_CFG_FLAGS: u16 = 5;
const NFQNL_CFG_CMD_BIND: u8 = 1;
const NFQNL_COPY_PACKET: u8 = 2;
const NFQA_CFG_F_FAIL_OPEN: u32 = 1;
const NF_ACCEPT: u32 = 1;

/// Bytes of each packet that are copied: all that an attribute holds.
const COPY_RANGE: u32 = 0xffff - 4;

/// Bytes of logged packets that the kernel gathers before it hands them over.
const GATHER_BYTES: u32 = 64 << 10;

/// Maximum number of packets that wait for a verdict: more than fit into the socket's buffer, so
/// that the buffer is the limit, at which the kernel's numbers show what was left out.
const QUEUE_LEN: u32 = 1 << 20;

/// The fixed part of messages: family, version, and the number of a group or queue.
fn head(family: u8, number: u16) -> [u8; 4] {
    let [high, low] = number.to_be_bytes();
    [family, 0, high, low]
}

/// Maximum length of what one call receives: a packet with its attributes, or several together.
pub const RECEIVE_LEN_MAX: usize = 256 << 10;

/// A socket that receives packets of netfilter's rules.
#[derive(Debug)]
pub struct Netfilter {
    socket: Socket,
    /// Number of the queue; 0 for groups.
    number: u16,
}

/// A verdict: header, fixed part, and an attribute of eight bytes.
const VERDICT_LEN: usize = 16 + 4 + 12;
/// A limit of a queue: the same with an attribute of four bytes.
const LIMIT_LEN: usize = 16 + 4 + 8;

/// What a receiving call returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// So many bytes: messages.
    Bytes(usize),
    /// Nothing is there.
    Nothing,
    /// The kernel left packets out because the socket's buffer was full.
    Overrun,
}

fn what(kind: &str, number: u16) -> String {
    format!("receive from {kind}:{number}")
}

/// Errors of binding, in the words of what was to be done.
fn explain(what: String, number: &str, error: &Error) -> Error {
    let why = error.why().to_owned();
    let is_taken = match error.kind() {
        ErrorKind::Busy => true,
        // The kernel's code for one that belongs to another process, too.
        ErrorKind::Permission => privileges::has(Capability::NetAdmin),
        _ => false,
    };
    match error.kind() {
        _ if is_taken => {
            let why = format!("another process receives from {number}");
            Error::new(ErrorKind::Busy, what, why).with_hint("use a number of its own in the rule")
        }
        ErrorKind::Permission => Error::new(ErrorKind::Permission, what, why)
            .with_hint("run as root, or with CAP_NET_ADMIN"),
        ErrorKind::Unsupported | ErrorKind::InvalidInput | ErrorKind::NotFound => {
            Error::unsupported(
                what,
                Unsupported {
                    feature: "netfilter's log and queue by netlink",
                    since: None,
                },
            )
        }
        kind => Error::new(kind, what, why),
    }
}

impl Netfilter {
    fn open(number: u16, receive_len: usize) -> Result<Self> {
        let netfilter = Self {
            socket: Socket::netfilter()?,
            number,
        };
        netfilter.set_buffer(receive_len);
        Ok(netfilter)
    }

    /// Receives the packets that rules log with these group numbers. The kernel hands them over
    /// when it has gathered `gathered` of them, or after `timeout_ms`; each has a number of its
    /// group. `buffer` is how many bytes wait for a reader before others are left out.
    ///
    /// # Errors
    /// `Busy` if another process receives from a group, `Permission` without CAP_NET_ADMIN.
    pub fn log(groups: &[u16], timeout_ms: u32, gathered: u32, buffer: usize) -> Result<Self> {
        let mut netfilter = Self::open(0, buffer)?;
        for &group in groups {
            let what = what("nflog", group);
            let config = || {
                let kind = LOGGED | NFULNL_MSG_CONFIG;
                Message::new(kind, 0).raw(&head(0, group))
            };
            let mut mode = COPY_RANGE.to_be_bytes().to_vec();
            mode.extend([NFULNL_COPY_PACKET, 0]);
            // In hundredths of a second.
            let timeout = (timeout_ms / 10).max(1);
            let parts = [
                config().attr(NFULA_CFG_CMD, &[NFULNL_CFG_CMD_BIND]),
                config()
                    .attr(NFULA_CFG_MODE, &mode)
                    .attr(NFULA_CFG_NLBUFSIZ, &GATHER_BYTES.to_be_bytes())
                    .attr(NFULA_CFG_TIMEOUT, &timeout.to_be_bytes())
                    .attr(NFULA_CFG_QTHRESH, &gathered.to_be_bytes())
                    .attr(NFULA_CFG_FLAGS, &NFULNL_CFG_F_SEQ.to_be_bytes()),
            ];
            for part in parts {
                let done = netfilter.socket.request(&what, part);
                done.map_err(|error| explain(what.clone(), &format!("group {group}"), &error))?;
            }
        }
        Ok(netfilter)
    }

    /// Receives the packets that rules queue with this number, each of which waits for a verdict.
    /// Those for which there is no room pass without one. `buffer` is as for [`log`](Self::log).
    ///
    /// # Errors
    /// As [`log`](Self::log).
    pub fn queue(number: u16, buffer: usize) -> Result<Self> {
        let mut netfilter = Self::open(number, buffer)?;
        let what = what("nfqueue", number);
        let config = || Message::new(QUEUED | NFQNL_MSG_CONFIG, 0).raw(&head(0, number));
        let mut parameters = COPY_RANGE.to_be_bytes().to_vec();
        parameters.push(NFQNL_COPY_PACKET);
        let flags = NFQA_CFG_F_FAIL_OPEN.to_be_bytes();
        let parts = [
            config().attr(NFQA_CFG_CMD, &[NFQNL_CFG_CMD_BIND, 0, 0, 0]),
            config()
                .attr(NFQA_CFG_PARAMS, &parameters)
                .attr(NFQA_CFG_QUEUE_MAXLEN, &QUEUE_LEN.to_be_bytes())
                .attr(NFQA_CFG_FLAGS, &flags)
                .attr(NFQA_CFG_MASK, &flags),
        ];
        for part in parts {
            let done = netfilter.socket.request(&what, part);
            done.map_err(|error| explain(what.clone(), &format!("queue {number}"), &error))?;
        }
        // Those that came before everything was set up.
        netfilter.accept_up_to(u32::MAX >> 1)?;
        Ok(netfilter)
    }

    /// Sets the size of the buffer; the kernel's limit holds without the right to exceed it.
    fn set_buffer(&self, len: usize) {
        let len = i32::try_from(len).unwrap_or(i32::MAX);
        for name in [libc::SO_RCVBUFFORCE, libc::SO_RCVBUF] {
            // SAFETY: the value is live and as long as stated.
            let result = unsafe {
                libc::setsockopt(
                    self.socket.as_fd().as_raw_fd(),
                    libc::SOL_SOCKET,
                    name,
                    std::ptr::from_ref(&len).cast(),
                    size_of::<i32>() as u32,
                )
            };
            if result == 0 {
                return;
            }
        }
    }

    /// Receives messages into a buffer, of at least [`RECEIVE_LEN_MAX`] bytes. Never blocks.
    ///
    /// # Errors
    /// The system's.
    pub fn receive(&self, buffer: &mut [u8]) -> Result<Received> {
        loop {
            // SAFETY: the buffer is live and as long as stated.
            let len = unsafe {
                libc::recv(
                    self.socket.as_fd().as_raw_fd(),
                    buffer.as_mut_ptr().cast(),
                    buffer.len(),
                    libc::MSG_DONTWAIT,
                )
            };
            if let Ok(len) = usize::try_from(len) {
                return Ok(Received::Bytes(len));
            }
            let error = io::Error::last_os_error();
            match (error.kind(), error.raw_os_error()) {
                (io::ErrorKind::Interrupted, _) => {}
                (io::ErrorKind::WouldBlock, _) => return Ok(Received::Nothing),
                (_, Some(libc::ENOBUFS)) => return Ok(Received::Overrun),
                _ => return Err(Error::from_io("receive from netfilter", error)),
            }
        }
    }

    /// Accepts all queued packets up to this one: they continue on their way. The kernel compares
    /// numbers by their signed difference: up to `i32::MAX` further than the oldest one that waits.
    ///
    /// # Errors
    /// `Permission` if this thread no longer has CAP_NET_ADMIN.
    pub fn accept_up_to(&self, id: u32) -> Result<()> {
        self.send("accept queued packets", &verdict(self.number, id))
    }

    /// Lets packets pass that are not queued yet: there is no room for them any more.
    ///
    /// # Errors
    /// As [`accept_up_to`](Self::accept_up_to).
    pub fn let_new_pass(&self) -> Result<()> {
        self.send("let packets pass", &limit(self.number, 0))
    }

    /// Sends a message without waiting for an answer.
    fn send(&self, what: &str, message: &[u8]) -> Result<()> {
        // SAFETY: the buffer is live and as long as stated.
        let sent = unsafe {
            libc::send(
                self.socket.as_fd().as_raw_fd(),
                message.as_ptr().cast(),
                message.len(),
                0,
            )
        };
        if sent < 0 {
            return Err(Error::last_os(what));
        }
        Ok(())
    }
}

/// Writes a message with one attribute to a queue, except the attribute's value, which is the rest
/// of `out`.
fn begin(out: &mut [u8], kind: u16, number: u16, attribute: u16) {
    let len = out.len();
    out[..4].copy_from_slice(&(len as u32).to_ne_bytes());
    out[4..6].copy_from_slice(&(QUEUED | kind).to_ne_bytes());
    // A request, without an acknowledgement.
    out[6..8].copy_from_slice(&1_u16.to_ne_bytes());
    out[16..20].copy_from_slice(&head(0, number));
    out[20..22].copy_from_slice(&(len as u16 - 20).to_ne_bytes());
    out[22..24].copy_from_slice(&attribute.to_ne_bytes());
}

/// A message that accepts the packets of a queue up to this one.
fn verdict(number: u16, id: u32) -> [u8; VERDICT_LEN] {
    let mut out = [0; VERDICT_LEN];
    begin(&mut out, NFQNL_MSG_VERDICT_BATCH, number, NFQA_VERDICT_HDR);
    out[24..28].copy_from_slice(&NF_ACCEPT.to_be_bytes());
    out[28..].copy_from_slice(&id.to_be_bytes());
    out
}

/// A message that sets how many packets of a queue may wait.
fn limit(number: u16, count: u32) -> [u8; LIMIT_LEN] {
    let mut out = [0; LIMIT_LEN];
    begin(&mut out, NFQNL_MSG_CONFIG, number, NFQA_CFG_QUEUE_MAXLEN);
    out[24..].copy_from_slice(&count.to_be_bytes());
    out
}

impl AsFd for Netfilter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::{attributes, split};

    #[test]
    fn messages_to_a_queue_are_a_verdict_and_a_limit() {
        let cases: [(Vec<u8>, u16, u16, &[u8]); 2] = [
            (
                verdict(0x0102, 7).into(),
                0x0303,
                2,
                &[0, 0, 0, 1, 0, 0, 0, 7],
            ),
            (limit(0x0102, 9).into(), 0x0302, 3, &[0, 0, 0, 9]),
        ];
        for (bytes, kind, attribute, value) in cases {
            let all: Vec<_> = split(&bytes).collect();
            let [(found, body)] = all.as_slice() else {
                panic!("{all:?}");
            };
            assert_eq!((*found, &body[..4]), (kind, &[0, 0, 1, 2][..]));
            let found: Vec<_> = attributes(&body[4..]).collect();
            assert_eq!(found, [(attribute, value)]);
        }
    }
}
