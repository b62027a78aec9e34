//! Netlink: requests, dumps and notifications (`include/uapi/linux/netlink.h`, RFC 3549).
//!
//! This file has only the encoding and the socket; the messages are interpreted by the files that
//! use them ([`link`](crate::link), and users of a generic family through [`Socket::family`]).

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::{io, mem};

use crate::{Error, ErrorKind, Result, Unsupported};

#[cfg(feature = "laws")]
pub mod laws;
mod transaction;

/// Bytes of `struct nlmsghdr`.
const HEADER_LEN: usize = 16;
/// Largest answer received in one piece: the kernel sends at most 32 KiB of a dump at once.
const BUFFER_LEN: usize = 64 << 10;
/// How long to wait for an answer before reporting it lost, in ms.
const ANSWER_TIMEOUT_MS: i32 = 5_000;
/// How many times a dump is requested again if a change of the tables interrupted it.
const DUMP_TRIES_MAX: u32 = 8;

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 0x01;
const NLM_F_ACK: u16 = 0x04;
const NLM_F_DUMP_INTR: u16 = 0x10;
/// Flag: answer with the whole table.
pub const NLM_F_DUMP: u16 = 0x300;
const NLM_F_CAPPED: u16 = 0x100;
const NLM_F_ACK_TLVS: u16 = 0x200;
/// Mask of an attribute's type; the two upper bits are flags.
const TYPE_MASK: u16 = 0x3fff;
const NLA_F_NESTED: u16 = 0x8000;
/// `NLMSGERR_ATTR_MSG`: the kernel's explanation of a refusal.
const ERROR_ATTR_TEXT: u16 = 1;

/// A request being built.
#[derive(Clone, Debug)]
pub struct Message {
    bytes: Vec<u8>,
}

impl Message {
    /// A message of this type; `flags` are added to those that every request has.
    pub fn new(kind: u16, flags: u16) -> Self {
        let mut bytes = vec![0; HEADER_LEN];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(flags | NLM_F_REQUEST | NLM_F_ACK).to_ne_bytes());
        Self { bytes }
    }

    /// A message with this command to a generic family ([`Socket::family`]), in version 1.
    pub fn generic(family: u16, command: u8, flags: u16) -> Self {
        Self::new(family, flags).raw(&[command, 1, 0, 0])
    }

    /// Appends a fixed structure (`struct ifinfomsg` and the like).
    #[must_use]
    pub fn raw(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend_from_slice(bytes);
        self.pad();
        self
    }

    /// Appends an attribute.
    ///
    /// # Panics
    /// If it is longer than 65,531 bytes: no caller passes on what is not its own.
    #[must_use]
    pub fn attr(mut self, kind: u16, value: &[u8]) -> Self {
        let len = u16::try_from(value.len() + 4).expect("an attribute of ours is short");
        self.bytes.extend_from_slice(&len.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(value);
        self.pad();
        self
    }

    /// Appends a 32-bit attribute.
    #[must_use]
    pub fn attr_u32(self, kind: u16, value: u32) -> Self {
        self.attr(kind, &value.to_ne_bytes())
    }

    /// Appends a text attribute, with a terminating zero.
    #[must_use]
    pub fn attr_text(self, kind: u16, value: &str) -> Self {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.attr(kind, &bytes)
    }

    /// Appends an attribute that contains those that `build` appends.
    ///
    /// # Panics
    /// As [`Message::attr`].
    #[must_use]
    pub fn nest(mut self, kind: u16, build: impl FnOnce(Self) -> Self) -> Self {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 4]);
        let mut outer = build(self);
        let len = u16::try_from(outer.bytes.len() - start).expect("a nest of ours is short");
        outer.bytes[start..start + 2].copy_from_slice(&len.to_ne_bytes());
        outer.bytes[start + 2..start + 4].copy_from_slice(&(kind | NLA_F_NESTED).to_ne_bytes());
        outer
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

/// One message from the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Its type.
    pub kind: u16,
    /// Everything after the netlink header.
    pub body: Vec<u8>,
}

impl Reply {
    /// The attributes after a fixed structure of `fixed_len` bytes.
    pub fn attributes(&self, fixed_len: usize) -> Attributes<'_> {
        attributes(
            self.body
                .get(fixed_len.next_multiple_of(4)..)
                .unwrap_or(&[]),
        )
    }

    /// The attributes of a message of a generic family.
    pub fn generic_attributes(&self) -> Attributes<'_> {
        self.attributes(4)
    }
}

/// The attributes in a run of bytes: type (without flags) and value. Stops before an incomplete
/// one.
pub fn attributes(bytes: &[u8]) -> Attributes<'_> {
    Attributes { rest: bytes }
}

/// See [`attributes`].
#[derive(Clone, Debug)]
pub struct Attributes<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let head = self.rest.first_chunk::<4>()?;
        let len = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let kind = u16::from_ne_bytes([head[2], head[3]]) & TYPE_MASK;
        let value = self.rest.get(4..len)?;
        self.rest = self.rest.get(len.next_multiple_of(4)..).unwrap_or(&[]);
        Some((kind, value))
    }
}

/// The number in an attribute of up to eight bytes; `None` if it has another size.
pub fn number(value: &[u8]) -> Option<u64> {
    match *value {
        [a] => Some(a.into()),
        [a, b] => Some(u16::from_ne_bytes([a, b]).into()),
        [a, b, c, d] => Some(u32::from_ne_bytes([a, b, c, d]).into()),
        _ => Some(u64::from_ne_bytes(value.try_into().ok()?)),
    }
}

/// The number in a 32-bit attribute; 0 if it has another size.
pub fn number_u32(value: &[u8]) -> u32 {
    number(value)
        .and_then(|n| u32::try_from(n).ok())
        .unwrap_or(0)
}

/// The text in an attribute, up to its terminating zero.
pub fn text(value: &[u8]) -> String {
    let len = value.iter().position(|&b| b == 0).unwrap_or(value.len());
    String::from_utf8_lossy(&value[..len]).into_owned()
}

/// What a listening socket has received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A notification.
    Message(Reply),
    /// The kernel dropped some notifications: read the state again.
    Overrun,
}

/// A netlink socket, of the network namespace in which it was opened.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
    /// Notifications received in one piece and not yet returned.
    waiting: std::collections::VecDeque<Reply>,
}

impl Socket {
    /// Opens a socket; `protocol` is `NETLINK_ROUTE` (0) or `NETLINK_GENERIC` (16).
    pub fn open(protocol: i32) -> Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        // SAFETY: no pointers are involved.
        let raw = unsafe { libc::socket(libc::AF_NETLINK, kind, protocol) };
        if raw < 0 {
            return Err(Error::last_os("open a netlink socket"));
        }
        // SAFETY: the descriptor is new and ours alone.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
        let socket = Self {
            fd,
            sequence: 0,
            buffer: vec![0; BUFFER_LEN],
            waiting: std::collections::VecDeque::new(),
        };
        socket.bind()?;
        // Both options only make errors more informative; older kernels without them work as well.
        let _ = socket.set_option(libc::NETLINK_EXT_ACK, 1);
        let _ = socket.set_option(libc::NETLINK_CAP_ACK, 1);
        Ok(socket)
    }

    /// A socket for rtnetlink: links, addresses, routes.
    pub fn route() -> Result<Self> {
        Self::open(libc::NETLINK_ROUTE)
    }

    /// A socket for generic families.
    pub fn generic() -> Result<Self> {
        Self::open(libc::NETLINK_GENERIC)
    }

    /// Lets the kernel choose our address: a socket without one gets no notifications, because it
    /// looks like the kernel itself.
    fn bind(&self) -> Result<()> {
        // SAFETY: a struct of plain integers; all zero is a value.
        let mut address: libc::sockaddr_nl = unsafe { mem::zeroed() };
        address.nl_family = libc::AF_NETLINK as u16;
        let len = mem::size_of::<libc::sockaddr_nl>() as u32;
        // SAFETY: the address is live and as long as stated.
        let result = unsafe {
            libc::bind(
                self.fd.as_raw_fd(),
                std::ptr::from_ref(&address).cast(),
                len,
            )
        };
        if result < 0 {
            return Err(Error::last_os("bind a netlink socket"));
        }
        Ok(())
    }

    fn set_option(&self, name: i32, value: u32) -> io::Result<()> {
        let len = mem::size_of::<u32>() as u32;
        // SAFETY: the value is live and as long as stated.
        let result = unsafe {
            libc::setsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_NETLINK,
                name,
                std::ptr::from_ref(&value).cast(),
                len,
            )
        };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Listens to a multicast group.
    pub fn join(&self, group: u32) -> Result<()> {
        self.set_option(libc::NETLINK_ADD_MEMBERSHIP, group)
            .map_err(|e| Error::from_io("listen to netlink notifications", e))
    }

    /// Sends a request and collects the whole answer. `what` completes "cannot …" in the error.
    ///
    /// # Errors
    /// What the kernel refuses, in its own words where it has some; `Io` after five seconds of
    /// silence.
    pub fn request(&mut self, what: &str, message: Message) -> Result<Vec<Reply>> {
        for _ in 0..DUMP_TRIES_MAX {
            if let Some(replies) = self.request_once(what, message.clone())? {
                return Ok(replies);
            }
        }
        Err(Error::new(
            ErrorKind::Busy,
            what,
            "the tables change too fast to be read",
        ))
    }

    /// `None` if the dump was interrupted by a change.
    fn request_once(&mut self, what: &str, mut message: Message) -> Result<Option<Vec<Reply>>> {
        self.sequence = self.sequence.wrapping_add(1);
        let len = message.bytes.len() as u32;
        message.bytes[..4].copy_from_slice(&len.to_ne_bytes());
        message.bytes[8..12].copy_from_slice(&self.sequence.to_ne_bytes());
        // SAFETY: the buffer is live and as long as stated.
        let sent = unsafe {
            libc::send(
                self.fd.as_raw_fd(),
                message.bytes.as_ptr().cast(),
                message.bytes.len(),
                0,
            )
        };
        if sent < 0 {
            return Err(Error::last_os(what));
        }
        let (mut replies, mut interrupted) = (Vec::new(), false);
        loop {
            if !self.wait(ANSWER_TIMEOUT_MS)? {
                return Err(Error::new(
                    ErrorKind::Io,
                    what,
                    "the kernel does not answer",
                ));
            }
            let len = self.receive(0).map_err(|e| Error::from_io(what, e))?;
            for (head, body) in messages(&self.buffer[..len]) {
                if head.sequence != self.sequence {
                    continue;
                }
                interrupted |= head.flags & NLM_F_DUMP_INTR != 0;
                match head.kind {
                    NLMSG_ERROR => {
                        check_error(what, head.flags, body)?;
                        return Ok((!interrupted).then_some(replies));
                    }
                    NLMSG_DONE => {
                        check_error(what, head.flags, body)?;
                        return Ok((!interrupted).then_some(replies));
                    }
                    kind => replies.push(Reply {
                        kind,
                        body: body.to_vec(),
                    }),
                }
            }
        }
    }

    /// Takes one notification, if one is available. Never blocks.
    pub fn notice(&mut self) -> Result<Option<Notice>> {
        loop {
            if let Some(reply) = self.waiting.pop_front() {
                return Ok(Some(Notice::Message(reply)));
            }
            let len = match self.receive(libc::MSG_DONTWAIT) {
                Ok(len) => len,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => {
                    return Ok(Some(Notice::Overrun));
                }
                Err(e) => return Err(Error::from_io("read netlink notifications", e)),
            };
            for (head, body) in messages(&self.buffer[..len]) {
                self.waiting.push_back(Reply {
                    kind: head.kind,
                    body: body.to_vec(),
                });
            }
        }
    }

    /// Waits until something can be read, at most `timeout_ms` (negative: no limit). Returns
    /// whether something can.
    pub fn wait(&self, timeout_ms: i32) -> Result<bool> {
        let mut poll = libc::pollfd {
            fd: self.fd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        loop {
            // SAFETY: one live pollfd.
            let count = unsafe { libc::poll(&mut poll, 1, timeout_ms) };
            if count >= 0 {
                return Ok(count > 0);
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(Error::from_io("wait for netlink", error));
            }
        }
    }

    fn receive(&mut self, flags: i32) -> io::Result<usize> {
        loop {
            let buffer = &mut self.buffer;
            // SAFETY: the buffer is live and as long as stated.
            let len = unsafe {
                libc::recv(
                    self.fd.as_raw_fd(),
                    buffer.as_mut_ptr().cast(),
                    buffer.len(),
                    flags,
                )
            };
            if let Ok(len) = usize::try_from(len) {
                return Ok(len);
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }

    /// The numbers of a generic family and of its multicast groups, by name.
    ///
    /// # Errors
    /// `Unsupported` if this kernel has no such family.
    pub fn family(&mut self, name: &'static str) -> Result<Family> {
        const CONTROL: u16 = 16;
        const GET_FAMILY: u8 = 3;
        const ATTR_NAME: u16 = 2;
        let what = format!("find the netlink family {name}");
        let ask = Message::generic(CONTROL, GET_FAMILY, 0).attr_text(ATTR_NAME, name);
        let replies = self.request(&what, ask).map_err(|e| match e.kind() {
            ErrorKind::NotFound => Error::unsupported(
                what,
                Unsupported {
                    feature: name,
                    since: None,
                },
            ),
            _ => e,
        })?;
        Ok(Family::of(&replies))
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The numbers of a generic family on this kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Family {
    /// The type of its messages.
    pub id: u16,
    /// Its multicast groups: name and number.
    pub groups: Vec<(String, u32)>,
}

impl Family {
    /// Parses the answer to `CTRL_CMD_GETFAMILY`.
    fn of(replies: &[Reply]) -> Family {
        const ATTR_ID: u16 = 1;
        const ATTR_GROUPS: u16 = 7;
        const GROUP_NAME: u16 = 1;
        const GROUP_ID: u16 = 2;
        let mut family = Family::default();
        for (kind, value) in replies.iter().flat_map(Reply::generic_attributes) {
            match kind {
                ATTR_ID => family.id = number_u32(value) as u16,
                ATTR_GROUPS => {
                    for (_, group) in attributes(value) {
                        let (mut id, mut group_name) = (0, String::new());
                        for (kind, value) in attributes(group) {
                            match kind {
                                GROUP_NAME => group_name = text(value),
                                GROUP_ID => id = number_u32(value),
                                _ => {}
                            }
                        }
                        family.groups.push((group_name, id));
                    }
                }
                _ => {}
            }
        }
        family
    }

    /// A group's number by its name.
    pub fn group(&self, name: &str) -> Option<u32> {
        self.groups
            .iter()
            .find(|(n, _)| n == name)
            .map(|&(_, id)| id)
    }
}

struct Head {
    kind: u16,
    flags: u16,
    sequence: u32,
}

/// The messages in one piece read from a socket.
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (Head, &[u8])> {
    std::iter::from_fn(move || {
        let head = bytes.first_chunk::<HEADER_LEN>()?;
        let len = u32::from_ne_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let parsed = Head {
            kind: u16::from_ne_bytes([head[4], head[5]]),
            flags: u16::from_ne_bytes([head[6], head[7]]),
            sequence: u32::from_ne_bytes([head[8], head[9], head[10], head[11]]),
        };
        let body = bytes.get(HEADER_LEN..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or(&[]);
        Some((parsed, body))
    })
}

/// The messages in one piece that was read from a socket: their types, and what follows their
/// headers.
pub fn split(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    messages(bytes).map(|(head, body)| (head.kind, body))
}

/// Checks the errno at the start of an error or done message; 0 is success.
fn check_error(what: &str, flags: u16, body: &[u8]) -> Result<()> {
    let code = body.first_chunk().map_or(0, |c| i32::from_ne_bytes(*c));
    if code == 0 {
        return Ok(());
    }
    // `i32::MIN` cannot be negated.
    let error = Error::from_io(what, io::Error::from_raw_os_error(code.wrapping_neg()));
    if flags & NLM_F_ACK_TLVS == 0 {
        return Err(error);
    }
    // The request follows the errno: only its header if the kernel capped it.
    let request = body.get(4..).unwrap_or(&[]);
    let request_len = if flags & NLM_F_CAPPED != 0 {
        HEADER_LEN
    } else {
        request
            .first_chunk()
            .map_or(0, |c| u32::from_ne_bytes(*c) as usize)
    };
    let rest = request
        .get(request_len.next_multiple_of(4)..)
        .unwrap_or(&[]);
    let said = attributes(rest).find(|&(kind, _)| kind == ERROR_ATTR_TEXT);
    Err(match said {
        Some((_, value)) => {
            let why = format!("{} ({})", text(value), error.why());
            error.with_why(why)
        }
        None => error,
    })
}

#[cfg(test)]
mod tests;
