//! Applications: which packets they receive, and what happens to packets without room.

use std::time::Duration;

use ring::HOLDER_COUNT_MAX;
use ring::shared;

use super::balance::Balance;
use super::cleanup::{Cleanup, Detunnel};
use super::status::ApplicationStatus;
use crate::filter::Expression;

/// An application: each packet that its filter selects goes to one of its queues.
#[derive(Clone, Debug)]
pub struct Application {
    /// Its name.
    pub name: String,
    /// Number of queues, at least 1.
    pub queue_count: u32,
    /// The packets that it receives. Blank for all.
    pub filter: Expression,
    /// How they are distributed over its queues.
    pub balance: Balance,
    /// `None`: drop with live inputs, wait without a bound with files.
    pub when_full: Option<WhenFull>,
    /// What happens to packets for a queue without a reader.
    pub when_gone: WhenGone,
    /// What is removed from its packets.
    pub cleanup: Cleanup,
    /// The application whose readers send its packets; `None`: they come from the inputs.
    pub source: Option<String>,
    /// The port that is its reader, in the process of the cluster; `None`: other processes are.
    pub port: Option<String>,
}

/// Counts of an application, in packets: those that went to none of its queues (`filtered`,
/// `duplicates`, `shunted`), and what happened to others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ApplicationCounts {
    /// None of its queues was to receive them: its filter, the filters of its queues, or its table
    /// did not select them.
    pub filtered: u64,
    /// Copies of packets received just before.
    pub duplicates: u64,
    /// Behind the start of their flows.
    pub shunted: u64,
    /// Went to another one of its queues, which had room.
    pub spilled: u64,
    /// Passed because there was no place to count their flows.
    pub untracked: u64,
    /// Handed over without tunnel headers.
    pub detunnelled: u64,
    /// Number of these that were copied, because other applications received them as well.
    pub copied: u64,
}

impl ApplicationCounts {
    /// Names and values.
    pub fn named(&self) -> [(&'static str, u64); 7] {
        [
            ("filtered", self.filtered),
            ("duplicates", self.duplicates),
            ("shunted", self.shunted),
            ("spilled", self.spilled),
            ("untracked", self.untracked),
            ("detunnelled", self.detunnelled),
            ("copied", self.copied),
        ]
    }

    /// From the values of [`named`](Self::named).
    pub(super) fn from_values(values: [u64; 7]) -> Self {
        let [
            filtered,
            duplicates,
            shunted,
            spilled,
            untracked,
            detunnelled,
            copied,
        ] = values;
        Self {
            filtered,
            duplicates,
            shunted,
            spilled,
            untracked,
            detunnelled,
            copied,
        }
    }
}

/// What happens to a packet for which a queue has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// It is dropped, and counted at the queue.
    Drop,
    /// The input waits for the reader, at most this long (`None`: until there is room); then it is
    /// dropped. Other queues receive no packets meanwhile.
    Block(Option<Duration>),
    /// It goes to the next queue of the application that has room; without one, it is dropped.
    Spill,
}

/// What happens to packets for a queue without a reader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenGone {
    /// They wait for the next reader, as many as the queue holds.
    #[default]
    Wait,
    /// Their flows go to the queues that have readers, until this one has a reader again. The flows
    /// of other queues stay where they are. If no queue has a reader, they wait.
    Rehash,
}

impl Application {
    /// An application that receives all packets, by flow.
    pub fn new(name: impl Into<String>, queue_count: u32) -> Self {
        Self {
            name: name.into(),
            queue_count,
            filter: Expression::default(),
            balance: Balance::default(),
            when_full: None,
            when_gone: WhenGone::default(),
            cleanup: Cleanup::default(),
            source: None,
            port: None,
        }
    }

    /// Its status, with this policy and these counts.
    pub(super) fn status(&self, when_full: String, counts: ApplicationCounts) -> ApplicationStatus {
        let cleanup = &self.cleanup;
        let window_ms = cleanup.deduplicate.map(|window| window.as_millis() as u64);
        ApplicationStatus {
            name: self.name.clone(),
            balance: self.balance.name().to_owned(),
            filter: self.filter.text.trim().to_owned(),
            when_full,
            when_gone: self.when_gone.name().to_owned(),
            shunt: cleanup.shunt.map_or_else(String::new, |it| it.to_string()),
            deduplicate_ms: window_ms.unwrap_or(0),
            detunnel: cleanup.detunnel.map_or("", Detunnel::name).to_owned(),
            counts,
            source: self.source.clone().unwrap_or_default(),
            port: self.port.clone().unwrap_or_default(),
        }
    }

    /// Checks it, apart from its filters.
    ///
    /// # Errors
    /// The reason.
    fn check(&self) -> Result<(), String> {
        let name = self.name.as_str();
        shared::check_name(name).map_err(|error| error.to_string())?;
        if name.parse::<u32>().is_ok() {
            return Err(format!(
                "{name} would be the number of a queue: name the application"
            ));
        }
        if name == "return" {
            return Err("an application cannot be named return: ring:NAME/return sends".into());
        }
        if self.port.is_some() && self.queue_count != 1 {
            return Err(format!(
                "application {name} is read by a port: it has one queue"
            ));
        }
        let count = self.queue_count;
        if count == 0 {
            return Err(format!("application {name} has no queue"));
        }
        match &self.balance {
            Balance::Filters(filters) if filters.len() != count as usize => {
                let filters = filters.len();
                return Err(format!(
                    "application {name} has {count} queues and {filters} filters for them"
                ));
            }
            Balance::Table(table) if table.queue_max() >= count => {
                let (table, queue) = (table.name(), table.queue_max());
                return Err(format!(
                    "{table} names queue {queue}; the {count} queues of application {name} are \
                     numbered from 0"
                ));
            }
            _ => {}
        }
        let is_chosen = matches!(self.balance, Balance::Filters(_) | Balance::Table(_));
        let moves = self.when_gone == WhenGone::Rehash || self.when_full == Some(WhenFull::Spill);
        if is_chosen && moves {
            let by = self.balance.name();
            return Err(format!(
                "the packets of application {name} have queues by {by}: they cannot go to another \
                 one (rehash, spill)"
            ));
        }
        Ok(())
    }
}

/// Checks all applications of a cluster, apart from their filters.
///
/// # Errors
/// The reason.
pub(super) fn check(applications: &[Application]) -> Result<(), String> {
    let mut names: Vec<&str> = Vec::new();
    let mut queues = 0;
    for application in applications {
        application.check()?;
        let name = application.name.as_str();
        if names.contains(&name) {
            return Err(format!("two applications are named {name}"));
        }
        names.push(name);
        queues += u64::from(application.queue_count);
    }
    if queues == 0 || queues > u64::from(HOLDER_COUNT_MAX) {
        return Err(format!(
            "{queues} queues; possible are 1 to {HOLDER_COUNT_MAX}"
        ));
    }
    Ok(())
}

impl WhenFull {
    /// The word for it in output and on the command line.
    pub fn name(self) -> String {
        match self {
            Self::Drop => "drop".to_owned(),
            Self::Block(None) => "block".to_owned(),
            Self::Block(Some(limit)) => format!("block={}", limit.as_millis()),
            Self::Spill => "spill".to_owned(),
        }
    }

    /// Parses `drop`, `block`, `block=20` (milliseconds) or `spill`.
    ///
    /// # Errors
    /// What was expected.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            None if text == "drop" => Ok(Self::Drop),
            None if text == "block" => Ok(Self::Block(None)),
            None if text == "spill" => Ok(Self::Spill),
            Some(("block", ms)) => {
                let ms = ms
                    .parse::<u32>()
                    .map_err(|_| format!("{ms:?} is not a number of milliseconds"))?;
                Ok(Self::Block(Some(Duration::from_millis(ms.into()))))
            }
            _ => Err("use drop, block, block=MS or spill".into()),
        }
    }
}

impl WhenGone {
    /// The word for it in output and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Wait => "wait",
            Self::Rehash => "rehash",
        }
    }

    /// Parses `wait` or `rehash`.
    ///
    /// # Errors
    /// What was expected.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "wait" => Ok(Self::Wait),
            "rehash" => Ok(Self::Rehash),
            _ => Err("use wait or rehash".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_named_as_parsed() {
        for text in ["drop", "block", "block=20", "spill"] {
            assert_eq!(WhenFull::parse(text).unwrap().name(), text);
        }
        for text in ["", "block=", "block=-1", "drop=3", "wait"] {
            assert!(WhenFull::parse(text).is_err(), "{text}");
        }
        for text in ["wait", "rehash"] {
            assert_eq!(WhenGone::parse(text).unwrap().name(), text);
        }
    }
}
