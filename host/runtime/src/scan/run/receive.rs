//! The receiving threads: each recognizes the answers on one queue.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use ::scan::{Answer, AnswerClassifier, Evidence, neighbour};
use port::{RxBatch, RxQueue};
use sys::Result;
use wire::Timestamp;

use super::super::bare::with_header;
use super::super::record::Tap;
use super::super::respond::Responder;
use super::super::talk::Segments;
use super::super::{Found, now};
use super::Event;
use crate::Stop;
use crate::worker::{self, Engine, Pacing, Verdict};

/// Longer round trips are not reported.
const RTT_MAX_US: u32 = 120_000_000;

/// Recognizes answers on one queue.
pub(super) struct Receiving<'p> {
    pub classifier: AnswerClassifier<'p>,
    pub events: SyncSender<Event>,
    /// Where TCP segments go, if banners are read.
    pub segments: Option<SyncSender<Segments>>,
    pub received: &'p AtomicU64,
    /// When the prober's clock was 0.
    pub began: Instant,
    /// Room for packets of a device without Ethernet headers, which are put before them.
    pub bare: Option<Vec<u8>>,
    /// Answers requests for our MAC address, if no kernel does.
    pub responder: Option<Responder>,
    /// Records what is received.
    pub tap: Option<Tap>,
}

impl Engine for Receiving<'_> {
    fn batch(&mut self, batch: &mut RxBatch<'_>) -> Result<Verdict> {
        let mut received = batch.len() as u64;
        let time = now();
        let clock_us = clock_us(self.began);
        let mut segments = Segments::default();
        self.record(batch);
        for packet in batch.iter() {
            let bytes = match &mut self.bare {
                Some(room) => with_header(packet.bytes(), room),
                None => packet.bytes(),
            };
            if let Some(responder) = &self.responder
                && responder.take(bytes)
            {
                received -= 1;
                continue;
            }
            // A damaged one counts as unrelated.
            let answer = self.classifier.classify(bytes);
            let answer = answer.filter(|answer| answer.is_intact(bytes));
            // Late replies of neighbours that were resolved on this port.
            if self.responder.is_some() && answer.is_none() && neighbour(bytes).is_some() {
                received -= 1;
                continue;
            }
            if let Some(answer) = answer
                && self
                    .events
                    .send(found(answer, bytes, (time, clock_us)))
                    .is_err()
            {
                self.received.fetch_add(received, Ordering::Relaxed);
                return Ok(Verdict::Finish);
            }
            // Datagrams and ICMP errors that answer probes belong to no connection. A reset may:
            // the acknowledgment of a server that resets at once is that of a closed port.
            let is_segment =
                |answer: Answer| matches!(answer.evidence, Evidence::SynAck | Evidence::Reset);
            if self.segments.is_some() && answer.is_none_or(is_segment) {
                segments.push(bytes);
            }
        }
        self.received.fetch_add(received, Ordering::Relaxed);
        if let Some(to) = &self.segments
            && !segments.is_empty()
        {
            // The sender may have ended; then banners are no longer read.
            let _ = to.send(segments);
        }
        Ok(Verdict::Continue)
    }
}

impl Receiving<'_> {
    /// Records a batch.
    fn record(&mut self, batch: &RxBatch<'_>) {
        if let Some(tap) = &mut self.tap {
            tap.begin();
            batch.iter().for_each(|packet| tap.put(packet.bytes()));
            tap.flush();
        }
    }
}

/// The prober's clock; it wraps.
pub fn clock_us(began: Instant) -> u32 {
    began.elapsed().as_micros() as u32
}

/// An answer with the parts of its packet that are kept.
fn found(answer: Answer, packet: &[u8], (time, clock_us): (Timestamp, u32)) -> Event {
    // The remote end can modify what it sends back.
    let rtt = answer.sent_us.map(|sent| clock_us.wrapping_sub(sent));
    let rtt = rtt.filter(|rtt| *rtt <= RTT_MAX_US);
    Event::Answer(Box::new(Found {
        payload: answer.payload(packet).into(),
        vendor: None,
        answer,
        time,
        rtt: rtt.map(|rtt| Duration::from_micros(rtt.into())),
    }))
}

/// Receives until `ended` is set, and then what is left in the ring.
pub(super) fn receive(rx: &mut RxQueue, engine: &mut Receiving<'_>, ended: &Stop) -> Result<()> {
    worker::run(rx, engine, ended, Pacing::Gather)?;
    worker::drain(rx, engine)
}
