//! Kafka, through the system's librdkafka: one message per record.
//!
//! The producer is idempotent: during its lifetime a message is in the topic exactly once, and in
//! order in its partition, however often it was sent. A message counts as exported once the brokers
//! have acknowledged it. The library has its own bounded queue, connects by itself, and retries as
//! long as there is room in the queue, or for `message.timeout.ms`.

use std::io;
use std::time::{Duration, Instant};

use flow::encode::Sum;
use sys::librdkafka::{Producer, Refused, Reports};
use sys::{Error, ErrorKind, Result};

use crate::sink::{DeliveryReport, Sent, Sink};
use crate::target::{Place, Target};

/// Maximum number of messages in flight.
const QUEUE_LEN: usize = 100_000;
/// Memory in bytes: the library's queue, and the state of the messages in it.
pub(crate) const MEMORY_LEN: usize =
    (64 << 20) + QUEUE_LEN * (size_of::<Sum>() + size_of::<usize>());
/// How long a message waits for room in the library's queue before the session counts as broken.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// How long to wait for the reports of abandoned messages.
const PURGE_MAX: Duration = Duration::from_secs(10);

/// Default properties: see CONFIGURATION.md of librdkafka.
const PROPERTIES: &[(&str, &str)] = &[
    ("client.id", "barewire"),
    ("enable.idempotence", "true"),
    ("compression.codec", "lz4"),
    ("linger.ms", "50"),
    // Waiting is bounded by room, not by time.
    ("message.timeout.ms", "0"),
    // A broker that is back is found again well within the wait at the end.
    ("reconnect.backoff.max.ms", "1000"),
    ("queue.buffering.max.messages", "100000"),
    ("queue.buffering.max.kbytes", "65536"),
];

struct Kafka {
    properties: Vec<(String, String)>,
    topic: String,
    /// `None` before the start: the library starts threads at once, which inherit the privileges of
    /// the calling thread.
    producer: Option<Producer>,
    /// Contents of each message in flight; its tag is the index plus one.
    held: Vec<Sum>,
    free: Vec<usize>,
    /// Results not yet collected.
    settled: DeliveryReport,
}

/// Opens the destination of a target. Names and values of its properties are checked here.
pub(crate) fn open(target: &Target) -> Result<Box<dyn Sink>> {
    let Place::Topic { brokers, topic } = &target.place else {
        let what = format!("export to {:?}", target.text);
        let why = "brokers and a topic are required";
        return Err(Error::new(ErrorKind::InvalidInput, what, why));
    };
    let own = |&(name, value): &(&str, &str)| (name.to_owned(), value.to_owned());
    let mut properties = vec![own(&("bootstrap.servers", brokers))];
    properties.extend(PROPERTIES.iter().map(own));
    properties.extend(target.options.properties.iter().cloned());
    Producer::check(&borrowed(&properties), topic)?;
    Ok(Box::new(Kafka {
        properties,
        topic: topic.clone(),
        producer: None,
        held: vec![Sum::default(); QUEUE_LEN],
        free: (0..QUEUE_LEN).rev().collect(),
        settled: DeliveryReport::default(),
    }))
}

fn borrowed(properties: &[(String, String)]) -> Vec<(&str, &str)> {
    let pairs = properties.iter();
    pairs.map(|(name, value)| (&**name, &**value)).collect()
}

impl Kafka {
    /// Waits for reports, at most this long, and processes them.
    fn poll(&mut self, wait_ms: u32) {
        let Some(producer) = &self.producer else {
            return;
        };
        let Reports {
            messages,
            last_error,
        } = producer.poll(wait_ms);
        for (tag, is_there) in messages {
            let at = tag.wrapping_sub(1);
            let Some(held) = self.held.get_mut(at) else {
                continue;
            };
            let held = std::mem::take(held);
            // Reports that come after the end were not waited for.
            if !self.is_idle() {
                self.free.push(at);
            }
            if is_there {
                self.settled.done.add(&held);
            } else {
                self.settled.lost.add(&held);
            }
        }
        if last_error.is_some() {
            self.settled.last_failure = last_error;
        }
    }

    fn is_idle(&self) -> bool {
        self.free.len() == self.held.len()
    }
}

impl Sink for Kafka {
    fn start(&mut self) -> Result<()> {
        let producer = Producer::new(&borrowed(&self.properties), &self.topic);
        let hint = "files named in properties are read after privileges are dropped, with \
                    --user as that user";
        self.producer = Some(producer.map_err(|error| match error.hint() {
            None => error.with_hint(hint),
            Some(_) => error,
        })?);
        Ok(())
    }

    fn connect(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn send(&mut self, message: &[u8]) -> Sent {
        self.send_held(message, &Sum::default())
    }

    fn send_held(&mut self, message: &[u8], held: &Sum) -> Sent {
        let until = Instant::now() + WAIT_MAX;
        loop {
            let Some(producer) = &self.producer else {
                return Sent::Broken(io::ErrorKind::NotConnected.into());
            };
            if let Some(at) = self.free.last().copied() {
                match producer.produce(message, at + 1) {
                    Ok(()) => {
                        self.free.pop();
                        self.held[at] = *held;
                        return Sent::Done;
                    }
                    Err(Refused::Full) => {}
                    Err(Refused::Wrong(why)) => return Sent::Lost(io::Error::other(why)),
                }
            }
            self.poll(100);
            if Instant::now() >= until {
                let why = self.settled.last_failure.clone();
                let why = why.unwrap_or_else(|| "the brokers accept no messages".into());
                return Sent::Broken(io::Error::other(why));
            }
        }
    }

    fn is_deferred(&self) -> bool {
        true
    }

    fn settle(&mut self) -> DeliveryReport {
        self.poll(0);
        DeliveryReport {
            waiting: self.held.len() - self.free.len(),
            ..std::mem::take(&mut self.settled)
        }
    }

    fn close(&mut self) -> io::Result<()> {
        self.poll(0);
        if self.is_idle() {
            return Ok(());
        }
        let left = self.held.len() - self.free.len();
        if let Some(producer) = &self.producer {
            producer.purge();
        }
        let end = Instant::now() + PURGE_MAX;
        while !self.is_idle() && Instant::now() < end {
            self.poll(100);
        }
        // There will be no more reports on these.
        for held in &mut self.held {
            self.settled.lost.add(&std::mem::take(held));
        }
        self.free = (0..QUEUE_LEN).rev().collect();
        let why = self.settled.last_failure.take();
        let why = why.unwrap_or_else(|| "no answer".into());
        Err(io::Error::other(format!(
            "the brokers did not accept {left} messages: {why}"
        )))
    }
}
