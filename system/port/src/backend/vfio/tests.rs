//! Ports on the model of an Intel 82576.

mod account;
mod life;
mod packets;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ring::slot::Checksum;
use ring::{FrameCache, Pool, PoolConfig};
use sys::ErrorKind;
use sys::memfd::HugePages;
use vfio::testing::igb::{BUS_MASTER, PACKET_LEN_MAX, registers as reg};
use vfio::testing::{Fault, Igb, IgbModel, Model, ModelCard};
use vfio::{Borrowed, Driver};

use super::{Assembly, assemble};
use crate::account::{DropReason, QueueAccount};
use crate::control::PortEvent;
use crate::options::{Direction, PortOptions};
use crate::port::Port;
use crate::registry::PortName;
use crate::rx::Ready;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];

struct Rig {
    card: ModelCard<IgbModel>,
    port: Port,
    pool: Pool,
}

fn pool(frame_count: u32, frame_len: u32) -> Pool {
    Pool::new(PoolConfig {
        frame_count,
        frame_len,
        huge_pages: HugePages::Never,
    })
    .unwrap()
}

fn card() -> ModelCard<IgbModel> {
    ModelCard::new(|memory, events| IgbModel::new(memory, events, MAC))
}

fn open_on(card: &ModelCard<IgbModel>, options: &PortOptions) -> sys::Result<Port> {
    let name = PortName {
        scheme: "vfio",
        target: "model".into(),
        queue: None,
        options: Vec::new(),
    };
    open_borrowed(None, card, &name, options)
}

fn open_borrowed(
    borrowed: Borrowed,
    card: &ModelCard<IgbModel>,
    name: &PortName,
    options: &PortOptions,
) -> sys::Result<Port> {
    let assembly = Assembly {
        borrowed,
        name,
        options,
        via: "a device model",
    };
    assemble(assembly, Igb::open(card.clone())?)
}

fn rig(change: impl FnOnce(&mut PortOptions)) -> Rig {
    rig_over(pool(512, 2048), change)
}

fn rig_over(pool: Pool, change: impl FnOnce(&mut PortOptions)) -> Rig {
    let mut options = PortOptions {
        pool: Some(pool.clone()),
        ring_len: 64,
        direction: Direction::Both,
        ..PortOptions::default()
    };
    change(&mut options);
    let card = card();
    let port = open_on(&card, &options).unwrap();
    Rig { card, port, pool }
}

impl Rig {
    fn arrive(&self, packet: &[u8]) -> bool {
        self.card.with(|model| model.receive(packet))
    }

    fn fault(&self, fault: Fault) {
        self.card.with(|model| model.faults.push_back(fault));
    }

    /// All available packets of queue `at`, with their segments joined.
    fn take(&mut self, at: usize) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        loop {
            let batch = self.port.rx[at].receive().unwrap();
            if batch.is_empty() {
                return all;
            }
            all.extend(
                batch
                    .iter()
                    .map(|packet| packet.segments().flatten().copied().collect()),
            );
        }
    }

    fn account(&mut self) -> QueueAccount {
        let account = self.port.control.account().unwrap();
        let total = account.rx_total();
        assert_eq!(total.imbalance(), 0, "{account:?}");
        total
    }

    /// Closes the port, and checks that the card can access nothing and every frame is free.
    fn close(self) {
        drop(self.port);
        assert_eq!(self.pool.counts().free, self.pool.frame_count());
        assert!(self.card.memory().is_empty(), "memory is still mapped");
        self.card.with(|model| {
            assert_eq!(model.log.last(), Some(&(BUS_MASTER, 0)));
        });
    }
}

/// A packet of `len` bytes that contains its number.
fn numbered(number: u32, len: usize) -> Vec<u8> {
    let mut packet = vec![0; len];
    packet[..6].copy_from_slice(&MAC);
    packet[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 8]);
    packet[12..14].copy_from_slice(&[0x88, 0xb5]);
    packet[14..18].copy_from_slice(&number.to_be_bytes());
    for (at, byte) in packet[18..].iter_mut().enumerate() {
        *byte = (number as usize + at * 7) as u8;
    }
    packet
}

/// UDP over IPv4, without a UDP checksum.
fn udp(source: ([u8; 4], u16), destination: ([u8; 4], u16)) -> Vec<u8> {
    let mut packet = numbered(0, 100);
    packet[12..14].copy_from_slice(&[8, 0]);
    packet[14..24].copy_from_slice(&[0x45, 0, 0, 86, 0, 0, 0, 0, 64, 17]);
    packet[24..26].fill(0);
    packet[26..30].copy_from_slice(&source.0);
    packet[30..34].copy_from_slice(&destination.0);
    let sum = wire::checksum::checksum(&packet[14..34]);
    packet[24..26].copy_from_slice(&sum.to_be_bytes());
    packet[34..36].copy_from_slice(&source.1.to_be_bytes());
    packet[36..38].copy_from_slice(&destination.1.to_be_bytes());
    packet[38..42].copy_from_slice(&[0, 66, 0, 0]);
    packet
}
