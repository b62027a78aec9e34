//! Gives a class of packets a receive queue of its own: takes the queue out of a card's RSS
//! indirection table, and adds rules to its steering table (ntuple filters) that put the class on
//! the queue.
//!
//! [`plan`] determines the steps, which can be printed; [`Plan::carry_out`] executes them, after it
//! has recorded the previous state in a file below `/run`. [`undo()`] restores exactly that state,
//! however far the steps came. An interface has one isolated queue at a time: table and rules of
//! several could not be restored in any order.

mod device;
mod record;
mod table;
mod undo;

use std::fmt;
use std::fs::File;

use sys::ethtool::{InstalledRule, Rule, RuleTable};
use sys::{Error, ErrorKind, Result};

pub use device::{Device, Live};
pub use record::{Record, Store};
pub use undo::{Undo, plan_undo, undo, undo_when_closed};

/// What does the same without the card's support.
const ELSEWHERE: &str = "without rules of the card, an XDP program can select the class: \
                         `barewire guard --steer`, or `afxdp:IFACE` with the expression as its \
                         filter";

/// A change of the card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Switch the feature `ntuple`.
    Ntuple(bool),
    /// Add a rule, at this location or at one that the driver chooses.
    Insert(Rule, Option<u32>),
    /// Delete the rule at a location.
    Delete(u32),
    /// Replace the indirection table.
    Table {
        /// The present table.
        from: Vec<u32>,
        /// The new one.
        to: Vec<u32>,
        /// Whether the new one is the kernel's default.
        is_default: bool,
    },
}

/// A step of an interface and a queue, for users.
#[derive(Clone, Copy, Debug)]
pub struct Line<'a> {
    /// The interface.
    pub interface: &'a str,
    /// The queue of rules.
    pub queue: u32,
    /// The step.
    pub step: &'a Step,
}

impl fmt::Display for Line<'_> {
    /// Formats it as a command of ethtool(8), if there is one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, queue) = (self.interface, self.queue);
        match self.step {
            Step::Ntuple(on) => {
                let word = if *on { "on" } else { "off" };
                write!(f, "ethtool -K {name} ntuple {word}")
            }
            Step::Insert(rule, location) => {
                write!(f, "ethtool -N {name} flow-type {rule} action {queue}")?;
                match location {
                    Some(location) => write!(f, " loc {location}"),
                    None => Ok(()),
                }
            }
            Step::Delete(location) => write!(f, "ethtool -N {name} delete {location}"),
            Step::Table { from, to, .. } => {
                let changes = table::changes(from, to);
                write!(f, "RSS indirection table of {name}: {changes}")
            }
        }
    }
}

/// The steps that isolate a queue.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What is restored later.
    pub record: Record,
    /// The changes, in order.
    pub steps: Vec<Step>,
    /// Facts that the user should know.
    pub notes: Vec<String>,
}

impl Plan {
    /// The steps for users.
    pub fn lines(&self) -> impl Iterator<Item = Line<'_>> {
        let Record {
            interface, queue, ..
        } = &self.record;
        self.steps.iter().map(|step| Line {
            interface,
            queue: *queue,
            step,
        })
    }

    /// Records the present state and executes the steps; if one fails, those before it are undone.
    /// The lock that is returned marks the record as in use by this process.
    ///
    /// # Errors
    /// If a step fails, or another process was faster; the hint states if the previous state was
    /// not restored.
    pub fn carry_out(&self, device: &dyn Device, store: &Store) -> Result<File> {
        let _turn = store.turn()?;
        no_record(device, store)?;
        let mut record = self.record.clone();
        let owned = store.write(device, &record)?;
        let changed = self.change(device, store, &mut record, owned);
        changed.map_err(|error| {
            let Err(left) = undo::undo_locked(device, store, &record) else {
                return error;
            };
            let name = &self.record.interface;
            error.with_hint(format!(
                "it could not be undone ({left}): barewire nic isolate {name} --undo"
            ))
        })
    }

    /// Executes the steps, and records what is known of them after each. The lock that marks the
    /// record as in use moves to each new file.
    fn change(
        &self,
        device: &dyn Device,
        store: &Store,
        record: &mut Record,
        mut owned: File,
    ) -> Result<File> {
        for step in &self.steps {
            let done = carry_out_step(device, record.queue, step);
            let location = done.map_err(|error| refused_by_driver(error, step))?;
            if let Some(location) = location.filter(|at| !record.added.contains(at)) {
                record.added.push(location);
                owned = store.write(device, record)?;
            }
        }
        record.is_complete = true;
        let complete = store.write(device, record);
        drop(owned);
        complete
    }
}

/// Adds what to do to the error of a step.
fn refused_by_driver(error: Error, step: &Step) -> Error {
    if matches!(error.kind(), ErrorKind::Permission | ErrorKind::NotFound) {
        return error;
    }
    let hint = match step {
        Step::Insert(..) => "the card's rules may compare fewer fields, or need other masks",
        _ => "the driver's messages are in the kernel log",
    };
    error.with_hint(format!("nothing was changed; {hint}; {ELSEWHERE}"))
}

/// Executes a step; returns the location of an added rule.
fn carry_out_step(device: &dyn Device, queue: u32, step: &Step) -> Result<Option<u32>> {
    match step {
        Step::Ntuple(on) => device.set_ntuple(*on)?,
        Step::Insert(rule, location) => return device.insert(rule, queue, *location).map(Some),
        Step::Delete(location) => device.delete(*location)?,
        Step::Table { to, is_default, .. } => set_table(device, to, *is_default)?,
    }
    Ok(None)
}

fn set_table(device: &dyn Device, table: &[u32], is_default: bool) -> Result<()> {
    let is_set = || Ok(device.table()?.as_deref() == Some(table));
    if is_default {
        device.set_table(&[])?;
        // The driver may have another default.
        if is_set()? {
            return Ok(());
        }
    }
    device.set_table(table)?;
    if is_set()? {
        return Ok(());
    }
    let what = format!("set the RSS indirection table of {:?}", device.name());
    let why = "the driver accepted it and stored another one";
    Err(Error::new(ErrorKind::Unsupported, what, why))
}

fn refused(device: &dyn Device, kind: ErrorKind, why: impl Into<String>) -> Error {
    Error::new(kind, format!("isolate a queue of {}", device.name()), why)
}

fn no_record(device: &dyn Device, store: &Store) -> Result<()> {
    let Some(record) = store.read(device)? else {
        return Ok(());
    };
    let (queue, name) = (record.queue, device.name());
    let (why, hint) = match store.is_owned(device) {
        true => (
            format!("another process has isolated its queue {queue}"),
            "end that process first".to_owned(),
        ),
        false => (
            format!("its queue {queue} is isolated already"),
            format!("barewire nic isolate {name} --undo"),
        ),
    };
    Err(refused(device, ErrorKind::Busy, why).with_hint(hint))
}

/// Determines the steps that isolate a queue for the packets of these rules; without rules the
/// queue is only taken out of RSS.
///
/// # Errors
/// If there is no such queue or only one, it is isolated already, it has rules, or the driver
/// supports no indirection table or no rules: each with what to do about it.
pub fn plan(device: &dyn Device, store: &Store, queue: u32, rules: &[Rule]) -> Result<Plan> {
    no_record(device, store)?;
    let before = spreading(device, queue)?;
    let mut notes = Vec::new();
    let mut steps = Vec::new();
    let (mut locations, mut added, mut ntuple_was_off) = (Vec::new(), Vec::new(), false);
    if !rules.is_empty() {
        let installed = steering(device)?;
        free_of_rules(device, queue, &installed)?;
        ntuple_was_off = must_switch_on(device)?;
        if ntuple_was_off {
            steps.push(Step::Ntuple(true));
        }
        let chosen = choose(device, &installed, rules.len())?;
        added = chosen.iter().copied().flatten().collect();
        let inserts = rules.iter().zip(chosen);
        steps.extend(inserts.map(|(rule, at)| Step::Insert(*rule, at)));
        locations = installed.rules.iter().map(|rule| rule.location).collect();
        if !locations.is_empty() {
            let count = locations.len();
            notes.push(format!(
                "{} has {count} other rules: packets that they select stay where they are",
                device.name()
            ));
        }
    }
    // After the rules, which a driver is more likely to refuse.
    let rings = device.ring_count()?.unwrap_or(0);
    let after = table::without(&before, queue, rings);
    if after != before {
        steps.push(Step::Table {
            from: before.clone(),
            to: after.clone(),
            is_default: false,
        });
    }
    let record = Record {
        interface: device.name(),
        card: device.card(),
        queue,
        ntuple_was_off,
        is_default: table::is_default(&before, rings),
        before,
        after,
        locations,
        rules: rules.iter().map(Rule::spec).collect(),
        added,
        is_complete: false,
    };
    Ok(Plan {
        record,
        steps,
        notes,
    })
}

/// The indirection table of a card with several queues, of which this is one.
fn spreading(device: &dyn Device, queue: u32) -> Result<Vec<u32>> {
    let name = device.name();
    let rings = device.ring_count()?.unwrap_or(0);
    if rings < 2 {
        let why = match rings {
            1 => "it has one receive queue, which all other packets need",
            _ => "its driver reports no receive queues that can be selected",
        };
        let hint = format!(
            "`ethtool -L {name} combined N` adds queues, if the card has them; {ELSEWHERE}"
        );
        return Err(refused(device, ErrorKind::Unsupported, why).with_hint(hint));
    }
    if queue >= rings {
        let why = format!("there is no queue {queue}: it has {rings} receive queues, from 0");
        let hint = format!("ethtool -l {name}");
        return Err(refused(device, ErrorKind::InvalidInput, why).with_hint(hint));
    }
    match device.table()? {
        Some(table) if !table.is_empty() => Ok(table),
        _ => {
            let why = "its driver has no RSS indirection table (`ethtool -x`)";
            Err(refused(device, ErrorKind::Unsupported, why).with_hint(ELSEWHERE))
        }
    }
}

fn steering(device: &dyn Device) -> Result<RuleTable> {
    device.rules()?.ok_or_else(|| {
        let why = "its driver has no rules for steering (ntuple filters, `ethtool -n`)";
        refused(device, ErrorKind::Unsupported, why).with_hint(ELSEWHERE)
    })
}

/// Whether the feature must be switched on.
fn must_switch_on(device: &dyn Device) -> Result<bool> {
    match device.ntuple()? {
        Some(feature) if !feature.is_on && !feature.is_changeable => {
            let why = "its driver has ntuple filters off, and does not switch them on for this \
                       card (`ethtool -k`: off [fixed])";
            Err(refused(device, ErrorKind::Unsupported, why).with_hint(ELSEWHERE))
        }
        Some(feature) => Ok(!feature.is_on),
        None => Ok(false),
    }
}

/// No rule of another program puts packets on the queue.
fn free_of_rules(device: &dyn Device, queue: u32, installed: &RuleTable) -> Result<()> {
    for rule in &installed.rules {
        if reaches(device, rule, queue)? {
            let (name, location) = (device.name(), rule.location);
            let why = format!("its rule {location} puts packets on queue {queue}");
            let hint = format!(
                "`ethtool -n {name} rule {location}` shows it, `ethtool -N {name} delete \
                 {location}` deletes it; or isolate another queue"
            );
            return Err(refused(device, ErrorKind::Busy, why).with_hint(hint));
        }
    }
    Ok(())
}

/// Whether a rule can put packets on a queue.
fn reaches(device: &dyn Device, rule: &InstalledRule, queue: u32) -> Result<bool> {
    Ok(match (rule.queue, rule.context) {
        (Some(first), Some(context)) => {
            let table = device.context_table(context)?;
            // The kernel adds the rule's queue to the entry of the table.
            let is_queue = |entry: &u32| first.checked_add(*entry) == Some(queue);
            table.is_none_or(|table| table.iter().any(is_queue))
        }
        (Some(target), None) => target == queue,
        (None, _) => false,
    })
}

/// Locations for new rules: `None` where the driver chooses, otherwise the last free ones, so that
/// existing rules stay before them.
fn choose(device: &dyn Device, installed: &RuleTable, count: usize) -> Result<Vec<Option<u32>>> {
    let used = installed.rules.len();
    let size = installed.size as usize;
    if size != 0 && size < used + count {
        let why =
            format!("its table has {size} rules, of which {used} are in use; needed: {count}");
        let hint = "select the class with fewer ports and addresses: each rule has one of each";
        return Err(refused(device, ErrorKind::NoSpace, why).with_hint(hint));
    }
    if size == 0 || installed.chooses_location {
        return Ok(vec![None; count]);
    }
    let is_free = |at: &u32| !installed.rules.iter().any(|rule| rule.location == *at);
    let free = (0..installed.size).rev().filter(is_free);
    Ok(free.take(count).map(Some).collect())
}

#[cfg(test)]
mod tests;
