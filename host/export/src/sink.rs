//! Sinks: where messages are sent or written.

use std::io;

use flow::encode::Sum;
use sys::Result;

use crate::target::Target;

/// What became of a message.
#[derive(Debug)]
pub enum Sent {
    /// It is on its way, or written.
    Done,
    /// It is lost, but the next one may not be.
    Lost(io::Error),
    /// The session is over; the message has not arrived whole, and belongs into the next one.
    Broken(io::Error),
}

/// What became of messages that were sent some time ago.
#[derive(Debug, Default)]
pub struct DeliveryReport {
    /// What was in those that arrived.
    pub done: Sum,
    /// What was in those that did not.
    pub lost: Sum,
    /// The last failure, in words.
    pub last_failure: Option<String>,
    /// Messages of which nothing is known yet.
    pub waiting: usize,
}

/// A destination. One thread owns it; its calls may block, each for a few seconds at most.
pub trait Sink: Send {
    /// Starts threads of its own, if it has any. Called once, before the first session and in a
    /// thread that has dropped its privileges: threads inherit those of the one that starts them.
    ///
    /// # Errors
    /// When they cannot be started.
    fn start(&mut self) -> Result<()> {
        Ok(())
    }

    /// Begins a session. Called again after `Sent::Broken`, not before a pause.
    ///
    /// # Errors
    /// When that is not possible now.
    fn connect(&mut self) -> io::Result<()>;

    /// Sends a whole message.
    fn send(&mut self, message: &[u8]) -> Sent;

    /// The same; what is in the message is reported back by [`Sink::settle`], if known
    /// only later.
    fn send_held(&mut self, message: &[u8], held: &Sum) -> Sent {
        let _ = held;
        self.send(message)
    }

    /// Whether a message has not yet arrived at `Sent::Done`: [`Sink::settle`] reports that.
    fn is_deferred(&self) -> bool {
        false
    }

    /// What became of messages since it was asked. Does not block.
    fn settle(&mut self) -> DeliveryReport {
        DeliveryReport::default()
    }

    /// ICMP port unreachable errors.
    fn refused_by_host(&self) -> u64 {
        0
    }

    /// Whether what was sent counts only when [`Sink::close`] has gone well, and a session is not
    /// begun before there is something to send: files that appear when they are complete.
    fn is_staged(&self) -> bool {
        false
    }

    /// Whether the session is to be ended now, and another one begun with the next message.
    fn is_due(&self, now_ns: u64) -> bool {
        let _ = now_ns;
        false
    }

    /// Why nothing can be sent any more, ever: standard output failed, which cannot be opened
    /// again.
    fn over(&self) -> Option<io::ErrorKind> {
        None
    }

    /// Ends the session, after everything was sent; messages that [`Sink::settle`] waits for are
    /// abandoned.
    ///
    /// # Errors
    /// When the end could not be reported, or not be written.
    fn close(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What the destinations of a sink are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Names {
    /// A host and a port.
    Host,
    /// Brokers and a topic: a message for each record.
    Topic,
    /// A file.
    File,
}

/// A kind of sink.
pub struct SinkRow {
    /// The text before `://`; files have none.
    pub scheme: &'static str,
    /// One line for users.
    pub about: &'static str,
    /// Whether nothing is lost and nothing comes twice within a session: no templates are
    /// repeated.
    pub is_reliable: bool,
    /// The most bytes of a message by default.
    pub message_len_max: usize,
    /// The text after `://`.
    pub names: Names,
    /// Whether it is encrypted: some formats then have another port.
    pub is_encrypted: bool,
    /// Options that only this sink has.
    pub options: &'static [&'static str],
    /// Whether options that are not known here are passed on to its library.
    pub passes_options: bool,
    /// Bytes of memory that it takes, if that is much.
    pub memory_len: usize,
    /// Makes it. Connects nothing yet; finds out what can be found out before.
    pub open: fn(&Target) -> Result<Box<dyn Sink>>,
}

/// Bytes of a message over UDP: an MTU of 1500 less what tunnels commonly take.
const DATAGRAM_LEN: usize = 1400;
/// Where there is no MTU; a message of IPFIX has 65535 at most.
const STREAM_LEN: usize = 16 << 10;

/// All kinds.
pub static SINKS: &[SinkRow] = &[
    SinkRow {
        scheme: "udp",
        about: "datagrams; templates are resent",
        is_reliable: false,
        message_len_max: DATAGRAM_LEN,
        names: Names::Host,
        is_encrypted: false,
        options: &["mtu", "refresh"],
        passes_options: false,
        memory_len: 0,
        open: crate::udp::open,
    },
    SinkRow {
        scheme: "tcp",
        about: "a connection, reopened when it breaks",
        is_reliable: true,
        message_len_max: STREAM_LEN,
        names: Names::Host,
        is_encrypted: false,
        options: &[],
        passes_options: false,
        memory_len: 0,
        open: crate::tcp::open,
    },
    SinkRow {
        scheme: "tls",
        about: "TLS over TCP; ca= trusted CAs, cert= and key= client certificate, name= of the \
                collector",
        is_reliable: true,
        message_len_max: STREAM_LEN,
        names: Names::Host,
        is_encrypted: true,
        options: &["ca", "cert", "key", "name"],
        passes_options: false,
        memory_len: 0,
        open: crate::tls::open,
    },
    SinkRow {
        scheme: "sctp",
        about: "an association, if the kernel supports SCTP",
        is_reliable: true,
        message_len_max: DATAGRAM_LEN,
        names: Names::Host,
        is_encrypted: false,
        options: &["mtu"],
        passes_options: false,
        memory_len: 0,
        open: crate::sctp::open,
    },
    SinkRow {
        scheme: KAFKA,
        about: "one message per record to BROKER:PORT,…/TOPIC; options are librdkafka properties",
        is_reliable: true,
        message_len_max: 64 << 10,
        names: Names::Topic,
        is_encrypted: false,
        options: &[],
        passes_options: true,
        memory_len: crate::kafka::MEMORY_LEN,
        open: crate::kafka::open,
    },
    SinkRow {
        scheme: FILE,
        about: "a file, or - for standard output; rotate= and size= rotate it",
        is_reliable: true,
        message_len_max: 32 << 10,
        names: Names::File,
        is_encrypted: false,
        options: &["rotate", "size"],
        passes_options: false,
        memory_len: 0,
        open: crate::file::open,
    },
];

/// The scheme of Kafka.
pub(crate) const KAFKA: &str = "kafka";

/// The scheme of files.
pub const FILE: &str = "file";

/// A row by its scheme.
pub fn find(scheme: &str) -> Option<&'static SinkRow> {
    SINKS.iter().find(|row| row.scheme == scheme)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing but what every destination has to do.
    struct Least(Vec<u8>);

    impl Sink for Least {
        fn connect(&mut self) -> io::Result<()> {
            Ok(())
        }

        fn send(&mut self, message: &[u8]) -> Sent {
            self.0.extend(message);
            Sent::Done
        }
    }

    #[test]
    fn a_destination_without_a_description() {
        let mut least = Least(Vec::new());
        least.start().unwrap();
        least.connect().unwrap();
        assert!(matches!(
            least.send_held(b"one", &Sum::default()),
            Sent::Done
        ));
        assert_eq!(least.0, b"one");
        assert!(!least.is_deferred() && !least.is_staged());
        assert!(!least.is_due(u64::MAX));
        assert_eq!(least.refused_by_host(), 0);
        let settled = least.settle();
        assert_eq!(
            (settled.done, settled.lost),
            (Sum::default(), Sum::default())
        );
        assert_eq!((settled.waiting, settled.last_failure), (0, None));
        least.close().unwrap();
    }

    #[test]
    fn schemes_differ_and_are_found() {
        for (at, row) in SINKS.iter().enumerate() {
            assert!(SINKS[..at].iter().all(|other| other.scheme != row.scheme));
            assert_eq!(find(row.scheme).map(|found| found.about), Some(row.about));
        }
        assert!(find("http").is_none());
    }
}
