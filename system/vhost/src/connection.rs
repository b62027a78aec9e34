//! Messages over the socket of a connection, without ever waiting for the front-end.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use sys::descriptors;

use crate::message::{HEADER_LEN, Header, PAYLOAD_LEN_MAX, REGION_COUNT_MAX};
use crate::session::Session;

/// `EAGAIN`: nothing to receive.
const WOULD_WAIT: i32 = 11;

/// Number of messages handled before other work is looked after.
const MESSAGE_COUNT_MAX: usize = 64;

/// A connection, with the message of which a part has arrived.
pub(crate) struct Connection {
    socket: UnixStream,
    session: Session,
    bytes: [u8; HEADER_LEN + PAYLOAD_LEN_MAX],
    len: usize,
    fds: Vec<OwnedFd>,
}

/// State of a connection after its messages were handled.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It waits for messages.
    Open,
    /// The front-end has closed it.
    Closed,
    /// It must be closed, for this reason.
    Refused(String),
}

impl Connection {
    pub fn new(socket: UnixStream, session: Session) -> std::io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket,
            session,
            bytes: [0; HEADER_LEN + PAYLOAD_LEN_MAX],
            len: 0,
            fds: Vec::new(),
        })
    }

    pub fn poll_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Handles the messages that have arrived.
    pub fn read(&mut self) -> Outcome {
        for _ in 0..MESSAGE_COUNT_MAX {
            match self.step() {
                Ok(true) => {}
                Ok(false) => return Outcome::Open,
                Err(outcome) => return outcome,
            }
        }
        Outcome::Open
    }

    /// Receives a part of a message, and handles it if it is complete; false if nothing arrived.
    fn step(&mut self) -> Result<bool, Outcome> {
        // No more than one message, so that descriptors belong to theirs.
        let wanted = match self.header()? {
            None => HEADER_LEN,
            Some(header) => HEADER_LEN + header.payload_len,
        };
        if self.len < wanted {
            let received = descriptors::receive(&self.socket, &mut self.bytes[self.len..wanted]);
            match received {
                Ok((0, _)) => return Err(Outcome::Closed),
                Ok((len, fds)) => {
                    self.len += len;
                    self.fds.extend(fds);
                }
                Err(error) if error.os_code() == Some(WOULD_WAIT) => return Ok(false),
                Err(error) if error.os_code().is_some() => return Err(Outcome::Closed),
                Err(error) => return Err(Outcome::Refused(error.why().to_owned())),
            }
            if self.fds.len() > REGION_COUNT_MAX {
                return Err(Outcome::Refused(
                    "a message has more than 8 descriptors".into(),
                ));
            }
        }
        if let Some(header) = self.header()?
            && self.len == HEADER_LEN + header.payload_len
        {
            self.handle(header)?;
        }
        Ok(true)
    }

    /// The header, if it is complete.
    fn header(&self) -> Result<Option<Header>, Outcome> {
        if self.len < HEADER_LEN {
            return Ok(None);
        }
        let bytes = self.bytes.first_chunk();
        let header = bytes.map(Header::decode).transpose();
        header.map_err(|invalid| Outcome::Refused(invalid.0.into()))
    }

    fn handle(&mut self, header: Header) -> Result<(), Outcome> {
        let (payload, fds) = (
            &self.bytes[HEADER_LEN..self.len],
            std::mem::take(&mut self.fds),
        );
        let reply = self.session.handle(header, payload, fds);
        self.len = 0;
        let reply = reply.map_err(Outcome::Refused)?;
        let Some(reply) = reply else { return Ok(()) };
        // The buffer of a front-end that reads its replies has room.
        descriptors::send_bytes(&self.socket, &reply).map_err(|error| match error.os_code() {
            Some(WOULD_WAIT) => Outcome::Refused("the front-end reads no replies".into()),
            _ => Outcome::Closed,
        })
    }
}
