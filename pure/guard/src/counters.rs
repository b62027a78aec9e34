//! The program's counters, and their layout in the map.

/// Words of a block: packets, bytes, packets dropped, bytes dropped, packets answered or steered.
pub(crate) const BLOCK_WORDS: usize = 5;
/// Index of the last word: packets answered, or redirected to a socket: no rule does both.
pub(crate) const ANSWERED: usize = 4;
/// Words of the block for packets that no rule decided: such packets are never dropped, so its
/// words of dropped packets count samples.
pub(crate) const SAMPLED: usize = 2;
pub(crate) const SAMPLES_LOST: usize = 3;
/// Length of a block in bytes.
pub(crate) const BLOCK_LEN: usize = BLOCK_WORDS * 8;
/// Block for all packets.
pub(crate) const SEEN: usize = 0;
/// Block for packets that no rule decided.
pub(crate) const UNMATCHED: usize = 1;
/// Block of the first rule.
pub(crate) const FIRST_RULE: usize = 2;

/// Counters of one rule, or of all packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets that matched.
    pub packets: u64,
    /// Their bytes, from the Ethernet header on.
    pub bytes: u64,
    /// Matching packets that were dropped, or would have been in a dry run.
    pub dropped: u64,
    /// Bytes of the dropped packets.
    pub dropped_bytes: u64,
    /// Matching SYNs that were answered with a cookie and did not go to the host.
    pub answered: u64,
    /// Matching packets that were redirected to an AF_XDP socket.
    pub steered: u64,
}

impl Counters {
    fn of(block: &[u64]) -> Self {
        let word = |at: usize| block.get(at).copied().unwrap_or_default();
        Self {
            packets: word(0),
            bytes: word(1),
            dropped: word(2),
            dropped_bytes: word(3),
            answered: word(ANSWERED),
            steered: 0,
        }
    }

    /// The counters of a rule with the verdict [`Verdict::User`], read as those of another one.
    ///
    /// [`Verdict::User`]: crate::Verdict::User
    #[must_use]
    pub fn of_user(self) -> Self {
        Self {
            answered: 0,
            steered: self.answered,
            ..self
        }
    }

    /// Packets that went to the host, without those that user space returned to it.
    pub fn passed(&self) -> u64 {
        self.packets
            .saturating_sub(self.dropped + self.answered + self.steered)
    }

    /// Adds the counters of the same rule in another program.
    pub fn add(&mut self, other: &Self) {
        self.packets += other.packets;
        self.bytes += other.bytes;
        self.dropped += other.dropped;
        self.dropped_bytes += other.dropped_bytes;
        self.answered += other.answered;
        self.steered += other.steered;
    }
}

/// Counters of sampled packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SampleCounts {
    /// Samples in the perf ring.
    pub taken: u64,
    /// Samples lost because the ring was full.
    pub lost: u64,
}

impl SampleCounts {
    /// Adds the counters of another program.
    pub fn add(&mut self, other: &Self) {
        self.taken += other.taken;
        self.lost += other.lost;
    }
}

/// All counters of a program: `seen = unmatched + Σ packets of rules that decide`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// All packets.
    pub seen: Counters,
    /// Packets that no rule decided, and that therefore passed.
    pub unmatched: Counters,
    /// Samples of dropped packets.
    pub samples: SampleCounts,
    /// One entry per rule, in the order of the program.
    pub rules: Vec<Counters>,
}

impl Account {
    /// Reads the words of the counters' map, summed over all processors.
    pub fn of(words: &[u64]) -> Self {
        let mut blocks = words.chunks(BLOCK_WORDS).map(Counters::of);
        let seen = blocks.next().unwrap_or_default();
        let second = blocks.next().unwrap_or_default();
        Self {
            seen,
            unmatched: Counters {
                packets: second.packets,
                bytes: second.bytes,
                ..Counters::default()
            },
            samples: SampleCounts {
                taken: second.dropped,
                lost: second.dropped_bytes,
            },
            rules: blocks.collect(),
        }
    }
}
