//! Restores the state of a card before one of its queues was isolated, from the record of it and
//! the present state, however far the steps came.

use std::thread;
use std::time::Duration;

use sys::ethtool::InstalledRule;
use sys::{Error, ErrorKind, Result};

use super::{Device, Line, Live, Record, Step, Store, carry_out_step, reaches, refused};
use crate::guardian;

/// How often, and after what time, undoing is tried again by the helper.
const TRIES: u32 = 10;
const PAUSE: Duration = Duration::from_millis(200);

/// The steps that restore a card.
#[derive(Clone, Debug)]
pub struct Undo {
    /// What they restore.
    pub record: Record,
    /// The changes, in order.
    pub steps: Vec<Step>,
    /// What is left as it is, because another program changed it.
    pub notes: Vec<String>,
}

impl Undo {
    /// The steps for users.
    pub fn lines(&self) -> impl Iterator<Item = Line<'_>> {
        let queue = self.record.queue;
        let interface = self.record.interface.as_str();
        self.steps.iter().map(move |step| Line {
            interface,
            queue,
            step,
        })
    }
}

/// Determines the steps that restore an interface.
///
/// # Errors
/// `NotFound` if no queue of it is isolated, `Busy` if a process that isolated one still runs.
pub fn plan_undo(device: &dyn Device, store: &Store) -> Result<Undo> {
    let record = unused_record(device, store)?.ok_or_else(|| not_isolated(device))?;
    steps(device, &record)
}

/// The record of an interface, if it has an isolated queue and no process uses it.
fn unused_record(device: &dyn Device, store: &Store) -> Result<Option<Record>> {
    let Some(record) = store.read(device)? else {
        return Ok(None);
    };
    if store.is_owned(device) {
        let why = format!("the process that isolated its queue {} runs", record.queue);
        return Err(
            refused(device, ErrorKind::Busy, why).with_hint("end that process, which undoes it")
        );
    }
    Ok(Some(record))
}

fn not_isolated(device: &dyn Device) -> Error {
    let what = format!("undo the isolation of a queue of {}", device.name());
    let why = "none of its queues is isolated by barewire";
    Error::new(ErrorKind::NotFound, what, why)
}

/// Restores an interface and deletes the record.
///
/// # Errors
/// As [`plan_undo`]; and if a step fails, after all others were tried. The record is then kept.
pub fn undo(device: &dyn Device, store: &Store) -> Result<Undo> {
    undo_if_isolated(device, store)?.ok_or_else(|| not_isolated(device))
}

/// As [`undo`]; `None` if no queue is isolated. An error of the kind `NotFound` is one of a step.
pub(super) fn undo_if_isolated(device: &dyn Device, store: &Store) -> Result<Option<Undo>> {
    let _turn = store.turn()?;
    let record = unused_record(device, store)?;
    record
        .map(|record| undo_locked(device, store, &record))
        .transpose()
}

/// [`undo`] for a process that has the turn, whoever uses the record.
pub(super) fn undo_locked(device: &dyn Device, store: &Store, record: &Record) -> Result<Undo> {
    let undo = steps(device, record)?;
    let mut result = Ok(());
    for step in &undo.steps {
        let done = match carry_out_step(device, record.queue, step) {
            Err(error) if error.kind() == ErrorKind::NotFound => match step {
                // Another program was faster.
                Step::Delete(location) if is_gone(device, *location) => Ok(()),
                _ => Err(error),
            },
            done => done.map(drop),
        };
        result = result.and(done);
    }
    result?;
    store.remove(device)?;
    Ok(undo)
}

/// Whether a location is known to have no rule.
fn is_gone(device: &dyn Device, location: u32) -> bool {
    let rules = device.rules().ok().flatten();
    rules.is_some_and(|table| table.rules.iter().all(|rule| rule.location != location))
}

fn steps(device: &dyn Device, record: &Record) -> Result<Undo> {
    let mut steps = Vec::new();
    let mut notes = Vec::new();
    let name = device.name();
    let table = device.table()?.unwrap_or_default();
    // While the steps are not done, another table is taken for one that the driver stored instead.
    let is_ours = table == record.after || !record.is_complete;
    if is_ours && table != record.before {
        steps.push(Step::Table {
            from: table,
            to: record.before.clone(),
            is_default: record.is_default,
        });
    } else if table != record.before {
        notes.push(format!(
            "the RSS indirection table of {name} was changed by another program and is left as it \
             is; `ethtool -X {name} default` restores the default"
        ));
    }
    let (mut others, mut left) = (0, Vec::new());
    if !record.rules.is_empty() {
        for rule in device.rules()?.unwrap_or_default().rules {
            if is_ours_at(record, &rule) {
                steps.push(Step::Delete(rule.location));
                continue;
            }
            others += 1;
            // A rule that is not understood is reported: it must not prevent the undoing.
            if reaches(device, &rule, record.queue).unwrap_or(true) {
                left.push(rule.location.to_string());
            }
        }
    }
    if !left.is_empty() {
        notes.push(format!(
            "rules of another program still put packets on queue {} and are left as they are, at \
             these locations: {}; `ethtool -N {name} delete N` deletes one",
            record.queue,
            left.join(", ")
        ));
    }
    let is_on = device.ntuple()?.is_some_and(|feature| feature.is_on);
    if record.ntuple_was_off && is_on {
        match others {
            0 => steps.push(Step::Ntuple(false)),
            _ => notes.push(format!(
                "ntuple filters of {name} stay on: there are {others} other rules"
            )),
        }
    }
    Ok(Undo {
        record: Record {
            interface: name,
            ..record.clone()
        },
        steps,
        notes,
    })
}

/// Whether barewire added a rule. Its location and queue decide: drivers may report other flags or
/// masks than those that were asked for.
fn is_ours_at(record: &Record, rule: &InstalledRule) -> bool {
    let is_candidate = rule.queue == Some(record.queue)
        && rule.context.is_none()
        && !record.locations.contains(&rule.location);
    // The process may have been killed before it recorded a location that the driver chose.
    let is_like_ours = || record.rules.iter().any(|own| own.is_same(&rule.spec));
    let is_known = record.added.contains(&rule.location);
    is_candidate && (is_known || (!record.is_complete && is_like_ours()))
}

/// The main function of the helper process: waits for the end of standard input, then restores the
/// interface. Nothing is to be done if no queue is isolated any more, or the interface is gone.
/// Returns the notes of [`Undo`].
///
/// # Errors
/// If it cannot be restored.
pub fn undo_when_closed(store: &Store, index: u32) -> Result<Vec<String>> {
    guardian::wait_until_closed(guardian::NAME)?;
    let mut tries = 0;
    loop {
        let done = match Live::by_index(index) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            device => device.and_then(|device| undo_if_isolated(&device, store)),
        };
        tries += 1;
        match done {
            Ok(undo) => return Ok(undo.map(|undo| undo.notes).unwrap_or_default()),
            // The process is about to end.
            Err(error) if tries == TRIES => return Err(error),
            Err(_) => thread::sleep(PAUSE),
        }
    }
}
