//! Resolves MAC addresses of on-link targets by ARP or Neighbor Discovery: up to two requests each,
//! a second apart, at the scan's rate. The replies are received by a tap, so the host still gets
//! them.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use ::scan::{AddrRange, RangeList, Solicitor, Targets, neighbour};
use port::{Direction, Port, PortOptions, RxQueue, TxBatch, TxQueue};
use sys::Result;
use traffic::{Pace, Pacer, Rate};
use wire::Mac;

use super::Local;
use super::card::OwnCard;
use super::record::{Tap, Taps};
use super::respond::{self, Replies, Responder};
use crate::send::{Attend, Limits, Next, Source, send};
use crate::{Stop, filter};

/// Requests per target: the second goes to those that have not answered the first in time.
const ROUNDS: u32 = 2;
/// How long to wait for the last answers of a round.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// Minimum rate of requests, in packets per second: there is one packet per target, on the local
/// link.
const RATE_MIN: f64 = 500.0;

/// Requests to all of these targets.
struct Requests<'a> {
    solicitor: &'a Solicitor,
    targets: &'a Targets,
    next: u128,
    /// Replies to requests of others, on a card.
    replies: Option<&'a Replies>,
    tap: Option<Tap>,
}

impl Source for Requests<'_> {
    fn attend(&mut self, tx: &mut TxQueue) -> Result<Attend> {
        let Some(replies) = self.replies else {
            return Ok(Attend::GoOn {
                within_ns: u64::MAX,
            });
        };
        replies.send(tx, self.tap.as_mut())?;
        Ok(Attend::GoOn {
            within_ns: respond::WITHIN_NS,
        })
    }

    fn next(&mut self) -> Result<Next> {
        if self.next >= self.targets.count() {
            return Ok(Next::End);
        }
        Ok(Next::Packet {
            len: Solicitor::len(self.targets.addr(self.next)),
            time_ns: 0,
            again: false,
        })
    }

    fn begin_batch(&mut self) {
        if let Some(tap) = &mut self.tap {
            tap.begin();
        }
    }

    fn put(&mut self, batch: &mut TxBatch<'_>) -> bool {
        let addr = self.targets.addr(self.next);
        let Some(buffer) = batch.buffer() else {
            return false;
        };
        let Some(len) = self.solicitor.write(addr, buffer) else {
            return false;
        };
        if let Some(tap) = &mut self.tap {
            tap.put(&buffer[..len]);
        }
        batch.advance(len);
        self.next += 1;
        true
    }
}

/// Opens a port for requests and answers on the interface.
///
/// # Errors
/// As [`port::open`].
pub(super) fn open(local: &Local) -> Result<Port> {
    let options = PortOptions {
        direction: Direction::Both,
        filter_source: Some(filter::source("arp or (icmp6 and ip6[40] = 136)")),
        outgoing: false,
        ..PortOptions::default()
    };
    port::open(&format!("afpacket:{}", local.name), &options)
}

/// A port to send on, what answers requests of others meanwhile if it is a card, and where packets
/// are recorded.
pub(super) type On<'a> = (&'a mut Port, Option<&'a OwnCard>, Option<&'a Taps>);

/// The targets that answered with a MAC address on this link.
pub(super) fn resolve(
    local: &Local,
    (port, own, taps): On<'_>,
    targets: &Targets,
    rate: &Rate,
    stop: &Stop,
) -> Result<HashMap<IpAddr, Mac>> {
    let rate = match rate {
        Rate::Packets(pps) => Rate::Packets(pps.max(RATE_MIN)),
        bits @ Rate::Bits(_) => *bits,
    };
    let solicitor = Solicitor {
        source: local.source,
        mac: local.mac(),
    };
    let mut found = HashMap::new();
    let mut silent = targets.clone();
    for _ in 0..ROUNDS {
        let requests = Requests {
            solicitor: &solicitor,
            targets: &silent,
            next: 0,
            replies: own.and_then(|own| own.replies.as_ref()),
            tap: taps.map(|taps| taps.tap(true)),
        };
        let responder = own.map(|own| &own.responder);
        let more = round(port, requests, (rate, responder, taps), stop)?;
        found.extend(more);
        if found.len() as u128 == targets.count() || stop.is_set() {
            break;
        }
        let answered: RangeList = found.keys().copied().map(AddrRange::single).collect();
        let all: RangeList = targets.ranges().collect();
        silent = Targets::new(all, answered).unwrap_or_default();
    }
    Ok(found)
}

/// Sends one request to each target, and waits for the answers.
fn round(
    Port { tx, rx, .. }: &mut Port,
    mut requests: Requests<'_>,
    (rate, responder, taps): (Rate, Option<&Responder>, Option<&Taps>),
    stop: &Stop,
) -> Result<HashMap<IpAddr, Mac>> {
    let (sent, targets) = (&Stop::new(), requests.targets);
    let mut pacer = Pacer::new(Pace::Rate {
        rate,
        on_wire: false,
    });
    std::thread::scope(|scope| {
        let listen = |rx| {
            let tap = taps.map(|taps| taps.tap(false));
            scope.spawn(move || listen(rx, targets, sent, (responder, tap)))
        };
        let listeners: Vec<_> = rx.iter_mut().map(listen).collect();
        let limits = Limits::default();
        let (_, result) = send(
            &mut tx[0],
            &mut requests,
            &mut pacer,
            &limits,
            stop,
            &mut |_| {},
        );
        sent.set();
        let mut found = HashMap::new();
        let mut heard = Ok(());
        for listener in listeners {
            let ended = listener.join();
            match ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic)) {
                Ok(more) => found.extend(more),
                Err(error) => heard = Err(error),
            }
        }
        result.and(heard).map(|()| found)
    })
}

/// Receives answers until all targets have answered, or the last ones had [`ANSWER_MAX`] to answer.
fn listen(
    rx: &mut RxQueue,
    targets: &Targets,
    sent: &Stop,
    (responder, mut tap): (Option<&Responder>, Option<Tap>),
) -> Result<HashMap<IpAddr, Mac>> {
    let mut found = HashMap::new();
    let mut until: Option<Instant> = None;
    while until.is_none_or(|until| Instant::now() < until) {
        if until.is_none() && sent.is_set() {
            until = Some(Instant::now() + ANSWER_MAX);
        }
        let batch = rx.receive()?;
        let is_idle = batch.is_empty();
        if let Some(tap) = tap.as_mut().filter(|_| !is_idle) {
            tap.begin();
        }
        for packet in batch.iter() {
            if let Some(tap) = &mut tap {
                tap.put(packet.bytes());
            }
            if responder.is_some_and(|responder| responder.take(packet.bytes())) {
                continue;
            }
            if let Some((addr, mac)) = neighbour(packet.bytes())
                && targets.contains(addr)
            {
                found.insert(addr, mac);
            }
        }
        drop(batch);
        if until.is_some() && found.len() as u128 == targets.count() {
            break;
        }
        if is_idle {
            rx.wait(Duration::from_millis(20))?;
        }
    }
    Ok(found)
}
