//! Place of one packet (or one segment of a large packet) in a batch: written and read by drivers
//! and port backends, a batch at a time.

use std::ptr::NonNull;

use crate::pool::Pool;

/// A VLAN tag that the card or the kernel removed from the packet and reports separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Vlan {
    /// Tag protocol: 0x8100 or 0x88a8.
    pub tpid: u16,
    /// Priority, drop eligibility and id (IEEE 802.1Q §9.6).
    pub tci: u16,
}

impl Vlan {
    /// Offset of a tag in a packet: after the two addresses (IEEE 802.3 §3.1.1).
    pub const AT: usize = 12;
    /// Length of a tag in bytes (IEEE 802.1Q §9.3).
    pub const LEN: usize = 4;

    /// The tag's bytes in a packet.
    pub fn bytes(self) -> [u8; Self::LEN] {
        let ([a, b], [c, d]) = (self.tpid.to_be_bytes(), self.tci.to_be_bytes());
        [a, b, c, d]
    }
}

/// The card's result for a packet's IP and transport checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// Unknown: not checked, or the protocol is not supported.
    Unknown,
    /// All that were checked are right.
    Good,
    /// At least one is wrong.
    Bad,
    /// The transport checksum covers only the pseudo header so far: the packet was never on a wire.
    Partial,
}

/// Metadata that a driver or backend fills in for each packet: 48 bytes, written once, so that a
/// batch traverses memory once.
///
/// Only drivers and backends see slots; programs see the port's packets, whose lifetime is that of
/// the batch. The position, length and owner of the bytes can only be changed by unsafe functions,
/// or to shorten them; the rest is plain data.
#[derive(Debug)]
#[repr(C)]
pub struct Slot {
    data: NonNull<u8>,
    cap_len: u32,
    /// Length of the packet on the wire, over all of its slots.
    pub wire_len: u32,
    /// The backend's token for releasing the slot: a frame's index, a block's number.
    token: u64,
    /// Time of arrival in nanoseconds since the Unix epoch, if `flags` has [`Slot::TIME`].
    pub time_ns: u64,
    /// The card's hash in the upper half; below it the type of the hash, in four bits as cards
    /// encode it (Intel 82576 datasheet, §7.1.5.2; 0: no hash). The other bits are unused.
    pub hash: u64,
    /// The constants below, combined.
    pub flags: u16,
    /// Index of the interface, if there are several.
    pub interface_index: u16,
    /// The removed tag, if `flags` has [`Slot::VLAN`].
    pub vlan: Vlan,
}

// SAFETY: a slot is a description of memory that its queue owns; it moves between threads only with
// that queue.
unsafe impl Send for Slot {}

impl Slot {
    /// `time_ns` is set.
    pub const TIME: u16 = 1 << 0;
    /// The host sent this packet (a tap sees both directions).
    pub const OUTGOING: u16 = 1 << 2;
    /// `vlan` is set. (The bit positions are those of Intel's cards, as for the checksums, so a
    /// mask is enough.)
    pub const VLAN: u16 = 1 << 3;
    /// The packet continues in the next slot.
    pub const CONTINUES: u16 = 1 << 4;
    /// The card has checked the packet's checksums, and they are right.
    pub const CHECKSUM_GOOD: u16 = 1 << 5;
    /// The card has checked the packet's checksums, and one is wrong.
    pub const CHECKSUM_BAD: u16 = 1 << 6;
    /// The transport checksum is incomplete: the packet comes from a program on the same machine.
    pub const CHECKSUM_PARTIAL: u16 = 1 << 7;
    /// A capture file says that the host received this packet.
    pub const INCOMING: u16 = 1 << 8;
    /// The packet is in a block of a capture file that is to be copied: the token is the block's
    /// length in the upper half, and the packet's offset in it in the lower half.
    pub const BLOCK: u16 = 1 << 9;
    /// Blocks that are not packets, and are to be copied, come before this packet in its file.
    pub const AFTER_BLOCKS: u16 = 1 << 10;

    /// Position of the four bits with the length of the frame check sequence, in bytes.
    pub const FCS_SHIFT: u32 = 12;

    /// All of these that cross a process boundary.
    pub(crate) const FLAGS: u16 = Self::TIME
        | Self::OUTGOING
        | Self::VLAN
        | Self::CONTINUES
        | Self::CHECKSUM_GOOD
        | Self::CHECKSUM_BAD
        | Self::CHECKSUM_PARTIAL
        | 0xf << Self::FCS_SHIFT;

    /// The bits of `hash` that hold its type.
    const HASH_KIND: u64 = 0xf;

    /// Token of a slot whose frame was moved elsewhere: there is nothing to release.
    pub const DETACHED: u64 = u64::MAX;

    /// A slot over a packet, or a part of one, without metadata: `cap_len` bytes at `data` of
    /// `wire_len` on the wire, and a token by which the backend identifies it.
    ///
    /// # Safety
    /// Until the slot returns to the backend (by `release` or `submit`) or is dropped, the bytes
    /// are initialized memory that only the holder of the slot reads and writes.
    #[inline(always)]
    pub unsafe fn over(data: NonNull<u8>, cap_len: u32, wire_len: u32, token: u64) -> Self {
        Self {
            data,
            cap_len,
            wire_len,
            token,
            time_ns: 0,
            hash: 0,
            flags: 0,
            interface_index: 0,
            vlan: Vlan { tpid: 0, tci: 0 },
        }
    }

    /// Start of its bytes.
    #[inline]
    pub fn data(&self) -> NonNull<u8> {
        self.data
    }

    /// Length of its buffer if it is to be filled, or of its part of the packet if it is filled.
    #[inline]
    pub fn cap_len(&self) -> u32 {
        self.cap_len
    }

    /// The backend's token; [`Slot::DETACHED`] if its frame was moved elsewhere.
    #[inline]
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Length of the frame check sequence at the end of the packet on the wire, which `wire_len`
    /// includes; 0 if there is none, or if it is unknown.
    #[inline(always)]
    pub fn fcs_len(&self) -> u32 {
        u32::from(self.flags >> Self::FCS_SHIFT)
    }

    /// Sets the length of the frame check sequence. More than 15 bytes cannot be one.
    #[inline]
    pub fn set_fcs_len(&mut self, len: u8) {
        let len = if len < 16 { u16::from(len) } else { 0 };
        self.flags = self.flags & !(0xf << Self::FCS_SHIFT) | len << Self::FCS_SHIFT;
    }

    /// Whether the packet continues in the next slot.
    #[inline]
    pub fn continues(&self) -> bool {
        self.has(Self::CONTINUES)
    }

    /// Marks the packet as continued in the next slot.
    #[inline]
    pub fn set_continues(&mut self) {
        self.flags |= Self::CONTINUES;
    }

    /// Shortens its part of the packet to at most `len` bytes.
    #[inline(always)]
    pub fn cut_to(&mut self, len: u32) {
        self.cap_len = self.cap_len.min(len);
    }

    /// Points it to `cap_len` bytes at `data`.
    ///
    /// # Safety
    /// As for [`over`](Self::over).
    #[inline]
    pub unsafe fn move_to(&mut self, data: NonNull<u8>, cap_len: u32) {
        (self.data, self.cap_len) = (data, cap_len);
    }

    /// Forgets its frame, which a sending queue now owns. The length is kept for counting.
    #[inline]
    pub fn forget_frame(&mut self) {
        self.token = Self::DETACHED;
    }

    /// Marks its frame as moved elsewhere, as `detach` does when it moves a frame.
    #[inline]
    pub fn set_detached(&mut self) {
        self.token = Self::DETACHED;
        self.cap_len = 0;
    }

    /// Sets the time of arrival, in nanoseconds since the Unix epoch.
    #[inline]
    pub fn set_time(&mut self, time_ns: u64) {
        self.time_ns = time_ns;
        self.flags |= Self::TIME;
    }

    /// Sets the removed VLAN tag.
    #[inline]
    pub fn set_vlan(&mut self, vlan: Vlan) {
        self.vlan = vlan;
        self.flags |= Self::VLAN;
    }

    /// Sets the card's checksum result.
    #[inline]
    pub fn set_checksum(&mut self, checksum: Checksum) {
        self.flags &= !(Self::CHECKSUM_GOOD | Self::CHECKSUM_BAD | Self::CHECKSUM_PARTIAL);
        self.flags |= match checksum {
            Checksum::Unknown => 0,
            Checksum::Good => Self::CHECKSUM_GOOD,
            Checksum::Bad => Self::CHECKSUM_BAD,
            Checksum::Partial => Self::CHECKSUM_PARTIAL,
        };
    }

    /// Marks the packet as sent by the host itself.
    #[inline]
    pub fn set_outgoing(&mut self) {
        self.flags |= Self::OUTGOING;
    }

    /// Sets the index of the interface, if there are several.
    #[inline]
    pub fn set_interface(&mut self, index: u16) {
        self.interface_index = index;
    }

    /// The card's hash, of any type.
    #[inline]
    pub fn rss_hash(&self) -> Option<u32> {
        (self.hash & Self::HASH_KIND != 0).then_some((self.hash >> 32) as u32)
    }

    /// The field of a hash.
    pub(crate) fn hash_of(hash: u32) -> u64 {
        u64::from(hash) << 32 | Self::HASH_KIND
    }

    /// Sets a hash whose type the card does not report.
    #[inline]
    pub fn set_rss_hash(&mut self, hash: u32) {
        self.hash = Self::hash_of(hash);
    }

    /// Sets flags, interface, tag protocol and tag from one word: flags in the lowest 16 bits, the
    /// interface from bit 16 on, the protocol from bit 32, the tag from bit 48.
    #[inline(always)]
    pub fn set_info(&mut self, info: u64) {
        self.flags = info as u16;
        self.interface_index = (info >> 16) as u16;
        self.vlan = Vlan {
            tpid: (info >> 32) as u16,
            tci: (info >> 48) as u16,
        };
    }

    /// The word that [`set_info`](Self::set_info) sets.
    #[inline(always)]
    pub fn info(&self) -> u64 {
        if cfg!(target_endian = "little") {
            // SAFETY: these 8 bytes are integers without gaps between them; see `INFO_WORD`.
            unsafe { (&raw const *self).cast::<u64>().add(INFO_WORD).read() }
        } else {
            let [flags, interface] = [self.flags, self.interface_index].map(u64::from);
            let [tpid, tci] = [self.vlan.tpid, self.vlan.tci].map(u64::from);
            flags | interface << 16 | tpid << 32 | tci << 48
        }
    }

    /// Takes over what is known of another packet besides its bytes.
    pub fn set_metadata_of(&mut self, other: &Slot) {
        let continues = self.flags & Self::CONTINUES;
        self.set_info(other.info() & !u64::from(Self::CONTINUES) | u64::from(continues));
        self.time_ns = other.time_ns;
        self.hash = other.hash;
        self.wire_len = other.wire_len;
    }

    /// Writes a slot to `at` whose `cap_len` and `wire_len` are `len`; `info` is that of
    /// [`set_info`](Self::set_info).
    ///
    /// # Safety
    /// There is room for a slot at `at`. `data` is not null.
    #[inline(always)]
    pub unsafe fn write(
        at: *mut Self,
        data: *mut u8,
        len: u32,
        index: u32,
        time_ns: u64,
        hash: u64,
        info: u64,
    ) {
        // SAFETY: the caller's word. The assertions below fix the layout of a slot; on a
        // little-endian processor those of one word are written by one store.
        unsafe {
            (&raw mut (*at).data).write(NonNull::new_unchecked(data));
            (&raw mut (*at).cap_len).write(len);
            (&raw mut (*at).wire_len).write(len);
            (&raw mut (*at).token).write(index.into());
            (&raw mut (*at).time_ns).write(time_ns);
            (&raw mut (*at).hash).write(hash);
            if cfg!(target_endian = "little") {
                at.cast::<u64>().add(INFO_WORD).write(info);
            } else {
                (*at).set_info(info);
            }
        }
    }

    /// Like `write`, for a buffer of `len` bytes without metadata.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub unsafe fn write_buffer(at: *mut Self, data: *mut u8, len: u32, index: u32) {
        // SAFETY: as there. Both lengths are those of one word.
        unsafe {
            (&raw mut (*at).data).write(NonNull::new_unchecked(data));
            let lens = u64::from(len) << 32 | u64::from(len);
            at.cast::<u64>().add(LENS_WORD).write(lens);
            (&raw mut (*at).token).write(index.into());
            (&raw mut (*at).time_ns).write(0);
            (&raw mut (*at).hash).write(0);
            // Flags and tag are 0 in any byte order.
            at.cast::<u64>().add(INFO_WORD).write(0);
        }
    }

    /// Whether `flags` contains this flag.
    #[inline]
    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// Same as `has(CONTINUES)`, for code that tests every slot of a batch: testing a word takes
    /// one instruction, a half word two.
    #[inline(always)]
    pub fn goes_on(&self) -> bool {
        self.info() & u64::from(Self::CONTINUES) != 0
    }

    /// The frame index in the token of a slot that has a frame. (Reads only that half.)
    #[inline(always)]
    pub fn index(&self) -> u32 {
        if cfg!(target_endian = "little") {
            // SAFETY: the lower half of the field.
            unsafe { (&raw const self.token).cast::<u32>().read() }
        } else {
            self.token as u32
        }
    }

    /// Position of its bytes in a pool: the frame index, and the offset from the frame's start.
    /// `None` if they are not within one frame of the pool, or if the frame was moved elsewhere.
    #[inline]
    pub fn place_in(&self, pool: &Pool) -> Option<(u32, u32)> {
        if self.token == Self::DETACHED {
            return None;
        }
        let addr = (self.data.as_ptr() as usize).checked_sub(pool.base().as_ptr() as usize)?;
        let (index, offset) = pool.locate(addr as u64)?;
        (self.cap_len <= pool.frame_len() - offset).then_some((index, offset))
    }
}

/// Contents of a batch, or of a part of one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filled {
    /// Number of packets.
    pub packets: usize,
    /// Captured bytes.
    pub bytes: u64,
}

impl Filled {
    /// Counts the contents of these slots.
    #[inline]
    pub fn of(slots: &[Slot]) -> Self {
        let mut filled = Self::default();
        for slot in slots {
            filled.packets += usize::from(!slot.has(Slot::CONTINUES));
            filled.bytes += u64::from(slot.cap_len);
        }
        filled
    }
}

/// Number of slots of the first packet.
#[inline]
pub fn segment_count(slots: &[Slot]) -> usize {
    let mut count = 1;
    while count < slots.len() && slots[count - 1].has(Slot::CONTINUES) {
        count += 1;
    }
    count
}

/// Number of the first `room` slots that form whole packets.
#[inline]
pub fn whole_packets(slots: &[Slot], room: usize) -> usize {
    let mut count = room.min(slots.len());
    while count != 0 && slots[count - 1].has(Slot::CONTINUES) {
        count -= 1;
    }
    count
}

const _: () = assert!(size_of::<Slot>() == 48, "three quarters of a cache line");

/// Appends a batch of slots to a vector. Constant values stay in registers: a vector would be
/// reloaded and written back with each push, because the compiler must assume that stores to frames
/// and descriptors alias it.
pub struct Room<'v> {
    slots: &'v mut Vec<Slot>,
    start: usize,
    at: *mut Slot,
}

impl<'v> Room<'v> {
    /// Reserves room for `count` more slots.
    #[inline(always)]
    pub fn new(slots: &'v mut Vec<Slot>, count: usize) -> Self {
        slots.reserve(count);
        let start = slots.len();
        // SAFETY: within the vector's memory, or one past its end.
        let at = unsafe { slots.as_mut_ptr().add(start) };
        Self { slots, start, at }
    }

    /// Appends a slot, as [`Slot::write`] does.
    ///
    /// # Safety
    /// At most as often as requested from `new`. `data` is not null.
    #[inline(always)]
    pub unsafe fn push(
        &mut self,
        data: *mut u8,
        len: u32,
        index: u32,
        time_ns: u64,
        hash: u64,
        info: u64,
    ) {
        // SAFETY: the caller's word.
        unsafe {
            Slot::write(self.at, data, len, index, time_ns, hash, info);
            self.advance(1);
        }
    }

    /// Counts the next `count` slots as appended.
    ///
    /// # Safety
    /// The slots were written.
    #[inline(always)]
    pub unsafe fn advance(&mut self, count: usize) {
        // SAFETY: within the vector's memory, or one past its end.
        self.at = unsafe { self.at.add(count) };
    }

    /// Address of the next slot.
    #[inline(always)]
    pub fn place(&mut self) -> *mut Slot {
        self.at
    }

    /// Sets the length of the vector to include the appended slots; returns their number.
    #[inline(always)]
    pub fn finish(self) -> usize {
        let first = self.slots.as_ptr().wrapping_add(self.start);
        let added = (self.at as usize - first as usize) / size_of::<Slot>();
        // SAFETY: so many slots were written after those that were present, within the capacity.
        unsafe { self.slots.set_len(self.start + added) };
        added
    }
}

/// Index of the 8 bytes of a slot that hold its lengths.
const LENS_WORD: usize = std::mem::offset_of!(Slot, cap_len) / 8;
const _: () = assert!(
    std::mem::offset_of!(Slot, cap_len) == 8 && std::mem::offset_of!(Slot, wire_len) == 12,
    "as `Slot::write_buffer` has them"
);

/// Index of the 8 bytes of a slot that hold its flags and tag.
const INFO_WORD: usize = std::mem::offset_of!(Slot, flags) / 8;
const _: () = assert!(
    std::mem::offset_of!(Slot, flags) == 40
        && std::mem::offset_of!(Slot, interface_index) == 42
        && std::mem::offset_of!(Slot, vlan) == 44
        && std::mem::offset_of!(Vlan, tpid) == 0
        && std::mem::offset_of!(Vlan, tci) == 2,
    "as `Slot::set_info` and `Slot::write` have them"
);

/// Prefetches the first cache line of a packet, whose headers are read next.
#[inline(always)]
pub fn prefetch(at: *const u8) {
    sys::advice::prefetch(&[at.addr()]);
}
