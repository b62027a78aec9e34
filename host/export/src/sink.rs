//! Sinks: where messages are sent or written.

use std::io;

use flow::encode::Sum;
use sys::Result;

use crate::target::Target;

/// The result of sending a message.
#[derive(Debug)]
pub enum Sent {
    /// It was sent or written.
    Done,
    /// It was lost, but the next one may not be.
    Lost(io::Error),
    /// The session is broken; the message has not arrived completely, and must be repeated in the
    /// next one.
    Broken(io::Error),
}

/// Results of messages sent earlier.
#[derive(Debug, Default)]
pub struct DeliveryReport {
    /// Contents of messages that arrived.
    pub done: Sum,
    /// Contents of messages that were lost.
    pub lost: Sum,
    /// A description of the last failure.
    pub last_failure: Option<String>,
    /// Number of messages without a result so far.
    pub waiting: usize,
}

/// A destination. One thread owns it; its calls may block, each for a few seconds at most.
pub trait Sink: Send {
    /// Starts its own threads, if it has any. Called once, before the first session and in a thread
    /// that has dropped its privileges: threads inherit those of the thread that starts them.
    ///
    /// # Errors
    /// If they cannot be started.
    fn start(&mut self) -> Result<()> {
        Ok(())
    }

    /// Starts a session. Called again after `Sent::Broken`, after a pause.
    ///
    /// # Errors
    /// If that is not possible now.
    fn connect(&mut self) -> io::Result<()>;

    /// Sends a complete message.
    fn send(&mut self, message: &[u8]) -> Sent;

    /// Sends a complete message whose contents are reported by [`Sink::settle`] if the result is
    /// known only later.
    fn send_held(&mut self, message: &[u8], held: &Sum) -> Sent {
        let _ = held;
        self.send(message)
    }

    /// Whether `Sent::Done` does not yet mean delivery: then [`Sink::settle`] reports it.
    fn is_deferred(&self) -> bool {
        false
    }

    /// Results of messages since the last call. Does not block.
    fn settle(&mut self) -> DeliveryReport {
        DeliveryReport::default()
    }

    /// ICMP port unreachable errors.
    fn refused_by_host(&self) -> u64 {
        0
    }

    /// Whether messages count as exported only after [`Sink::close`] has succeeded, and a session
    /// starts only when there is something to send: files that appear when they are complete.
    fn is_staged(&self) -> bool {
        false
    }

    /// Whether the session is to end now, and another one to start with the next message.
    fn is_due(&self, now_ns: u64) -> bool {
        let _ = now_ns;
        false
    }

    /// Why nothing can be sent any more: standard output failed, which cannot be reopened.
    fn over(&self) -> Option<io::ErrorKind> {
        None
    }

    /// Ends the session after everything was sent; messages that [`Sink::settle`] has no result for
    /// are abandoned.
    ///
    /// # Errors
    /// If the end could not be sent or written.
    fn close(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The kind of destinations of a sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Names {
    /// A host and a port.
    Host,
    /// Brokers and a topic: one message per record.
    Topic,
    /// A file.
    File,
}

/// A kind of sink.
pub struct SinkRow {
    /// The part before `://`; files have none.
    pub scheme: &'static str,
    /// One line of help.
    pub about: &'static str,
    /// Whether messages in a session are delivered exactly once: templates are not repeated.
    pub is_reliable: bool,
    /// Default maximum length of a message in bytes.
    pub message_len_max: usize,
    /// The kind of the part after `://`.
    pub names: Names,
    /// Whether it is encrypted: some formats then use another port.
    pub is_encrypted: bool,
    /// Options that only this sink has.
    pub options: &'static [&'static str],
    /// Whether unknown options are passed to its library.
    pub passes_options: bool,
    /// Memory in bytes that it takes, if significant.
    pub memory_len: usize,
    /// Creates it. Does not connect yet; checks whatever can be checked before.
    pub open: fn(&Target) -> Result<Box<dyn Sink>>,
}

/// Bytes of a UDP message: an MTU of 1500 less the usual overhead of tunnels.
const DATAGRAM_LEN: usize = 1400;
/// Without an MTU; an IPFIX message has at most 65535.
const STREAM_LEN: usize = 16 << 10;

/// All kinds of sinks.
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

/// Finds a row by its scheme.
pub fn find(scheme: &str) -> Option<&'static SinkRow> {
    SINKS.iter().find(|row| row.scheme == scheme)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sink with the required methods only.
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
    fn a_sink_needs_few_methods() {
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
    fn schemes_are_unique_and_found() {
        for (at, row) in SINKS.iter().enumerate() {
            assert!(SINKS[..at].iter().all(|other| other.scheme != row.scheme));
            assert_eq!(find(row.scheme).map(|found| found.about), Some(row.about));
        }
        assert!(find("http").is_none());
    }
}
