//! Live captures: a port of barewire, read a batch at a time.
//!
//! Packets are not copied, except those in read-only memory: a batch stays in the device's memory
//! until the next one is received, so that its packets are valid while the program's callback uses
//! the handle. The filter runs in the kernel if the port supports it; it runs here as well for
//! packets that were already in the ring, which were selected by the previous one.

mod select;
mod settings;

use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bpf::cbpf::{INSN_COUNT_MAX, Program};
use bpf::vm_cbpf;
use port::{
    FilterSource, FilterSwitch, FilterTarget, Intake, Packet, Port, PortControl, PortOptions,
    Ready, TimestampSource, TxQueue, Waker,
};
use runtime::in_place::{Advance, Reader, copies_read_only, gather, tag_of};
use sys::{Error, ErrorKind};

use crate::cooked;
use crate::device::Device;
use crate::failure::{ERROR, Failure, Result};
use crate::framing::Framing;
use crate::handle::Settings;
use crate::link;
use crate::savefile::Header;
use crate::wait::{Wait, Waited};
use select::{now_ns, selects};
use settings::{not_opened, options, snaplen, stamp_in_hardware};

/// The device does not exist.
pub const NO_SUCH_DEVICE: i32 = -5;
/// The device has no monitor mode.
const NO_MONITOR_MODE: i32 = -6;
/// Privileges are missing.
pub const PERMISSION_DENIED: i32 = -8;
/// The interface is down.
const NOT_UP: i32 = -9;

/// The text by which programs recognize that a capture ended with its device.
const DISAPPEARED: &str = "The interface disappeared";

/// `DLT_EN10MB`, `DLT_DOCSIS`: what a cable modem's Ethernet interface may carry.
const ETHERNET: i32 = 1;
const DOCSIS: i32 = 143;

/// `PCAP_TSTAMP_ADAPTER`, `PCAP_TSTAMP_ADAPTER_UNSYNCED`.
const ADAPTER: i32 = 3;
const ADAPTER_UNSYNCED: i32 = 4;
/// Warning that the device has no such timestamps.
pub const TIMESTAMP_NOT_SUPPORTED: i32 = 3;

/// The code of `ret #k`.
const RETURN: u16 = 6;

/// Longest wait for room in a sending ring.
const SEND_MAX: Duration = Duration::from_millis(100);

/// An open port.
pub struct Live {
    reader: Reader,
    tx: Option<TxQueue>,
    control: Box<dyn PortControl>,
    switch: FilterSwitch,
    /// Whether the port has a filter, which hides packets from this library.
    is_filtered: bool,
    unfiltered: Unfiltered,
    device: Device,
    framing: Framing,
    /// Whether packets get the first version of the cooked header.
    is_cooked_v1: bool,
    /// Whether packets have the timestamps that were asked for.
    is_stamped: bool,
    snaplen: u32,
    /// Whether the current packet is in the device's memory.
    is_held: bool,
    /// A packet with another header, while it is filtered.
    scratch: Vec<u8>,
    /// Target for which filters are compiled.
    pub target: FilterTarget,
    /// Whether reads do not wait.
    pub nonblocking: bool,
    /// Direction of the packets delivered: both, received, sent.
    pub direction: i32,
    wait: Wait,
    /// Packets that the interface had dropped when it was opened, if they are counted.
    dropped_before: Option<u64>,
}

/// The packets on which the filter runs here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unfiltered {
    /// All: the port does not filter.
    All,
    /// Those received until then, in nanoseconds since 1970: the port has filtered the others.
    Until(u64),
    /// Those that are received before the port is found empty.
    UntilEmpty,
    /// None.
    No,
}

/// The result of reading.
pub enum Next {
    /// A packet, in the buffer of the handle.
    Packet(Header),
    /// A packet in the device's memory, valid until the next call.
    Held(Header, *const u8),
    /// A packet that the filter rejects.
    Rejected,
    /// None yet.
    Nothing,
    /// None yet; the wait is not over.
    Waiting,
    /// The end.
    End,
}

fn failed(error: &Error) -> Failure {
    let code = match error.kind() {
        ErrorKind::NotFound => NO_SUCH_DEVICE,
        ErrorKind::Permission => PERMISSION_DENIED,
        ErrorKind::Gone => return Failure::new(DISAPPEARED),
        _ => ERROR,
    };
    Failure::of(code, error.to_string())
}

impl Live {
    /// Opens the device.
    ///
    /// # Errors
    /// With the codes of pcap_activate(3).
    pub fn open(settings: &Settings) -> Result<Self> {
        let mut device = Device::new(&settings.device);
        // The port reports the target of its filters, and gets none yet.
        let target = Arc::new(Mutex::new(None));
        let place = Arc::clone(&target);
        let source = FilterSource::new(move |target| {
            *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(target);
            Ok(None)
        });
        let framing = device.framing();
        let mut options = PortOptions {
            filter_source: Some(source),
            ..options(settings, &device, framing)
        };
        let mut is_stamped = true;
        if let (Some(tap), ADAPTER | ADAPTER_UNSYNCED) = (&device.tap, settings.timestamp_type) {
            is_stamped = stamp_in_hardware(tap)?;
            // The kernel has no timestamps of a card in the system's time.
            if is_stamped && settings.timestamp_type == ADAPTER_UNSYNCED {
                options.timestamp = TimestampSource::Device;
                device.has_kernel_time = false;
            }
        }
        let opened = device.open(&options);
        let mut port = opened.map_err(|error| not_opened(&device, &error))?;
        if settings.monitor {
            return Err(Failure::of(NO_MONITOR_MODE, ""));
        }
        if device.link().is_some_and(|link| !link.is_up()) {
            return Err(Failure::of(NOT_UP, ""));
        }
        let switch = port.filter_switch();
        let tx = port.tx.pop();
        let Port { rx, control, .. } = &mut port;
        let reader = Reader::new(std::mem::take(rx)).map_err(|error| failed(&error))?;
        // As the original, which counts them in promiscuous mode only.
        let counts_dropped = settings.promiscuous && device.tap.is_some() && !device.is_any();
        let dropped_before = counts_dropped.then(|| device.dropped());
        let none = || Failure::new("the port has no receiving queue");
        let mut reader = reader.ok_or_else(none)?;
        reader.copy_read_only(copies_read_only());
        let known = target.lock().unwrap_or_else(PoisonError::into_inner).take();
        let link_type = control.describe().link_type;
        let target = known.unwrap_or(FilterTarget {
            link_type,
            tap: None,
        });
        Ok(Self {
            reader,
            tx,
            control: port.control,
            switch,
            is_filtered: false,
            unfiltered: Unfiltered::All,
            is_cooked_v1: framing.is_cooked(),
            device,
            framing,
            is_stamped,
            snaplen: snaplen(settings, framing),
            is_held: false,
            scratch: Vec::new(),
            target,
            nonblocking: settings.nonblocking,
            direction: 0,
            wait: Wait::new(settings.timeout_ms),
            dropped_before,
        })
    }

    /// A waker that ends a wait from another thread.
    pub fn waker(&self) -> Waker {
        self.reader.waker()
    }

    /// The link type, as a `DLT_` number.
    pub fn dlt(&self) -> i32 {
        match self.is_cooked_v1 {
            true => self.framing.cooked_dlt(),
            false => link::of_file(self.target.link_type.into()),
        }
    }

    /// The link types that the program can choose from.
    pub fn dlts(&self) -> Vec<i32> {
        match (self.framing, self.device.link().map(|link| link.hardware)) {
            (Framing::Any, _) => vec![cooked::DLT_V1, cooked::DLT_V2],
            // `ARPHRD_ETHER`.
            (Framing::Own, Some(1)) => vec![ETHERNET, DOCSIS],
            _ => vec![self.dlt()],
        }
    }

    /// Changes the link type to one of [`dlts`](Self::dlts).
    ///
    /// # Errors
    /// Errors of the port.
    pub fn set_dlt(&mut self, dlt: i32) -> Result<()> {
        if self.device.is_any() {
            self.is_cooked_v1 = dlt == cooked::DLT_V1;
            // The port's filter is for the other header.
            let removed = self.switch.set(&mut *self.control, None);
            removed.map_err(|error| failed(&error))?;
            (self.is_filtered, self.unfiltered) = (false, Unfiltered::All);
        }
        Ok(())
    }

    /// Whether it is the tap on the interfaces together.
    pub fn is_any(&self) -> bool {
        self.device.is_any()
    }

    /// Whether packets have cooked headers.
    pub fn is_cooked(&self) -> bool {
        self.framing.is_cooked()
    }

    /// Number of bytes kept of each packet.
    pub fn snaplen(&self) -> u32 {
        self.snaplen
    }

    /// What is other than the program asked for: the status, and the text of an error.
    pub fn warning(&self) -> (i32, Option<String>) {
        let status = if self.is_stamped {
            0
        } else {
            TIMESTAMP_NOT_SUPPORTED
        };
        (status, self.framing.warning())
    }

    /// The timestamp types of the device.
    pub fn timestamp_types(&self) -> Vec<i32> {
        self.device.timestamp_types()
    }

    /// A descriptor that is readable when there may be packets: of a tap its socket.
    pub fn fd(&mut self) -> Option<RawFd> {
        match self.socket() {
            Some(socket) => Some(socket),
            None => self.reader.fd().ok().flatten(),
        }
    }

    /// The socket of a tap.
    pub fn socket(&self) -> Option<RawFd> {
        self.device.tap.as_ref()?;
        self.reader.socket()
    }

    /// Replaces the filter.
    ///
    /// # Errors
    /// Errors of the port.
    pub fn set_filter(&mut self, filter: &Program) -> Result<()> {
        if let [only] = filter.insns()
            && only.code == RETURN
            && only.k >= self.snaplen
        {
            return self.select_all();
        }
        let translated = match self.is_cooked_v1 {
            // The port's packets have the other header.
            true => cooked::for_v2(filter),
            false => None,
        };
        let portable = match (&translated, self.is_cooked_v1) {
            (Some(translated), _) => Some(translated),
            // Longer ones are the interpreter's.
            (None, false) => Some(filter).filter(|filter| filter.insns().len() <= INSN_COUNT_MAX),
            (None, true) => None,
        };
        let set = portable.map(|filter| self.switch.set(&mut *self.control, Some(filter)));
        let set = set.unwrap_or_else(|| {
            let why = "the port cannot run it";
            Err(Error::new(ErrorKind::Unsupported, "set a filter", why))
        });
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
        // Packets already received were selected by the previous one.
        self.unfiltered = match (runs_here, self.socket()) {
            (true, _) => Unfiltered::All,
            (false, Some(_)) if self.device.has_kernel_time => Unfiltered::Until(now_ns()),
            (false, _) => Unfiltered::UntilEmpty,
        };
        Ok(())
    }

    /// Sets the filter that selects all packets: none at all.
    fn select_all(&mut self) -> Result<()> {
        if self.is_filtered {
            let removed = self.switch.set(&mut *self.control, None);
            removed.map_err(|error| failed(&error))?;
        }
        (self.is_filtered, self.unfiltered) = (false, Unfiltered::No);
        Ok(())
    }

    /// Packets received, including lost ones; lost for lack of room; lost by the interface.
    ///
    /// # Errors
    /// Errors of the port.
    pub fn statistics(&mut self) -> Result<[u64; 3]> {
        let account = self.control.account().map_err(|error| failed(&error))?;
        let (mut received, mut lost) = (0, 0);
        let before = self.dropped_before;
        let mut by_interface =
            before.map_or(0, |before| self.device.dropped().saturating_sub(before));
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
            } else {
                match self.wait.part(&mut self.reader).map_err(error)? {
                    Waited::End => return self.end(),
                    Waited::Partly => return Ok(Next::Waiting),
                    Waited::Over => {}
                }
            }
            if !self.find(filter).map_err(error)? {
                let is_end = self.nonblocking
                    && self.reader.wait(Duration::ZERO).map_err(error)? == Ready::End;
                return if is_end {
                    self.end()
                } else {
                    Ok(Next::Nothing)
                };
            }
        }
        Ok(self.found(nanoseconds, data))
    }

    /// The next packet of the current batch, in the device's memory, if it is delivered as it is
    /// and no filter has to run on it. What [`next`](Self::next) does for most packets, in fewer
    /// instructions.
    #[inline]
    pub fn next_held(
        &mut self,
        has_filter: bool,
        nanoseconds: bool,
    ) -> Option<(Header, *const u8)> {
        if self.is_cooked_v1 || self.direction != 0 {
            return None;
        }
        let since_ns = match self.unfiltered {
            _ if !has_filter => 0,
            Unfiltered::No => 0,
            Unfiltered::Until(time_ns) => time_ns.checked_add(1)?,
            Unfiltered::All | Unfiltered::UntilEmpty => return None,
        };
        let packet = self.reader.advance_held(|packet| {
            let is_plain = packet.is_whole() && packet.vlan().is_none();
            is_plain && packet.time_ns().unwrap_or(0) >= since_ns
        })?;
        self.is_held = true;
        let header = header(&packet, nanoseconds, self.snaplen);
        Some((header, packet.bytes().as_ptr()))
    }

    /// The result at the end of the packets: for a file that, for a device an error.
    fn end(&self) -> Result<Next> {
        match self.control.describe().intake {
            Intake::File => Ok(Next::End),
            _ => Err(Failure::new(DISAPPEARED)),
        }
    }

    /// The packet that [`find`](Self::find) has found.
    fn found(&mut self, nanoseconds: bool, data: &mut Vec<u8>) -> Next {
        self.is_held = false;
        let Some(packet) = self.reader.packet() else {
            return Next::Nothing;
        };
        let tag = tag_of(&packet, self.target.link_type);
        let mut header = header(&packet, nanoseconds, self.snaplen);
        if self.is_cooked_v1 {
            let tag = packet.tag_beside();
            cooked::to_v1(packet.bytes(), tag, data);
            header.wire_len = header.wire_len.saturating_sub(cooked::LONGER);
            let tag_len = tag.map_or(0, |tag| tag.bytes().len() as u32);
            header.wire_len = header.wire_len.saturating_add(tag_len);
        } else if tag.is_none() && packet.is_whole() {
            self.is_held = true;
            return Next::Held(header, packet.bytes().as_ptr());
        } else {
            let tag_len = gather(&packet, tag, data);
            header.wire_len = header.wire_len.saturating_add(tag_len);
        }
        data.truncate(self.snaplen as usize);
        header.cap_len = data.len() as u32;
        Next::Packet(header)
    }

    /// Copies the current packet if it is in the device's memory, and the last of its batch;
    /// returns whether it was.
    pub fn keep_last(&mut self, data: &mut Vec<u8>) -> bool {
        if !self.is_held || self.reader.has_more() {
            return false;
        }
        data.clear();
        if let Some(packet) = self.reader.packet() {
            data.extend_from_slice(packet.bytes());
        }
        self.is_held = false;
        true
    }

    /// Ends a wait for packets before it is over.
    pub fn end_wait(&mut self) {
        self.wait.end();
    }

    /// Ends a call that read packets: the current one is no longer valid if it was the last of its
    /// batch.
    ///
    /// # Errors
    /// Errors of the port.
    pub fn finish(&mut self) -> Result<()> {
        self.wait.end();
        self.reader.finish().map_err(|error| failed(&error))
    }

    /// Moves to the next packet that is wanted; false if there is none.
    fn find(&mut self, filter: Option<&Program>) -> sys::Result<bool> {
        let direction = self.direction;
        let Self {
            reader,
            unfiltered,
            is_cooked_v1,
            scratch,
            target,
            ..
        } = self;
        let ifindex = target.tap.unwrap_or(0);
        let advance = reader.advance(|packet| {
            let is_wanted = match direction {
                1 => !packet.is_outgoing(),
                2 => packet.is_outgoing(),
                _ => true,
            };
            let Some(filter) = filter.filter(|_| is_wanted) else {
                return is_wanted;
            };
            match *unfiltered {
                Unfiltered::No => true,
                Unfiltered::Until(time_ns) if packet.time_ns().is_some_and(|t| t > time_ns) => true,
                _ if *is_cooked_v1 => {
                    // As for a filter in the kernel, the tag is not in the packet.
                    cooked::to_v1(packet.bytes(), None, scratch);
                    let wire_len = packet.wire_len().saturating_sub(cooked::LONGER);
                    vm_cbpf::run(filter, scratch, wire_len) != 0
                }
                _ => selects(filter, packet, ifindex),
            }
        })?;
        if advance == Advance::Empty && *unfiltered == Unfiltered::UntilEmpty {
            *unfiltered = Unfiltered::No;
        }
        Ok(advance == Advance::Found)
    }

    /// Sends a packet.
    ///
    /// # Errors
    /// Errors of the port, and that there was no room.
    pub fn send(&mut self, packet: &[u8]) -> Result<()> {
        let none = match self.device.is_queue {
            true => "Sending packets isn't supported on a cluster without a return path",
            false => "Sending packets isn't supported on this device",
        };
        let tx = self.tx.as_mut().ok_or_else(|| Failure::new(none))?;
        let mut sent = send_once(tx, packet);
        if let Ok((false, _)) = sent {
            // The ring is full: the device sends meanwhile.
            sent = tx.wait(false, SEND_MAX).and_then(|_| send_once(tx, packet));
        }
        match sent {
            Ok((_, true)) => Ok(()),
            Ok((true, false)) => Err(Failure::system("send", libc::EMSGSIZE)),
            Ok((false, false)) => Err(Failure::system("send", libc::ENOBUFS)),
            Err(error) => Err(failed(&error)),
        }
    }
}

/// Submits a packet and starts the device; returns whether there was room for any packet, and for
/// this one.
fn send_once(tx: &mut TxQueue, packet: &[u8]) -> sys::Result<(bool, bool)> {
    let mut batch = tx.reserve(1)?;
    let has_room = batch.room() != 0;
    let is_written = batch.write(packet);
    batch.submit()?;
    tx.flush()?;
    Ok((has_room, is_written))
}

/// The header of a packet as it is in the device's memory.
#[inline]
fn header(packet: &Packet<'_>, nanoseconds: bool, snaplen: u32) -> Header {
    let time_ns = packet.time_ns().unwrap_or(0);
    let fraction_ns = (time_ns % 1_000_000_000) as i64;
    Header {
        seconds: (time_ns / 1_000_000_000) as i64,
        fraction: match nanoseconds {
            true => fraction_ns,
            false => fraction_ns / 1000,
        },
        cap_len: packet.cap_len().min(snaplen),
        wire_len: packet.wire_len(),
    }
}
