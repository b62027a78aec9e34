//! Several live ports as one: their queues stay separate, are numbered consecutively over all
//! ports, and each port is an interface.

use std::collections::BTreeSet;

use bpf::cbpf::Program;
use sys::{Error, ErrorKind, Result};

use crate::account::PortAccount;
use crate::control::{Capabilities, Intake, PortControl, PortDescription, PortEvent};
use crate::port::Port;

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
        let first_queue = rx.len() as u32;
        for (index, mut queue) in port.rx.into_iter().enumerate() {
            joined
                .queues
                .push(format!("{}/{}", text.target, queue.queue_index()));
            queue.number(first_queue + index as u32, interface, &text.target);
            rx.push(queue);
        }
        capabilities = Some(match capabilities {
            None => port.capabilities,
            Some(before) => both(before, port.capabilities),
        });
        names.push(port.name);
        joined.members.push(Member {
            control: port.control,
            target: text.target,
            first_queue,
        });
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
    first_queue: u32,
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
        for member in &mut self.members {
            let account = member.control.account()?;
            for (index, mut queue) in account.rx.into_iter().enumerate() {
                queue.queue_index = member.first_queue + index as u32;
                sum.rx.push(queue);
            }
            let seen = account.interface_seen;
            sum.interface_seen = sum.interface_seen.zip(seen).map(|(a, b)| a + b);
        }
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
