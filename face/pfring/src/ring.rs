//! The state of a ring. Threads of the program may receive, send, read counters and ask for a stop
//! at the same time: each part has a lock of its own, which only its own kind of call takes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use port::{
    Direction, DropReason, FilterSwitch, FilterTarget, Port, PortControl, PortOptions, Ready, Waker,
};
use runtime::filter::Expression;
use runtime::in_place::Reader;
use sys::ErrorKind;

use crate::device::Device;
use crate::header::Header;
use crate::receiver::Receiver;
use crate::sender::Sender;
use crate::settings::{Mode, Settings, Wanted};
use crate::status::{
    self, GENERIC, INVALID_ARGUMENT, NOT_ENABLED, NOT_SUPPORTED, WRONG_CONFIGURATION,
};

/// Result of a call, with a status of `pf_ring.h`.
pub type Outcome<T> = Result<T, i32>;

/// A `pfring`.
pub struct Ring {
    device: Device,
    settings: Mutex<Settings>,
    receiver: Mutex<Option<Receiver>>,
    sender: Mutex<Option<Sender>>,
    control: Mutex<Option<Control>>,
    waker: Mutex<Option<Waker>>,
    is_stopped: AtomicBool,
    /// Whether the program is masscan, for which `pfring_recv` returns 0 for a packet.
    is_masscan: AtomicBool,
}

struct Control {
    control: Box<dyn PortControl>,
    switch: FilterSwitch,
    link_type: u16,
}

/// Counters of `pfring_stats`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Statistics {
    /// Packets received.
    pub received: u64,
    /// Packets lost for lack of room.
    pub dropped: u64,
    /// Packets diverted in hardware: none.
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
        Ok(Self {
            device: Device::new(device)?,
            settings: Mutex::new(Settings::new(caplen, flags)),
            receiver: Mutex::default(),
            sender: Mutex::default(),
            control: Mutex::default(),
            waker: Mutex::default(),
            is_stopped: AtomicBool::new(false),
            is_masscan: AtomicBool::new(false),
        })
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Changes settings, also of a ring that is enabled.
    pub fn set<T>(&self, change: impl FnOnce(&mut Settings) -> T) -> T {
        let mut settings = lock(&self.settings);
        let result = change(&mut settings);
        let (wanted, sampling) = (settings.wanted, settings.sampling);
        drop(settings);
        // A thread that waits for packets holds the lock: it gets them when it starts again.
        if let Ok(mut receiver) = self.receiver.try_lock()
            && let Some(receiver) = &mut *receiver
        {
            receiver.select(wanted, sampling);
        }
        result
    }

    /// Sets the cluster, before the ring is enabled.
    ///
    /// # Errors
    /// `WRONG_CONFIGURATION` later on; `NOT_SUPPORTED` for a device that is not a tap.
    pub fn set_cluster(&self, number: u32, kind: u32) -> Outcome<()> {
        if self.is_enabled() {
            return Err(WRONG_CONFIGURATION);
        }
        if self.device.is_bypass || self.device.interface.is_none() {
            return Err(NOT_SUPPORTED);
        }
        lock(&self.settings).set_cluster(number, kind)
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
        let mut port = self.open(&settings)?;
        let switch = port.filter_switch();
        let if_index = self.device.link().map_or(0, |link| link.index);
        let reader = Reader::new(std::mem::take(&mut port.rx));
        let reader = reader.map_err(|error| status::of(&error))?;
        *lock(&self.waker) = reader.as_ref().map(Reader::waker);
        *lock(&self.receiver) = reader.map(|reader| {
            let mut receiver = Receiver::new(reader, if_index);
            receiver.select(settings.wanted, settings.sampling);
            receiver
        });
        *lock(&self.sender) = port.tx.pop().map(Sender::new);
        let link_type = port.control.describe().link_type;
        *control = Some(Control {
            control: port.control,
            switch,
            link_type,
        });
        self.is_stopped.store(false, Ordering::Relaxed);
        Ok(())
    }

    fn open(&self, settings: &Settings) -> Outcome<Port> {
        let directions: &[Direction] = match settings.mode {
            Mode::Send => &[Direction::Tx],
            Mode::Receive => &[Direction::Rx],
            // A file or a cluster is only read.
            Mode::Both => &[Direction::Both, Direction::Rx],
        };
        let mut first = None;
        for name in &self.device.ports {
            for &direction in directions {
                let options = PortOptions {
                    // Of a tap one queue is enough; of a card all are read.
                    queue_count: u32::from(!name.starts_with("afxdp:")),
                    ..settings.options(direction)
                };
                match port::open(name, &options) {
                    Ok(port) => return Ok(port),
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
        *lock(&self.control) = None;
    }

    /// Ends a call that waits for packets, in any thread.
    pub fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        if let Some(waker) = &*lock(&self.waker) {
            waker.wake();
        }
    }

    /// Whether a stop was requested; forgets the request.
    pub fn take_stop(&self) -> bool {
        self.is_stopped.swap(false, Ordering::Relaxed)
    }

    /// Passes the next packet to `use_it`; its bytes are valid until the next call. `None` if there
    /// is none, after the poll duration if it may wait.
    ///
    /// # Errors
    /// The port's, and `NOT_ENABLED`.
    pub fn receive<T>(
        &self,
        may_wait: bool,
        use_it: impl FnOnce(Header, &[u8]) -> T,
    ) -> Outcome<Option<T>> {
        let mut receiver = lock(&self.receiver);
        let receiver = receiver.as_mut().ok_or(NOT_ENABLED)?;
        let longest = wait_max(may_wait, &self.settings);
        let start = Instant::now();
        loop {
            match receiver.packet() {
                Ok(Some((header, bytes))) => return Ok(Some(use_it(header, bytes))),
                Ok(None) => {}
                Err(error) => return Err(status::of(&error)),
            }
            let left = longest.saturating_sub(start.elapsed());
            if left.is_zero() || self.is_stopped.load(Ordering::Relaxed) {
                return Ok(None);
            }
            match receiver.wait(left) {
                Ok(Ready::End) => return Err(status::UNKNOWN_ADAPTER),
                Ok(_) => {}
                Err(error) => return Err(status::of(&error)),
            }
        }
    }

    /// Waits for packets; returns whether there may be some.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub fn poll(&self, timeout: Duration) -> Outcome<bool> {
        let mut receiver = lock(&self.receiver);
        let receiver = receiver.as_mut().ok_or(NOT_ENABLED)?;
        if receiver.has_packet() {
            return Ok(true);
        }
        match receiver.wait(timeout) {
            Ok(ready) => Ok(ready == Ready::Packets),
            Err(error) => Err(status::of(&error)),
        }
    }

    /// A descriptor to poll.
    ///
    /// # Errors
    /// `NOT_SUPPORTED` if there is none.
    pub fn fd(&self) -> Outcome<i32> {
        let mut receiver = lock(&self.receiver);
        let receiver = receiver.as_mut().ok_or(NOT_ENABLED)?;
        receiver.fd().ok_or(NOT_SUPPORTED)
    }

    /// Sends a packet.
    ///
    /// # Errors
    /// `NO_TX_SLOT` if there is no room now; the port's.
    pub fn send(&self, packet: &[u8], flush: bool) -> Outcome<()> {
        match self.sender(|sender| sender.send(packet, flush))? {
            true => Ok(()),
            false => Err(status::NO_TX_SLOT),
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
        let sender = lock(&self.sender);
        let Some(sender) = &*sender else {
            return Err(match self.is_enabled() {
                true => NOT_SUPPORTED,
                false => NOT_ENABLED,
            });
        };
        call(sender).map_err(|error| status::of(&error))
    }

    /// Sets or removes the filter.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for an invalid expression; the port's.
    pub fn set_filter(&self, text: Option<&str>) -> Outcome<()> {
        const ETHERNET: u16 = 1;
        let expression = text.map(Expression::new);
        let mut control = lock(&self.control);
        let target = FilterTarget {
            link_type: control.as_ref().map_or(ETHERNET, |open| open.link_type),
            tap: self
                .device
                .link()
                .filter(|_| !self.device.is_bypass)
                .map(|link| link.index),
        };
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
        let account = open.control.account().map_err(|error| status::of(&error))?;
        let mut sum = Statistics::default();
        for queue in &account.rx {
            sum.received += queue.delivered + queue.in_flight;
            sum.dropped += queue.lost() - queue.dropped[DropReason::Closed as usize];
        }
        Ok(sum)
    }

    /// Sets which packets are received.
    pub fn set_wanted(&self, wanted: Wanted) {
        self.set(|settings| settings.wanted = wanted);
    }
}

fn wait_max(may_wait: bool, settings: &Mutex<Settings>) -> Duration {
    match may_wait {
        true => lock(settings).poll_duration,
        false => Duration::ZERO,
    }
}
