//! Tests of the worker in the test's thread, with a format of known bytes and a scripted
//! destination: messages, sessions, and the account of both.

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::sync_channel;

use flow::encode::Statistics;

use super::*;
use crate::exporters::tests::records;
use crate::sink::{DeliveryReport, Sent};

/// A format of messages of up to ten records, one letter each. It can refuse every fifth record.
struct Letters {
    text: Vec<u8>,
    held: Sum,
    seen: u64,
    refuses: bool,
    refused: [Sum; Refusal::COUNT],
}

impl Letters {
    fn new(refuses: bool) -> Letters {
        Letters {
            text: Vec::new(),
            held: Sum::default(),
            seen: 0,
            refuses,
            refused: Default::default(),
        }
    }
}

impl Encode for Letters {
    fn take(&mut self, records: &[(Record, EndReason)]) -> usize {
        for (count, (record, _)) in records.iter().enumerate() {
            if self.text.len() == 10 {
                return count;
            }
            self.seen += 1;
            if self.refuses && self.seen.is_multiple_of(5) {
                self.refused[Refusal::TooLarge as usize].count(record);
                continue;
            }
            self.text.push(b'r');
            self.held.count(record);
        }
        records.len()
    }

    fn message(&mut self, _: u64) -> &[u8] {
        &self.text
    }

    fn held(&self) -> Sum {
        self.held
    }

    fn record_count(&self) -> u64 {
        2 * self.held.flows
    }

    fn next(&mut self) {
        self.text.clear();
        self.held = Sum::default();
    }

    fn begin_session(&mut self, _: u64) -> Vec<Vec<u8>> {
        vec![b"hello".to_vec(), b"templates".to_vec()]
    }

    fn refresh(&mut self, _: u64, statistics: &Statistics) -> Vec<Vec<u8>> {
        assert_eq!(self.held, Sum::default(), "between messages");
        vec![format!("again {}", statistics.exported_messages).into()]
    }

    fn end_session(&mut self, _: u64, statistics: &Statistics) -> Vec<Vec<u8>> {
        let Statistics {
            exported_messages,
            exported_octets,
            exported_records,
            observed_flows,
            ignored_packets,
            dropped_packets,
            not_sent,
        } = statistics;
        let text = format!(
            "bye {exported_messages} {exported_octets} {exported_records} {observed_flows} \
             {ignored_packets} {dropped_packets} {}",
            not_sent.flows
        );
        vec![text.into()]
    }

    fn refused(&self) -> &[Sum; Refusal::COUNT] {
        &self.refused
    }
}

/// What a destination does on the next message, connection or end.
#[derive(Clone, Copy, PartialEq)]
enum Does {
    Well,
    Loses,
    Breaks,
}

#[derive(Default)]
struct Script {
    connects: VecDeque<Does>,
    sends: VecDeque<Does>,
    closes: VecDeque<Does>,
    is_staged: bool,
    is_deferred: bool,
    /// A session is rotated once it has this many messages.
    len_max: Option<usize>,
    /// Deferred messages: their contents, and whether each is lost.
    waiting: VecDeque<(Sum, bool)>,
    looks: u32,
    sessions: Arc<Mutex<Vec<Vec<String>>>>,
}

impl Script {
    fn next(list: &mut VecDeque<Does>) -> Does {
        list.pop_front().unwrap_or(Does::Well)
    }
}

impl Sink for Script {
    fn connect(&mut self) -> io::Result<()> {
        match Script::next(&mut self.connects) {
            Does::Well => lock(&self.sessions).push(Vec::new()),
            _ => return Err(io::Error::other("nobody there")),
        }
        Ok(())
    }

    fn send(&mut self, message: &[u8]) -> Sent {
        match Script::next(&mut self.sends) {
            Does::Well => {}
            Does::Loses => return Sent::Lost(io::Error::other("lost")),
            Does::Breaks => return Sent::Broken(io::Error::other("broken")),
        }
        let text = String::from_utf8(message.to_vec()).unwrap();
        lock(&self.sessions).last_mut().unwrap().push(text);
        Sent::Done
    }

    fn send_held(&mut self, message: &[u8], held: &Sum) -> Sent {
        if self.is_deferred {
            let is_lost = self.sends.front() == Some(&Does::Loses);
            if is_lost {
                self.sends.pop_front();
            }
            self.waiting.push_back((*held, is_lost));
            return Sent::Done;
        }
        self.send(message)
    }

    fn is_deferred(&self) -> bool {
        self.is_deferred
    }

    /// Reports one message at every second call.
    fn settle(&mut self) -> DeliveryReport {
        let mut settled = DeliveryReport::default();
        self.looks += 1;
        if self.looks.is_multiple_of(2)
            && let Some((held, is_lost)) = self.waiting.pop_front()
        {
            if is_lost {
                settled.lost = held;
                settled.last_failure = Some("reported later".into());
            } else {
                settled.done = held;
            }
        }
        settled.waiting = self.waiting.len();
        settled
    }

    fn refused_by_host(&self) -> u64 {
        7
    }

    fn is_staged(&self) -> bool {
        self.is_staged
    }

    fn is_due(&self, _: u64) -> bool {
        let len = lock(&self.sessions).last().map_or(0, Vec::len);
        self.len_max.is_some_and(|max| len >= max)
    }

    fn close(&mut self) -> io::Result<()> {
        match Script::next(&mut self.closes) {
            Does::Well => Ok(()),
            _ => Err(io::Error::other("not closed")),
        }
    }
}

/// Runs 25 records in batches of ten, ten and five through a worker of this target.
fn run_with(
    url: &str,
    script: Script,
    refuses: bool,
    change: impl FnOnce(&mut Worker),
) -> (Account, Vec<Vec<String>>) {
    let target = Target::parse(url).unwrap();
    let sessions = script.sessions.clone();
    let shared = Arc::new(Shared::default());
    let (queue, batches) = sync_channel(3);
    for part in records(25).chunks(10) {
        let batch = Records {
            records: part.to_vec(),
            extras: Vec::new(),
        };
        queue.send(Arc::new(batch)).unwrap();
    }
    drop(queue);
    *lock(&shared.observed) = Observed {
        flows: 100,
        ignored_packets: 200,
        dropped_packets: 300,
        is_over: true,
    };
    let encoder = Box::new(Letters::new(refuses));
    let mut worker = Worker::new(&target, encoder, Box::new(script), batches, shared.clone());
    change(&mut worker);
    worker.run();
    let account = lock(&shared.account).clone();
    assert!(!account.is_connected);
    let sessions = lock(&sessions).clone();
    (account, sessions)
}

fn run(url: &str, script: Script) -> (Account, Vec<Vec<String>>) {
    run_with(url, script, false, |_| ())
}

/// The end waits, however slow the machine is.
const TCP: &str = "ipfix:tcp://127.0.0.1:1?wait=1h";
const UDP: &str = "ipfix:udp://127.0.0.1:1";
const FILE: &str = "csv:/tmp/unused?wait=1h";

/// The sums of 25 records: every third flow of one packet has a response.
const ALL: Sum = Sum {
    flows: 25,
    packets: 34,
    bytes: 34 * 28,
};

fn ten() -> String {
    "r".repeat(10)
}

#[test]
fn a_session_has_opening_and_closing_messages() {
    let (account, sessions) = run(TCP, Script::default());
    // 5 + 9 bytes of templates, 25 of records.
    let bye = "bye 5 39 50 100 200 300 0";
    let expected = ["hello", "templates", &ten(), &ten(), "rrrrr", bye];
    assert_eq!(sessions, [expected.map(str::to_owned).to_vec()]);
    assert_eq!(account.exported, ALL);
    assert_eq!(account.data_records, 50);
    assert_eq!(
        (account.messages, account.bytes),
        (6, 39 + bye.len() as u64)
    );
    assert_eq!(
        (account.sessions, account.failures, account.files),
        (1, 0, 0)
    );
    assert_eq!(account.refused_by_host, 7);
    assert_eq!(account.dropped_total(), Sum::default());
    assert_eq!(account.last_failure, None);
}

#[test]
fn refused_records_are_counted_by_reason() {
    let (account, sessions) = run_with(TCP, Script::default(), true, |_| ());
    assert_eq!(account.exported.flows, 20);
    assert_eq!(account.dropped[DropReason::TooLarge as usize].flows, 5);
    assert_eq!(account.dropped_total().flows, 5);
    let bye = sessions[0].last().unwrap();
    assert!(bye.ends_with(" 300 5"), "{bye}");
}

/// A message that broke its session is sent in the next one, after new templates.
#[test]
fn a_broken_session_is_repeated() {
    use Does::{Breaks, Well};
    let script = Script {
        connects: [Breaks].into(),
        sends: [Well, Well, Well, Breaks].into(),
        ..Script::default()
    };
    let (account, sessions) = run(TCP, script);
    let first = ["hello", "templates", &ten()].map(str::to_owned);
    assert_eq!(sessions[0], first);
    let second = ["hello", "templates", &ten(), "rrrrr"].map(str::to_owned);
    assert_eq!(sessions[1][..4], second);
    assert_eq!(
        (sessions.len(), account.sessions, account.failures),
        (2, 2, 2)
    );
    assert_eq!(account.exported, ALL);
    assert_eq!(account.last_failure.as_deref(), Some("broken"));
    assert_eq!(account.dropped_total(), Sum::default());
}

#[test]
fn lost_messages_are_counted_by_kind_of_destination() {
    use Does::{Loses, Well};
    for (url, reason) in [
        (UDP, DropReason::SendFailed),
        (FILE, DropReason::WriteFailed),
    ] {
        let script = Script {
            sends: [Well, Well, Well, Loses].into(),
            ..Script::default()
        };
        let (account, sessions) = run(url, script);
        assert_eq!(account.exported.flows, 15, "{url}");
        assert_eq!(account.dropped[reason as usize].flows, 10, "{url}");
        assert_eq!(account.dropped_total().flows, 10, "{url}");
        assert_eq!((account.failures, account.messages), (1, 5), "{url}");
        assert_eq!((sessions.len(), account.data_records), (1, 30), "{url}");
        assert_eq!(account.last_failure.as_deref(), Some("lost"), "{url}");
    }
}

/// An unreachable collector is waited for as long as configured, and the records are counted as
/// lost.
#[test]
fn an_absent_collector_is_waited_for() {
    for (url, reason) in [
        ("ipfix:tcp://127.0.0.1:1?wait=1", DropReason::Unreachable),
        ("csv:/tmp/unused?wait=1", DropReason::WriteFailed),
    ] {
        let script = Script {
            connects: [Does::Breaks; 9].into(),
            ..Script::default()
        };
        let (account, sessions) = run(url, script);
        assert!(sessions.is_empty());
        assert_eq!((account.exported.flows, account.sessions), (0, 0));
        assert_eq!(account.dropped[reason as usize], ALL, "{url}");
        assert!(account.failures >= 1);
        assert_eq!(account.last_failure.as_deref(), Some("nobody there"));
    }
}

/// The closing messages may get lost or fail: earlier ones still count as sent.
#[test]
fn closing_messages_may_fail() {
    use Does::{Breaks, Loses, Well};
    for (what, words) in [(Loses, "lost"), (Breaks, "broken")] {
        let script = Script {
            sends: [Well, Well, Well, Well, Well, what].into(),
            ..Script::default()
        };
        let (account, _) = run(TCP, script);
        assert_eq!((account.exported, account.messages), (ALL, 5));
        assert_eq!(account.failures, 1);
        assert_eq!(account.last_failure.as_deref(), Some(words));
    }
    let script = Script {
        closes: [Loses].into(),
        ..Script::default()
    };
    let (account, _) = run(TCP, script);
    assert_eq!((account.exported, account.failures), (ALL, 1));
    assert_eq!(account.last_failure.as_deref(), Some("not closed"));
}

/// Files that appear when they are complete: records in an incomplete one are lost.
#[test]
fn only_complete_files_count() {
    use Does::{Loses, Well};
    for (closes, exported, files) in [
        ([Well, Well], 25, 2),
        ([Well, Loses], 20, 1),
        ([Loses, Well], 5, 1),
        ([Loses, Loses], 0, 0),
    ] {
        let script = Script {
            is_staged: true,
            len_max: Some(3),
            closes: closes.into(),
            ..Script::default()
        };
        let (account, sessions) = run("csv:/tmp/unused?rotate=1h", script);
        assert_eq!((sessions.len(), account.sessions), (2, 1));
        assert_eq!((account.exported.flows, account.files), (exported, files));
        let lost = account.dropped[DropReason::WriteFailed as usize].flows;
        assert_eq!(
            (lost, account.dropped_total().flows),
            (25 - exported, 25 - exported)
        );
        assert_eq!(account.failures, 2 - files);
        assert_eq!(account.data_records, 50);
    }
    // A broken file loses its records.
    let script = Script {
        is_staged: true,
        sends: [Well, Well, Well, Does::Breaks].into(),
        ..Script::default()
    };
    let (account, sessions) = run(FILE, script);
    assert_eq!((sessions.len(), account.files), (2, 1));
    assert_eq!(account.exported.flows, 15);
    assert_eq!(account.dropped[DropReason::WriteFailed as usize].flows, 10);
}

/// Messages whose results come later: the end waits for each.
#[test]
fn deferred_results_are_waited_for() {
    use Does::{Loses, Well};
    for (sends, exported, failures) in [
        (vec![], 25, 0),
        (vec![Well, Well, Loses], 15, 1),
        (vec![Well, Well, Loses, Loses], 5, 2),
    ] {
        let script = Script {
            is_deferred: true,
            sends: sends.into(),
            ..Script::default()
        };
        let (account, _) = run(TCP, script);
        assert_eq!(account.exported.flows, exported);
        let lost = account.dropped[DropReason::SendFailed as usize].flows;
        assert_eq!(
            (lost, account.dropped_total().flows),
            (25 - exported, 25 - exported)
        );
        assert_eq!((account.failures, account.messages), (failures, 6));
        let words = (failures != 0).then_some("reported later");
        assert_eq!(account.last_failure.as_deref(), words);
    }
}

/// Templates and statistics are repeated when due, also while records flow.
#[test]
fn templates_and_statistics_are_refreshed_between_messages() {
    let script = Script::default();
    let (account, sessions) = run_with(UDP, script, false, |worker| {
        worker.refresh = Duration::ZERO;
    });
    assert_eq!(account.exported, ALL);
    let session = &sessions[0];
    let again: Vec<_> = session
        .iter()
        .filter(|text| text.starts_with("again"))
        .collect();
    assert_eq!(again, ["again 3", "again 5", "again 7"]);
    assert_eq!(session.len(), 2 + 3 + 3 + 1);
    assert_eq!(account.messages, 9);
}

/// Settings of workers differ by destination.
#[test]
fn settings_of_a_worker_depend_on_the_destination() {
    let made = |url: &str, script: Script| {
        let target = Target::parse(url).unwrap();
        let (_, batches) = sync_channel(1);
        let encoder = Box::new(Letters::new(false));
        let worker = Worker::new(&target, encoder, Box::new(script), batches, Arc::default());
        (
            worker.patience.unasked.as_secs(),
            worker.patience.asked.map(|wait| wait.as_secs()),
            worker.refresh.as_secs(),
            worker.flush.as_millis(),
            worker.is_reliable,
        )
    };
    let script = Script::default;
    assert_eq!(
        made("ipfix:tcp://127.0.0.1:1", script()),
        (5, None, 60, 500, true)
    );
    let url = "ipfix:udp://127.0.0.1:1?refresh=7&wait=9";
    assert_eq!(made(url, script()), (9, Some(9), 7, 500, false));
    assert_eq!(made("csv:/tmp/x.gz", script()), (5, None, 60, 10_000, true));
    assert_eq!(
        made("csv:/tmp/x?rotate=1h", script()),
        (5, None, 60, 10_000, true)
    );
    let deferred = Script {
        is_deferred: true,
        ..script()
    };
    assert_eq!(
        made("ipfix:tcp://127.0.0.1:1", deferred),
        (60, None, 60, 500, true)
    );
}
