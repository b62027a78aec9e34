//! Ports that send what a cluster hands over: those of its return path, and those that take the
//! place of an application's reader. Each has a thread, which forwards.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{Scope, ScopedJoinHandle};

use port::{Direction, Intake, Port, PortEvent, PortName, PortOptions, TxQueue};
use ring::Pool;
use sys::{Error, ErrorKind, Result};

use super::application::Application;
use super::{Event, Shared, lock};
use crate::Stop;
use crate::forward::{self, Flow, Notice, Side};
use crate::worker::Pacing;

/// Packets that wait for a port's thread.
const RING_LEN: u32 = 1024;

/// A port that sends what readers send.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Return {
    /// Its name.
    pub port: String,
    /// The input whose packets it sends; `None`: of all.
    pub from: Option<String>,
    /// The application whose readers' packets it sends; `None`: of all that no other application
    /// continues.
    pub application: Option<String>,
}

/// The counts of a port that sends, in packets: `given = sent + dropped + waiting`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutputStatus {
    /// Its name.
    pub port: String,
    /// What it sends, in words.
    pub of: String,
    /// The applications whose readers' packets it sends, unless it is a reader.
    pub senders: Vec<String>,
    /// The application that it is the reader of; empty if it sends what readers send.
    pub reader_of: String,
    /// Packets that its thread has taken.
    pub given: u64,
    /// Packets sent, including those that the device refused.
    pub sent: u64,
    /// Of these, packets that were copied.
    pub copied: u64,
    /// Dropped: the port had no room in time, or the packet is too long for it or not complete.
    pub dropped: u64,
    /// Of the packets sent, those that the device refused.
    pub failed: u64,
}

/// The counts that a port's thread publishes.
#[derive(Debug, Default)]
pub(super) struct SharedOutput {
    given: AtomicU64,
    sent: AtomicU64,
    copied: AtomicU64,
    dropped: AtomicU64,
    failed: AtomicU64,
}

impl SharedOutput {
    fn set(&self, flow: &Flow) {
        let values = [
            (&self.sent, flow.forwarded),
            (&self.copied, flow.copied),
            (
                &self.dropped,
                flow.received - flow.forwarded.min(flow.received),
            ),
            (&self.given, flow.received),
        ];
        for (place, value) in values {
            place.store(value, Ordering::Relaxed);
        }
    }

    pub fn read(&self, named: &OutputStatus) -> OutputStatus {
        let get = |value: &AtomicU64| value.load(Ordering::Relaxed);
        OutputStatus {
            given: get(&self.given),
            sent: get(&self.sent),
            copied: get(&self.copied),
            dropped: get(&self.dropped),
            failed: get(&self.failed),
            ..named.clone()
        }
    }
}

impl Return {
    fn of(&self) -> String {
        let application = self
            .application
            .as_deref()
            .map(|name| format!("readers of {name}"));
        let from = self
            .from
            .as_deref()
            .map(|name| format!("what came from {name}"));
        match (application, from) {
            (None, None) => "what readers send".to_owned(),
            (Some(one), None) => format!("what {one} send"),
            (None, Some(from)) => format!("{from}, from readers"),
            (Some(one), Some(from)) => format!("{from}, from {one}"),
        }
    }
}

/// The rules for what readers of an application send: of those for one input, the first holds.
/// None if it goes to other applications.
pub(super) fn rules<'a>(
    application: &'a Application,
    applications: &'a [Application],
    returns: &'a [Return],
) -> impl Iterator<Item = &'a Return> {
    let name = Some(&application.name);
    let mut others = applications.iter();
    let is_last = application.port.is_none() && !others.any(|it| it.source.as_ref() == name);
    let is_its =
        move |it: &&Return| is_last && it.application.as_ref().is_none_or(|it| Some(it) == name);
    returns.iter().filter(is_its)
}

/// The applications whose readers' packets a port sends.
fn senders(port: &str, applications: &[Application], returns: &[Return]) -> Vec<String> {
    let sends = |application: &&Application| {
        let its: Vec<&Return> = rules(application, applications, returns).collect();
        its.iter().enumerate().any(|(at, it)| {
            let is_first = its[..at].iter().all(|other| other.from != it.from);
            is_first && it.port == port
        })
    };
    let names = applications.iter().filter(sends);
    names.map(|it| it.name.clone()).collect()
}

/// The ports of a return path, each once.
pub(super) fn distinct(applications: &[Application], returns: &[Return]) -> Vec<OutputStatus> {
    let mut ports: Vec<OutputStatus> = Vec::new();
    for it in returns {
        match ports.iter_mut().find(|port| port.port == it.port) {
            Some(port) => port.of = format!("{}; {}", port.of, it.of()),
            None => ports.push(OutputStatus {
                port: it.port.clone(),
                of: it.of(),
                senders: senders(&it.port, applications, returns),
                ..OutputStatus::default()
            }),
        }
    }
    ports
}

/// The ports that are readers of applications.
pub(super) fn reading(applications: &[Application]) -> Vec<OutputStatus> {
    let named = applications.iter().filter_map(|application| {
        Some(OutputStatus {
            port: application.port.clone()?,
            of: format!("application {}", application.name),
            reader_of: application.name.clone(),
            ..OutputStatus::default()
        })
    });
    named.collect()
}

/// A port with what it sends, before its thread runs.
pub(super) struct Lane {
    pub named: OutputStatus,
    sides: [Side; 2],
}

/// Opens ports to send by.
pub(super) struct Opener<'a> {
    pub what: &'a dyn Fn() -> String,
    pub options: &'a PortOptions,
    pub pool: &'a Pool,
}

impl Opener<'_> {
    /// The options of a port that sends.
    fn sending(&self, name: &str) -> Result<PortOptions> {
        let mut options = sending(self.options);
        // Frames of the cluster are sent without a copy by ports that can use its pool.
        if port::frames_of(name, &options)?.is_some() {
            options.pool = Some(self.pool.clone());
        }
        Ok(options)
    }

    fn open(&self, name: &str) -> Result<Port> {
        let port = port::open(name, &self.sending(name)?)?;
        if port.tx.is_empty() {
            let why = format!("{name} cannot send");
            return Err(Error::new(ErrorKind::Unsupported, (self.what)(), why));
        }
        Ok(port)
    }

    /// A port of the return path, and the end by which it is given packets. `port` is open if it is
    /// an input, too.
    pub fn give_back(&self, named: OutputStatus, port: Option<Port>) -> Result<(Lane, TxQueue)> {
        let end = forward::End::find(&named.port)?;
        let port = match port {
            Some(port) => port,
            None => self.open(&named.port)?,
        };
        let options = PortOptions {
            pool: Some(self.pool.clone()),
            ring_len: RING_LEN,
            direction: Direction::Both,
            ..PortOptions::default()
        };
        let mut memory = port::open("memory:", &options)?;
        let Some(tx) = memory.tx.pop() else {
            let why = "a ring in memory has no end";
            return Err(Error::new(ErrorKind::Unsupported, (self.what)(), why));
        };
        let lane = Lane {
            named,
            sides: [live(memory), end.side(port)],
        };
        Ok((lane, tx))
    }

    /// A port that takes the place of an application's reader, which is `queue`.
    pub fn read(&self, named: OutputStatus, queue: Port) -> Result<Lane> {
        let end = forward::End::find(&named.port)?;
        // Its frames are read-only for this port as for other readers: packets are copied.
        let port = port::open(&named.port, &sending(self.options))?;
        if port.tx.is_empty() {
            let why = format!("{} cannot send", named.port);
            return Err(Error::new(ErrorKind::Unsupported, (self.what)(), why));
        }
        Ok(Lane {
            named,
            sides: [live(queue), end.side(port)],
        })
    }
}

/// The options of a port that sends, from those of the inputs.
pub(super) fn sending(options: &PortOptions) -> PortOptions {
    PortOptions {
        direction: Direction::Tx,
        filter: None,
        filter_source: None,
        pool: None,
        queue_count: 1,
        ..options.clone()
    }
}

/// A side whose packets do not wait for ever for room.
fn live(port: Port) -> Side {
    let mut side = Side::from(port);
    side.intake = Intake::Live;
    side
}

/// Checks the ports that send, and the pipelines.
///
/// # Errors
/// The reason.
pub(super) fn check(
    cluster: &str,
    inputs: &[String],
    applications: &[Application],
    returns: &[Return],
) -> std::result::Result<(), String> {
    let find = |name: &String| find(applications, name);
    for application in applications {
        let name = &application.name;
        if let Some(source) = &application.source {
            if application.cleanup.detunnel.is_some() {
                return Err(format!(
                    "application {name}: headers are removed from packets of the inputs, not from \
                     those that readers send"
                ));
            }
            if find(source)?.port.is_some() {
                return Err(format!(
                    "application {source} is read by a port, which sends nothing to {name}"
                ));
            }
            // Back to itself, after at most all of them.
            let mut at = find(source)?;
            for _ in applications {
                if at.name == *name {
                    return Err(format!(
                        "the source of application {name} is behind it: packets would loop"
                    ));
                }
                let Some(next) = &at.source else { break };
                at = find(next)?;
            }
        }
        if let Some(port) = &application.port {
            check_port(cluster, port)?;
            if inputs.iter().any(|input| is_same_port(input, port)) {
                return Err(format!(
                    "{port} is an input: every packet would be sent back"
                ));
            }
        }
    }
    check_returns(cluster, inputs, applications, returns)
}

/// Whether two names are those of the same port, or of the same interface.
fn is_same_port(one: &str, other: &str) -> bool {
    let interface = |text: &str| {
        let name = PortName::parse(text).ok()?;
        let row = name.backend()?;
        (row.target == port::Target::Interface).then_some(name.target)
    };
    one == other || interface(one).is_some_and(|one| interface(other) == Some(one))
}

fn find<'a>(
    applications: &'a [Application],
    name: &String,
) -> std::result::Result<&'a Application, String> {
    let missing = || format!("there is no application {name}");
    let found = applications.iter().find(|it| it.name == *name);
    found.ok_or_else(missing)
}

/// Checks the ports of the return path.
fn check_returns(
    cluster: &str,
    inputs: &[String],
    applications: &[Application],
    returns: &[Return],
) -> std::result::Result<(), String> {
    for (at, it) in returns.iter().enumerate() {
        check_port(cluster, &it.port)?;
        if let Some(from) = &it.from
            && !inputs.contains(from)
        {
            return Err(format!(
                "from is {from}, which is not an input of this cluster"
            ));
        }
        if let Some(name) = &it.application {
            let application = find(applications, name)?;
            if application.port.is_some() {
                return Err(format!(
                    "application {name} is read by a port, which sends nothing"
                ));
            }
            let is_next = |other: &&Application| other.source.as_ref() == Some(name);
            if let Some(next) = applications.iter().find(is_next) {
                return Err(format!(
                    "what readers of {name} send goes to application {}, not to {}",
                    next.name, it.port
                ));
            }
        }
        let is_same =
            |other: &&Return| other.from == it.from && other.application == it.application;
        if let Some(other) = returns[..at].iter().find(is_same) {
            return Err(format!(
                "{} and {} return the same packets",
                other.port, it.port
            ));
        }
    }
    Ok(())
}

/// Refuses a queue of this cluster, and names that are no port.
fn check_port(cluster: &str, port: &str) -> std::result::Result<(), String> {
    PortName::parse(port).map_err(|error| error.to_string())?;
    let target = port.strip_prefix("ring:").unwrap_or_default();
    match target.split(['/', '?']).next() == Some(cluster) {
        true => Err(format!(
            "{port} is a queue of this cluster: packets would loop"
        )),
        false => Ok(()),
    }
}

/// The result of a lane: its counts that the account of the cluster needs.
pub(super) type Running<'scope> = ScopedJoinHandle<'scope, Option<Error>>;

/// Starts the thread of a port.
pub(super) fn start<'scope>(
    scope: &'scope Scope<'scope, '_>,
    lane: Lane,
    index: usize,
    pacing: Pacing,
    shared: &Arc<Shared>,
    stop: &Stop,
) -> Running<'scope> {
    let (shared, stop) = (shared.clone(), stop.clone());
    scope.spawn(move || {
        let Lane { named, sides } = lane;
        let options = forward::Options {
            pacing,
            ..forward::Options::default()
        };
        let tell = |text: String, is_warning: bool| {
            let port = named.port.clone();
            lock(&shared.events).push(Event::Output {
                port,
                text,
                is_warning,
            });
        };
        let counts = &shared.outputs[index];
        // It ends with its input, so that the last packets are sent.
        let outcome = forward::run(sides, &options, &Stop::new(), |notice| match notice {
            Notice::Progress(flows) => {
                if let Some(flow) = flows.first() {
                    counts.set(flow);
                }
            }
            Notice::Event(1, event) => tell(event.to_string(), is_bad(&event)),
            Notice::Event(..) => {}
            Notice::Refused(1, count) => counts.failed.store(count, Ordering::Relaxed),
            Notice::Refused(..) => {}
            Notice::Failing(_, why) => tell(why, true),
            Notice::Working(_) => tell("sends again".into(), false),
        });
        if let Some(flow) = outcome.flows.first() {
            counts.set(flow);
        }
        let failed = outcome.accounts[1].tx_total().failed;
        counts.failed.store(failed, Ordering::Relaxed);
        if let Some(error) = &outcome.error {
            let is_gone = error.kind() == ErrorKind::Gone;
            shared.has_lost_output.fetch_or(is_gone, Ordering::Relaxed);
            stop.set();
        }
        outcome.error
    })
}

fn is_bad(event: &PortEvent) -> bool {
    matches!(
        event,
        PortEvent::DeviceGone | PortEvent::Detached(_) | PortEvent::Misbehaved(_)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn senders_of_a_port_are_the_applications_whose_rules_name_it_first() {
        let mut applications = ["first", "last", "other", "read"].map(|it| Application::new(it, 1));
        applications[1].source = Some("first".into());
        applications[3].port = Some("vm:x".into());
        let rule = |port: &str, from: Option<&str>, application: Option<&str>| Return {
            port: port.into(),
            from: from.map(str::to_owned),
            application: application.map(str::to_owned),
        };
        let rules = [
            rule("a", Some("eth0"), None),
            rule("b", None, Some("last")),
            rule("c", None, None),
            rule("b", Some("eth1"), None),
        ];
        let ports = distinct(&applications, &rules);
        let senders: Vec<_> = ports
            .iter()
            .map(|it| (it.port.as_str(), it.senders.join(" ")))
            .collect();
        // Without an input of its own, "b" sends for last what "c" sends for other.
        let expected = [("a", "last other"), ("b", "last other"), ("c", "other")];
        assert_eq!(
            senders,
            expected.map(|(port, names)| (port, names.to_owned()))
        );
    }
}
