//! The connections that read banners, on a sending thread: received segments come in through a
//! channel, and banners go out through another one.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, channel};
use std::time::{Duration, Instant};

use ::scan::grab::{Banner, BannerGrabber, GrabCounts};

use super::now;
use super::run::Event;
use super::transmit::Live;

/// Maximum number of batches of received segments handled before the next packet is sent.
const INBOX_MAX: usize = 64;

/// Received segments, each preceded by its length in 16 bits.
#[derive(Default)]
pub struct Segments(Vec<u8>);

impl Segments {
    /// Adds a packet; skips one longer than any Ethernet frame.
    pub fn push(&mut self, packet: &[u8]) {
        if let Ok(len) = u16::try_from(packet.len()) {
            self.0.extend(len.to_ne_bytes());
            self.0.extend(packet);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = self.0.as_slice();
        std::iter::from_fn(move || {
            let (len, behind) = rest.split_first_chunk::<2>()?;
            let (packet, behind) = behind.split_at_checked(u16::from_ne_bytes(*len).into())?;
            rest = behind;
            Some(packet)
        })
    }
}

/// The connections that read banners.
pub struct BannerReader<'p> {
    pub(super) grabber: BannerGrabber<'p>,
    inbox: Receiver<Segments>,
    events: SyncSender<Event>,
    live: &'p Live,
    began: Instant,
    /// Time without a link, which does not count, and when the link went down.
    paused: Duration,
    /// As above.
    paused_at: Option<Instant>,
}

impl<'p> BannerReader<'p> {
    pub fn new(
        grabber: BannerGrabber<'p>,
        inbox: Receiver<Segments>,
        (events, live): (SyncSender<Event>, &'p Live),
    ) -> Self {
        Self {
            grabber,
            inbox,
            events,
            live,
            began: Instant::now(),
            paused: Duration::ZERO,
            paused_at: None,
        }
    }

    pub fn counted(&self) -> GrabCounts {
        *self.grabber.counted()
    }

    fn now_ns(&self) -> u64 {
        let now = self.paused_at.unwrap_or_else(Instant::now);
        (now.duration_since(self.began).saturating_sub(self.paused)).as_nanos() as u64
    }

    /// Stops or restarts the clock of the connections: no timer expires without a link.
    pub(super) fn pause(&mut self, is_paused: bool) {
        if is_paused {
            self.paused_at.get_or_insert_with(Instant::now);
        } else if let Some(since) = self.paused_at.take() {
            self.paused += since.elapsed();
        }
    }

    /// Handles received segments and expired timers.
    pub(super) fn work(&mut self) {
        for _ in 0..INBOX_MAX {
            match self.inbox.try_recv() {
                Ok(segments) => self.take(&segments),
                Err(_) => break,
            }
        }
        let now_ns = self.now_ns();
        let report = &mut reporter(&self.events);
        self.grabber.tick(now_ns, report);
    }

    fn take(&mut self, segments: &Segments) {
        let now_ns = self.now_ns();
        let report = &mut reporter(&self.events);
        for packet in segments.iter() {
            self.grabber.receive(packet, now_ns, report);
        }
        let received = self.grabber.counted().received;
        self.live.talked.store(received, Ordering::Relaxed);
    }

    /// Closes all connections early; only their resets remain to be sent.
    pub(super) fn close_all(&mut self) {
        self.grabber.close_all(&mut reporter(&self.events));
    }

    /// Takes no more segments: receivers that wait for room in the inbox, or would, go on.
    pub(super) fn hang_up(&mut self) {
        self.inbox = channel().1;
    }

    /// Whether all connections are closed.
    pub(super) fn is_over(&self) -> bool {
        self.grabber.open_count() == 0
    }

    /// Waits for segments, or until a timer expires.
    pub(super) fn wait(&mut self, timeout: Duration) {
        let due_ns = self.grabber.due_ns().unwrap_or(u64::MAX);
        let until_due = Duration::from_nanos(due_ns.saturating_sub(self.now_ns()));
        match self.inbox.recv_timeout(timeout.min(until_due)) {
            Ok(segments) => self.take(&segments),
            Err(RecvTimeoutError::Timeout) => {}
            // All receivers have ended; timeouts still count.
            Err(RecvTimeoutError::Disconnected) => std::thread::sleep(timeout.min(until_due)),
        }
    }
}

/// Passes banners to the thread that reports them; drops them if it has ended.
fn reporter(events: &SyncSender<Event>) -> impl FnMut(Banner) {
    |banner| {
        let event = Event::Banner(Box::new(banner), now());
        let _ = events.send(event);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use ::scan::grab::{GrabOptions, Identity};
    use ::scan::{Cookies, NextHops, Order, Plan, Ports, Shard, Source, Targets, parse_range};
    use wire::Mac;

    use super::*;

    #[test]
    fn receivers_do_not_wait_for_a_reader_that_has_ended() {
        let source = Source {
            ipv4: Some([198, 51, 100, 7].into()),
            ipv6: None,
            ports: (61_000, 10),
        };
        let order = Order {
            seed: 1,
            shard: Shard::WHOLE,
            attempts: 1,
            block: 1,
        };
        let targets = Targets::new(vec![parse_range("192.0.2.0/24").unwrap()], Vec::new());
        let ports = Ports::tcp("80").unwrap();
        let plan = Plan::new(targets.unwrap(), ports, source, order).unwrap();
        let (cookies, hops) = (Cookies::new([3; 16], source), NextHops::default());
        let options = GrabOptions {
            connection_count_max: 1,
            timeout_ns: 1,
            identity: Identity {
                random: [7; 32],
                user_agent: Identity::USER_AGENT.into(),
                contact: None,
            },
            keeps_certificates: false,
            names: Default::default(),
            hellos: Vec::new(),
        };
        let grabber = BannerGrabber::new(&plan, &cookies, &hops, (Mac([2; 6]), 64), options);
        let (give, inbox) = sync_channel(1);
        let (events, _answers) = sync_channel(1);
        let live = Live::new(1);
        let mut reader = BannerReader::new(grabber, inbox, (events, &live));
        give.send(Segments::default()).unwrap();
        let (done, result) = channel();
        // The inbox is full: it waits.
        std::thread::spawn(move || {
            let _ = done.send(give.send(Segments::default()).is_err());
        });
        reader.hang_up();
        assert_eq!(result.recv_timeout(Duration::from_secs(60)), Ok(true));
    }
}
