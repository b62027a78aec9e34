//! The control side: accounts, events, description.

use std::collections::VecDeque;
use std::sync::Arc;

use bpf::cbpf::Program;
use sys::link::{Link, LinkEvent, LinkMonitor};
use sys::netlink::Socket;
use sys::{ErrorKind, Result};

use crate::account::{PortAccount, TxAccount, TxCounters};
use crate::control::{Intake, PortControl, PortDescription, PortEvent};

use super::any;
use super::filter::{SocketFilter, runs_in_kernel};
use super::listen::Source;

pub(super) struct Control {
    /// The interface as last reported.
    link: Link,
    /// The interface's own counts of packets received and sent when the port was opened.
    counted_before: [u64; 2],
    /// Both are in the namespace of the thread that opened the port.
    route: Socket,
    monitor: LinkMonitor,
    is_gone: bool,
    events: VecDeque<PortEvent>,
    sources: Vec<Source>,
    filter: Option<SocketFilter>,
    /// Whether the queues filter as well, since a filter was set that the kernel cannot run.
    pub(super) filters_in_user: bool,
    /// Whether packets have cooked headers, which the kernel's filters do not see.
    is_cooked: bool,
    tx: Vec<Arc<TxCounters>>,
    description: PortDescription,
}

impl Control {
    /// Starts listening before the first packet can arrive, so that no event is missed.
    pub(super) fn new(link: Link) -> Result<Self> {
        let monitor = LinkMonitor::open()?;
        let mut route = Socket::route()?;
        let link = match link.index {
            // All interfaces.
            0 => link,
            index => Link::ask_by_index(&mut route, index)?,
        };
        Ok(Self {
            counted_before: [link.stats.rx_packets, link.stats.tx_packets],
            link,
            route,
            monitor,
            is_gone: false,
            events: VecDeque::new(),
            sources: Vec::new(),
            filter: None,
            filters_in_user: false,
            is_cooked: false,
            tx: Vec::new(),
            description: PortDescription::default(),
        })
    }

    /// Sets the queues and their description.
    pub(super) fn of(
        mut self,
        sources: Vec<Source>,
        filter: Option<SocketFilter>,
        tx: Vec<Arc<TxCounters>>,
        link_type: u16,
        facts: Vec<(&'static str, String)>,
        memory_len: usize,
    ) -> Self {
        self.sources = sources;
        self.is_cooked = link_type == any::LINK_TYPE;
        self.filter = filter;
        self.tx = tx;
        self.description = PortDescription {
            intake: Intake::Live,
            scheme: "afpacket",
            target: self.link.name.clone(),
            link_type,
            facts,
            memory_len,
            interfaces: vec![(link_type, self.link.name.clone())],
        };
        self
    }

    /// Reports differences from the previous state.
    fn changed(&mut self, now: Link) {
        let before = std::mem::replace(&mut self.link, now);
        match (before.is_running(), self.link.is_running()) {
            (true, false) => self.events.push_back(PortEvent::LinkDown),
            (false, true) => self.events.push_back(PortEvent::LinkUp),
            // Down and up again since the previous event: the kernel combines them.
            (true, true) if before.carrier_downs != self.link.carrier_downs => {
                let both = [PortEvent::LinkDown, PortEvent::LinkUp];
                self.events.extend(both);
            }
            _ => {}
        }
        if before.mtu != self.link.mtu {
            let mtu = self.link.mtu;
            self.events.push_back(PortEvent::MtuChanged(mtu));
        }
    }

    fn gone(&mut self) {
        if !std::mem::replace(&mut self.is_gone, true) {
            self.events.push_back(PortEvent::DeviceGone);
        }
    }

    /// Queries the state after events were lost.
    fn ask(&mut self) {
        if self.link.index == 0 {
            return;
        }
        match Link::ask_by_index(&mut self.route, self.link.index) {
            Ok(now) => self.changed(now),
            Err(error) if error.kind() == ErrorKind::NotFound => self.gone(),
            Err(_) => {}
        }
    }

    /// Reads events until there is one about this interface.
    fn listen(&mut self) {
        while self.events.is_empty() && !self.is_gone {
            match self.monitor.event() {
                Ok(Some(LinkEvent::Changed(link))) if link.index == self.link.index => {
                    self.changed(*link);
                }
                Ok(Some(LinkEvent::Removed(index))) if index == self.link.index => self.gone(),
                Ok(Some(LinkEvent::Overrun)) => self.ask(),
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return,
            }
        }
    }
}

impl PortControl for Control {
    fn account(&mut self) -> Result<PortAccount> {
        let rx = (0..)
            .zip(&self.sources)
            .map(|(queue_index, source)| source.account(queue_index))
            .collect::<Result<_>>()?;
        let tx = (0..)
            .zip(&self.tx)
            .map(|(queue_index, counters)| TxAccount {
                queue_index,
                sent: counters.sent.get(),
                sent_bytes: counters.sent_bytes.get(),
                failed: counters.failed.get(),
                copied: counters.copied.get(),
            })
            .collect();
        let link = Link::ask_by_index(&mut self.route, self.link.index).ok();
        let since = |now: u64, which: usize| now.saturating_sub(self.counted_before[which]);
        Ok(PortAccount {
            rx,
            tx,
            interface_seen: link.as_ref().map(|link| since(link.stats.rx_packets, 0)),
            interface_sent: link.as_ref().map(|link| since(link.stats.tx_packets, 1)),
            rx_names: Vec::new(),
        })
    }

    fn event(&mut self) -> Option<PortEvent> {
        self.listen();
        self.events.pop_front()
    }

    fn describe(&self) -> PortDescription {
        let mut description = self.description.clone();
        let freezes = self.sources.iter().filter_map(Source::freezes);
        if let Some(freezes) = freezes.reduce(|sum, more| sum + more) {
            let fact = ("ring_freezes", freezes.to_string());
            description.facts.push(fact);
        }
        description
    }

    fn set_filter(&mut self, filter: Option<&Program>) -> Result<bool> {
        // Of cooked packets the kernel filters none: it sees no cooked header.
        let is_cooked = self.is_cooked;
        let in_kernel = |program: &&Program| !is_cooked && runs_in_kernel(program);
        self.filters_in_user |= is_cooked || filter.is_some_and(|program| !in_kernel(&program));
        if let Some(now) = &self.filter {
            let new = now.with_program(filter.filter(in_kernel));
            self.sources
                .iter()
                .try_for_each(|source| source.replace(&new))?;
            self.filter = Some(new);
        }
        // Queues that once had their own filter get the new one as well.
        Ok(!self.filters_in_user)
    }

    fn stop(&mut self) -> Result<()> {
        for source in &self.sources {
            source.stop()?;
        }
        sys::packet::wait_for_readers();
        Ok(())
    }
}
