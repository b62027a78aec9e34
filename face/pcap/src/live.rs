//! Live captures: a port of barewire, read a batch at a time.
//!
//! Packets are not copied: a batch stays in the device's memory until the next one is received, so
//! that its packets are valid while the program's callback uses the handle. The filter runs in the
//! kernel if the port supports it; it runs here as well, because packets already in the ring were
//! selected by the previous one.

use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bpf::cbpf::Program;
use bpf::vm_cbpf::{self, PacketInfo};
use port::{
    Direction, FilterSource, FilterSwitch, FilterTarget, Packet, Port, PortControl, PortOptions,
    Ready, TapMethod, TxQueue, Waker,
};
use runtime::in_place::{Reader, gather, queue_count, tag_of};
use sys::{Error, ErrorKind};

use crate::failure::{ERROR, Failure, Result};
use crate::handle::Settings;
use crate::link;
use crate::savefile::Header;

/// The device does not exist.
const NO_SUCH_DEVICE: i32 = -5;
/// The device has no monitor mode.
const NO_MONITOR_MODE: i32 = -6;
/// Privileges are missing.
const PERMISSION_DENIED: i32 = -8;

/// Longest wait if there is no timeout.
const WAIT_MAX: Duration = Duration::from_secs(3600);
/// `PACKET_OUTGOING` of `if_packet.h`.
const OUTGOING: u8 = 4;

/// An open port.
pub struct Live {
    reader: Reader,
    tx: Option<TxQueue>,
    control: Box<dyn PortControl>,
    switch: FilterSwitch,
    /// Whether the port has a filter, which hides packets from this library.
    is_filtered: bool,
    name: String,
    /// Target for which filters are compiled.
    pub target: FilterTarget,
    /// Whether reads do not wait.
    pub nonblocking: bool,
    /// Direction of the packets delivered: both, received, sent.
    pub direction: i32,
    timeout: Duration,
}

/// The result of reading.
pub enum Next {
    /// A packet, in the buffer of the handle.
    Packet(Header),
    /// A packet in the device's memory, valid until the next call.
    Held(Header, *const u8),
    /// None yet.
    Nothing,
    /// The end.
    End,
}

fn failed(error: &Error) -> Failure {
    let code = match error.kind() {
        ErrorKind::NotFound => NO_SUCH_DEVICE,
        ErrorKind::Permission => PERMISSION_DENIED,
        _ => ERROR,
    };
    Failure::of(code, error.to_string())
}

fn options(settings: &Settings) -> PortOptions {
    let timeout_ms = settings.timeout_ms.clamp(0, 1000).cast_unsigned();
    let block_ms = match (settings.immediate, timeout_ms) {
        (true, _) => 1,
        (false, 0) => 100,
        (false, timeout_ms) => timeout_ms,
    };
    PortOptions {
        queue_count: queue_count(&settings.device),
        snaplen: settings.snaplen.max(0).cast_unsigned(),
        promiscuous: settings.promiscuous,
        ring_bytes: usize::try_from(settings.buffer_bytes).unwrap_or(0),
        block_timeout: Duration::from_millis(block_ms.into()),
        // Its filter can be replaced without privileges, after the program has dropped them.
        tap: TapMethod::Tpacket,
        ..PortOptions::default()
    }
}

impl Live {
    /// Opens the device.
    ///
    /// # Errors
    /// With the codes of pcap_activate(3).
    pub fn open(settings: &Settings) -> Result<Self> {
        if settings.monitor {
            return Err(Failure::of(NO_MONITOR_MODE, ""));
        }
        // The port reports the target of its filters, and gets none yet.
        let target = Arc::new(Mutex::new(None));
        let place = Arc::clone(&target);
        let source = FilterSource::new(move |target| {
            *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(target);
            Ok(None)
        });
        let options = PortOptions {
            filter_source: Some(source),
            ..options(settings)
        };
        let mut port = port::open(&settings.device, &options).map_err(|error| failed(&error))?;
        let switch = port.filter_switch();
        let Port { rx, control, .. } = &mut port;
        let reader = Reader::new(std::mem::take(rx)).map_err(|error| failed(&error))?;
        let none = || Failure::new("the port has no receiving queue");
        let reader = reader.ok_or_else(none)?;
        let known = target.lock().unwrap_or_else(PoisonError::into_inner).take();
        let link_type = control.describe().link_type;
        let target = known.unwrap_or(FilterTarget {
            link_type,
            tap: None,
        });
        Ok(Self {
            reader,
            tx: None,
            control: port.control,
            switch,
            is_filtered: false,
            name: settings.device.clone(),
            target,
            nonblocking: settings.nonblocking,
            direction: 0,
            timeout: match settings.timeout_ms {
                1.. => Duration::from_millis(settings.timeout_ms.cast_unsigned().into()),
                _ => WAIT_MAX,
            },
        })
    }

    /// A waker that ends a wait from another thread.
    pub fn waker(&self) -> Waker {
        self.reader.waker()
    }

    /// The link type, as a `DLT_` number.
    pub fn dlt(&self) -> i32 {
        link::of_file(self.target.link_type.into())
    }

    /// A descriptor that is readable when there may be packets.
    pub fn fd(&self) -> Option<RawFd> {
        self.reader.fd()
    }

    /// Replaces the filter.
    ///
    /// # Errors
    /// Errors of the port.
    pub fn set_filter(&mut self, filter: &Program) -> Result<()> {
        // Packets already received were selected by the old one.
        self.reader.skip_batch();
        let set = self.switch.set(&mut *self.control, Some(filter));
        let runs_here = matches!(
            set.as_ref().map_err(Error::kind),
            Err(ErrorKind::Unsupported | ErrorKind::Permission)
        );
        let set = match runs_here {
            // A filter that the kernel cannot run, or may not load any more, runs here. The port's
            // old filter would stay when the new one is refused, and would drop what the new one
            // selects.
            true if self.is_filtered => self.switch.set(&mut *self.control, None),
            true => Ok(()),
            false => set,
        };
        set.map_err(|error| failed(&error))?;
        self.is_filtered = !runs_here;
        Ok(())
    }

    /// Packets received, including lost ones; lost for lack of room; lost by the interface.
    ///
    /// # Errors
    /// Errors of the port.
    pub fn statistics(&mut self) -> Result<[u64; 3]> {
        let account = self.control.account().map_err(|error| failed(&error))?;
        let (mut received, mut lost, mut by_interface) = (0, 0, 0);
        for queue in &account.rx {
            let interface = queue.dropped[port::DropReason::Interface as usize];
            lost += queue.lost() - interface;
            received += queue.delivered + queue.in_flight + queue.lost() - interface;
            by_interface += interface;
        }
        Ok([received, lost, by_interface])
    }

    /// Reads a packet, which is copied to `data` if it is not in one piece. Waits for it if
    /// `may_wait`, at most the handle's timeout.
    ///
    /// # Errors
    /// Errors of the port.
    pub fn next(
        &mut self,
        filter: Option<&Program>,
        nanoseconds: bool,
        may_wait: bool,
        data: &mut Vec<u8>,
    ) -> Result<Next> {
        let error = |error: Error| failed(&error);
        if !self.find(filter).map_err(error)? {
            if self.nonblocking {
                // The descriptor shows only packets that arrive from here on.
                if self.reader.arm().map_err(error)? {
                    return Ok(Next::Nothing);
                }
            } else if !may_wait {
                return Ok(Next::Nothing);
            } else if self.reader.wait(self.timeout).map_err(error)? == Ready::End {
                return Ok(Next::End);
            }
            if !self.find(filter).map_err(error)? {
                return Ok(Next::Nothing);
            }
        }
        let Some(packet) = self.reader.packet() else {
            return Ok(Next::Nothing);
        };
        let tag = tag_of(&packet, self.target.link_type);
        let time_ns = packet.time_ns().unwrap_or(0);
        let fraction_ns = (time_ns % 1_000_000_000) as i64;
        let mut header = Header {
            seconds: (time_ns / 1_000_000_000) as i64,
            fraction: match nanoseconds {
                true => fraction_ns,
                false => fraction_ns / 1000,
            },
            cap_len: packet.cap_len(),
            wire_len: packet.wire_len(),
        };
        if tag.is_none() && packet.is_whole() {
            return Ok(Next::Held(header, packet.bytes().as_ptr()));
        }
        let tag_len = gather(&packet, tag, data);
        header.cap_len = data.len() as u32;
        header.wire_len = header.wire_len.saturating_add(tag_len);
        Ok(Next::Packet(header))
    }

    /// Moves to the next packet that is wanted; false if there is none.
    fn find(&mut self, filter: Option<&Program>) -> sys::Result<bool> {
        let direction = self.direction;
        self.reader.advance(|packet| {
            let is_wanted = match direction {
                1 => !packet.is_outgoing(),
                2 => packet.is_outgoing(),
                _ => true,
            };
            is_wanted && filter.is_none_or(|filter| selects(filter, packet))
        })
    }

    /// Sends a packet.
    ///
    /// # Errors
    /// Errors of the port, and that there was no room.
    pub fn send(&mut self, packet: &[u8]) -> Result<()> {
        let tx = match &mut self.tx {
            Some(tx) => tx,
            None => {
                let options = PortOptions {
                    direction: Direction::Tx,
                    queue_count: 1,
                    ..PortOptions::default()
                };
                let mut port = port::open(&self.name, &options).map_err(|error| failed(&error))?;
                let none = || Failure::new("the port has no sending queue");
                self.tx.insert(port.tx.pop().ok_or_else(none)?)
            }
        };
        let sent = (|| {
            let mut batch = tx.reserve(1)?;
            let is_written = batch.write(packet);
            batch.submit()?;
            tx.flush()?;
            tx.wait(true, Duration::from_millis(100))?;
            Ok(is_written)
        })();
        match sent {
            Ok(true) => Ok(()),
            Ok(false) => Err(Failure::new("send: no room for the packet")),
            Err(error) => Err(failed(&error)),
        }
    }
}

/// Whether the filter selects a packet, with the metadata that the kernel would provide.
fn selects(filter: &Program, packet: &Packet<'_>) -> bool {
    let info = PacketInfo {
        packet_type: if packet.is_outgoing() { OUTGOING } else { 0 },
        vlan: packet.vlan().map(|tag| (tag.tpid, tag.tci)),
        ..PacketInfo::UNKNOWN
    };
    vm_cbpf::run_with(filter, packet.bytes(), packet.wire_len(), &info) != 0
}
