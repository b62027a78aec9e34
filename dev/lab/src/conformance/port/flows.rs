//! Wires of emulated cards: which flow is received on which queue, and which packets are still in
//! flight.
//!
//! QEMU keeps packets for a card that has no room for them, and the host keeps them for a TAP
//! interface whose guest does not read. The next user of the card gets them. So after a line that
//! was closed before everything had arrived there is a sweep, or the next line would see its
//! packets.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use super::line::{LIMIT, Line};
use super::{Rig, evidence};
use crate::packet::number_of;

/// The number in the packets that probe the queues.
const PROBE: u64 = u64::MAX - 1;

/// Source ports tried if there are several queues.
const PORTS: std::ops::Range<u16> = 4000..4032;

/// Packets sent that never arrived.
#[derive(Debug)]
struct Missing(String);

impl std::error::Error for Missing {}

impl std::fmt::Display for Missing {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.0)
    }
}

/// State of a rig's wire.
struct Wire {
    /// For each queue a source port whose packets it receives.
    ports: Vec<u16>,
    /// Whether no packet is in flight.
    is_empty: bool,
}

fn wires() -> MutexGuard<'static, BTreeMap<&'static str, Wire>> {
    static WIRES: Mutex<BTreeMap<&'static str, Wire>> = Mutex::new(BTreeMap::new());
    WIRES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Declares that no packet is in flight any more.
pub(super) fn none_under_way(rig: &Rig) {
    if let Some(wire) = wires().get_mut(rig.name) {
        wire.is_empty = true;
    }
}

/// For each queue the source port of a flow that it receives; no packet is in flight when this
/// returns. From then on packets may be, until [`none_under_way`].
pub(super) fn ready(line: &mut Line) -> Result<Vec<u16>> {
    let rig = line.rig;
    if let Some(wire) = wires().get_mut(rig.name)
        && std::mem::take(&mut wire.is_empty)
    {
        return Ok(wire.ports.clone());
    }
    let ports = line.with_plain_ports(sweep);
    if let Err(error) = &ports
        && error.is::<Missing>()
    {
        evidence::report(line, error);
    }
    let ports = ports?;
    let is_empty = false;
    let known = Wire {
        ports: ports.clone(),
        is_empty,
    };
    wires().insert(rig.name, known);
    Ok(ports)
}

/// Sends a packet of each flow and receives until all of them have arrived: they are the last on
/// each path.
fn sweep(line: &mut Line) -> Result<Vec<u16>> {
    let queues = line.rig.queues as usize;
    let tried = match queues {
        1 => PORTS.start..PORTS.start + 1,
        _ => PORTS,
    };
    for port in tried.clone() {
        line.plan.source_port = port;
        let packet = line.plan.build(PROBE, 60);
        line.send(&[packet])?;
    }
    let mut queue_of = BTreeMap::new();
    let (end, mut others) = (Instant::now() + LIMIT, 0);
    while queue_of.len() < tried.len() {
        if Instant::now() >= end {
            let receiver = line.account().map_err(|error| error.to_string());
            let sender = line.tx_account().map_err(|error| error.to_string());
            bail!(Missing(format!(
                "of flows {tried:?} only these came: {queue_of:?}, and {others} other packets; \
                 {receiver:?}, {sender:?}"
            )));
        }
        line.receive_on_all(1, Duration::from_millis(100), |queue, packet| {
            let bytes = packet.bytes();
            if number_of(bytes) == Ok(PROBE) {
                // After an Ethernet header and an IPv4 header without options.
                queue_of.insert(u16::from_be_bytes([bytes[34], bytes[35]]), queue);
            } else {
                others += 1;
            }
            Ok(())
        })?;
    }
    let port_of = |queue| queue_of.iter().find(|(_, at)| **at == queue);
    let found: Vec<u16> = (0..queues)
        .filter_map(|queue| Some(*port_of(queue)?.0))
        .collect();
    ensure!(
        found.len() == queues,
        "{queues} queues, but the flows are spread like this: {queue_of:?}"
    );
    Ok(found)
}
