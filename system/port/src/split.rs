//! The sending queues of a port that receives as well, as a port of their own: for programs in
//! which other threads send than those that receive, and know nothing of each other.

use std::sync::Arc;

use sys::Result;

use crate::account::{PortAccount, TxAccount, TxCounters};
use crate::control::{PortControl, PortDescription, PortEvent};
use crate::port::Port;

/// The control side of the sending queues. Events and the interface's counters stay with the port
/// that receives.
struct Sending {
    description: PortDescription,
    queues: Vec<(u32, Arc<TxCounters>)>,
}

impl Port {
    /// Takes the sending queues out of the port. It stays open for as long as both live.
    #[must_use]
    pub fn split_sending(&mut self) -> Port {
        let tx = std::mem::take(&mut self.tx);
        let queues = tx
            .iter()
            .map(|queue| (queue.queue_index(), queue.counters().clone()));
        Port {
            name: self.name.clone(),
            rx: Vec::new(),
            control: Box::new(Sending {
                description: self.control.describe(),
                queues: queues.collect(),
            }),
            tx,
            capabilities: self.capabilities,
        }
    }
}

impl PortControl for Sending {
    fn account(&mut self) -> Result<PortAccount> {
        let account = |(queue_index, counters): &(u32, Arc<TxCounters>)| TxAccount {
            queue_index: *queue_index,
            sent: counters.sent.get(),
            sent_bytes: counters.sent_bytes.get(),
            failed: counters.failed.get(),
            copied: counters.copied.get(),
        };
        Ok(PortAccount {
            tx: self.queues.iter().map(account).collect(),
            ..PortAccount::default()
        })
    }

    fn event(&mut self) -> Option<PortEvent> {
        None
    }

    fn describe(&self) -> PortDescription {
        self.description.clone()
    }

    fn stop(&mut self) -> Result<()> {
        Ok(())
    }
}
