//! Resolves MAC addresses of on-link targets by ARP or Neighbor Discovery: two requests each, at
//! the scan's rate. The replies are received by a tap, so the host still gets them.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use ::scan::{Solicitor, Targets, neighbour};
use port::{Direction, Port, PortOptions, RxQueue, TxBatch, TxQueue};
use sys::Result;
use traffic::{Pace, Pacer, Rate};
use wire::Mac;

use super::Local;
use super::card::OwnCard;
use super::respond::{self, Replies, Responder};
use crate::send::{Attend, Limits, Next, Source, send};
use crate::{Stop, filter};

/// Requests per target.
const ROUNDS: u128 = 2;
/// How long to wait for the last answers.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// Minimum rate of requests, in packets per second: there is one packet per target, on the local
/// link.
const RATE_MIN: f64 = 500.0;

/// Requests to all targets that have not answered, in rounds.
struct Requests<'a> {
    solicitor: Solicitor,
    targets: &'a Targets,
    next: u128,
    /// Replies to requests of others, on a card.
    replies: Option<&'a Replies>,
}

impl Requests<'_> {
    fn addr(&self) -> IpAddr {
        self.targets.addr(self.next % self.targets.count())
    }
}

impl Source for Requests<'_> {
    fn attend(&mut self, tx: &mut TxQueue) -> Result<Attend> {
        let Some(replies) = self.replies else {
            return Ok(Attend::GoOn {
                within_ns: u64::MAX,
            });
        };
        replies.send(tx)?;
        Ok(Attend::GoOn {
            within_ns: respond::WITHIN_NS,
        })
    }

    fn next(&mut self) -> Result<Next> {
        if self.next >= self.targets.count() * ROUNDS {
            return Ok(Next::End);
        }
        Ok(Next::Packet {
            len: Solicitor::len(self.addr()),
            time_ns: 0,
            again: false,
        })
    }

    fn put(&mut self, batch: &mut TxBatch<'_>) -> bool {
        let addr = self.addr();
        let written = batch
            .buffer()
            .and_then(|buffer| self.solicitor.write(addr, buffer));
        if let Some(len) = written {
            batch.advance(len);
            self.next += 1;
        }
        written.is_some()
    }
}

/// The targets that answered with a MAC address on this link.
pub(super) fn neighbours(
    local: &Local,
    targets: &Targets,
    rate: &Rate,
    stop: &Stop,
) -> Result<HashMap<IpAddr, Mac>> {
    let options = PortOptions {
        direction: Direction::Both,
        filter_source: Some(filter::source("arp or (icmp6 and ip6[40] = 136)")),
        outgoing: false,
        ..PortOptions::default()
    };
    let mut port = port::open(&format!("afpacket:{}", local.name), &options)?;
    resolve(local, (&mut port, None), targets, rate, stop)
}

/// As [`neighbours`], on a card that is open, by which requests of others are answered meanwhile.
pub(super) fn on_card(
    local: &Local,
    (port, own): (&mut Port, &OwnCard),
    targets: &Targets,
    rate: &Rate,
    stop: &Stop,
) -> Result<HashMap<IpAddr, Mac>> {
    match targets.count() {
        0 => Ok(HashMap::new()),
        _ => resolve(local, (port, Some(own)), targets, rate, stop),
    }
}

fn resolve(
    local: &Local,
    (port, own): (&mut Port, Option<&OwnCard>),
    targets: &Targets,
    rate: &Rate,
    stop: &Stop,
) -> Result<HashMap<IpAddr, Mac>> {
    let rate = match rate {
        Rate::Packets(pps) => Rate::Packets(pps.max(RATE_MIN)),
        bits @ Rate::Bits(_) => *bits,
    };
    let mut pacer = Pacer::new(Pace::Rate {
        rate,
        on_wire: false,
    });
    let mut requests = Requests {
        solicitor: Solicitor {
            source: local.source,
            mac: local.mac(),
        },
        targets,
        next: 0,
        replies: own.and_then(|own| own.replies.as_ref()),
    };
    let sent = Stop::new();
    let Port { tx, rx, .. } = port;
    std::thread::scope(|scope| {
        let (sent, responder) = (&sent, own.map(|own| &own.responder));
        let listen = |rx| scope.spawn(move || listen(rx, targets, sent, responder));
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
    responder: Option<&Responder>,
) -> Result<HashMap<IpAddr, Mac>> {
    let mut found = HashMap::new();
    let mut until: Option<Instant> = None;
    while until.is_none_or(|until| Instant::now() < until) {
        if until.is_none() && sent.is_set() {
            until = Some(Instant::now() + ANSWER_MAX);
        }
        let batch = rx.receive()?;
        let is_idle = batch.is_empty();
        for packet in batch.iter() {
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
