//! SCTP: each message is a message of one association (RFC 7011 §10.2). All use stream 0, ordered
//! and reliable, so templates precede data.

use std::io;
use std::net::ToSocketAddrs;
use std::time::Duration;

use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use sys::{Error, ErrorKind, Result, Unsupported};

use crate::sink::{Sent, Sink};
use crate::target::Target;

const CONNECT_MAX: Duration = Duration::from_secs(3);
const WRITE_MAX: Duration = Duration::from_secs(5);
/// `IPPROTO_SCTP`.
const SCTP: i32 = 132;

struct Sctp {
    host: String,
    port: u16,
    socket: Option<Socket>,
}

/// Opens the destination of a target.
pub(crate) fn open(target: &Target) -> Result<Box<dyn Sink>> {
    let (host, port) = crate::udp::host_of(target)?;
    if let Err(error) = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::from(SCTP))) {
        let what = format!("export to {:?}", target.text);
        let error = Error::from_io(what.clone(), error);
        if error.kind() != ErrorKind::Unsupported {
            return Err(error);
        }
        let feature = Unsupported {
            feature: "SCTP",
            since: None,
        };
        let error = Error::unsupported(what, feature);
        return Err(error.with_hint("load the sctp kernel module, or export over tcp://"));
    }
    Ok(Box::new(Sctp {
        host,
        port,
        socket: None,
    }))
}

impl Sink for Sctp {
    fn connect(&mut self) -> io::Result<()> {
        let mut last = io::Error::new(
            io::ErrorKind::NotFound,
            "the name does not resolve to an address",
        );
        for address in (self.host.as_str(), self.port).to_socket_addrs()? {
            // One-to-one style: the system calls of TCP, with message boundaries kept (RFC 6458
            // §4).
            let domain = Domain::for_address(address);
            let socket = Socket::new(domain, Type::STREAM, Some(Protocol::from(SCTP)))?;
            socket.set_write_timeout(Some(WRITE_MAX))?;
            match socket.connect_timeout(&SockAddr::from(address), CONNECT_MAX) {
                Ok(()) => {
                    self.socket = Some(socket);
                    return Ok(());
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn send(&mut self, message: &[u8]) -> Sent {
        let Some(socket) = &self.socket else {
            return Sent::Broken(io::ErrorKind::NotConnected.into());
        };
        match socket.send(message) {
            Ok(len) if len == message.len() => Sent::Done,
            Ok(_) => self.broken(io::ErrorKind::WriteZero.into()),
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Sent::Lost(error),
            Err(error) => self.broken(error),
        }
    }

    fn close(&mut self) -> io::Result<()> {
        // The association is shut down in order when its socket is closed.
        self.socket = None;
        Ok(())
    }
}

impl Sctp {
    fn broken(&mut self, error: io::Error) -> Sent {
        self.socket = None;
        Sent::Broken(error)
    }
}
