//! The control side: the account, events, description, and the end of the intake.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use bpf::cbpf::Program;
use sys::link::{Link, LinkEvent, LinkMonitor, Promiscuous};
use sys::netlink::Socket;
use sys::{Error, ErrorKind, Result};
use xdp::RedirectCounters;

use super::attach::Attachment;
use super::socket::Shared;
use crate::account::{DropReason, PortAccount, QueueAccount, RxCounters, TxAccount, TxCounters};
use crate::control::{PortControl, PortDescription, PortEvent};

/// Maximum number of counter readings after the program was detached, 1 ms apart, until two are
/// equal: a processor may still be running the program.
const SETTLE_LOOKS_MAX: u32 = 50;

/// Maximum number of pending events; the oldest are dropped.
const EVENTS_MAX: usize = 256;

/// The control side's view of a queue.
pub(super) struct QueueView {
    pub shared: Arc<Shared>,
    pub rx: Option<Arc<RxCounters>>,
    pub tx: Option<Arc<TxCounters>>,
}

/// Growth of a counter that some drivers reset to 0 (when a program or a socket is attached, or
/// when the link comes up).
#[derive(Debug)]
pub(super) struct Growth {
    last: u64,
    sum: u64,
}

impl Growth {
    pub(super) fn since(value: u64) -> Self {
        Self {
            last: value,
            sum: 0,
        }
    }

    fn update(&mut self, value: u64) -> u64 {
        self.sum += value.checked_sub(self.last).unwrap_or(value);
        self.last = value;
        self.sum
    }
}

pub(super) struct Control {
    pub queues: Vec<QueueView>,
    pub attachment: Option<Arc<Attachment>>,
    pub description: PortDescription,
    /// Netlink socket in the namespace where the port was opened.
    pub route: Socket,
    pub monitor: LinkMonitor,
    /// The interface as last seen.
    pub link: Link,
    /// Packets that it has counted as received since the port was opened.
    pub interface_seen: Growth,
    /// Packets that it has counted as sent.
    pub interface_sent: Growth,
    pub waiting: VecDeque<PortEvent>,
    /// Whether another process detached the program from the interface and it could not be attached
    /// again.
    pub is_detached: bool,
    /// Kept for as long as the port is open.
    #[allow(dead_code, reason = "it works by being there")]
    pub promiscuous: Option<Promiscuous>,
}

impl Control {
    fn queue_account(&self, view: &QueueView) -> Result<Option<QueueAccount>> {
        let Some(rx) = &view.rx else {
            return Ok(None);
        };
        // The reader's counters first and the program's last: packets in transit appear as missing
        // for a moment, never as counted twice.
        let mut queue = QueueAccount {
            queue_index: view.shared.spec.queue_index,
            delivered: rx.delivered.get(),
            delivered_bytes: rx.delivered_bytes.get(),
            ..QueueAccount::default()
        };
        let mut drop = |reason: DropReason, count| queue.dropped[reason as usize] += count;
        drop(DropReason::Filter, rx.filtered.get());
        drop(DropReason::Invalid, rx.invalid.get());
        drop(
            DropReason::Closed,
            view.shared.closed.load(Ordering::Relaxed),
        );
        let stats = view.shared.socket.statistics()?;
        drop(DropReason::RingFull, stats.rx_ring_full);
        // In copy mode a packet without a frame is counted in both counters. In zero-copy the
        // second one counts the driver's attempts, and the packets never reached the program.
        let without_frame = if view.shared.spec.multi_buffer {
            stats.rx_dropped
        } else {
            stats.rx_dropped.min(stats.rx_fill_ring_empty)
        };
        drop(DropReason::FillEmpty, without_frame);
        drop(DropReason::TooLong, stats.rx_dropped - without_frame);
        if queue.dropped[DropReason::Closed as usize] == 0 {
            queue.in_flight = view.shared.rx_waiting();
        }
        match &self.attachment {
            Some(attachment) => {
                let program = attachment.redirect.counters(queue.queue_index)?;
                add_program(&mut queue, &program);
            }
            // The caller's program counts; this is what reached the socket.
            None => queue.seen = queue.delivered + queue.dropped_total() + queue.in_flight,
        }
        Ok(Some(queue))
    }

    pub(super) fn tx_account(view: &QueueView) -> Result<Option<TxAccount>> {
        let Some(tx) = &view.tx else { return Ok(None) };
        // Those that the kernel found invalid were never sent; the queue's own checks leave none.
        let wrong = view.shared.socket.statistics()?.tx_invalid_descriptors;
        Ok(Some(TxAccount {
            queue_index: view.shared.spec.queue_index,
            sent: tx.sent.get().saturating_sub(wrong),
            sent_bytes: tx.sent_bytes.get(),
            failed: tx.failed.get() + wrong,
            copied: tx.copied.get(),
        }))
    }

    /// Reads the interface's own counters of received and sent packets. Also called before and
    /// after operations that may reset them.
    pub(super) fn look_at_interface(&mut self) -> Option<[u64; 2]> {
        self.read_events();
        let link = Link::ask_by_index(&mut self.route, self.link.index).ok()?;
        Some(self.count(&link))
    }

    fn count(&mut self, link: &Link) -> [u64; 2] {
        [
            self.interface_seen.update(link.stats.rx_packets),
            self.interface_sent.update(link.stats.tx_packets),
        ]
    }

    /// Compares the interface with its previous state.
    fn notice(&mut self, link: Link) {
        self.count(&link);
        let was = &self.link;
        if was.is_running() != link.is_running() {
            let event = match link.is_running() {
                true => PortEvent::LinkUp,
                false => PortEvent::LinkDown,
            };
            keep(&mut self.waiting, event);
        } else if link.is_running() && was.carrier_downs != link.carrier_downs {
            // Down and up again since the previous event: the kernel combines them.
            keep(&mut self.waiting, PortEvent::LinkDown);
            keep(&mut self.waiting, PortEvent::LinkUp);
        }
        if was.mtu != link.mtu {
            keep(&mut self.waiting, PortEvent::MtuChanged(link.mtu));
        }
        self.link = link;
    }

    fn notice_gone(&mut self) {
        if self.waiting.back() == Some(&PortEvent::DeviceGone) {
            return;
        }
        for queue in &self.queues {
            queue.shared.set_gone();
        }
        keep(&mut self.waiting, PortEvent::DeviceGone);
    }

    fn read_events(&mut self) {
        // Limits what is read at once; the rest waits in the socket.
        for _ in 0..256 {
            match self.monitor.event() {
                Ok(Some(LinkEvent::Changed(link))) if link.index == self.link.index => {
                    self.notice(*link);
                }
                Ok(Some(LinkEvent::Removed(index))) if index == self.link.index => {
                    self.notice_gone();
                }
                Ok(Some(LinkEvent::Overrun)) => {
                    match Link::ask_by_index(&mut self.route, self.link.index) {
                        Ok(link) => self.notice(link),
                        Err(_) => self.notice_gone(),
                    }
                }
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return,
            }
        }
    }

    /// Checks whether the program is still attached, and attaches it again if another process
    /// detached it, unless reception is ending anyway. Without the program the rings stay empty,
    /// with no other indication.
    fn look_at_program(&mut self, is_ending: bool) {
        let Some(attachment) = self.attachment.as_ref().filter(|_| !self.is_detached) else {
            return;
        };
        if !attachment.is_lost() {
            return;
        }
        // An interface that is being removed loses its program first; its own event follows.
        if Link::ask_by_index(&mut self.route, self.link.index).is_err() {
            return;
        }
        let back = match is_ending {
            false => attachment.attach_again(),
            true => {
                let why = "the counters are unknown since then";
                Err(Error::new(ErrorKind::Gone, "receive packets", why))
            }
        };
        match back {
            Ok(()) => keep(&mut self.waiting, PortEvent::Reattached),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => {
                self.is_detached = true;
                for queue in self.queues.iter().filter(|queue| queue.rx.is_some()) {
                    queue.shared.set_detached(error.why());
                }
                let why = error.why().to_owned();
                keep(&mut self.waiting, PortEvent::Detached(why));
            }
        }
    }

    /// All counters that the kernel updates.
    fn counters(&self) -> Vec<RedirectCounters> {
        let Some(attachment) = &self.attachment else {
            return Vec::new();
        };
        (0..attachment.queue_count)
            .filter_map(|index| attachment.redirect.counters(index).ok())
            .collect()
    }
}

/// Keeps an event until it is read; the oldest are dropped, because there may be no reader.
fn keep(waiting: &mut VecDeque<PortEvent>, event: PortEvent) {
    while waiting.len() >= EVENTS_MAX {
        waiting.pop_front();
    }
    waiting.push_back(event);
}

fn add_program(queue: &mut QueueAccount, program: &RedirectCounters) {
    queue.seen = program.seen;
    queue.passed = program.passed_filter + program.passed_no_socket + program.passed_meta;
}

impl PortControl for Control {
    fn account(&mut self) -> Result<PortAccount> {
        self.look_at_program(false);
        let mut account = PortAccount::default();
        for view in &self.queues {
            account.rx.extend(self.queue_account(view)?);
            account.tx.extend(Self::tx_account(view)?);
        }
        // Queues that were not requested: all their packets go to the host.
        if let Some(attachment) = &self.attachment {
            for queue_index in 0..attachment.queue_count {
                if account
                    .rx
                    .iter()
                    .any(|queue| queue.queue_index == queue_index)
                {
                    continue;
                }
                let program = attachment.redirect.counters(queue_index)?;
                if program.seen != 0 {
                    let mut queue = QueueAccount {
                        queue_index,
                        ..QueueAccount::default()
                    };
                    add_program(&mut queue, &program);
                    account.rx.push(queue);
                }
            }
        }
        let counted = self.look_at_interface();
        account.interface_seen = counted.map(|[seen, _]| seen);
        account.interface_sent = counted.map(|[_, sent]| sent);
        Ok(account)
    }

    fn event(&mut self) -> Option<PortEvent> {
        if self.waiting.is_empty() {
            self.read_events();
            self.look_at_program(false);
        }
        self.waiting.pop_front()
    }

    fn describe(&self) -> PortDescription {
        self.description.clone()
    }

    fn set_filter(&mut self, filter: Option<&Program>) -> Result<bool> {
        if let Some(attachment) = &self.attachment {
            attachment.replace_filter(filter)?;
        }
        Ok(true)
    }

    fn stop(&mut self) -> Result<()> {
        self.look_at_interface();
        self.look_at_program(true);
        let Some(attachment) = &self.attachment else {
            return Ok(());
        };
        attachment.detach();
        let mut before = self.counters();
        for _ in 0..SETTLE_LOOKS_MAX {
            thread::sleep(Duration::from_millis(1));
            let now = self.counters();
            if now == before {
                break;
            }
            before = now;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_events_are_dropped() {
        let mut waiting = VecDeque::new();
        for mtu in 0..=EVENTS_MAX as u32 {
            keep(&mut waiting, PortEvent::MtuChanged(mtu));
        }
        assert_eq!(waiting.len(), EVENTS_MAX);
        assert_eq!(waiting[0], PortEvent::MtuChanged(1));
        keep(&mut waiting, PortEvent::Reattached);
        assert_eq!(waiting.len(), EVENTS_MAX);
        assert_eq!(waiting.back(), Some(&PortEvent::Reattached));
    }

    #[test]
    fn a_counter_continues_after_a_reset() {
        let mut growth = Growth::since(100);
        let values = [110, 110, 5, 7, 1].map(|value| growth.update(value));
        assert_eq!(values, [10, 10, 15, 17, 18]);
    }
}
