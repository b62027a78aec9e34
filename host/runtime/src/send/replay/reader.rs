//! The thread that reads a capture ahead, rewrites its packets, and hands them over in chunks.

use std::sync::mpsc::{Receiver, SyncSender};
use std::time::Duration;

use port::{Direction, Packet, Port, PortOptions, Ready};
use sys::{Error, ErrorKind, Result};
use traffic::{Refused, Rewriter};
use wire::LinkType;

use super::ReplayOptions;
use crate::Stop;

/// Bytes of packets per chunk.
const CHUNK_LEN: usize = 1 << 20;

/// Packets ready to be sent.
#[derive(Debug, Default)]
pub(super) struct Chunk {
    pub(super) bytes: Vec<u8>,
    pub(super) packets: Vec<Entry>,
    /// Packets left out while it was filled.
    pub(super) left: LeftOut,
    /// Whether it is the first of a round.
    pub(super) first: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) end: u32,
    pub(super) time_ns: u64,
}

impl Chunk {
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.packets.clear();
        self.left = LeftOut::default();
        self.first = false;
    }

    fn is_full(&self) -> bool {
        self.bytes.len() >= CHUNK_LEN || self.packets.len() >= CHUNK_LEN / 32
    }
}

/// Packets of a capture that are not sent, or not in full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LeftOut {
    pub(super) too_long: u64,
    pub(super) not_sendable: u64,
    pub(super) cut: u64,
}

impl LeftOut {
    pub(super) fn add(&mut self, other: &Self) {
        self.too_long += other.too_long;
        self.not_sendable += other.not_sendable;
        self.cut += other.cut;
    }
}

/// A message from the reader to the sender.
pub(super) enum Message {
    Chunk(Chunk),
    /// The end of a round. With `all` nothing follows: the chunks so far were the whole capture,
    /// and small enough to be kept.
    RoundEnd {
        all: bool,
    },
    Failed(Error),
}

/// Opens a capture and checks whether its packets can be sent.
pub(super) fn open_capture(name: &str, rewriter: &Rewriter) -> Result<Port> {
    let options = PortOptions {
        direction: Direction::Rx,
        batch_max: 256,
        ..PortOptions::default()
    };
    let port = port::open(name, &options)?;
    if port.rx.is_empty() {
        let why = "this port cannot receive";
        return Err(Error::new(
            ErrorKind::InvalidInput,
            format!("replay {name}"),
            why,
        ));
    }
    check_link(name, LinkType(port.control.describe().link_type), rewriter)?;
    Ok(port)
}

fn check_link(name: &str, link: LinkType, rewriter: &Rewriter) -> Result<()> {
    rewriter.check(link).map_err(|refused| {
        let error = Error::new(ErrorKind::InvalidInput, format!("send {name}"), refused.why);
        match refused.hint {
            Some(hint) => error.with_hint(hint),
            None => error,
        }
    })
}

/// The reader thread.
pub(super) struct Reader {
    pub(super) name: String,
    pub(super) options: ReplayOptions,
    pub(super) to_sender: SyncSender<Message>,
    pub(super) from_sender: Receiver<Chunk>,
    pub(super) stop: Stop,
    /// Link types of the capture's interfaces.
    pub(super) links: Vec<LinkType>,
}

/// The sender has ended, or needs no more.
struct Closed;

impl Reader {
    pub(super) fn run(mut self, port: Port) {
        let mut port = Some(port);
        let mut round = 0;
        let mut total = 0;
        loop {
            let opened = match port.take() {
                Some(port) => Ok(port),
                None => open_capture(&self.name, &self.options.rewriter),
            };
            let read = opened.and_then(|port| self.round(port, &mut total));
            round += 1;
            let message = match read {
                Ok(Err(Closed)) => return,
                Ok(Ok(())) => Message::RoundEnd {
                    all: total <= self.options.cache_len,
                },
                Err(error) => Message::Failed(error),
            };
            let last = matches!(
                message,
                Message::Failed(_) | Message::RoundEnd { all: true }
            );
            if self.give(message).is_err() || last || round == self.options.round_count {
                return;
            }
        }
    }

    /// Reads the capture once. Packets before an error have been handed over.
    fn round(
        &mut self,
        mut port: Port,
        total: &mut usize,
    ) -> Result<std::result::Result<(), Closed>> {
        self.links.clear();
        let mut chunk = self.empty();
        chunk.first = true;
        loop {
            if self.stop.is_set() {
                return Ok(Err(Closed));
            }
            let rx = &mut port.rx[0];
            let batch = match rx.receive() {
                Ok(batch) => batch,
                Err(error) => {
                    *total += chunk.bytes.len();
                    return match self.give(Message::Chunk(chunk)) {
                        Ok(()) => Err(error),
                        Err(closed) => Ok(Err(closed)),
                    };
                }
            };
            let idle = batch.is_empty();
            for packet in batch.iter() {
                // New interfaces may appear in the middle of a pcapng file.
                let index = usize::from(packet.interface_index());
                if index >= self.links.len() {
                    let new = port.control.interfaces(self.links.len());
                    self.links
                        .extend(new.iter().map(|(link, _)| LinkType(*link)));
                    if self.links.is_empty() {
                        let link_type = port.control.describe().link_type;
                        self.links.push(LinkType(link_type));
                    }
                }
                let link = self.links.get(index).copied().unwrap_or(LinkType::ETHERNET);
                self.options.add(&packet, link, &mut chunk);
            }
            drop(batch);
            if chunk.is_full() {
                *total += chunk.bytes.len();
                let next = self.empty();
                let full = std::mem::replace(&mut chunk, next);
                if let Err(closed) = self.give(Message::Chunk(full)) {
                    return Ok(Err(closed));
                }
            }
            if idle && rx.wait(Duration::from_millis(100))? == Ready::End {
                break;
            }
        }
        *total += chunk.bytes.len();
        // Even if empty: every round has a first chunk.
        Ok(self.give(Message::Chunk(chunk)))
    }

    /// A chunk to fill: a returned one, or a new one.
    fn empty(&mut self) -> Chunk {
        if let Ok(chunk) = self.from_sender.try_recv() {
            return chunk;
        }
        Chunk {
            bytes: Vec::with_capacity(CHUNK_LEN + (64 << 10)),
            ..Chunk::default()
        }
    }

    fn give(&self, message: Message) -> std::result::Result<(), Closed> {
        self.to_sender.send(message).map_err(|_| Closed)
    }
}

impl ReplayOptions {
    /// Appends a packet to a chunk, or counts why not.
    fn add(&self, packet: &Packet<'_>, link: LinkType, chunk: &mut Chunk) {
        let start = chunk.bytes.len();
        if self.rewriter.check(link).is_err() {
            chunk.left.not_sendable += 1;
            return;
        }
        let whole;
        let bytes = match packet.bytes() {
            first if first.len() == packet.cap_len() as usize => first,
            // In several pieces: only from devices, and only above the size of a page.
            _ => {
                whole = packet.segments().collect::<Vec<_>>().concat();
                &whole
            }
        };
        let put = self
            .rewriter
            .apply(bytes, packet.wire_len(), link, &mut chunk.bytes);
        if let Err(Refused::TooShort | Refused::NotIp) = put {
            chunk.left.not_sendable += 1;
            return;
        }
        let new = &chunk.bytes[start..];
        // The kernel allows for one 802.1Q tag above the MTU (packet(7), net/packet/af_packet.c).
        let tag_len = if new[12..14] == [0x81, 0] { 4 } else { 0 };
        if self.packet_len_max != 0 && new.len() > self.packet_len_max + tag_len {
            chunk.left.too_long += 1;
            chunk.bytes.truncate(start);
            return;
        }
        chunk.left.cut += u64::from(packet.cap_len() < packet.wire_len());
        chunk.packets.push(Entry {
            end: chunk.bytes.len() as u32,
            time_ns: packet.time_ns().unwrap_or(0),
        });
    }
}
