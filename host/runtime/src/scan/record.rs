//! Writes all packets of a scan to a capture file: those it sends, and those it receives that could
//! be responses.
//!
//! Each thread collects the packets of a batch, with one time, and passes them to the thread that
//! writes the file. When the file cannot keep up, sending and receiving wait: no packet of the scan
//! is missing in it, and what the port then loses is counted there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use port::file::{FileInterface, FileWriter, Record};
use sys::{Error, Result};
use wire::{LinkType, Timestamp};

use super::now;
use crate::Stop;

/// Bytes that wait to be written; threads wait when there are more.
const QUEUED_MAX: u64 = 64 << 20;
/// How long a packet waits for older ones of other threads.
const HOLD_NS: u64 = 200_000_000;
/// Interval at which the file is brought up to date.
const FLUSH: Duration = Duration::from_secs(1);
/// Pause of a thread that waits for the file.
const NAP: Duration = Duration::from_millis(1);

/// Packets of one time, each preceded by its length in 16 bits.
struct Batch {
    time: Timestamp,
    is_sent: bool,
    bytes: Vec<u8>,
}

/// What the threads share.
#[derive(Default)]
struct Shared {
    /// Bytes that wait to be written.
    queued: AtomicU64,
    /// Whether the file is being written: before, threads do not wait for it, and afterwards
    /// packets are dropped.
    is_written: AtomicBool,
}

/// Takes the packets of one thread in one direction.
pub struct Tap {
    to: Sender<Batch>,
    shared: Arc<Shared>,
    batch: Batch,
}

impl Tap {
    /// Begins a batch: its packets have the time of now.
    pub fn begin(&mut self) {
        self.flush();
        self.batch.time = now();
    }

    /// Adds a packet; none is longer than an Ethernet frame.
    pub fn put(&mut self, packet: &[u8]) {
        if let Ok(len) = u16::try_from(packet.len()) {
            self.batch.bytes.extend(len.to_ne_bytes());
            self.batch.bytes.extend(packet);
        }
    }

    /// Passes the packets on.
    pub fn flush(&mut self) {
        if self.batch.bytes.is_empty() {
            return;
        }
        let shared = &self.shared;
        while shared.is_written.load(Ordering::Acquire)
            && shared.queued.load(Ordering::Relaxed) > QUEUED_MAX
        {
            std::thread::sleep(NAP);
        }
        let bytes = std::mem::take(&mut self.batch.bytes);
        shared
            .queued
            .fetch_add(bytes.len() as u64, Ordering::Relaxed);
        // The file may have failed, which ends the scan.
        let _ = self.to.send(Batch {
            bytes,
            ..self.batch
        });
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.flush();
    }
}

/// Makes the taps of a file, which is complete once they and their maker are dropped.
#[derive(Clone)]
pub struct Taps {
    to: Sender<Batch>,
    shared: Arc<Shared>,
}

impl Taps {
    /// A tap of sent or received packets.
    pub fn tap(&self, is_sent: bool) -> Tap {
        Tap {
            to: self.to.clone(),
            shared: self.shared.clone(),
            batch: Batch {
                time: now(),
                is_sent,
                bytes: Vec::new(),
            },
        }
    }
}

/// A capture file of a scan, before it is written.
pub struct Recording {
    writer: FileWriter,
    taps: Taps,
    inbox: Receiver<Batch>,
}

/// The thread that writes a file.
pub struct Recorder {
    taps: Taps,
    thread: JoinHandle<Result<()>>,
}

impl Recording {
    /// A recording to a file that was just created.
    ///
    /// # Errors
    /// The file's.
    pub fn new(mut writer: FileWriter, (interface, is_bare): (&str, bool)) -> Result<Self> {
        let link_type = match is_bare {
            true => LinkType::RAW,
            false => LinkType::ETHERNET,
        };
        writer.interface(FileInterface {
            link_type: link_type.0,
            name: interface.to_owned(),
            filter: "".into(),
        })?;
        let (to, inbox) = channel();
        let shared = Arc::default();
        Ok(Self {
            writer,
            taps: Taps { to, shared },
            inbox,
        })
    }

    /// The taps of this file.
    pub fn taps(&self) -> &Taps {
        &self.taps
    }

    /// Starts the thread that writes; `failed` is set when it fails.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(self, failed: Stop) -> Result<Recorder> {
        let Self {
            writer,
            taps,
            inbox,
        } = self;
        let shared = taps.shared.clone();
        shared.is_written.store(true, Ordering::Release);
        let body = move || {
            let result = write(writer, &inbox, &shared.queued);
            shared.is_written.store(false, Ordering::Release);
            if result.is_err() {
                failed.set();
            }
            result
        };
        let thread = std::thread::Builder::new().name("pcap".into()).spawn(body);
        let thread = thread.map_err(|error| Error::from_io("start a thread", error))?;
        Ok(Recorder { taps, thread })
    }
}

impl Recorder {
    /// The taps of this file.
    pub fn taps(&self) -> &Taps {
        &self.taps
    }

    /// Writes what is left, once all taps are dropped.
    ///
    /// # Errors
    /// The file's.
    pub fn end(self) -> Result<()> {
        drop(self.taps);
        let ended = self.thread.join();
        ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// Writes all batches, the oldest first, until their threads have ended.
fn write(mut writer: FileWriter, inbox: &Receiver<Batch>, queued: &AtomicU64) -> Result<()> {
    let mut waiting: BTreeMap<(Timestamp, u64), Batch> = BTreeMap::new();
    let mut flushed = Instant::now();
    for number in 0.. {
        let is_ended = match inbox.recv_timeout(Duration::from_millis(50)) {
            Ok(batch) => {
                waiting.insert((batch.time, number), batch);
                false
            }
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => true,
        };
        let until = now().0.saturating_sub(HOLD_NS);
        while let Some(first) = waiting.first_entry()
            && (is_ended || first.key().0.0 <= until)
        {
            let batch = first.remove();
            queued.fetch_sub(batch.bytes.len() as u64, Ordering::Relaxed);
            put(&mut writer, &batch)?;
        }
        if is_ended {
            break;
        }
        if flushed.elapsed() >= FLUSH {
            flushed = Instant::now();
            writer.flush()?;
        }
    }
    writer.finish().map(drop)
}

fn put(writer: &mut FileWriter, batch: &Batch) -> Result<()> {
    let mut rest = batch.bytes.as_slice();
    while let Some((len, behind)) = rest.split_first_chunk::<2>() {
        let Some((packet, behind)) = behind.split_at_checked(u16::from_ne_bytes(*len).into())
        else {
            break;
        };
        rest = behind;
        let record = Record {
            time_ns: batch.time.0,
            wire_len: packet.len() as u32,
            outgoing: Some(batch.is_sent),
            ..Record::default()
        };
        let _ = writer.write(&record, std::iter::once(packet))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use port::file::WriterOptions;

    use super::*;

    #[test]
    fn packets_of_all_threads_are_in_the_file_in_order_of_time() {
        let path = std::env::temp_dir().join(format!("bw-scan-record-{}.pcap", std::process::id()));
        let writer = FileWriter::create(WriterOptions::new(&path)).unwrap();
        let recording = Recording::new(writer, ("eth0", false)).unwrap();
        let mut early = recording.taps().tap(true);
        early.begin();
        early.put(&[0; 60]);
        let recorder = recording.start(Stop::new()).unwrap();
        drop(early);
        std::thread::scope(|scope| {
            for number in 1..=4_u8 {
                let mut tap = recorder.taps().tap(number % 2 == 0);
                scope.spawn(move || {
                    for _ in 0..50 {
                        tap.begin();
                        tap.put(&[number; 60]);
                        tap.put(&[number; 61]);
                    }
                });
            }
        });
        recorder.end().unwrap();
        let bytes = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        // A header of 24 bytes, and one of 16 for each packet (pcap).
        assert_eq!(bytes.len(), 24 + 76 + 200 * (76 + 77));
        let (mut at, mut last, mut counts) = (24, (0, 0), [0; 5]);
        while let Some(head) = bytes.get(at..at + 17) {
            let word = |from: usize| u32::from_le_bytes(*head[from..].first_chunk().unwrap());
            assert!((word(0), word(4)) >= last);
            last = (word(0), word(4));
            counts[usize::from(head[16])] += 1;
            at += 16 + word(8) as usize;
        }
        assert_eq!(counts, [1, 100, 100, 100, 100]);
    }

    #[test]
    fn a_file_that_cannot_be_written_ends_the_scan() {
        let writer = FileWriter::create(WriterOptions::new("/dev/full")).unwrap();
        let recording = Recording::new(writer, ("eth0", false)).unwrap();
        let mut tap = recording.taps().tap(true);
        let failed = Stop::new();
        let recorder = recording.start(failed.clone()).unwrap();
        tap.begin();
        tap.put(&[0; 60]);
        drop(tap);
        assert!(recorder.end().is_err());
        assert!(failed.is_set());
    }
}
