//! What must hold for every driver, tried on its device model: a table of tests over a table of
//! drivers ([`laws!`]).

use std::sync::Arc;

use ring::{FrameCache, Pool, PoolConfig};
use sys::memfd::HugePages;

use super::dma::PoolDma;
use super::driver::{Driver, DriverRx, DriverTx, Function, Health, Refused, Settings, TxPart};
use super::model::{Fault, Model, ModelCard};
use crate::rx::Filled;
use crate::slot::{Slot, Vlan};

/// A driver with the model of its card.
pub(super) trait Rig: 'static {
    /// The card.
    type Model: Model;
    /// Its driver.
    type Driver: Driver<Function = ModelCard<Self::Model>>;

    /// Whether a packet may be larger than a frame.
    const JUMBO: bool = true;
    /// Whether a packet's end is only known when its last descriptor is there.
    const ENDS: bool = false;

    /// Bytes of a packet that fit one frame.
    fn room(_frame_len: u32) -> usize {
        2048
    }

    /// A new card.
    fn card() -> ModelCard<Self::Model>;
    /// A packet arrives for a queue; false if the card lost it.
    fn receive(model: &mut Self::Model, queue: u32, packet: &[u8]) -> bool;
    /// Has the card do something wrong once (or [`Fault::Stop`], until told otherwise).
    fn fault(model: &mut Self::Model, fault: Option<Fault>);
    /// Somebody resets the card, or it cannot go on.
    fn break_down(model: &mut Self::Model);
    /// The card no longer answers.
    fn vanish(model: &mut Self::Model);
    /// Marks a descriptor of the sending ring as done, whether it is or not; false on a card whose
    /// rings have no such mark.
    fn mark_sent(_model: &mut Self::Model, _entry: u32) -> bool {
        false
    }
    /// Writes that tell the card of something new, so far.
    fn doorbells(model: &Self::Model) -> u32;
    /// What the driver did that the specification forbids.
    fn violations(model: &Self::Model) -> &[String];
}

type RxOf<R> = <<R as Rig>::Driver as Driver>::Rx;
type TxOf<R> = <<R as Rig>::Driver as Driver>::Tx;

/// A received packet, copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Got {
    pub bytes: Vec<u8>,
    pub segments: usize,
    pub vlan: Option<Vlan>,
    pub flags: u16,
}

/// A started card with one hand on either side.
pub(super) struct Stand<R: Rig> {
    pub card: ModelCard<R::Model>,
    pub driver: R::Driver,
    pub rx: Vec<RxOf<R>>,
    pub tx: Vec<TxOf<R>>,
    pub pool: Pool,
    pub cache: FrameCache,
    pub frames: Arc<PoolDma>,
    pub refused: Refused,
}

pub(super) const RING_LEN: u32 = 64;

/// Settings for as many queues each way, with frames of 2048 bytes.
pub(super) fn settings<R: Rig>(queues: u32) -> Settings {
    Settings {
        first: 0,
        rx_count: queues,
        tx_count: queues,
        ring_len: RING_LEN,
        frame_len: 2048,
        promiscuous: true,
        multicast: true,
        packet_len_max: if R::JUMBO { 9018 } else { 1518 },
    }
}

impl<R: Rig> Stand<R> {
    pub(super) fn new(settings: &Settings) -> Self {
        Self::of(R::card(), settings)
    }

    pub(super) fn of(card: ModelCard<R::Model>, settings: &Settings) -> Self {
        let pool = Pool::new(PoolConfig {
            frame_count: 1024,
            frame_len: settings.frame_len,
            huge_pages: HugePages::Never,
        })
        .unwrap();
        let mut driver = R::Driver::open(card.clone()).unwrap();
        let frames = card.dma().map_pool(&pool, 0).unwrap();
        let queues = driver.start(settings, &frames, settings.rx_count).unwrap();
        assert_eq!(queues.rx.len() as u32, settings.rx_count);
        assert_eq!(queues.tx.len() as u32, settings.tx_count);
        Self {
            card,
            driver,
            rx: queues.rx,
            tx: queues.tx,
            cache: FrameCache::new(pool.clone()),
            pool,
            frames,
            refused: Refused::default(),
        }
    }

    pub(super) fn usual() -> Self {
        let mut stand = Self::new(&settings::<R>(1));
        stand.refill(0);
        stand
    }

    /// Offers frames for all vacant entries.
    pub(super) fn refill(&mut self, queue: usize) {
        let rx = &mut self.rx[queue];
        for _ in 0..rx.vacant() {
            let Some(index) = self.cache.take_for_device() else {
                break;
            };
            rx.offer_run(&[index]);
        }
        rx.publish();
    }

    /// Harvests once, at most `max` slots, and gives all frames back to the pool (not to the card).
    pub(super) fn take(&mut self, queue: usize, max: usize) -> Vec<Got> {
        let (mut slots, mut back) = (Vec::new(), Vec::new());
        let filled = self.rx[queue].harvest(&mut slots, max, 0, &mut back, &mut self.refused);
        assert_eq!(filled, Filled::of(&slots));
        let mut all = Vec::new();
        let mut at = 0;
        while at < slots.len() {
            let last = slots[at..]
                .iter()
                .position(|slot| !slot.has(Slot::CONTINUES));
            let end = at + last.expect("no packet is cut") + 1;
            let mut bytes = Vec::new();
            for slot in &slots[at..end] {
                // SAFETY: the slot's memory is ours until its frame goes back below.
                bytes.extend_from_slice(unsafe {
                    std::slice::from_raw_parts(slot.data.as_ptr(), slot.cap_len as usize)
                });
            }
            let head = &slots[at];
            assert_eq!(head.wire_len as usize, bytes.len());
            all.push(Got {
                bytes,
                segments: end - at,
                vlan: head.has(Slot::VLAN).then_some(head.vlan),
                flags: head.flags & !Slot::CONTINUES,
            });
            at = end;
        }
        assert!(
            slots.len() <= max || all.len() == 1,
            "more slots than asked for"
        );
        for index in slots.iter().map(|slot| slot.token as u32).chain(back) {
            // SAFETY: harvested just now, and nothing refers to it any more.
            let ours = unsafe { self.cache.give_index(index) };
            assert!(ours, "frame {index} was not ours");
        }
        all
    }

    /// Takes all that there is, and offers new frames.
    pub(super) fn receive(&mut self, queue: usize) -> Vec<Got> {
        let mut all = Vec::new();
        loop {
            let got = self.take(queue, 16);
            self.refill(queue);
            if got.is_empty() && !self.rx[queue].is_ready() {
                return all;
            }
            all.extend(got);
        }
    }

    /// A packet arrives.
    pub(super) fn arrive(&mut self, queue: u32, packet: &[u8]) -> bool {
        self.card.with(|model| R::receive(model, queue, packet))
    }

    /// Posts a packet in parts of the given lengths, each at an offset in its frame; false without
    /// room or frames.
    pub(super) fn post(&mut self, queue: usize, packet: &[u8], cuts: &[usize], at: u32) -> bool {
        if self.tx[queue].room() <= cuts.len() as u32 {
            return false;
        }
        self.put(queue, packet, cuts, at);
        true
    }

    /// The same of a packet that there was room for.
    fn put(&mut self, queue: usize, packet: &[u8], cuts: &[usize], at: u32) {
        let parts = cuts.len() as u32 + 1;
        let mut rest = packet;
        for number in 0..parts {
            let len = cuts.get(number as usize).copied().unwrap_or(rest.len());
            let (now, later) = rest.split_at(len);
            rest = later;
            let mut frame = self.cache.take().unwrap();
            self.pool.set_range(&mut frame, at, len as u32);
            self.pool.bytes_mut(&mut frame).copy_from_slice(now);
            let index = self.pool.lend(frame);
            self.tx[queue].post(TxPart {
                index,
                offset: at,
                len: len as u32,
                packet_len: packet.len() as u32,
                is_first: number == 0,
                is_last: number + 1 == parts,
            });
        }
    }

    /// Starts the card on what was posted, and takes back what has left.
    pub(super) fn flush(&mut self, queue: usize) -> Vec<Vec<u8>> {
        self.tx[queue].publish();
        self.card.with(Model::step);
        self.reclaim(queue);
        self.card
            .with(|model| std::iter::from_fn(|| model.sent()).collect())
    }

    pub(super) fn reclaim(&mut self, queue: usize) {
        let cache = &mut self.cache;
        self.tx[queue].reclaim(|frames| {
            for &index in frames {
                // SAFETY: the card is done with it.
                let of_card = unsafe { cache.reclaim(index) };
                assert!(of_card, "frame {index} was not the card's");
            }
        });
    }

    /// Shuts the card down and sees that every frame is accounted for, and that nobody complained.
    pub(super) fn end(mut self) {
        self.driver.shut_down();
        let packet = packet(1, 100);
        assert!(!self.arrive(0, &packet), "it receives after its end");
        let cache = &mut self.cache;
        let mut back = |index| {
            // SAFETY: the card has been shut down.
            let of_card = unsafe { cache.reclaim(index) };
            assert!(of_card, "frame {index} was not the card's");
        };
        for rx in &mut self.rx {
            rx.drain(&mut back);
        }
        for tx in &mut self.tx {
            tx.drain(&mut back);
            assert_eq!(tx.pending(), 0);
        }
        self.driver.shut_down();
        let counts = self.pool.counts();
        assert_eq!((counts.device, counts.user), (0, 0), "{counts:?}");
        self.card.with(|model| {
            assert_eq!(R::violations(model), [] as [String; 0]);
        });
    }

    /// Accesses that the model's IOMMU refused.
    pub(super) fn faults(&self) -> u64 {
        self.card.memory().faults()
    }
}

/// A packet to everybody with a number in it, and bytes that say where they are.
pub(super) fn packet(number: u32, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len).map(|at| (at as u32 * 7 + number) as u8).collect();
    bytes[..6].fill(0xff);
    bytes[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
    bytes[12..14].copy_from_slice(&[0x88, 0xb5]);
    if let Some(place) = bytes.get_mut(14..18) {
        place.copy_from_slice(&number.to_be_bytes());
    }
    bytes
}

/// Lengths of untagged packets, each in turn.
fn len_of(number: u32) -> usize {
    60 + (number as usize * 131) % 1455
}

/// A generator that is good enough for tests, and its seed is told.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new() -> Self {
        let seed = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(1, |time| time.as_nanos() as u64)
            | 1;
        println!("seed {seed:#x}");
        Self(seed)
    }

    pub(super) fn below(&mut self, end: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 32) as u32 % end
    }
}

/// Packets arrive as they were, in order, through many rounds of the ring and batches of any size.
pub(super) fn packets_arrive<R: Rig>() {
    let mut stand = Stand::<R>::usual();
    let mut random = Random::new();
    let (mut sent, mut got) = (0, 0);
    while got < 20 * RING_LEN {
        for _ in 0..random.below(RING_LEN / 2) {
            if stand.arrive(0, &packet(sent, len_of(sent))) {
                sent += 1;
            }
        }
        for received in stand.take(0, 1 + random.below(40) as usize) {
            assert_eq!(received.bytes, packet(got, len_of(got)), "packet {got}");
            assert_eq!((received.segments, received.vlan), (1, None));
            got += 1;
        }
        stand.refill(0);
    }
    let (watch, waiting) = (stand.rx[0].watch(), sent - got);
    assert_eq!(watch(), waiting);
    assert_eq!(stand.receive(0).len() as u32, waiting);
    assert_eq!(watch(), 0);
    assert_eq!(stand.refused, Refused::default());
    assert_eq!(stand.faults(), 0);
    stand.end();
}

/// Packets leave as they were, in order, through many rounds of the ring, in one part or several,
/// from anywhere in a frame.
pub(super) fn packets_leave<R: Rig>() {
    let mut stand = Stand::<R>::usual();
    let mut random = Random::new();
    let (mut posted, mut left) = (0, 0);
    while left < 20 * RING_LEN {
        for _ in 0..random.below(RING_LEN) {
            let bytes = packet(posted, len_of(posted));
            let cuts = match random.below(4) {
                0 => vec![14, 20],
                1 => vec![bytes.len() / 2],
                _ => vec![],
            };
            let at = [0, 5, 12, 64, 256][random.below(5) as usize];
            if !stand.post(0, &bytes, &cuts, at) {
                break;
            }
            posted += 1;
        }
        for bytes in stand.flush(0) {
            assert_eq!(bytes, packet(left, len_of(left)), "packet {left}");
            left += 1;
        }
    }
    // What waits for room in the ring leaves with the next look.
    for _ in 0..4 {
        left += stand.flush(0).len() as u32;
    }
    assert_eq!(left, posted);
    assert_eq!(stand.tx[0].pending(), 0);
    assert_eq!(stand.faults(), 0);
    stand.end();
}

/// With no frame offered the card loses packets, and goes on when there are some again.
pub(super) fn exhaustion<R: Rig>() {
    let mut stand = Stand::<R>::usual();
    let held = stand.pool.counts().device;
    assert!(held == RING_LEN || held == RING_LEN - 1, "{held}");
    let mut arrived = 0;
    for number in 0..2 * RING_LEN {
        arrived += u32::from(stand.arrive(0, &packet(number, 60)));
    }
    assert_eq!(arrived, held);
    // All are there, none twice, and nothing more.
    let got = stand.take(0, 1000);
    assert_eq!(got.len() as u32, held);
    assert_eq!(got[held as usize - 1].bytes, packet(held - 1, 60));
    assert_eq!(stand.take(0, 1000), []);
    assert!(!stand.rx[0].is_ready());
    assert!(!stand.arrive(0, &packet(0, 60)));
    stand.refill(0);
    assert!(stand.arrive(0, &packet(77, 60)));
    assert_eq!(stand.receive(0)[0].bytes, packet(77, 60));
    stand.end();
}

/// Room is told once for a batch: as many parts can be posted then, whatever they are parts of.
pub(super) fn room_is_for_any_parts<R: Rig>() {
    let mut stand = Stand::<R>::usual();
    stand.card.with(|model| R::fault(model, Some(Fault::Stop)));
    let mut posted = Vec::new();
    while stand.tx[0].room() > 8 {
        posted.push(packet(posted.len() as u32, 100));
        stand.put(0, posted.last().unwrap(), &[], 64);
    }
    for cuts in [&[40, 30][..], &[], &[], &[], &[], &[]] {
        posted.push(packet(posted.len() as u32, 100));
        stand.put(0, posted.last().unwrap(), cuts, 64);
    }
    assert_eq!(stand.tx[0].room(), 0);
    assert_eq!(stand.flush(0).len(), 0);
    assert_eq!(stand.tx[0].left().packets, posted.len());
    stand.card.with(|model| R::fault(model, None));
    let left: Vec<_> = (0..8).flat_map(|_| stand.flush(0)).collect();
    assert!(left == posted);
    assert_eq!(stand.tx[0].pending(), 0);
    stand.end();
}

/// A card that sends nothing fills the ring and no more; when it goes on all leaves.
pub(super) fn a_full_sending_ring<R: Rig>() {
    let mut stand = Stand::<R>::usual();
    stand.card.with(|model| R::fault(model, Some(Fault::Stop)));
    let mut posted = 0;
    while stand.post(
        0,
        &packet(posted, 100),
        &[],
        if posted % 2 == 0 { 64 } else { 0 },
    ) {
        posted += 1;
        assert!(posted <= RING_LEN, "more than the ring takes");
    }
    // A packet at the start of its frame may take two descriptors.
    assert!(posted >= RING_LEN / 2);
    assert_eq!(stand.tx[0].room(), 0);
    assert_eq!(stand.flush(0).len(), 0);
    assert_eq!(stand.tx[0].pending(), posted);
    stand.card.with(|model| R::fault(model, None));
    let mut left = stand.flush(0);
    for _ in 0..4 {
        left.extend(stand.flush(0));
    }
    assert_eq!(left.len() as u32, posted);
    assert!(
        left.iter()
            .zip(0..)
            .all(|(bytes, number)| *bytes == packet(number, 100))
    );
    assert_eq!(stand.tx[0].pending(), 0);
    stand.end();
}

/// What a port still has in the ring when it is closed comes home.
pub(super) fn closing_with_packets_in_flight<R: Rig>() {
    let mut stand = Stand::<R>::usual();
    for number in 0..10 {
        assert!(stand.arrive(0, &packet(number, 60)));
    }
    stand.card.with(|model| R::fault(model, Some(Fault::Stop)));
    for number in 0..10 {
        assert!(stand.post(0, &packet(number, 100), &[], 64 * (number % 2)));
    }
    stand.tx[0].publish();
    stand.end();
}

/// Packets larger than a frame arrive and leave in several.
pub(super) fn jumbo<R: Rig>() {
    if !R::JUMBO {
        return;
    }
    for frame_len in [2048, 4096] {
        let mut stand = Stand::<R>::new(&Settings {
            frame_len,
            ..settings::<R>(1)
        });
        stand.refill(0);
        for (number, len) in [9000, 60, 2048, 2049, 4096, 9018, 6144, 1500]
            .into_iter()
            .enumerate()
        {
            let bytes = packet(number as u32, len);
            assert!(stand.arrive(0, &bytes), "{len}");
            let got = stand.receive(0);
            assert_eq!(got.len(), 1, "{len}");
            assert!(got[0].bytes == bytes, "{len}");
            assert_eq!(got[0].segments > 1, len > R::room(frame_len), "{len}");
            let cuts: Vec<usize> = (0..(len - 1) / 1700).map(|_| 1700).collect();
            assert!(stand.post(0, &bytes, &cuts, 0));
            assert!(stand.flush(0) == [bytes], "{len}");
        }
        // A batch ends before a packet that does not fit it, and takes alone what fits none.
        for number in 0..3 {
            assert!(stand.arrive(0, &packet(number, 60)));
            assert!(stand.arrive(0, &packet(100 + number, 5000)));
        }
        let lens: Vec<Vec<usize>> = std::iter::from_fn(|| {
            let got = stand.take(0, 2);
            (!got.is_empty()).then(|| got.iter().map(|got| got.bytes.len()).collect())
        })
        .collect();
        assert!(
            lens.iter().flatten().eq(&[60, 5000, 60, 5000, 60, 5000]),
            "{lens:?}"
        );
        // One that is longer than the port takes is refused, and the ring goes on.
        stand.refill(0);
        if stand.arrive(0, &packet(1, 9100)) {
            assert_eq!(stand.receive(0), []);
            assert_eq!(stand.refused.too_long, 1);
        }
        assert!(stand.arrive(0, &packet(2, 9000)));
        assert_eq!(stand.receive(0)[0].bytes, packet(2, 9000));
        stand.end();
    }
}

/// A packet longer than what the port takes is refused where the card let it through.
pub(super) fn too_long<R: Rig>() {
    let mut stand = Stand::<R>::new(&Settings {
        packet_len_max: 1000,
        ..settings::<R>(1)
    });
    stand.refill(0);
    let arrived = [(1, 1000), (2, 1001), (3, 60)]
        .map(|(number, len)| u64::from(stand.arrive(0, &packet(number, len))));
    assert_eq!((arrived[0], arrived[2]), (1, 1));
    let got: Vec<_> = stand
        .receive(0)
        .into_iter()
        .map(|got| got.bytes.len())
        .collect();
    assert_eq!(got, [1000, 60]);
    assert_eq!(stand.refused.too_long, arrived[1]);
    stand.end();
}

/// A length that the descriptor cannot have is refused and counted; nothing beyond a frame is ever
/// shown.
pub(super) fn lying_lengths<R: Rig>() {
    let mut stand = Stand::<R>::usual();
    let lies = [0, 2049, 4096, 9000, 0xffff];
    for (at, len) in lies.into_iter().enumerate() {
        stand
            .card
            .with(|model| R::fault(model, Some(Fault::Length(len))));
        assert!(stand.arrive(0, &packet(1, 100)));
        assert_eq!(stand.receive(0), [], "a length of {len}");
        assert_eq!(stand.refused.invalid, at as u64 + 1, "a length of {len}");
        assert!(stand.arrive(0, &packet(2, 100)));
        assert_eq!(stand.receive(0)[0].bytes, packet(2, 100));
    }
    if R::JUMBO {
        // Of the last part of a packet.
        for len in [0, 2049, 0xffff] {
            stand
                .card
                .with(|model| R::fault(model, Some(Fault::Length(len))));
            assert!(stand.arrive(0, &packet(1, 5000)));
            assert_eq!(stand.receive(0), [], "a length of {len}");
            assert!(stand.arrive(0, &packet(2, 5000)));
            assert_eq!(stand.receive(0)[0].bytes, packet(2, 5000));
        }
    }
    assert_eq!(stand.refused.too_long + stand.refused.errors, 0);
    stand.end();
}

/// A packet that never ends is refused, and so is all that seems to be a part of it.
pub(super) fn packets_without_end<R: Rig>() {
    if !R::ENDS {
        return;
    }
    let mut stand = Stand::<R>::usual();
    for round in 0..3 {
        // All descriptors, and no end among them.
        loop {
            stand.card.with(|model| R::fault(model, Some(Fault::NoEnd)));
            if !stand.arrive(0, &packet(1, 2048)) {
                break;
            }
            if round == 0 {
                // Whether or not they are looked at meanwhile.
                assert_eq!(stand.take(0, 64), []);
            }
        }
        stand.card.with(|model| R::fault(model, None));
        for _ in 0..8 {
            assert_eq!(stand.take(0, 64), []);
        }
        assert!(stand.refused.invalid > round, "{:?}", stand.refused);
        stand.refill(0);
        // The next end is still the end of what was refused.
        assert!(stand.arrive(0, &packet(2, 100)));
        assert_eq!(stand.receive(0), []);
        assert!(stand.arrive(0, &packet(3, 100)));
        assert_eq!(stand.receive(0)[0].bytes, packet(3, 100));
    }
    stand.end();
}

/// A card that writes where it was not told to is stopped by the IOMMU, and the ring goes on.
pub(super) fn addresses_of_the_cards_own<R: Rig>() {
    let mut stand = Stand::<R>::usual();
    let fault = Some(Fault::Address(0xdead_0000));
    stand.card.with(|model| R::fault(model, fault));
    stand.arrive(0, &packet(1, 100));
    stand.card.with(|model| R::fault(model, None));
    assert!(stand.faults() > 0);
    let got = stand.receive(0);
    assert!(got.len() <= 1, "{got:?}");
    assert!(stand.arrive(0, &packet(2, 100)));
    assert_eq!(stand.receive(0).pop().unwrap().bytes, packet(2, 100));
    stand.end();
}

/// The link's state is told.
pub(super) fn link<R: Rig>() {
    let mut stand = Stand::<R>::usual();
    assert!(stand.driver.link().up);
    stand.card.with(|model| model.set_link(false));
    assert!(!stand.driver.link().up);
    assert_eq!(stand.driver.health(), Health::Running);
    assert!(!stand.arrive(0, &packet(1, 100)));
    stand.card.with(|model| model.set_link(true));
    assert!(stand.driver.link().up);
    assert!(stand.arrive(0, &packet(1, 100)));
    assert_eq!(stand.receive(0).len(), 1);
    stand.end();
}

/// A card that finds no link when it is started takes what is posted, and moves packets when there
/// is one.
pub(super) fn link_down_at_first<R: Rig>() {
    let card = R::card();
    card.with(|model| model.set_link(false));
    let mut stand = Stand::<R>::of(card, &settings::<R>(1));
    stand.refill(0);
    assert!(!stand.driver.link().up);
    assert_eq!(stand.driver.health(), Health::Running);
    assert!(!stand.arrive(0, &packet(1, 100)));
    for number in 0..10 {
        assert!(stand.post(0, &packet(number, 100), &[], 64));
    }
    assert_eq!(stand.flush(0), [] as [Vec<u8>; 0]);
    assert_eq!(stand.tx[0].pending(), 10);
    assert_eq!(stand.tx[0].left().packets, 10);
    stand.card.with(|model| model.set_link(true));
    assert!(stand.driver.link().up);
    assert!(
        stand
            .flush(0)
            .into_iter()
            .eq((0..10).map(|number| packet(number, 100)))
    );
    // And again while it runs.
    stand.card.with(|model| model.set_link(false));
    assert!(stand.post(0, &packet(10, 100), &[], 64));
    assert_eq!(stand.flush(0), [] as [Vec<u8>; 0]);
    stand.card.with(|model| model.set_link(true));
    assert_eq!(stand.flush(0), [packet(10, 100)]);
    assert!(stand.arrive(0, &packet(2, 100)));
    assert_eq!(stand.receive(0)[0].bytes, packet(2, 100));
    stand.end();
}

/// A card that says of packets that they have left when they have not: a frame comes home once, and
/// only for a mark on the descriptor that was to report.
pub(super) fn sent_marks_that_are_lies<R: Rig>() {
    let mut stand = Stand::<R>::usual();
    if !stand.card.with(|model| R::mark_sent(model, 0)) {
        return;
    }
    stand.card.with(|model| R::fault(model, Some(Fault::Stop)));
    let mark = |stand: &mut Stand<R>, entry| {
        stand.card.with(|model| R::mark_sent(model, entry));
        stand.reclaim(0);
    };
    // On what was never posted, and on what is written again before it is posted.
    mark(&mut stand, RING_LEN - 1);
    for number in 0..8 {
        assert!(stand.post(0, &packet(number, 100), &[], 64));
    }
    mark(&mut stand, 3);
    assert_eq!(stand.tx[0].pending(), 8, "it was not even shown");
    stand.tx[0].publish();
    // In the middle of a batch, at its start, behind it.
    for entry in [3, 0, 6, 8, 9] {
        mark(&mut stand, entry);
        assert_eq!(stand.tx[0].pending(), 8, "{entry}");
    }
    for number in 8..12 {
        assert!(stand.post(0, &packet(number, 100), &[], 64));
    }
    stand.tx[0].publish();
    // The second batch before the first: the card works in order.
    mark(&mut stand, 11);
    assert_eq!(stand.tx[0].pending(), 12);
    // Too early: the card's word on the whole batch.
    mark(&mut stand, 7);
    assert_eq!(stand.tx[0].pending(), 0);
    assert_eq!(stand.pool.counts().device, held(&stand));
    // The same again: nothing comes home twice.
    for entry in [7, 11, 0] {
        mark(&mut stand, entry);
    }
    assert_eq!(stand.pool.counts().device, held(&stand));
    // Marks of long ago, all over the ring, say nothing of what is posted now.
    for entry in 0..RING_LEN {
        mark(&mut stand, entry);
    }
    let mut posted = 0;
    while stand.post(0, &packet(posted, 100), &[], 64) {
        posted += 1;
    }
    stand.tx[0].publish();
    stand.reclaim(0);
    assert_eq!(
        (stand.tx[0].pending(), posted),
        (RING_LEN - 1, RING_LEN - 1)
    );
    assert_eq!(stand.tx[0].left().packets as u32, posted);
    stand.end();
}

/// Frames that lie in the receiving ring.
fn held<R: Rig>(stand: &Stand<R>) -> u32 {
    let rx = &stand.rx[0];
    let most = if R::ENDS {
        rx.ring_len() - 1
    } else {
        rx.ring_len()
    };
    most - rx.vacant()
}

/// A card that was reset under us, or is gone, is noticed by every queue; all frames come home.
pub(super) fn reset_and_loss<R: Rig>() {
    for gone in [false, true] {
        let mut stand = Stand::<R>::usual();
        assert_eq!(stand.rx[0].health(), Health::Running);
        assert_eq!(stand.tx[0].health(), Health::Running);
        let expected = match gone {
            true => {
                stand.card.with(R::vanish);
                Health::Gone
            }
            false => {
                stand.card.with(R::break_down);
                Health::Reset
            }
        };
        assert_eq!(stand.rx[0].health(), expected);
        assert_eq!(stand.tx[0].health(), expected);
        assert_eq!(stand.driver.health(), expected);
        // Nothing that follows blocks or panics.
        assert_eq!(stand.take(0, 64), []);
        assert!(stand.post(0, &packet(1, 100), &[], 64));
        stand.tx[0].publish();
        stand.reclaim(0);
        stand.driver.counters();
        if gone {
            assert!(!stand.driver.link().up);
        }
        let _ = stand.driver.stop_intake();
        stand.end();
    }
}

/// After the end of the intake nothing new enters the rings; what is in them can be read, and
/// sending goes on.
pub(super) fn stopping<R: Rig>() {
    let mut stand = Stand::<R>::usual();
    for number in 0..5 {
        assert!(stand.arrive(0, &packet(number, 100)));
    }
    stand.driver.stop_intake().unwrap();
    assert!(!stand.arrive(0, &packet(9, 100)));
    assert_eq!(stand.receive(0).len(), 5);
    assert!(stand.post(0, &packet(1, 100), &[], 64));
    assert_eq!(stand.flush(0).len(), 1);
    stand.end();
}

/// Nothing is told the card that did not change, and a batch tells it once.
pub(super) fn few_doorbells<R: Rig>() {
    let mut stand = Stand::<R>::usual();
    let before = stand.card.with(|model| R::doorbells(model));
    for _ in 0..10 {
        stand.rx[0].publish();
        stand.tx[0].publish();
        stand.reclaim(0);
        assert_eq!(stand.take(0, 64), []);
    }
    assert_eq!(stand.card.with(|model| R::doorbells(model)), before);
    for number in 0..32 {
        assert!(stand.post(0, &packet(number, 100), &[], 64));
    }
    assert_eq!(stand.flush(0).len(), 32);
    let told = stand.card.with(|model| R::doorbells(model)) - before;
    assert!(told <= 1, "{told} for one batch");
    stand.end();
}

/// Anything in any order, beside a plain model: every packet arrives and leaves once, every frame
/// has one owner.
pub(super) fn any_order<R: Rig>() {
    let mut stand = Stand::<R>::usual();
    let mut random = Random::new();
    let (mut arrived, mut left) = (std::collections::VecDeque::new(), Vec::new());
    let (mut number, mut posted) = (0, std::collections::VecDeque::new());
    for _ in 0..3000 {
        match random.below(8) {
            0..=2 => {
                let len = match random.below(8) {
                    0 if R::JUMBO => 2000 + random.below(6000) as usize,
                    _ => len_of(number),
                };
                if stand.arrive(0, &packet(number, len)) {
                    arrived.push_back((number, len));
                }
                number += 1;
            }
            3 => {
                for got in stand.take(0, 1 + random.below(16) as usize) {
                    let (number, len) = arrived.pop_front().unwrap();
                    assert!(got.bytes == packet(number, len), "{number}");
                }
            }
            4 => stand.refill(0),
            5 | 6 => {
                let len = len_of(number);
                let cuts: Vec<_> = (0..random.below(4)).map(|_| 10).collect();
                if stand.post(0, &packet(number, len), &cuts, random.below(300)) {
                    posted.push_back((number, len));
                }
                number += 1;
            }
            _ => left.extend(stand.flush(0)),
        }
    }
    for got in stand.receive(0) {
        let (number, len) = arrived.pop_front().unwrap();
        assert!(got.bytes == packet(number, len), "{number}");
    }
    for _ in 0..4 {
        left.extend(stand.flush(0));
    }
    assert_eq!((arrived.len(), left.len()), (0, posted.len()));
    for (bytes, (number, len)) in left.into_iter().zip(posted) {
        assert!(bytes == packet(number, len), "{number}");
    }
    assert_eq!(stand.refused, Refused::default());
    stand.end();
}

/// Makes a test of every law, for one rig.
macro_rules! laws {
    ($rig:ty) => {
        $crate::backend::vfio::laws::laws!($rig: packets_arrive, packets_leave, exhaustion,
            room_is_for_any_parts, a_full_sending_ring, closing_with_packets_in_flight, jumbo,
            too_long, lying_lengths,
            packets_without_end, addresses_of_the_cards_own, link, reset_and_loss, stopping,
            few_doorbells, any_order,
            link_down_at_first, sent_marks_that_are_lies);
    };
    ($rig:ty: $($law:ident),*) => {
        $(
            #[test]
            fn $law() {
                $crate::backend::vfio::laws::$law::<$rig>();
            }
        )*
    };
}
pub(super) use laws;
