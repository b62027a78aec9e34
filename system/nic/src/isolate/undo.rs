//! Restores the state of a card before one of its queues was isolated, from the record of it and
//! the present state, however far the steps came.

use std::thread;
use std::time::Duration;

use sys::{Error, ErrorKind, Result};

use super::{Device, Line, Live, Record, Step, Store, carry_out_step, refused};
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
    let Some(record) = store.read(device)? else {
        let what = format!("undo the isolation of a queue of {}", device.name());
        let why = "none of its queues is isolated by barewire";
        return Err(Error::new(ErrorKind::NotFound, what, why));
    };
    if store.is_owned(device) {
        let why = format!("the process that isolated its queue {} runs", record.queue);
        return Err(
            refused(device, ErrorKind::Busy, why).with_hint("end that process, which undoes it")
        );
    }
    steps(device, &record)
}

/// Restores an interface and deletes the record.
///
/// # Errors
/// As [`plan_undo`]; and if a step fails, after all others were tried. The record is then kept.
pub fn undo(device: &dyn Device, store: &Store) -> Result<Undo> {
    let _turn = store.turn()?;
    let undo = plan_undo(device, store)?;
    undo_locked(device, store, &undo.record)
}

/// [`undo`] for a process that has the turn, whoever uses the record.
pub(super) fn undo_locked(device: &dyn Device, store: &Store, record: &Record) -> Result<Undo> {
    let undo = steps(device, record)?;
    let mut result = Ok(());
    for step in &undo.steps {
        let done = carry_out_step(device, record.queue, step);
        result = result.and(done);
    }
    result?;
    store.remove(device)?;
    Ok(undo)
}

fn steps(device: &dyn Device, record: &Record) -> Result<Undo> {
    let mut steps = Vec::new();
    let mut notes = Vec::new();
    let name = device.name();
    let table = device.table()?.unwrap_or_default();
    if table == record.after && table != record.before {
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
    let mut others = 0;
    if !record.rules.is_empty() {
        for rule in device.rules()?.unwrap_or_default().rules {
            let is_ours = rule.queue == Some(record.queue)
                && rule.context.is_none()
                && !record.locations.contains(&rule.location)
                && record.rules.iter().any(|own| own.is_same(&rule.spec));
            match is_ours {
                true => steps.push(Step::Delete(rule.location)),
                false => others += 1,
            }
        }
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

/// The main function of the helper process: waits for the end of standard input, then restores the
/// interface. Nothing is to be done if no queue is isolated any more, or the interface is gone.
///
/// # Errors
/// If it cannot be restored.
pub fn undo_when_closed(store: &Store, index: u32) -> Result<()> {
    guardian::wait_until_closed()?;
    let mut tries = 0;
    loop {
        let done = Live::by_index(index).and_then(|device| undo(&device, store));
        tries += 1;
        match done {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            // The process is about to end.
            Err(error) if tries == TRIES => return Err(error),
            Err(_) => thread::sleep(PAUSE),
        }
    }
}
