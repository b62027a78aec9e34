//! The state of a ring. Threads of the program may receive, send, read counters and ask for a stop
//! at the same time: each part has a lock of its own, which only its own kind of call takes.

mod bounce;
mod receiving;

use std::ffi::CString;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use port::{
    Direction, DropReason, FilterSource, FilterSwitch, FilterTarget, Port, PortControl,
    PortOptions, Waker,
};
use runtime::filter::Expression;
use runtime::in_place::{Reader, copies_read_only, queue_count};
use sys::ErrorKind;

use crate::device::Device;
use crate::receiver::{Receiver, Terms};
use crate::rules::{Numbers, Rules, rule_ns};
use crate::sender::{Sender, Sent};
use crate::settings::{
    FLOW_NUMBERS, LONG_HEADER, Mode, POLL_MS, Selection, Settings, UNPARSED, Wanted,
};
use crate::status::{
    self, GENERIC, INVALID_ARGUMENT, NOT_ENABLED, NOT_SUPPORTED, WRONG_CONFIGURATION,
};
use crate::visible::Visible;
use bounce::Bounce;

/// The link type of a ring that was not enabled yet.
const ETHERNET: u16 = 1;
/// More packets than any ring holds.
const WAITING_MAX: u64 = 1 << 24;

/// Result of a call, with a status of `pf_ring.h`.
pub type Outcome<T> = Result<T, i32>;

/// A `pfring`.
#[repr(C)]
pub struct Ring {
    /// The fields that programs look at.
    pub visible: Visible,
    /// The name in them.
    _name: CString,
    device: Device,
    settings: Mutex<Settings>,
    receiver: Mutex<Option<Receiver>>,
    sender: Mutex<Option<Sender>>,
    control: Mutex<Option<Control>>,
    waker: Mutex<Option<Waker>>,
    /// Counters of the port that was open before the ring joined a cluster.
    before: Mutex<Statistics>,
    is_stopped: AtomicBool,
    /// Whether the extended header is filled.
    pub long_header: bool,
    /// What may change while a thread receives: which packets it gets, and its wait in
    /// milliseconds.
    pub selection: Selection,
    poll_ms: AtomicU32,
    /// Where packets are sent on to.
    bounce: Bounce,
    /// The link type of packets, once the ring was enabled.
    link_type: AtomicU16,
    /// Whether the program is masscan, for which `pfring_recv` returns 0 for a packet.
    is_masscan: AtomicBool,
    /// The rules that select packets.
    pub rules: Arc<Rules>,
    numbers: Option<Arc<Mutex<Numbers>>>,
    /// Whether the headers of packets are parsed.
    parses: bool,
    /// The process that opened it.
    process: u32,
}

struct Control {
    control: Box<dyn PortControl>,
    switch: FilterSwitch,
    /// What the port compiles filters for.
    target: FilterTarget,
}

impl Control {
    /// The counters of the port.
    fn statistics(&mut self) -> Outcome<Statistics> {
        let account = self.control.account().map_err(|error| status::of(&error))?;
        let mut sum = Statistics::default();
        for queue in &account.rx {
            sum.received += queue.delivered + queue.in_flight;
            sum.dropped += queue.lost() - queue.dropped[DropReason::Closed as usize];
        }
        Ok(sum)
    }
}

/// Counters of `pfring_stats`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Statistics {
    /// Packets received.
    pub received: u64,
    /// Packets lost for lack of room.
    pub dropped: u64,
    /// Packets that rules have dropped.
    pub shunted: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ring {
    /// Checks the device; it is opened by [`enable`](Self::enable).
    ///
    /// # Errors
    /// As [`Device::new`].
    pub fn new(device: &str, caplen: u32, flags: u32) -> Outcome<Self> {
        let name = CString::new(device).map_err(|_| INVALID_ARGUMENT)?;
        let device = Device::new(device)?;
        let mtu = device.link().map_or(0, |link| link.mtu);
        Ok(Self {
            visible: Visible::new(&name, device.is_bypass, mtu, caplen, flags),
            _name: name,
            device,
            settings: Mutex::new(Settings::new(caplen, flags)),
            receiver: Mutex::default(),
            sender: Mutex::default(),
            control: Mutex::default(),
            waker: Mutex::default(),
            before: Mutex::default(),
            is_stopped: AtomicBool::new(false),
            long_header: flags & LONG_HEADER != 0,
            selection: Selection::default(),
            bounce: Bounce::default(),
            poll_ms: AtomicU32::new(POLL_MS),
            link_type: AtomicU16::new(ETHERNET),
            is_masscan: AtomicBool::new(false),
            rules: Arc::default(),
            numbers: (flags & FLOW_NUMBERS != 0).then(|| Arc::new(Mutex::new(Numbers::new()))),
            parses: flags & LONG_HEADER != 0 && flags & UNPARSED == 0,
            process: std::process::id(),
        })
    }

    /// Whether this process opened it, rather than its parent: rings and threads are the parent's.
    pub fn is_own(&self) -> bool {
        self.process == std::process::id()
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The settings.
    pub fn settings(&self) -> Settings {
        lock(&self.settings).clone()
    }

    /// Changes settings that take effect when the ring is enabled.
    ///
    /// # Errors
    /// `WRONG_CONFIGURATION` if it is.
    pub fn set(&self, change: impl FnOnce(&mut Settings)) -> Outcome<()> {
        if self.is_enabled() {
            return Err(WRONG_CONFIGURATION);
        }
        change(&mut lock(&self.settings));
        Ok(())
    }

    /// Sets which packets are returned.
    ///
    /// # Errors
    /// `WRONG_CONFIGURATION` if the ring is enabled, and receives no sent packets that are now
    /// wanted.
    pub fn set_wanted(&self, wanted: Wanted) -> Outcome<()> {
        let is_enabled = self.is_enabled();
        let mut settings = lock(&self.settings);
        if is_enabled && settings.wanted == Wanted::Received && wanted != Wanted::Received {
            return Err(WRONG_CONFIGURATION);
        }
        if !is_enabled {
            settings.wanted = wanted;
        }
        self.selection.wanted.store(wanted as u8, Ordering::Relaxed);
        self.visible.set_direction(wanted);
        Ok(())
    }

    /// Sets that one packet in `rate` is returned.
    pub fn set_sampling(&self, rate: u32) {
        self.selection.sampling.store(rate, Ordering::Relaxed);
    }

    /// Sets the longest wait of a call that waits.
    pub fn set_poll_duration(&self, duration_ms: u32) {
        self.poll_ms.store(duration_ms, Ordering::Relaxed);
    }

    /// Sets the cluster. An enabled ring is opened again as its member: the packets that it has not
    /// returned are lost, and count as dropped.
    ///
    /// # Errors
    /// `NOT_SUPPORTED` for a device that is not a tap; those of [`enable`](Self::enable).
    pub fn set_cluster(&self, number: u32, kind: u32) -> Outcome<()> {
        if self.device.is_bypass || self.device.interface.is_none() {
            return Err(NOT_SUPPORTED);
        }
        lock(&self.settings).set_cluster(number, kind)?;
        if self.is_enabled() {
            self.retire();
            self.disable();
            self.enable()?;
        }
        Ok(())
    }

    /// Keeps the counters of the open port, which is closed next; packets that wait count as
    /// dropped.
    fn retire(&self) {
        // Ends a call that waits, which has the receiver.
        self.stop();
        let mut control = lock(&self.control);
        let Some(open) = &mut *control else { return };
        // If it fails, more packets arrive until the port is closed.
        let _ = open.control.stop();
        let mut receiver = lock(&self.receiver);
        let waiting = receiver.as_mut().map_or(0, |it| it.discard(WAITING_MAX));
        drop(receiver);
        let shunted = self.rules.take_dropped();
        if let Ok(sum) = open.statistics() {
            let mut before = lock(&self.before);
            before.received += sum.received.saturating_sub(waiting + shunted);
            before.dropped += sum.dropped + waiting;
            before.shunted += shunted;
        }
    }

    /// Names the program that uses the ring.
    pub fn set_application(&self, name: &[u8]) {
        let is_masscan = name == b"masscan";
        self.is_masscan.store(is_masscan, Ordering::Relaxed);
    }

    /// Whether the program is masscan.
    pub fn is_masscan(&self) -> bool {
        self.is_masscan.load(Ordering::Relaxed)
    }

    /// Whether the port is open.
    pub fn is_enabled(&self) -> bool {
        lock(&self.control).is_some()
    }

    /// Opens the port; does nothing if it is open.
    ///
    /// # Errors
    /// The port's.
    pub fn enable(&self) -> Outcome<()> {
        let mut control = lock(&self.control);
        if control.is_some() {
            return Ok(());
        }
        let settings = lock(&self.settings).clone();
        if settings.mode == Mode::Manage {
            return Ok(());
        }
        let (mut port, target) = self.open(&settings)?;
        let switch = port.filter_switch();
        let if_index = self.device.link().map_or(0, |link| link.index);
        let reader = Reader::new(std::mem::take(&mut port.rx));
        let reader = reader.map_err(|error| status::of(&error))?;
        *lock(&self.waker) = reader.as_ref().map(Reader::waker);
        let link_type = port.control.describe().link_type;
        self.link_type.store(link_type, Ordering::Relaxed);
        let terms = Terms {
            if_index,
            link_type,
            rules: Arc::clone(&self.rules),
            numbers: self.numbers.clone(),
            parses: self.parses,
            cap_max: match settings.snaplen {
                0 => u32::MAX,
                snaplen => snaplen,
            },
        };
        let target = target.unwrap_or(FilterTarget {
            link_type,
            tap: None,
        });
        let receiver = reader.map(|mut reader| {
            reader.copy_read_only(!settings.only_reads && copies_read_only());
            Receiver::new(reader, terms)
        });
        *lock(&self.receiver) = receiver;
        *lock(&self.sender) = port.tx.pop().map(Sender::new);
        *control = Some(Control {
            control: port.control,
            switch,
            target,
        });
        self.is_stopped.store(false, Ordering::Relaxed);
        self.visible.set_enabled(true);
        Ok(())
    }

    /// Opens the port; also returns what it compiles filters for.
    fn open(&self, settings: &Settings) -> Outcome<(Port, Option<FilterTarget>)> {
        let directions: &[Direction] = match settings.mode {
            Mode::Send => &[Direction::Tx],
            Mode::Receive | Mode::Manage => &[Direction::Rx],
            // A file is only read.
            Mode::Both => &[Direction::Both, Direction::Rx],
        };
        let mut first = None;
        let target = Arc::new(Mutex::new(None));
        let (place, filter) = (Arc::clone(&target), settings.filter.clone());
        // Called also without a filter: one may be set later.
        let source = FilterSource::new(move |wanted| {
            *lock(&place) = Some(wanted);
            match &filter {
                Some(filter) => filter.compile(wanted),
                None => Ok(None),
            }
        });
        for name in &self.device.ports {
            for &direction in directions {
                let options = PortOptions {
                    queue_count: queue_count(name),
                    tx_optional: true,
                    filter_source: Some(source.clone()),
                    ..settings.options(direction)
                };
                match port::open(name, &options) {
                    Ok(port) => return Ok((port, lock(&target).take())),
                    // The first name is the one that was meant.
                    Err(error) => first = first.or(Some(status::of(&error))),
                }
            }
        }
        Err(first.unwrap_or(GENERIC))
    }

    /// Closes the port; does nothing if it is closed.
    pub fn disable(&self) {
        self.stop();
        *lock(&self.receiver) = None;
        *lock(&self.sender) = None;
        let mut control = lock(&self.control);
        *control = None;
        self.visible.set_enabled(false);
        // The counters of the port ended with it, and without a receiver nothing counts.
        self.rules.take_dropped();
    }

    /// The link type of packets; Ethernet before the ring is enabled.
    pub fn link_type(&self) -> u16 {
        self.link_type.load(Ordering::Relaxed)
    }

    /// Ends a call that waits for packets, in any thread.
    pub fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        // Programs call this in signal handlers, where waiting for a lock may last for ever.
        if let Ok(waker) = self.waker.try_lock()
            && let Some(waker) = &*waker
        {
            waker.wake();
        }
    }

    /// Whether a stop was requested; forgets the request.
    pub fn take_stop(&self) -> bool {
        self.is_stopped.swap(false, Ordering::Relaxed)
    }

    /// Sends a packet.
    ///
    /// # Errors
    /// `NO_TX_SLOT` if there is no room now, `INVALID_ARGUMENT` for a packet that the device cannot
    /// send;
    /// the port's.
    pub fn send(&self, packet: &[u8], flush: bool) -> Outcome<()> {
        match self.sender(|sender| sender.send(packet, flush))? {
            Sent::Accepted => Ok(()),
            Sent::NoRoom => Err(status::NO_TX_SLOT),
            Sent::Refused => Err(INVALID_ARGUMENT),
        }
    }

    /// Starts the device on all packets.
    ///
    /// # Errors
    /// The port's.
    pub fn flush(&self) -> Outcome<()> {
        self.sender(Sender::flush)
    }

    fn sender<T>(&self, call: impl FnOnce(&Sender) -> sys::Result<T>) -> Outcome<T> {
        let called = lock(&self.sender).as_ref().map(call);
        if let Some(result) = called {
            return result.map_err(|error| status::of(&error));
        }
        // Not with that lock: another thread may be enabling the ring.
        Err(match self.is_enabled() {
            true => NOT_SUPPORTED,
            false => NOT_ENABLED,
        })
    }

    /// Sets or removes the filter.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for an invalid expression; the port's.
    pub fn set_filter(&self, text: Option<&str>) -> Outcome<()> {
        // Before the port is open, only the text is checked.
        const ANY: FilterTarget = FilterTarget {
            link_type: ETHERNET,
            tap: Some(0),
        };
        let expression = text.map(Expression::new);
        let mut control = lock(&self.control);
        let target = control.as_ref().map_or(ANY, |open| open.target);
        let compiled = expression.as_ref().map(|it| it.compile(target)).transpose();
        let program = compiled.map_err(|_| INVALID_ARGUMENT)?.flatten();
        if let Some(open) = &mut *control {
            let set = open.switch.set(&mut *open.control, program.as_ref());
            set.map_err(|error| match error.kind() {
                ErrorKind::Unsupported => NOT_SUPPORTED,
                _ => status::of(&error),
            })?;
        }
        lock(&self.settings).filter = expression;
        Ok(())
    }

    /// Reads the counters.
    ///
    /// # Errors
    /// The port's.
    pub fn statistics(&self) -> Outcome<Statistics> {
        let mut control = lock(&self.control);
        let open = control.as_mut().ok_or(NOT_ENABLED)?;
        // First: packets that are dropped meanwhile are among the received ones.
        let shunted = self.rules.dropped();
        let mut sum = open.statistics()?;
        let before = lock(&self.before);
        sum.received = sum.received.saturating_sub(shunted) + before.received;
        sum.dropped += before.dropped;
        sum.shunted = shunted + before.shunted;
        Ok(sum)
    }

    /// Drops the further packets of a flow, by its number, until it has been silent for two
    /// minutes.
    ///
    /// # Errors
    /// `GENERIC` for a flow without recent packets, `NOT_SUPPORTED` if flows have no numbers; as
    /// [`Rules::change`].
    pub fn drop_flow(&self, number: u32) -> Outcome<()> {
        let numbers = self.numbers.as_ref().ok_or(NOT_SUPPORTED)?;
        let flow = lock(numbers).find(number).ok_or(GENERIC)?;
        self.rules.change(|table| table.bypass(flow, rule_ns()))
    }
}
