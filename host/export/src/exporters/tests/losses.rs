//! Tests of lost messages and repeated templates.

use super::*;

/// A destination that loses the given messages, and keeps the others.
struct Lossy {
    /// Whether each message is lost; later ones are not.
    losses: Vec<bool>,
    sent: usize,
    /// Messages of each session.
    sessions: Arc<std::sync::Mutex<Vec<Vec<Vec<u8>>>>>,
}

impl Sink for Lossy {
    fn connect(&mut self) -> std::io::Result<()> {
        lock(&self.sessions).push(Vec::new());
        Ok(())
    }

    fn send(&mut self, message: &[u8]) -> Sent {
        self.sent += 1;
        if self
            .losses
            .get(self.sent - 1)
            .is_some_and(|is_lost| *is_lost)
        {
            return Sent::Lost(std::io::Error::other("lost on the way"));
        }
        lock(&self.sessions)
            .last_mut()
            .unwrap()
            .push(message.to_vec());
        Sent::Done
    }
}

/// Exports 3,000 records; returns the account and the messages of each session.
fn through(url: &str, losses: &[bool]) -> (Account, Vec<Vec<u8>>) {
    let target = Target::parse(url).unwrap();
    let Make::Messages(make) = target.format.make else {
        panic!("it sends messages")
    };
    let sessions = Arc::default();
    let sink = Box::new(Lossy {
        losses: losses.to_vec(),
        sent: 0,
        sessions: Arc::clone(&sessions),
    });
    let (shared, setup) = (Arc::new(Shared::default()), setup());
    let (queue, batches) = sync_channel(1);
    let encoder = make(&target, &setup);
    let batch = Records {
        records: records(3000),
        extras: Vec::new(),
    };
    queue.send(Arc::new(batch)).unwrap();
    drop(queue);
    lock(&shared.observed).is_over = true;
    Worker::new(&target, encoder, sink, batches, shared.clone()).run();
    let sessions = lock(&sessions)
        .iter()
        .map(|session| session.concat())
        .collect();
    let account = lock(&shared.account).clone();
    (account, sessions)
}

/// Without its templates a session over TCP is useless, as they are not repeated. So a new one
/// starts, which is complete.
#[test]
fn templates_lost_on_a_reliable_transport_end_its_session() {
    let (account, sessions) = through("ipfix:tcp://127.0.0.1:1", &[true]);
    assert_eq!(
        (sessions.len(), account.sessions, account.failures),
        (2, 2, 1)
    );
    assert_eq!(sessions[0], b"", "nothing goes without templates");
    let mut found = Found::default();
    found.read(&sessions[1]);
    assert_eq!((found.flows, found.packets), (3000, 4000));
    assert_eq!((found.decoder.missed, found.decoder.unknown_sets), (0, 0));
    assert_eq!(account.exported.flows, 3000);
    assert!(account.last_failure.unwrap().contains("lost on the way"));
}

/// Over UDP they are repeated: the session continues, and the loss is counted.
#[test]
fn losses_over_udp_are_counted() {
    let (account, sessions) = through("ipfix:udp://127.0.0.1:1", &[true]);
    assert_eq!(
        (sessions.len(), account.sessions, account.failures),
        (1, 1, 1)
    );
    assert_eq!(
        account.exported.flows, 3000,
        "the templates were lost, and no record"
    );
    // Messages with records: the sixth and the eighth are lost.
    let losses = [false, false, false, false, false, true, false, true];
    let (account, sessions) = through("ipfix:udp://127.0.0.1:1", &losses);
    assert_eq!(
        (sessions.len(), account.sessions, account.failures),
        (1, 1, 2)
    );
    let lost = account.dropped[DropReason::SendFailed as usize];
    let mut found = Found::default();
    found.read(&sessions[0]);
    assert!(lost.flows > 0 && lost.packets >= lost.flows, "{account:?}");
    assert_eq!(found.flows, account.exported.flows);
    assert_eq!(account.exported.flows + lost.flows, 3000);
    assert_eq!(account.exported.packets + lost.packets, 4000);
    assert_eq!(found.decoder.missed, lost.flows);
    assert!(account.last_failure.unwrap().contains("lost on the way"));
}

/// Whether a message has a template set (RFC 7011 §3.3.2).
fn has_templates(message: &[u8]) -> bool {
    let (mut at, mut found) = (16, false);
    while let Some(head) = message.get(at..at + 4) {
        found |= head[..2] == [0, 2];
        at += usize::from(u16::from_be_bytes([head[2], head[3]])).max(4);
    }
    found
}

/// Templates are repeated even without records, for collectors that start later.
#[test]
fn templates_are_repeated_over_udp() {
    let collector = UdpSocket::bind("127.0.0.1:0").unwrap();
    collector
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let port = collector.local_addr().unwrap().port();
    let target = Target::parse(&format!("ipfix:udp://127.0.0.1:{port}?refresh=1")).unwrap();
    let mut exporters = start(&[target], &setup()).unwrap();
    let mut buffer = [0; 65536];
    let mut count = 0;
    while count < 3 {
        let len = collector.recv(&mut buffer).expect("templates again");
        count += u32::from(has_templates(&buffer[..len]));
    }
    exporters.finish(Observed::default());
}
