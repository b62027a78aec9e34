//! TCP: consecutive messages (RFC 7011 §10.4). TLS runs over it.

use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use socket2::SockRef;
use sys::Result;

use crate::sink::{Sent, Sink};
use crate::target::Target;

/// Timeout of a connection attempt.
const CONNECT_MAX: Duration = Duration::from_secs(3);
/// How long a collector may accept no data.
const WRITE_MAX: Duration = Duration::from_secs(5);
/// How long a whole message or a handshake may take, however slowly the peer reads.
pub(crate) const WHOLE_MAX: Duration = Duration::from_secs(15);
/// `MSG_DONTWAIT | MSG_PEEK` of Linux.
const PEEK: i32 = 0x40 | 0x02;

struct Tcp {
    host: String,
    port: u16,
    stream: Option<TcpStream>,
}

/// Opens the destination of a target.
pub(crate) fn open(target: &Target) -> Result<Box<dyn Sink>> {
    let (host, port) = crate::udp::host_of(target)?;
    Ok(Box::new(Tcp {
        host,
        port,
        stream: None,
    }))
}

/// Connects to the first address of the name that accepts.
pub(crate) fn connect(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut last = io::Error::new(
        io::ErrorKind::NotFound,
        "the name does not resolve to an address",
    );
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_MAX) {
            Ok(stream) => {
                stream.set_write_timeout(Some(WRITE_MAX))?;
                stream.set_read_timeout(Some(WRITE_MAX))?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Whether data can be read.
///
/// # Errors
/// [`closed`] if the peer has closed the connection: otherwise the first message after that would
/// be written, and lost.
pub(crate) fn has_input(stream: &TcpStream) -> io::Result<bool> {
    let mut byte = [MaybeUninit::<u8>::uninit()];
    match SockRef::from(stream).recv_with_flags(&mut byte, PEEK) {
        Ok(0) => Err(closed()),
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error),
    }
}

/// Writes everything, unless that takes too long: a blocking call takes at most [`WRITE_MAX`], but
/// each may write just one byte.
pub(crate) fn write_all(out: &mut impl Write, mut bytes: &[u8], until: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        match out.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(len) => bytes = &bytes[len..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        in_time(until)?;
    }
    Ok(())
}

/// Returns an error once the time is over.
pub(crate) fn in_time(until: Instant) -> io::Result<()> {
    if Instant::now() < until {
        return Ok(());
    }
    let why = "the collector reads too slowly";
    Err(io::Error::new(io::ErrorKind::TimedOut, why))
}

/// The error for a connection closed by the peer.
pub(crate) fn closed() -> io::Error {
    let kind = io::ErrorKind::ConnectionAborted;
    io::Error::new(kind, "the collector closed the connection")
}

impl Sink for Tcp {
    fn connect(&mut self) -> io::Result<()> {
        self.stream = Some(connect(&self.host, self.port)?);
        Ok(())
    }

    fn send(&mut self, message: &[u8]) -> Sent {
        let Some(stream) = &mut self.stream else {
            return Sent::Broken(io::ErrorKind::NotConnected.into());
        };
        let until = Instant::now() + WHOLE_MAX;
        match has_input(stream).and_then(|_| write_all(stream, message, until)) {
            Ok(()) => Sent::Done,
            Err(error) => {
                // Half a message may have been sent: the connection is unusable.
                self.stream = None;
                Sent::Broken(error)
            }
        }
    }

    fn close(&mut self) -> io::Result<()> {
        match self.stream.take() {
            Some(stream) => stream.shutdown(Shutdown::Write),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A writer that slowly takes one byte at a time.
    struct Dripping;

    impl Write for Dripping {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            std::thread::sleep(Duration::from_millis(5));
            Ok(1)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_peer_that_reads_byte_by_byte_is_disconnected() {
        let until = Instant::now() + Duration::from_millis(40);
        let error = write_all(&mut Dripping, &[0; 1000], until).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let until = Instant::now() + Duration::from_secs(60);
        write_all(&mut Dripping, &[0; 3], until).unwrap();
    }
}
