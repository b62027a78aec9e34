//! `barewire nic isolate`: gives a class of packets a receive queue of its own, and undoes it.

use std::io::{self, Write};

use ::nic::isolate::{self, Device, Line, Live, Plan, Step, Store};
use runtime::filter::{Expression, steering};
use serde_json::{Value, json};
use sys::{Error, ErrorKind, Result};

use super::hold::Held;
use crate::out::now;

/// Arguments of `nic isolate`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub(super) struct IsolateArgs {
    /// Interface
    #[arg(value_name = "IFACE")]
    interface: String,
    /// The class of packets (pcap-filter(7)); without it the queue is only taken out of RSS
    #[arg(value_name = "EXPR", conflicts_with = "undo")]
    expression: Vec<String>,
    /// The receive queue, from 0
    #[arg(long, short, value_name = "N", required_unless_present = "undo")]
    queue: Option<u32>,
    /// Restore the indirection table, the rules and the feature as they were
    #[arg(long, conflicts_with_all = ["queue", "until_exit", "run"])]
    undo: bool,
    /// Print each step, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Print the steps as JSON
    #[arg(long)]
    json: bool,
    /// Undo it when this command ends, even if it is killed
    #[arg(long, conflicts_with = "dry_run")]
    until_exit: bool,
    /// Run a command, and undo it when the command ends
    #[arg(long, num_args = 1.., allow_hyphen_values = true, value_name = "CMD")]
    #[arg(conflicts_with_all = ["dry_run", "until_exit"])]
    run: Vec<String>,
}

const HELP: &str = "\
Takes a queue out of the card's RSS indirection table, so that no other packets arrive on it, and \
adds rules to its steering table (ntuple filters) that put the class on it. `afxdp:eth0/3` then \
receives the class alone, and everything else stays in the kernel.

Rules compare MAC addresses, EtherTypes, VLAN numbers, IP addresses with masks, the type of \
service, protocols, and ports of TCP, UDP and SCTP, joined by \"and\" and \"or\"; other \
expressions are refused. Not every card supports every rule: a step that the driver refuses is \
reported, and the steps before it are undone.

The previous state is recorded in /run/barewire-nic; --undo restores it. With --until-exit and \
--run a small helper process restores it when barewire ends, even by kill -9.

Examples:
  barewire nic isolate eth0 --queue 3 'udp dst port 53' --dry-run
  barewire nic isolate eth0 --queue 3 'udp dst port 53' --run barewire capture afxdp:eth0/3
  barewire nic isolate eth0 --queue 3 'udp dst port 53'
  barewire nic isolate eth0 --undo";

impl IsolateArgs {
    pub(super) fn isolate(&self) -> Result<()> {
        let (device, store) = (Live::by_name(&self.interface)?, Store::default());
        if self.undo {
            return self.undo(&device, &store);
        }
        let expression = Expression::new(self.expression.join(" "));
        let rules = steering::rules(&expression)?;
        let queue = self.queue.unwrap_or_default();
        let mut plan = isolate::plan(&device, &store, queue, &rules.list)?;
        if rules.omits_fragments {
            let note = "IPv6 fragments of the class stay on the other queues";
            plan.notes.push(note.into());
        }
        if self.dry_run {
            return self.print(plan.lines(), &plan.notes);
        }
        if self.until_exit || !self.run.is_empty() {
            return self.for_a_while(&device, &store, &plan);
        }
        plan.carry_out(&device, &store)?;
        self.report(&plan)?;
        now!("to undo it: barewire nic isolate {} --undo", device.name());
        Ok(())
    }

    fn undo(&self, device: &Live, store: &Store) -> Result<()> {
        let undo = match self.dry_run {
            true => isolate::plan_undo(device, store)?,
            false => isolate::undo(device, store)?,
        };
        if self.dry_run || self.json {
            return self.print(undo.lines(), &undo.notes);
        }
        for note in &undo.notes {
            now!("note: {note}");
        }
        let (name, queue) = (device.name(), undo.record.queue);
        now!("{name}: queue {queue} is as it was before");
        Ok(())
    }

    /// Isolates the queue, waits or runs the command, and undoes it.
    fn for_a_while(&self, device: &Live, store: &Store, plan: &Plan) -> Result<()> {
        let held = Held::start(&["guard-queue", &device.index().to_string()])?;
        let owned = plan.carry_out(device, store)?;
        self.report(plan)?;
        let code = held.wait_with(&self.run, "undo it", owned)?;
        let (name, queue) = (device.name(), plan.record.queue);
        if !code.undone {
            let what = format!("undo the isolation of queue {queue} of {name}");
            return Err(
                Error::new(ErrorKind::Io, what, "the helper process failed; see above")
                    .with_hint(format!("barewire nic isolate {name} --undo")),
            );
        }
        now!("{name}: queue {queue} is as it was before");
        code.end()
    }

    /// What was done.
    fn report(&self, plan: &Plan) -> Result<()> {
        if self.json {
            self.print(plan.lines(), &plan.notes)?;
        }
        for note in plan.notes.iter().filter(|_| !self.json) {
            now!("note: {note}");
        }
        let (name, queue) = (&plan.record.interface, plan.record.queue);
        match plan.record.rules.len() {
            0 => now!("{name}: RSS no longer uses queue {queue}"),
            count => now!(
                "{name}: queue {queue} receives the class alone, by {count} rules; as a port: \
                 afxdp:{name}/{queue}"
            ),
        }
        Ok(())
    }

    fn print<'a>(&self, lines: impl Iterator<Item = Line<'a>>, notes: &[String]) -> Result<()> {
        let mut out = String::new();
        if self.json {
            let steps: Vec<_> = lines.map(|line| to_json(&line)).collect();
            let interface = &self.interface;
            let all = json!({
                "type": "steps", "interface": interface, "steps": steps, "notes": notes,
            });
            out += &format!("{all}\n");
        } else {
            for line in lines {
                out += &format!("{line}\n");
            }
            if out.is_empty() {
                now!("nothing to do");
            }
            for note in notes {
                now!("note: {note}");
            }
        }
        io::stdout()
            .write_all(out.as_bytes())
            .map_err(|e| Error::from_io("write the steps", e))
    }
}

fn to_json(line: &Line) -> Value {
    match line.step {
        Step::Ntuple(on) => json!({ "step": "ntuple", "on": on }),
        Step::Insert(rule, location) => json!({
            "step": "insert", "rule": rule.to_string(), "queue": line.queue, "location": location,
        }),
        Step::Delete(location) => json!({ "step": "delete", "location": location }),
        Step::Table { from, to, .. } => json!({ "step": "indirection", "from": from, "to": to }),
    }
}
