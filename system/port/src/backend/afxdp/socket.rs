//! The socket of a queue: its memory, its rings, its binding, and the frames returned when it
//! closes.

use std::any::Any;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ring::{Consumer, FrameCache, Pool, Producer, RingMemory};
use sys::link::Link;
use sys::netlink;
use sys::xsk::{Bind, Descriptor, PACKET_CONTINUES, RingKind, RingMap, XskSocket};
use sys::{Error, ErrorKind, Result};

use super::borrowed::Borrowed;
use super::probe::Probe;

/// How long binding to a queue in use is retried: sockets of a process that has died close a moment
/// later.
const BUSY_RETRY: Duration = Duration::from_millis(500);

/// How long a driver may take to release a queue whose zero-copy socket has closed. Cards reset for
/// it, but not for longer.
const RELEASE_MAX: Duration = Duration::from_secs(2);

/// Configuration of a queue's socket.
#[derive(Clone, Debug)]
pub(super) struct SocketSpec {
    pub ifindex: u32,
    pub queue_index: u32,
    pub has_rx: bool,
    pub has_tx: bool,
    /// Length of the RX ring.
    pub ring_len: u32,
    /// Length of the TX ring.
    pub tx_len: u32,
    /// Number of frames to give to the kernel for receiving.
    pub fill_count: u32,
    pub zero_copy: bool,
    pub multi_buffer: bool,
    pub need_wakeup: bool,
}

/// State shared by the two ends of a queue and the control side. Fields are dropped in this order:
/// a socket stays bound while a ring is mapped, and frames are returned when it is closed.
pub(super) struct Shared {
    rx_view: Option<Arc<RingMap>>,
    pub socket: XskSocket,
    leftovers: Leftovers,
    pub spec: SocketSpec,
    /// As reported by the kernel, not as requested.
    pub zero_copy: bool,
    /// Whether the memory was registered by another socket.
    pub joined: bool,
    /// Netlink socket in the namespace where the port was opened.
    route: Mutex<netlink::Socket>,
    /// Whether the device was removed.
    gone: AtomicBool,
    /// Whether a thread is checking for removal.
    asking: AtomicBool,
    /// Why the program that redirected packets to this queue is no longer attached.
    detached: OnceLock<String>,
    /// Packets that were in the RX ring when the receiving end was dropped.
    pub closed: AtomicU64,
}

/// Frames that the kernel never returned; they return to the pool when the socket is closed.
struct Leftovers {
    pool: Pool,
    sets: Mutex<Vec<Borrowed>>,
    card: Card,
}

/// Whether a card may still access the frames of a closed socket.
enum Card {
    /// Never: the kernel copies.
    Never,
    /// Until the driver has released the queue. Without a probe that time cannot be determined.
    Until(Option<Probe>),
}

impl Drop for Leftovers {
    fn drop(&mut self) {
        let sets = self.sets.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Card::Until(probe) = std::mem::replace(&mut self.card, Card::Never) {
            let is_released = probe.is_some_and(|probe| probe.wait(RELEASE_MAX));
            if !is_released {
                // The device keeps them, which the pool's counts show: better than a card that
                // writes into a packet in use.
                return;
            }
        }
        let mut cache = FrameCache::new(self.pool.clone());
        for index in sets.iter().flat_map(Borrowed::iter) {
            // SAFETY: the socket is closed, and the driver has let go of its queue: nothing writes
            // the borrowed frames any more.
            unsafe { cache.reclaim(index) };
        }
    }
}

/// Parts of the receiving end.
pub(super) struct RxParts {
    pub rx: Consumer<Descriptor>,
    pub fill: Producer<u64>,
    pub borrowed: Borrowed,
}

/// Parts of the sending end.
pub(super) struct TxParts {
    pub tx: Producer<Descriptor>,
    pub completion: Consumer<u64>,
    pub borrowed: Borrowed,
    pub view: Arc<RingMap>,
}

/// A bound socket with its ends, until these go to their owners. If dropped before (because the
/// port could not be opened after all), it reclaims the frames that the kernel had.
pub(super) struct Queue {
    pub shared: Arc<Shared>,
    rx: Option<RxParts>,
    tx: Option<TxParts>,
}

impl Queue {
    /// The two ends, for their owners, which are responsible for the frames from here on.
    pub(super) fn into_ends(mut self) -> (Arc<Shared>, Option<RxParts>, Option<TxParts>) {
        (self.shared.clone(), self.rx.take(), self.tx.take())
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // Each ring is unmapped here; the socket closes with `shared`, and then its remaining
        // frames are free again.
        if let Some(RxParts { rx, fill, borrowed }) = self.rx.take() {
            drop((rx, fill));
            self.shared.leave(borrowed);
        }
        if let Some(parts) = self.tx.take() {
            drop((parts.tx, parts.completion, parts.view));
            self.shared.leave(parts.borrowed);
        }
    }
}

impl Shared {
    /// Number of packets in the RX ring: whole ones, however many descriptors each has.
    pub(super) fn rx_waiting(&self) -> u64 {
        self.rx_view.as_deref().map_or(0, packets_in)
    }

    /// Writes descriptors into the RX ring in place of the kernel: its memory is mapped writable.
    #[cfg(test)]
    pub(super) fn forge(&self, descriptors: &[Descriptor]) {
        use std::sync::atomic::AtomicU32;
        let map = self.rx_view.as_deref().expect("a receiving queue");
        let (producer, _) = indices(map);
        for (at, descriptor) in (producer..).zip(descriptors) {
            let slot = (at & (map.entry_count() - 1)) as usize;
            // SAFETY: the mask keeps the index in the ring, and the kernel has nothing to write
            // into the ring of an interface that is down.
            unsafe {
                map.entries::<Descriptor>()
                    .cast_mut()
                    .add(slot)
                    .write_volatile(*descriptor);
            }
        }
        let end = producer.wrapping_add(descriptors.len() as u32);
        // SAFETY: an aligned word inside the mapping, accessed atomically by all sides.
        unsafe { (*map.producer().cast::<AtomicU32>()).store(end, Ordering::Release) };
    }

    /// Checks whether the device was removed, or its packets no longer arrive here; the kernel
    /// reports this once, so it is stored.
    pub(super) fn check_gone(&self) -> bool {
        if self.is_gone() {
            return true;
        }
        let gone = self
            .socket
            .take_error()
            .is_some_and(|e| e.raw_os_error() == Some(libc::ENETDOWN));
        if gone {
            self.set_gone();
        }
        gone
    }

    /// Starts a thread that checks whether an interface that is down is being removed, unless one
    /// is running: the kernel first sets it down and notifies the sockets a moment later. The
    /// kernel answers only when it has done both and the RTNL lock is free. [`Shared::is_gone`] has
    /// the answer once [`Shared::is_asking`] is false.
    pub(super) fn ask_whether_removed(self: &Arc<Self>) {
        if self.asking.swap(true, Ordering::Acquire) {
            return;
        }
        let shared = self.clone();
        let ask = move || {
            let mut route = shared.route.lock().unwrap_or_else(PoisonError::into_inner);
            let asked = Link::ask_by_index(&mut route, shared.spec.ifindex);
            if asked.is_err_and(|error| error.kind() == ErrorKind::NotFound) {
                shared.set_gone();
            }
            shared.asking.store(false, Ordering::Release);
        };
        let name = format!("link-{}", self.spec.ifindex);
        let thread = std::thread::Builder::new().name(name);
        // The process may be another's: its signals are not for this thread.
        if sys::signal::without_signals(|| thread.spawn(ask)).is_err() {
            // It will be tried again later.
            self.asking.store(false, Ordering::Release);
        }
    }

    /// While this is held, no query is answered.
    #[cfg(test)]
    pub(super) fn hold_answers(&self) -> std::sync::MutexGuard<'_, netlink::Socket> {
        self.route.lock().unwrap()
    }

    /// Whether the answer is pending.
    pub(super) fn is_asking(&self) -> bool {
        self.asking.load(Ordering::Acquire)
    }

    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    pub(super) fn set_gone(&self) {
        self.gone.store(true, Ordering::Relaxed);
    }

    /// Marks the queue as no longer receiving packets.
    pub(super) fn set_detached(&self, why: &str) {
        let _ = self.detached.set(why.to_owned());
        self.set_gone();
    }

    /// Takes over the frames that the kernel holds of a dropped end.
    pub(super) fn leave(&self, borrowed: Borrowed) {
        let sets = &self.leftovers.sets;
        sets.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(borrowed);
    }

    /// The error of an operation on a device that was removed, or whose packets go elsewhere.
    pub(super) fn gone_error(&self, what: &str) -> Error {
        if let Some(why) = self.detached.get() {
            let why = format!("the XDP program was detached by another process: {why}");
            return Error::new(ErrorKind::Gone, what, why).with_hint(
                "`barewire devices` shows the attached program; then start barewire again",
            );
        }
        Error::new(ErrorKind::Gone, what, "the interface has been deleted")
            .with_hint("open the port again when the interface is back")
    }
}

/// Number of whole packets between the two indices of a descriptor ring. Both sides may advance
/// meanwhile.
pub(super) fn packets_in(map: &RingMap) -> u64 {
    let (producer, consumer) = indices(map);
    packets_between(map, consumer, producer).0
}

/// The producer's and the consumer's index; both run freely and wrap.
pub(super) fn indices(map: &RingMap) -> (u32, u32) {
    use std::sync::atomic::AtomicU32;
    // SAFETY: aligned words inside the mapping (checked when it was made), accessed atomically by
    // all sides.
    unsafe {
        (
            (*map.producer().cast::<AtomicU32>()).load(Ordering::Acquire),
            (*map.consumer().cast::<AtomicU32>()).load(Ordering::Acquire),
        )
    }
}

/// Number of whole packets from one index of a descriptor ring to another, and their bytes.
pub(super) fn packets_between(map: &RingMap, from: u32, to: u32) -> (u64, u64) {
    let count = to.wrapping_sub(from).min(map.entry_count());
    let (mut packets, mut bytes) = (0, 0);
    for at in 0..count {
        let descriptor = descriptor(map, from.wrapping_add(at));
        bytes += u64::from(descriptor.len);
        packets += u64::from(descriptor.options & PACKET_CONTINUES == 0);
    }
    (packets, bytes)
}

/// The packet that begins at an index of a descriptor ring: its bytes, and the index of the next
/// one.
pub(super) fn packet_at(map: &RingMap, start: u32) -> (u64, u32) {
    let (mut at, mut bytes) = (start, 0);
    for _ in 0..map.entry_count() {
        let descriptor = descriptor(map, at);
        bytes += u64::from(descriptor.len);
        at = at.wrapping_add(1);
        if descriptor.options & PACKET_CONTINUES == 0 {
            break;
        }
    }
    (bytes, at)
}

fn descriptor(map: &RingMap, index: u32) -> Descriptor {
    let slot = index & (map.entry_count() - 1);
    // SAFETY: the mask keeps the index in the ring; a volatile read of integers that another side
    // may write gives some value, which is only counted.
    unsafe {
        map.entries::<Descriptor>()
            .add(slot as usize)
            .read_volatile()
    }
}

/// Creates a ring over mapped memory.
fn memory<T: Copy>(map: &Arc<RingMap>) -> RingMemory<T> {
    let keep: Arc<dyn Send + Sync> = map.clone();
    // SAFETY: the pointers lie inside the mapping and are aligned (checked in `XskSocket::ring`),
    // which `keep` keeps; entries are plain integers; each ring gets one end here and has the
    // kernel at the other.
    unsafe {
        RingMemory::from_raw(
            map.producer(),
            map.consumer(),
            map.flags(),
            map.entries(),
            map.entry_count(),
            keep,
        )
    }
}

/// A bound socket over `pool` that a new one can join.
fn find_joinable(pool: &Pool, spec: &SocketSpec) -> Option<Arc<Shared>> {
    pool.users()
        .into_iter()
        .filter_map(|user: Arc<dyn Any + Send + Sync>| user.downcast::<Shared>().ok())
        .find(|other| {
            // The new socket uses the other's modes; the kernel accepts no flags for it.
            other.zero_copy == spec.zero_copy
                && other.spec.multi_buffer == spec.multi_buffer
                && other.spec.need_wakeup == spec.need_wakeup
                && !other.is_gone()
        })
}

/// Opens and binds a socket over the pool's memory: joins a socket that has already registered it,
/// otherwise registers it.
///
/// # Errors
/// The errno of the failed step is kept, so that the caller can try another mode.
pub(super) fn open(pool: &Pool, spec: &SocketSpec) -> Result<Queue> {
    if let Some(other) = find_joinable(pool, spec) {
        match open_once(pool, spec, Some(&other)) {
            // Some drivers cannot share; a separate registration of the same memory also works, but
            // counts twice against the locked memory limit.
            Err(error) if error.kind() != ErrorKind::Busy => {}
            result => return result,
        }
    }
    open_once(pool, spec, None)
}

/// A socket's rings.
struct Rings {
    fill: Arc<RingMap>,
    completion: Arc<RingMap>,
    rx: Option<Arc<RingMap>>,
    tx: Option<Arc<RingMap>>,
}

impl Rings {
    fn map(socket: &XskSocket, spec: &SocketSpec) -> Result<Rings> {
        let tx_len = spec.tx_len.next_power_of_two();
        // Twice the RX ring; otherwise a slow reader would find both empty at once and the kernel
        // would report the wrong reason.
        let fill_len = spec.fill_count.max(64).next_power_of_two();
        let completion_len = if spec.has_tx { tx_len } else { 64 };
        let ring = |kind, len| Ok(Arc::new(socket.ring(kind, len)?));
        Ok(Rings {
            fill: ring(RingKind::Fill, fill_len)?,
            completion: ring(RingKind::Completion, completion_len)?,
            rx: match spec.has_rx {
                true => Some(ring(RingKind::Rx, spec.ring_len.next_power_of_two())?),
                false => None,
            },
            tx: match spec.has_tx {
                true => Some(ring(RingKind::Tx, tx_len)?),
                false => None,
            },
        })
    }
}

fn open_once(pool: &Pool, spec: &SocketSpec, other: Option<&Arc<Shared>>) -> Result<Queue> {
    let socket = XskSocket::open()?;
    let route = Mutex::new(netlink::Socket::route()?);
    if other.is_none() {
        // SAFETY: the pool's mapping lives as long as `Leftovers`, which is dropped after the
        // socket; its bytes are only accessed by the owner of the frame.
        unsafe {
            socket.register_memory(pool.base().as_ptr(), pool.frames_len(), pool.frame_len())
        }?;
    }
    let Rings {
        fill,
        completion,
        rx,
        tx,
    } = Rings::map(&socket, spec)?;

    // Before the bind: a zero-copy driver that finds no frames then may never look again.
    let mut fill = Producer::<u64>::new(memory(&fill));
    let mut borrowed = Borrowed::new(pool.frame_count());
    let mut cache = FrameCache::new(pool.clone());
    top_up(&mut fill, &mut cache, &mut borrowed, spec.fill_count);
    drop(cache);

    let leftovers = Leftovers {
        pool: pool.clone(),
        sets: Mutex::new(Vec::new()),
        // A failed bind has released the queue before it returns.
        card: Card::Never,
    };
    let mut shared = Shared {
        rx_view: rx.clone(),
        socket,
        leftovers,
        spec: spec.clone(),
        zero_copy: spec.zero_copy,
        joined: other.is_some(),
        route,
        gone: AtomicBool::new(false),
        asking: AtomicBool::new(false),
        detached: OnceLock::new(),
        closed: AtomicU64::new(0),
    };
    if let Err(error) = bind(&shared.socket, spec, other) {
        drop((fill, completion, rx, tx));
        shared.leave(borrowed);
        return Err(error);
    }
    shared.zero_copy = shared.socket.is_zero_copy().unwrap_or(spec.zero_copy);
    if shared.zero_copy {
        shared.leftovers.card = Card::Until(Probe::new(spec.ifindex, spec.queue_index).ok());
    }
    let rx = match rx {
        Some(rx) => Some(RxParts {
            rx: Consumer::new(memory(&rx)),
            fill,
            borrowed,
        }),
        None => {
            // Zero-copy only: the queue still receives for the host, through frames that the kernel
            // recycles.
            shared.leave(borrowed);
            None
        }
    };
    let tx = tx.map(|tx| TxParts {
        tx: Producer::new(memory(&tx)),
        completion: Consumer::new(memory(&completion)),
        borrowed: Borrowed::new(pool.frame_count()),
        view: tx,
    });
    let shared = Arc::new(shared);
    let user: Arc<dyn Any + Send + Sync> = shared.clone();
    pool.add_user(Arc::downgrade(&user));
    Ok(Queue { shared, rx, tx })
}

fn bind(socket: &XskSocket, spec: &SocketSpec, other: Option<&Arc<Shared>>) -> Result<()> {
    let give_up = Instant::now() + BUSY_RETRY;
    loop {
        let result = socket.bind(Bind {
            ifindex: spec.ifindex,
            queue_index: spec.queue_index,
            zero_copy: spec.zero_copy,
            need_wakeup: spec.need_wakeup,
            multi_buffer: spec.multi_buffer,
            shared: other.map(|other| other.socket.as_fd()),
        });
        let Err(error) = result else { return Ok(()) };
        let busy = error.raw_os_error() == Some(libc::EBUSY);
        if !busy || Instant::now() >= give_up {
            let what = format!("bind a socket to queue {}", spec.queue_index);
            return Err(Error::from_io(what, error));
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Gives frames to the kernel for receiving until it has `target`, the ring is full, or the pool is
/// empty.
#[inline]
pub(super) fn top_up(
    fill: &mut Producer<u64>,
    cache: &mut FrameCache,
    borrowed: &mut Borrowed,
    target: u32,
) {
    let want = target.saturating_sub(borrowed.count());
    if want == 0 {
        return;
    }
    let room = fill.reserve(want);
    let mut count = 0;
    while count < room {
        let Some(index) = cache.take_for_device() else {
            break;
        };
        borrowed.insert(index);
        fill.write(count, cache.pool().addr_of(index));
        count += 1;
    }
    if count != 0 {
        fill.submit(count);
    }
}
