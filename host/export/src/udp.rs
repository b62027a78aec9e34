//! UDP: one message per datagram (RFC 7011 §10.3).

use std::io;
use std::net::{ToSocketAddrs, UdpSocket};
use std::time::Duration;

use socket2::SockRef;
use sys::{Error, ErrorKind, Result};

use crate::sink::{Sent, Sink};
use crate::target::{Place, Target};

/// How long a datagram may wait for room in the socket's buffer.
const SEND_MAX: Duration = Duration::from_secs(1);
/// Send buffer size requested; the kernel may grant less.
const BUFFER_LEN: usize = 4 << 20;

struct Udp {
    host: String,
    port: u16,
    socket: Option<UdpSocket>,
    refused: u64,
}

/// Opens the destination of a target.
pub(crate) fn open(target: &Target) -> Result<Box<dyn Sink>> {
    let (host, port) = host_of(target)?;
    Ok(Box::new(Udp {
        host,
        port,
        socket: None,
        refused: 0,
    }))
}

/// The host and port of a target.
pub(crate) fn host_of(target: &Target) -> Result<(String, u16)> {
    match &target.place {
        Place::Host(host, port) => Ok((host.clone(), *port)),
        Place::Path(_) | Place::Topic { .. } => Err(Error::new(
            ErrorKind::InvalidInput,
            format!("export to {:?}", target.text),
            "a host is required",
        )),
    }
}

impl Sink for Udp {
    fn connect(&mut self) -> io::Result<()> {
        let mut last = io::Error::new(
            io::ErrorKind::NotFound,
            "the name does not resolve to an address",
        );
        for address in (self.host.as_str(), self.port).to_socket_addrs()? {
            let any = if address.is_ipv4() {
                "0.0.0.0:0"
            } else {
                "[::]:0"
            };
            // Connected, so that ICMP port unreachable errors are received.
            let socket = UdpSocket::bind(any).and_then(|s| s.connect(address).map(|()| s));
            match socket {
                Ok(socket) => {
                    socket.set_write_timeout(Some(SEND_MAX))?;
                    // A smaller buffer is not an error.
                    drop(SockRef::from(&socket).set_send_buffer_size(BUFFER_LEN));
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
        loop {
            match socket.send(message) {
                Ok(_) => return Sent::Done,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The error of an earlier datagram; this one has not been sent.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    self.refused += 1;
                    return match socket.send(message) {
                        Ok(_) => Sent::Done,
                        Err(error) => Sent::Lost(error),
                    };
                }
                Err(error) => return Sent::Lost(error),
            }
        }
    }

    fn refused_by_host(&self) -> u64 {
        self.refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sink_to(port: u16) -> Box<dyn Sink> {
        let target = Target::parse(&format!("ipfix:udp://127.0.0.1:{port}")).unwrap();
        let mut sink = open(&target).unwrap();
        sink.connect().unwrap();
        sink
    }

    /// The kernel refuses a message longer than a datagram each time: it is lost, and later ones
    /// are not.
    #[test]
    fn only_the_message_that_the_kernel_refuses_is_lost() {
        let collector = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut sink = sink_to(collector.local_addr().unwrap().port());
        let (done, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let sent = [sink.send(&[1; 70_000]), sink.send(b"next")];
            drop(done.send((sent, sink.refused_by_host())));
        });
        let limit = Duration::from_secs(60);
        let (sent, refused) = ended.recv_timeout(limit).expect("it is not tried for ever");
        let [Sent::Lost(error), Sent::Done] = sent else {
            panic!("{sent:?}")
        };
        assert_eq!(error.raw_os_error(), Some(90), "EMSGSIZE: {error}");
        assert_eq!(refused, 0);
        let mut buffer = [0; 16];
        collector.set_read_timeout(Some(limit)).unwrap();
        assert_eq!(collector.recv(&mut buffer).unwrap(), 4);
    }

    /// No listener: each ICMP error is counted, and the session continues.
    #[test]
    fn refusals_of_the_host_are_counted() {
        // The port stays in use, by a socket connected to itself.
        let held = UdpSocket::bind("127.0.0.1:0").unwrap();
        held.connect(held.local_addr().unwrap()).unwrap();
        let mut sink = sink_to(held.local_addr().unwrap().port());
        let mut count = 0;
        while sink.refused_by_host() < 3 {
            assert!(!matches!(sink.send(b"x"), Sent::Broken(_)));
            count += 1;
            assert!(count < 1_000_000, "the host says nothing");
        }
        // Each error belongs to a datagram.
        assert!(count >= 3);
    }
}
