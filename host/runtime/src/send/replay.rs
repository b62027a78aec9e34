//! Packets of a capture: a separate thread reads ahead, rewrites them, and hands them over in
//! chunks.
//!
//! The sender never waits for a page of the file, a decompressor or a checksum. A capture that fits
//! [`ReplayOptions::cache_len`] is read once and stays in memory for all rounds; a larger one is
//! read again in each round, with at most [`CHUNKS_AHEAD`] chunks in memory.

mod reader;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use port::{Port, TxBatch};
use sys::{Error, ErrorKind, Result};
use traffic::Rewriter;

use super::{Next, Report, Source};
use crate::Stop;

use reader::{Chunk, LeftOut, Message, Reader, open_capture};

/// Chunks that the reader may be ahead.
const CHUNKS_AHEAD: usize = 8;

/// Options of a replay.
#[derive(Clone, Debug)]
pub struct ReplayOptions {
    /// Changes to packets.
    pub rewriter: Rewriter,
    /// Rounds through the capture; 0 is unlimited.
    pub round_count: u64,
    /// Maximum length of a packet on the interface, in bytes, without a VLAN tag. 0 is unlimited.
    pub packet_len_max: usize,
    /// Captures of up to this many bytes stay in memory.
    pub cache_len: usize,
}

impl Default for ReplayOptions {
    fn default() -> Self {
        Self {
            rewriter: Rewriter::default(),
            round_count: 1,
            packet_len_max: 0,
            cache_len: 64 << 20,
        }
    }
}

/// A capture being sent.
pub struct Replay {
    messages: Receiver<Message>,
    empties: Sender<Chunk>,
    reader: Option<JoinHandle<()>>,
    stop: Stop,
    /// Chunks of the first round, as long as they fit the cache.
    kept: Vec<Arc<Chunk>>,
    kept_len: usize,
    cache_len: usize,
    /// Whether `kept` is the whole capture.
    complete: bool,
    current: Option<Arc<Chunk>>,
    /// Index in `kept` of the chunk after the current one.
    kept_at: usize,
    packet_at: usize,
    /// The range of the current packet.
    range: (usize, usize),
    round_count: u64,
    rounds: u64,
    /// Packets so far in this round, to detect a capture with nothing to send.
    round_packets: u64,
    again: bool,
    left: LeftOut,
    waiting: Option<Message>,
    ended: bool,
}

/// An open capture that is not read yet: privileges can still be dropped before the reader thread
/// is started.
pub struct OpenReplay {
    name: String,
    options: ReplayOptions,
    port: Port,
}

impl Replay {
    /// Opens a capture file, or another port that ends.
    ///
    /// # Errors
    /// The file cannot be opened, is not a capture, or its packets cannot be sent on Ethernet.
    pub fn open(name: &str, options: &ReplayOptions) -> Result<OpenReplay> {
        Ok(OpenReplay {
            port: open_capture(name, &options.rewriter)?,
            name: name.to_owned(),
            options: options.clone(),
        })
    }
}

impl OpenReplay {
    /// Starts reading.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(self) -> Result<Replay> {
        let (to_sender, messages) = sync_channel(CHUNKS_AHEAD);
        let (empties, from_sender) = channel();
        let stop = Stop::new();
        let (round_count, cache_len) = (self.options.round_count, self.options.cache_len);
        let reader = Reader {
            name: self.name,
            options: self.options,
            to_sender,
            from_sender,
            stop: stop.clone(),
            links: Vec::new(),
        };
        let port = self.port;
        let spawned = std::thread::Builder::new()
            .name("read-ahead".into())
            .spawn(move || reader.run(port));
        let thread = spawned.map_err(|e| Error::from_io("start the reading thread", e))?;
        Ok(Replay {
            messages,
            empties,
            reader: Some(thread),
            stop,
            kept: Vec::new(),
            kept_len: 0,
            cache_len,
            complete: false,
            current: None,
            kept_at: 0,
            packet_at: 0,
            range: (0, 0),
            round_count,
            rounds: 0,
            round_packets: 0,
            again: false,
            left: LeftOut::default(),
            waiting: None,
            ended: false,
        })
    }
}

impl Replay {
    /// Moves to the next chunk. False if there is none yet.
    fn advance(&mut self) -> Result<bool> {
        self.give_back();
        if self.complete {
            if self.kept_at == self.kept.len() && !self.next_round()? {
                return Ok(true);
            }
            self.current = Some(self.kept[self.kept_at].clone());
            self.kept_at += 1;
            self.begin_chunk();
            return Ok(true);
        }
        let message = match self.waiting.take() {
            Some(message) => message,
            None => match self.messages.try_recv() {
                Ok(message) => message,
                Err(std::sync::mpsc::TryRecvError::Empty) => return Ok(false),
                Err(std::sync::mpsc::TryRecvError::Disconnected) => {
                    return Err(Error::new(
                        ErrorKind::Io,
                        "replay",
                        "the reading thread ended",
                    ));
                }
            },
        };
        match message {
            Message::Chunk(chunk) => {
                let chunk = Arc::new(chunk);
                self.keep(&chunk);
                self.current = Some(chunk);
                self.begin_chunk();
            }
            Message::RoundEnd { all } => {
                self.complete = all;
                self.kept_at = self.kept.len();
                self.next_round()?;
            }
            Message::Failed(error) => {
                self.ended = true;
                return Err(error);
            }
        }
        Ok(true)
    }

    fn keep(&mut self, chunk: &Arc<Chunk>) {
        if self.rounds > 1 {
            return;
        }
        self.kept_len += chunk.bytes.len();
        if self.kept_len <= self.cache_len {
            self.kept.push(chunk.clone());
        } else {
            self.kept.clear();
        }
    }

    fn begin_chunk(&mut self) {
        self.packet_at = 0;
        let Some(chunk) = &self.current else { return };
        self.left.add(&chunk.left);
        if chunk.first {
            self.rounds += 1;
            self.again = self.rounds > 1;
        }
    }

    /// Starts the next round; false if that was the last.
    fn next_round(&mut self) -> Result<bool> {
        let last = self.round_count != 0 && self.rounds >= self.round_count;
        if self.round_packets == 0 && !last {
            self.ended = true;
            let why = "the capture contains no packet that can be sent";
            return Err(Error::new(ErrorKind::InvalidInput, "replay", why));
        }
        self.round_packets = 0;
        self.kept_at = 0;
        self.ended = last;
        Ok(!last)
    }

    /// Returns the current chunk's memory to the reader, unless it is kept.
    fn give_back(&mut self) {
        if let Some(mut chunk) = self.current.take().and_then(Arc::into_inner) {
            chunk.clear();
            // A reader that has ended needs no memory.
            let _ = self.empties.send(chunk);
        }
    }
}

impl Source for Replay {
    #[inline]
    fn next(&mut self) -> Result<Next> {
        loop {
            if let Some(chunk) = &self.current
                && let Some(entry) = chunk.packets.get(self.packet_at)
            {
                let start = match self.packet_at {
                    0 => 0,
                    at => chunk.packets[at - 1].end as usize,
                };
                self.range = (start, entry.end as usize);
                self.packet_at += 1;
                self.round_packets += 1;
                return Ok(Next::Packet {
                    len: self.range.1 - self.range.0,
                    time_ns: entry.time_ns,
                    again: std::mem::take(&mut self.again),
                });
            }
            if self.ended {
                return Ok(Next::End);
            }
            if !self.advance()? {
                return Ok(Next::Pending);
            }
        }
    }

    #[inline]
    fn put(&mut self, batch: &mut TxBatch<'_>) -> bool {
        let chunk = self.current.as_ref();
        chunk.is_some_and(|chunk| batch.write(&chunk.bytes[self.range.0..self.range.1]))
    }

    fn wait(&mut self, timeout: Duration) {
        if self.waiting.is_some() || self.complete {
            return;
        }
        match self.messages.recv_timeout(timeout) {
            Ok(message) => self.waiting = Some(message),
            // A reader that has ended is detected at the next check.
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
        }
    }

    fn account(&self, report: &mut Report) {
        report.rounds = self.rounds;
        report.too_long = self.left.too_long;
        report.not_sendable = self.left.not_sendable;
        report.cut = self.left.cut;
    }
}

impl Drop for Replay {
    fn drop(&mut self) {
        self.stop.set();
        // The reader may be waiting for room: drain its channel until it sees the flag.
        while self
            .reader
            .as_ref()
            .is_some_and(|reader| !reader.is_finished())
        {
            let _ = self.messages.recv_timeout(Duration::from_millis(10));
        }
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

/// The result of a dry run.
#[derive(Clone, Debug, Default)]
pub struct ReplaySummary {
    /// Packets of one round.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Time from the earliest to the latest packet, in nanoseconds.
    pub duration_ns: u64,
    /// Packets left out because they are longer than the interface allows.
    pub too_long: u64,
    /// Packets left out because they contain no Ethernet packet.
    pub not_sendable: u64,
    /// Packets that the capture truncated.
    pub cut: u64,
    /// The first packets as they would be sent.
    pub samples: Vec<Vec<u8>>,
}

/// Reads a capture to its end without sending anything, and keeps `sample_count` packets. Returns
/// also the error that ended the reading early, if any.
///
/// # Errors
/// As [`Replay::open`].
pub fn survey(
    name: &str,
    options: &ReplayOptions,
    sample_count: usize,
    stop: &Stop,
) -> Result<(ReplaySummary, Option<Error>)> {
    let once = ReplayOptions {
        round_count: 1,
        cache_len: 0,
        ..options.clone()
    };
    let mut replay = Replay::open(name, &once)?.start()?;
    let mut survey = ReplaySummary::default();
    let (mut first_ns, mut last_ns) = (u64::MAX, 0);
    let mut damage = None;
    while !stop.is_set() {
        let next = replay.next().unwrap_or_else(|error| {
            damage = Some(error);
            Next::End
        });
        match next {
            Next::Packet { len, time_ns, .. } => {
                survey.packets += 1;
                survey.bytes += len as u64;
                first_ns = first_ns.min(time_ns);
                last_ns = last_ns.max(time_ns);
                if survey.samples.len() < sample_count
                    && let Some(chunk) = &replay.current
                {
                    let (start, end) = replay.range;
                    survey.samples.push(chunk.bytes[start..end].to_vec());
                }
            }
            Next::Pending => replay.wait(Duration::from_millis(100)),
            Next::End => break,
        }
    }
    survey.duration_ns = last_ns.saturating_sub(first_ns);
    survey.too_long = replay.left.too_long;
    survey.not_sendable = replay.left.not_sendable;
    survey.cut = replay.left.cut;
    Ok((survey, damage))
}
