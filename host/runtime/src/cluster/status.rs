//! The status of a running cluster, as its process reports it to others: lines of words separated
//! by tabs, each word a name and a value.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use ring::shared::{self, Handed};
use sys::descriptors::Credentials;
use sys::{Error, ErrorKind, Result};

pub use super::Queue as QueueStatus;
use super::application::ApplicationCounts;
use super::{InputPort, OutputStatus, SentQueue, holders};

/// Maximum number of queues in a status that is accepted.
const QUEUE_COUNT_MAX: usize = 1024;

/// An application of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApplicationStatus {
    /// Its name.
    pub name: String,
    /// How packets are distributed over its queues.
    pub balance: String,
    /// The filter of its packets; empty for all.
    pub filter: String,
    /// What happens to packets without room.
    pub when_full: String,
    /// What happens to packets for a queue without a reader.
    pub when_gone: String,
    /// How much of each flow it receives; empty for all.
    pub shunt: String,
    /// Copies of packets received this long ago are left out, in milliseconds; 0: they are not.
    pub deduplicate_ms: u64,
    /// Headers that are removed; empty for none.
    pub detunnel: String,
    /// Its counts.
    pub counts: ApplicationCounts,
    /// The application whose readers send its packets; empty: they come from the inputs.
    pub source: String,
    /// The port that is its reader; empty: other processes are.
    pub port: String,
}

/// The input of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InputStatus {
    /// Names of the ports.
    pub ports: String,
    /// The filter of the ports; empty for none.
    pub filter: String,
    /// Whether their frames are in the cluster's pool, so that packets are not copied.
    pub is_zero_copy: bool,
    /// Packets received.
    pub received: u64,
    /// Packets copied into the pool.
    pub copied: u64,
    /// Packets dropped before the queues: no free frame, or too long.
    pub dropped: u64,
    /// How long packets wait for earlier ones of other inputs, in milliseconds; 0: not at all.
    pub merge_ms: u64,
    /// Packets that arrived later than that.
    pub late: u64,
    /// The ports; none if they are capture files.
    pub each: Vec<InputPort>,
}

/// A running cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Its name.
    pub name: String,
    /// The process that runs it.
    pub process: u32,
    /// Time since its start.
    pub seconds: u64,
    /// Its input.
    pub input: InputStatus,
    /// Its applications, in the order of their queues.
    pub applications: Vec<ApplicationStatus>,
    /// Its queues.
    pub queues: Vec<QueueStatus>,
    /// The ports that send: those of the return path, and those that are readers.
    pub outputs: Vec<OutputStatus>,
}

/// The words of a line: names and values.
struct Words<'a>(BTreeMap<&'a str, &'a str>);

impl Words<'_> {
    fn text(&self, name: &str) -> String {
        let value = self.0.get(name).copied().unwrap_or_default();
        let is_shown = |c: &char| !c.is_control();
        value.chars().filter(is_shown).take(4096).collect()
    }

    fn number(&self, name: &str) -> u64 {
        let value = self.0.get(name).copied().unwrap_or_default();
        value.parse().unwrap_or(0)
    }

    /// Names with commas between them.
    fn names(&self, name: &str) -> Vec<String> {
        let text = self.text(name);
        let names = text.split(',').filter(|it| !it.is_empty());
        names.take(QUEUE_COUNT_MAX).map(str::to_owned).collect()
    }

    fn queue(&self) -> QueueStatus {
        let number = |name: &str| self.number(name);
        let reader = number("reader") as u32;
        let handed = number("handed");
        let returned = number("returned").min(handed);
        QueueStatus {
            index: number("index") as u32,
            application: self.text("application"),
            reader: (reader != 0).then_some(reader),
            has_reader_exited: false,
            memory: number("memory"),
            readers: number("readers"),
            depth: number("depth") as u32,
            len: number("len") as u32,
            counts: Handed {
                handed,
                returned,
                lost: number("lost").min(handed - returned),
                dropped: number("dropped"),
                refused: number("refused"),
            },
            sent: SentQueue {
                sent: number("sent"),
                passed: number("sent_passed"),
                copied: number("sent_copied"),
                dropped: number("sent_dropped"),
                refused: number("sent_refused"),
            },
        }
    }

    fn output(&self) -> OutputStatus {
        OutputStatus {
            port: self.text("port"),
            of: self.text("of"),
            senders: self.names("senders"),
            reader_of: self.text("reader_of"),
            given: self.number("given"),
            sent: self.number("sent"),
            copied: self.number("copied"),
            dropped: self.number("dropped"),
            failed: self.number("failed"),
        }
    }
}

impl Status {
    pub(super) fn encode(&self) -> String {
        let plain = |text: &str| text.replace(|c: char| c.is_control(), " ");
        let mut out = String::new();
        let input = &self.input;
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "cluster\tname={}\tprocess={}\tseconds={}\tports={}\tfilter={}\tzero_copy={}\
             \treceived={}\tcopied={}\tdropped={}\tmerge_ms={}\tlate={}",
            plain(&self.name),
            self.process,
            self.seconds,
            plain(&input.ports),
            plain(&input.filter),
            u32::from(input.is_zero_copy),
            input.received,
            input.copied,
            input.dropped,
            input.merge_ms,
            input.late,
        );
        for port in &input.each {
            let _ = writeln!(
                out,
                "input\tport={}\tgone={}\tlosses={}",
                plain(&port.port),
                u32::from(port.is_gone),
                port.losses,
            );
        }
        for application in &self.applications {
            let _ = write!(
                out,
                "application\tname={}\tbalance={}\tfilter={}\twhen_full={}\twhen_gone={}\
                 \tshunt={}\tdeduplicate_ms={}\tdetunnel={}\tsource={}\tport={}",
                plain(&application.name),
                plain(&application.balance),
                plain(&application.filter),
                plain(&application.when_full),
                plain(&application.when_gone),
                plain(&application.shunt),
                application.deduplicate_ms,
                plain(&application.detunnel),
                plain(&application.source),
                plain(&application.port),
            );
            for (name, count) in application.counts.named() {
                let _ = write!(out, "\t{name}={count}");
            }
            out.push('\n');
        }
        self.encode_queues(&mut out);
        out
    }

    /// The lines of the queues, and of the ports that send.
    fn encode_queues(&self, out: &mut String) {
        let plain = |text: &str| text.replace(|c: char| c.is_control(), " ");
        for queue in &self.queues {
            let counts = &queue.counts;
            let _ = writeln!(
                out,
                "queue\tindex={}\tapplication={}\treader={}\tmemory={}\treaders={}\tdepth={}\
                 \tlen={}\thanded={}\treturned={}\tlost={}\tdropped={}\trefused={}\tsent={}\
                 \tsent_passed={}\tsent_copied={}\tsent_dropped={}\tsent_refused={}",
                queue.index,
                plain(&queue.application),
                queue.reader.unwrap_or(0),
                queue.memory,
                queue.readers,
                queue.depth,
                queue.len,
                counts.handed,
                counts.returned,
                counts.lost,
                counts.dropped,
                counts.refused,
                queue.sent.sent,
                queue.sent.passed,
                queue.sent.copied,
                queue.sent.dropped,
                queue.sent.refused,
            );
        }
        for output in &self.outputs {
            let _ = writeln!(
                out,
                "output\tport={}\tof={}\tsenders={}\treader_of={}\tgiven={}\tsent={}\tcopied={}\
                 \tdropped={}\tfailed={}",
                plain(&output.port),
                plain(&output.of),
                plain(&output.senders.join(",")),
                plain(&output.reader_of),
                output.given,
                output.sent,
                output.copied,
                output.dropped,
                output.failed,
            );
        }
    }

    /// The queues of a cluster of this name that have no reader and no port as their reader.
    fn openable(&self, cluster: &str) -> Vec<Openable> {
        let is_free = |queue: &&QueueStatus| {
            let mut applications = self.applications.iter();
            let of = applications.find(|it| it.name == queue.application);
            queue.reader.is_none() && of.is_none_or(|it| it.port.is_empty())
        };
        let free = self.queues.iter().filter(is_free);
        let open = free.map(|queue| Openable {
            port: format!("ring:{cluster}/{}", queue.index),
            description: format!("Queue of cluster {cluster} for {}", queue.application),
        });
        open.collect()
    }

    /// Reads a status. The process that sent it is one of root or of this user, but may be of
    /// another version: unknown words are skipped.
    fn decode(text: &str) -> Option<Self> {
        let mut status = Self::default();
        for line in text.lines() {
            let (kind, words) = line.split_once('\t')?;
            let pairs = words.split('\t').filter_map(|word| word.split_once('='));
            let words: BTreeMap<&str, &str> = pairs.collect();
            let words = Words(words);
            let text = |name: &str| words.text(name);
            let number = |name: &str| words.number(name);
            match kind {
                "cluster" => {
                    status.name = text("name");
                    status.process = number("process") as u32;
                    status.seconds = number("seconds");
                    status.input = InputStatus {
                        ports: text("ports"),
                        filter: text("filter"),
                        is_zero_copy: number("zero_copy") != 0,
                        received: number("received"),
                        copied: number("copied"),
                        dropped: number("dropped"),
                        merge_ms: number("merge_ms"),
                        late: number("late"),
                        each: Vec::new(),
                    };
                }
                "input" if status.input.each.len() < QUEUE_COUNT_MAX => {
                    status.input.each.push(InputPort {
                        port: text("port"),
                        is_gone: number("gone") != 0,
                        losses: number("losses"),
                    });
                }
                "application" if status.applications.len() < QUEUE_COUNT_MAX => {
                    status.applications.push(ApplicationStatus {
                        name: text("name"),
                        balance: text("balance"),
                        filter: text("filter"),
                        when_full: text("when_full"),
                        when_gone: text("when_gone"),
                        shunt: text("shunt"),
                        deduplicate_ms: number("deduplicate_ms"),
                        detunnel: text("detunnel"),
                        counts: ApplicationCounts::from_values(
                            ApplicationCounts::default()
                                .named()
                                .map(|(name, _)| number(name)),
                        ),
                        source: text("source"),
                        port: text("port"),
                    });
                }
                "queue" if status.queues.len() < QUEUE_COUNT_MAX => {
                    status.queues.push(words.queue());
                }
                "output" if status.outputs.len() < QUEUE_COUNT_MAX => {
                    status.outputs.push(words.output());
                }
                _ => {}
            }
        }
        (!status.name.is_empty()).then_some(status)
    }
}

/// The names of the clusters of this user and of root; their processes may have exited.
pub fn names() -> Vec<String> {
    shared::list().into_iter().map(|(name, _)| name).collect()
}

/// Asks the process of a running cluster for its status.
///
/// # Errors
/// `NotFound` if there is none of this name, `Permission` if it runs as another user;
/// `InvalidInput` if its answer is not a status.
pub fn status(name: &str) -> Result<Status> {
    let text = shared::status(&shared::find(name)?)?;
    let mut status = decode(&text, || format!("show cluster {name}"))?;
    holders::correct(&mut status);
    Ok(status)
}

/// A queue that programs can open: its port, and what it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Openable {
    /// `ring:NAME/QUEUE`.
    pub port: String,
    /// The cluster and the application.
    pub description: String,
}

/// The queues of running clusters that this process may open and nobody reads, by cluster and
/// number. Clusters that do not answer at once are left out: all of them together have half a
/// second.
pub fn openable() -> Vec<Openable> {
    const CLUSTER_MAX: Duration = Duration::from_millis(100);
    let end = Instant::now() + 5 * CLUSTER_MAX;
    let own = Credentials::own().uid;
    let mut found = Vec::new();
    for (name, path) in shared::list() {
        let left = end.saturating_duration_since(Instant::now()) / 3;
        if left.is_zero() {
            break;
        }
        // Any user may create sockets there; a cluster's belongs to its user.
        let owner = std::fs::symlink_metadata(&path).map(|found| found.uid());
        if !owner.is_ok_and(|owner| owner == 0 || owner == own) {
            continue;
        }
        let text = shared::status_within(&path, left.min(CLUSTER_MAX));
        let Some(status) = text.ok().and_then(|text| Status::decode(&text)) else {
            continue;
        };
        found.extend(status.openable(&name));
    }
    found
}

/// Ends a running cluster in order: it receives no more packets, and its readers have `seconds` to
/// read what is in their queues. Returns its last status; packets that still wait then are lost.
///
/// # Errors
/// As [`status`]; `Permission` also for users that may only attach.
pub fn drain(name: &str, seconds: u32) -> Result<Status> {
    let text = shared::drain(&shared::find(name)?, seconds)?;
    decode(&text, || format!("drain cluster {name}"))
}

fn decode(text: &str, what: impl Fn() -> String) -> Result<Status> {
    Status::decode(text).ok_or_else(|| {
        Error::new(
            ErrorKind::InvalidInput,
            what(),
            "its process sent no status",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gone(port: &str, losses: u64) -> InputPort {
        InputPort {
            port: port.into(),
            is_gone: true,
            losses,
        }
    }

    #[test]
    fn a_status_is_read_as_written() {
        let status = Status {
            name: "ids".into(),
            process: 7,
            seconds: 61,
            applications: vec![ApplicationStatus {
                name: "app0".into(),
                balance: "flow".into(),
                filter: "tcp[0] = 3".into(),
                when_full: "block=20".into(),
                when_gone: "wait".into(),
                shunt: "64k".into(),
                deduplicate_ms: 10,
                detunnel: "tags".into(),
                counts: ApplicationCounts::from_values([8, 7, 6, 9, 5, 4, 3]),
                source: "before".into(),
                port: "vm:web".into(),
            }],
            outputs: vec![OutputStatus {
                port: "eth1".into(),
                of: "what readers send".into(),
                senders: vec!["app1".into(), "app2".into()],
                reader_of: String::new(),
                given: 9,
                sent: 8,
                copied: 7,
                dropped: 1,
                failed: 2,
            }],
            input: InputStatus {
                ports: "eth0, eth1".into(),
                filter: "not port 22".into(),
                is_zero_copy: true,
                received: 1 << 40,
                copied: 3,
                dropped: 2,
                merge_ms: 20,
                late: 5,
                each: vec![gone("eth1", 3)],
            },
            queues: (0..3)
                .map(|index| QueueStatus {
                    index,
                    application: format!("app{index}"),
                    reader: (index == 1).then_some(99),
                    has_reader_exited: false,
                    memory: 77,
                    readers: 4,
                    depth: 5,
                    len: 1024,
                    counts: Handed {
                        handed: 100,
                        returned: 90,
                        lost: 2,
                        dropped: 11,
                        refused: 1,
                    },
                    sent: SentQueue {
                        sent: 6,
                        passed: 3,
                        copied: 2,
                        dropped: 1,
                        refused: 2,
                    },
                })
                .collect(),
        };
        assert_eq!(Status::decode(&status.encode()), Some(status));
    }

    #[test]
    fn other_text_is_no_status() {
        for text in ["", "x", "queue\tindex=1\n", "cluster\n", "cluster\tname=\n"] {
            assert_eq!(Status::decode(text), None, "{text:?}");
        }
        // More was returned than handed over: bounded.
        let text = "cluster\tname=a\x1b[2J\tnew=1\nqueue\thanded=3\treturned=9\tlost=9\nother\tx=1";
        let status = Status::decode(text).unwrap();
        assert_eq!(status.name, "a[2J");
        assert_eq!(status.queues[0].counts.waiting(), 0);
    }
}
