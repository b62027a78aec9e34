//! Several live ports as one: their queues stay separate, are numbered consecutively over all
//! ports, and each port is an interface. A port whose device was gone can be opened again, with the
//! same numbers.

use std::collections::BTreeSet;

use bpf::cbpf::Program;
use sys::{Error, ErrorKind, Result};

use crate::account::{PortAccount, QueueAccount};
use crate::control::{Capabilities, Intake, PortControl, PortDescription, PortEvent};
use crate::port::Port;
use crate::rx::RxQueue;

/// Joins receiving ports: their queues are numbered consecutively, and each port is an interface,
/// as by [`open_all`](crate::open_all). Their sending queues are closed.
///
/// # Errors
/// `InvalidInput` for an interface that is named twice, which would deliver each packet twice;
/// `Unsupported` for a port with several interfaces.
pub fn join(ports: Vec<Port>) -> Result<Port> {
    let mut joined = Joined::default();
    let mut rx = Vec::new();
    let (mut names, mut seen) = (Vec::new(), BTreeSet::new());
    let mut capabilities: Option<Capabilities> = None;
    for port in ports {
        let text = port.control.describe();
        let refuse = |kind, why: &str| Err(Error::new(kind, format!("open {:?}", port.name), why));
        if text.interfaces.len() > 1 || text.intake == Intake::File {
            let why = "it has several interfaces, so it cannot be joined with other ports";
            return refuse(ErrorKind::Unsupported, why);
        }
        if !seen.insert((text.scheme, text.target.clone())) {
            return refuse(ErrorKind::InvalidInput, "it is given twice");
        }
        let interface = u16::try_from(joined.members.len()).map_err(|_| {
            let why = "too many ports at once";
            Error::new(ErrorKind::InvalidInput, "open ports", why)
        })?;
        let mut member = Member {
            control: port.control,
            target: text.target,
            numbers: Vec::new(),
            past: Vec::new(),
            past_without: Vec::new(),
            past_seen: Some(0),
        };
        rx.extend(member.number(port.rx, interface, &mut joined.queues));
        capabilities = Some(match capabilities {
            None => port.capabilities,
            Some(before) => both(before, port.capabilities),
        });
        names.push(port.name);
        joined.members.push(member);
    }
    Ok(Port {
        name: names.join(", "),
        rx,
        tx: Vec::new(),
        control: Box::new(joined),
        capabilities: capabilities.unwrap_or_default(),
    })
}

/// Capabilities that both have.
fn both(a: Capabilities, b: Capabilities) -> Capabilities {
    let limits = [a.packet_len_max, b.packet_len_max];
    Capabilities {
        detach_moves: a.detach_moves && b.detach_moves,
        timestamps: a.timestamps && b.timestamps,
        rss_hash: a.rss_hash && b.rss_hash,
        vlan: a.vlan || b.vlan,
        takes_traffic: a.takes_traffic || b.takes_traffic,
        kernel_filter: a.kernel_filter && b.kernel_filter,
        multi_buffer: a.multi_buffer || b.multi_buffer,
        // 0 means no limit.
        packet_len_max: match limits.contains(&0) {
            true => 0,
            false => a.packet_len_max.max(b.packet_len_max),
        },
    }
}

/// Link type and name of a port's only interface.
fn only_interface(text: PortDescription) -> (u16, String) {
    let named = text.interfaces.into_iter().next();
    named.unwrap_or((text.link_type, text.target))
}

struct Member {
    control: Box<dyn PortControl>,
    target: String,
    /// The numbers of its queues among those of all.
    numbers: Vec<u32>,
    /// The accounts of queues that it had before it was opened again, by these numbers.
    past: Vec<QueueAccount>,
    /// The same of queues without a number: those that were not requested.
    past_without: Vec<QueueAccount>,
    /// What its interface had counted by then; `None` if that is not known, as of a deleted one.
    past_seen: Option<u64>,
}

/// Adds the accounts of earlier queues to those with the same number.
fn add_past(queues: &mut Vec<QueueAccount>, past: &[QueueAccount]) {
    for past in past {
        let same = |queue: &&mut QueueAccount| queue.queue_index == past.queue_index;
        match queues.iter_mut().find(same) {
            Some(queue) => queue.add(past),
            None => queues.push(*past),
        }
    }
}

impl Member {
    /// Numbers queues of this port: as those that it had, and the others behind all.
    fn number(
        &mut self,
        queues: Vec<RxQueue>,
        interface: u16,
        names: &mut Vec<String>,
    ) -> Vec<RxQueue> {
        let target = &self.target;
        let numbers = &mut self.numbers;
        let number = |(index, mut queue): (usize, RxQueue)| {
            if index == numbers.len() {
                numbers.push(names.len() as u32);
                names.push(format!("{target}/{}", queue.queue_index()));
            }
            queue.number(numbers[index], interface, target);
            queue
        };
        queues.into_iter().enumerate().map(number).collect()
    }

    /// The accounts of its queues, by their numbers, and of those that have none.
    fn account(&mut self) -> Result<(PortAccount, Vec<QueueAccount>)> {
        let mut account = self.control.account()?;
        for (index, queue) in account.rx.iter_mut().enumerate() {
            if let Some(number) = self.numbers.get(index) {
                queue.queue_index = *number;
            }
        }
        let numbered = account.rx.len().min(self.numbers.len());
        let mut without = account.rx.split_off(numbered);
        add_past(&mut account.rx, &self.past);
        add_past(&mut without, &self.past_without);
        let seen = account.interface_seen.zip(self.past_seen);
        account.interface_seen = seen.map(|(now, past)| now + past);
        Ok((account, without))
    }
}

#[derive(Default)]
struct Joined {
    members: Vec<Member>,
    /// Interface and queue of each receiving queue: `eth1/0`.
    queues: Vec<String>,
}

impl PortControl for Joined {
    fn account(&mut self) -> Result<PortAccount> {
        let mut sum = PortAccount {
            rx_names: self.queues.clone(),
            interface_seen: Some(0),
            ..PortAccount::default()
        };
        let mut without_number = Vec::new();
        for member in &mut self.members {
            let (account, without) = member.account()?;
            sum.rx.extend(account.rx);
            without_number.extend(without);
            let seen = account.interface_seen;
            sum.interface_seen = sum.interface_seen.zip(seen).map(|(a, b)| a + b);
        }
        // As the names: those of a port that was opened again may be behind others.
        sum.rx.sort_by_key(|queue| queue.queue_index);
        sum.rx.extend(without_number);
        Ok(sum)
    }

    fn event(&mut self) -> Option<PortEvent> {
        let of = |member: &mut Member| {
            let event = member.control.event()?;
            Some(PortEvent::Of(member.target.clone(), Box::new(event)))
        };
        self.members.iter_mut().find_map(of)
    }

    fn link_is_up(&mut self) -> Option<bool> {
        let links = self.members.iter_mut();
        // Packets arrive as long as one is up.
        links
            .map(|member| member.control.link_is_up())
            .fold(None, |all, one| match (all, one) {
                (Some(a), Some(b)) => Some(a || b),
                (all, one) => all.or(one),
            })
    }

    fn describe(&self) -> PortDescription {
        let members: Vec<PortDescription> = self
            .members
            .iter()
            .map(|member| member.control.describe())
            .collect();
        let first = members.first().cloned().unwrap_or_default();
        let targets: Vec<&str> = members.iter().map(|text| text.target.as_str()).collect();
        let mut facts = first.facts;
        // Facts common to all are those of the joined port.
        facts.retain(|fact| members.iter().all(|text| text.facts.contains(fact)));
        let is_live = members.iter().any(|text| text.intake == Intake::Live);
        PortDescription {
            scheme: match members.iter().all(|text| text.scheme == first.scheme) {
                true => first.scheme,
                false => "several",
            },
            target: targets.join(", "),
            link_type: first.link_type,
            intake: match is_live {
                true => Intake::Live,
                false => Intake::Waiting,
            },
            facts,
            memory_len: members.iter().map(|text| text.memory_len).sum(),
            interfaces: members.into_iter().map(only_interface).collect(),
        }
    }

    fn set_filter(&mut self, filter: Option<&Program>) -> Result<bool> {
        let types: BTreeSet<u16> = self
            .members
            .iter()
            .map(|member| member.control.describe().link_type)
            .collect();
        if types.len() > 1 {
            let why =
                "the ports have several link types, and one filter program cannot serve them all";
            return Err(Error::new(
                ErrorKind::Unsupported,
                "replace the filter",
                why,
            ));
        }
        let mut replaced = true;
        for member in &mut self.members {
            replaced &= member.control.set_filter(filter)?;
        }
        Ok(replaced)
    }

    fn rejoin(&mut self, number: u16, port: Port) -> Result<Vec<RxQueue>> {
        let text = port.control.describe();
        let refuse = |why: String| {
            let what = format!("open {:?} again", port.name);
            Err(Error::new(ErrorKind::Unsupported, what, why))
        };
        let Some(member) = self.members.get_mut(usize::from(number)) else {
            return refuse(format!("there is no port {number}"));
        };
        if text.interfaces.len() > 1 {
            return refuse("it has several interfaces".into());
        }
        let before = member.control.describe();
        if before.link_type != text.link_type {
            let [before, now] = [before.link_type, text.link_type];
            return refuse(format!("its link type was {before} and is {now} now"));
        }
        let (past, without) = match member.account() {
            Ok(accounts) => accounts,
            Err(error) => {
                return refuse(format!("its counts so far are unknown: {}", error.why()));
            }
        };
        member.past = past.rx;
        member.past_without = without;
        member.past_seen = past.interface_seen;
        member.control = port.control;
        Ok(member.number(port.rx, number, &mut self.queues))
    }

    fn stop(&mut self) -> Result<()> {
        // Stop all of them, even if one fails.
        let results: Vec<Result<()>> = self
            .members
            .iter_mut()
            .map(|member| member.control.stop())
            .collect();
        results.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::PortOptions;
    use crate::tx::TxQueue;

    fn open(name: &str) -> (Port, TxQueue) {
        let mut port = crate::open(&format!("memory:{name}"), &PortOptions::default()).unwrap();
        let tx = port.tx.remove(0);
        (port, tx)
    }

    /// Sends packets, and receives them.
    fn pass(tx: &mut TxQueue, rx: &mut RxQueue, count: usize) {
        let mut batch = tx.reserve(count).unwrap();
        for _ in 0..count {
            assert!(batch.write(&[7; 60]));
        }
        batch.submit().unwrap();
        tx.flush().unwrap();
        let batch = rx.receive().unwrap();
        assert_eq!(batch.len(), count);
        assert!(batch.iter().all(|packet| packet.interface_index() == 1));
    }

    #[test]
    fn a_port_that_was_opened_again_continues_the_old_one() {
        let ((a, _), (b, mut tx)) = (open("a"), open("b"));
        let mut all = join(vec![a, b]).unwrap();
        let mut old = all.rx.remove(1);
        pass(&mut tx, &mut old, 3);
        drop((tx, old));
        for round in 1..3_u64 {
            let (again, mut tx) = open("b");
            let mut queues = all.control.rejoin(1, again).unwrap();
            assert_eq!((queues.len(), queues[0].queue_index()), (1, 1));
            pass(&mut tx, &mut queues[0], 2);
            let account = all.control.account().unwrap();
            assert_eq!(account.rx_names, ["a/0", "b/0"]);
            let queue = account.rx[1];
            assert_eq!((queue.queue_index, queue.delivered), (1, 3 + 2 * round));
            assert_eq!((queue.seen, queue.imbalance()), (3 + 2 * round, 0));
            assert_eq!(account.rx[0].delivered, 0);
        }
        assert!(all.control.rejoin(2, open("c").0).is_err(), "no such port");
        let mut single = open("d").0;
        assert!(single.control.rejoin(0, open("d").0).is_err());
    }

    #[test]
    fn queues_keep_what_was_counted_before() {
        let row = |queue_index, seen| QueueAccount {
            queue_index,
            seen,
            ..QueueAccount::default()
        };
        let mut queues = vec![row(2, 5)];
        add_past(&mut queues, &[row(2, 7), row(3, 1)]);
        assert_eq!(queues, [row(2, 12), row(3, 1)]);
    }
}
