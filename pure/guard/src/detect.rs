//! Flood detection: learns the normal rate of each key (a destination, a signature of SYNs) and
//! reports rates that far exceed it, and the end of the flood.
//!
//! The normal rate is an exponentially weighted moving average, and so is the mean deviation from
//! it (as for TCP's round-trip time, RFC 6298). A flood begins when the rate stays above the
//! threshold for some time, and ends when it stays below half of it for longer. Nothing is learned
//! during a flood, so a flood does not become normal.
//!
//! The caller provides time and counts, so sampled counts work as well as complete ones. Keys that
//! do not fit into the table are counted together as the rest, which has a normal rate of its own.

mod handshakes;

use std::collections::BTreeMap;

pub use handshakes::Handshakes;

const NS_PER_S: f64 = 1e9;

/// How much of one interval counts towards the beginning or the end of a flood. Intervals are
/// longer when the caller was held up; one rate, however long its interval, does not end a flood.
const COUNTED_NS_MAX: u64 = 1_500_000_000;

/// When a rate counts as a flood.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Rates up to this are never a flood, in packets per second.
    pub rate_least_pps: f64,
    /// Rates above this are always a flood, even while the normal rate is being learned.
    pub rate_most_pps: f64,
    /// A flood exceeds the normal rate by this factor,
    pub factor: f64,
    /// and by this many times the mean deviation.
    pub deviations: f64,
    /// Time constant of the average.
    pub learn_ns: u64,
    /// Initial time during which no rate below `rate_most_pps` is a flood.
    pub warm_up_ns: u64,
    /// How long a rate must stay above the threshold before a flood begins.
    pub begin_ns: u64,
    /// How long a rate must stay below half of the threshold before a flood ends.
    pub end_ns: u64,
    /// Maximum number of keys.
    pub key_count_max: usize,
}

impl Default for Settings {
    fn default() -> Self {
        const S: u64 = 1_000_000_000;
        Settings {
            rate_least_pps: 1_000.0,
            rate_most_pps: f64::INFINITY,
            factor: 4.0,
            deviations: 6.0,
            learn_ns: 600 * S,
            warm_up_ns: 60 * S,
            begin_ns: 3 * S,
            end_ns: 30 * S,
            key_count_max: 4_096,
        }
    }
}

/// What a rate belongs to.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Subject<K> {
    /// One key.
    Key(K),
    /// All keys that do not fit into the table.
    Rest,
}

/// Beginning or end of a flood.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Event<K> {
    /// The subject of the flood.
    pub subject: Subject<K>,
    /// Whether the flood begins; otherwise it ends.
    pub begins: bool,
    /// The current rate, in packets per second.
    pub rate_pps: f64,
    /// The normal rate, in packets per second.
    pub normal_pps: f64,
}

/// State of one subject.
#[derive(Clone, Debug, Default)]
struct Track {
    /// Packets since the last tick.
    packets: u64,
    normal_pps: f64,
    deviation_pps: f64,
    /// How long the normal rate has been learned.
    learned_ns: u64,
    /// How long the rate has been above the threshold, or in a flood below half of it.
    beyond_ns: u64,
    /// The threshold when the flood began.
    flood: Option<f64>,
}

impl Track {
    /// The rate above which this is a flood.
    fn threshold(&self, settings: &Settings, is_warm: bool) -> f64 {
        let by_factor = self.normal_pps * settings.factor;
        let by_deviation = self.normal_pps + self.deviation_pps * settings.deviations;
        let learned = by_factor.max(by_deviation).max(settings.rate_least_pps);
        match is_warm {
            true => learned.min(settings.rate_most_pps),
            false => settings.rate_most_pps,
        }
    }

    fn learn(&mut self, rate_pps: f64, elapsed_ns: u64, learn_ns: u64) {
        // A plain mean at first, so that the first rate does not weigh more than those that follow.
        self.learned_ns = self.learned_ns.saturating_add(elapsed_ns);
        let span = self.learned_ns.min(learn_ns.max(1));
        let weight = (elapsed_ns as f64 / span as f64).min(1.0);
        self.deviation_pps += weight * ((rate_pps - self.normal_pps).abs() - self.deviation_pps);
        self.normal_pps += weight * (rate_pps - self.normal_pps);
    }

    /// Evaluates the counts since the last tick; `Some(true)` if a flood begins, `Some(false)` if
    /// it ends. Nothing is learned while the key is held.
    fn tick(
        &mut self,
        settings: &Settings,
        elapsed_ns: u64,
        (is_warm, is_held): (bool, bool),
    ) -> Option<bool> {
        let rate_pps = self.rate_pps(elapsed_ns);
        let (is_beyond, time_ns) = match self.flood {
            None => {
                let threshold = self.threshold(settings, is_warm);
                (rate_pps > threshold, settings.begin_ns)
            }
            Some(threshold) => (rate_pps < threshold / 2.0, settings.end_ns),
        };
        if !is_beyond {
            self.beyond_ns = 0;
            if self.flood.is_none() && !is_held {
                self.learn(rate_pps, elapsed_ns, settings.learn_ns);
            }
            return None;
        }
        let counted_ns = elapsed_ns.min(COUNTED_NS_MAX);
        self.beyond_ns = self.beyond_ns.saturating_add(counted_ns);
        if self.beyond_ns < time_ns {
            return None;
        }
        self.beyond_ns = 0;
        self.flood = match self.flood {
            None => Some(self.threshold(settings, is_warm)),
            Some(_) => None,
        };
        Some(self.flood.is_some())
    }

    fn rate_pps(&self, elapsed_ns: u64) -> f64 {
        self.packets as f64 * NS_PER_S / elapsed_ns as f64
    }
}

/// Detects floods by key.
#[derive(Clone, Debug)]
pub struct Detector<K> {
    settings: Settings,
    began_ns: u64,
    at_ns: u64,
    tracks: BTreeMap<K, Track>,
    rest: Track,
}

impl<K: Ord + Clone> Detector<K> {
    /// Creates a detector that has learned nothing yet.
    pub fn new(settings: Settings, now_ns: u64) -> Self {
        Detector {
            settings,
            began_ns: now_ns,
            at_ns: now_ns,
            tracks: BTreeMap::new(),
            rest: Track::default(),
        }
    }

    /// Counts packets of a key. With sampling, pass the number of packets that each sample
    /// represents.
    pub fn add(&mut self, key: &K, packets: u64) {
        if !self.add_key(key, packets) {
            self.add_rest(packets);
        }
    }

    /// Counts packets of a key if it has a place in the table, or gets one, and returns whether it
    /// has. For packets of several keys: those of a key without a place belong to the rest, once.
    pub fn add_key(&mut self, key: &K, packets: u64) -> bool {
        let has_room = self.tracks.len() < self.settings.key_count_max;
        let track = match self.tracks.get_mut(key) {
            Some(track) => track,
            None if has_room => self.tracks.entry(key.clone()).or_default(),
            None => return false,
        };
        track.packets = track.packets.saturating_add(packets);
        true
    }

    /// Counts packets of keys that have no place in the table.
    pub fn add_rest(&mut self, packets: u64) {
        self.rest.packets = self.rest.packets.saturating_add(packets);
    }

    /// Evaluates the counts since the last tick, and learns from them. Call this about once per
    /// second; a clock that goes backwards is ignored.
    pub fn tick(&mut self, now_ns: u64) -> Vec<Event<K>> {
        self.tick_holding(now_ns, |_| false)
    }

    /// Like [`Detector::tick`], but learns nothing from the counts of keys that `is_held` returns
    /// true for: their packets are incomplete. Floods of such keys begin and end.
    pub fn tick_holding(&mut self, now_ns: u64, is_held: impl Fn(&K) -> bool) -> Vec<Event<K>> {
        let Some(elapsed_ns @ 1..) = now_ns.checked_sub(self.at_ns) else {
            return Vec::new();
        };
        self.at_ns = now_ns;
        let settings = &self.settings;
        let is_warm = self.is_warm();
        let mut events = Vec::new();
        let mut tick = |subject: &dyn Fn() -> Subject<K>, track: &mut Track, is_held: bool| {
            let rate_pps = track.rate_pps(elapsed_ns);
            if let Some(begins) = track.tick(settings, elapsed_ns, (is_warm, is_held)) {
                events.push(Event {
                    subject: subject(),
                    begins,
                    rate_pps,
                    normal_pps: track.normal_pps,
                });
            }
        };
        for (key, track) in &mut self.tracks {
            let is_held = is_held(key);
            tick(&|| Subject::Key(key.clone()), track, is_held);
        }
        tick(&|| Subject::Rest, &mut self.rest, false);
        self.forget();
        for track in self.tracks.values_mut().chain([&mut self.rest]) {
            track.packets = 0;
        }
        events
    }

    /// Frees entries when half of the table is in use: keys without packets whose normal rate is
    /// close to zero.
    fn forget(&mut self) {
        if self.tracks.len() <= self.settings.key_count_max / 2 {
            return;
        }
        let least_pps = self.settings.rate_least_pps / 100.0;
        self.tracks.retain(|_, track| {
            track.packets > 0 || track.flood.is_some() || track.normal_pps >= least_pps
        });
    }

    /// Number of keys in the table.
    pub fn key_count(&self) -> usize {
        self.tracks.len()
    }

    /// Forgets what is normal for a key, which is then learned anew.
    pub fn forget_key(&mut self, key: &K) {
        if let Some(track) = self.tracks.get_mut(key) {
            *track = Track::default();
        }
    }

    /// Takes back that a flood of a key has begun: another flood explains its rate. It begins again
    /// if the rate stays above the threshold.
    pub fn retract(&mut self, key: &K) {
        if let Some(track) = self.tracks.get_mut(key) {
            track.flood = None;
            track.beyond_ns = 0;
        }
    }

    /// The rate above which the current flood of a subject began, in packets per second; `None`
    /// without a flood.
    pub fn flood_pps(&self, subject: &Subject<K>) -> Option<f64> {
        self.track(subject)?.flood
    }

    /// Whether the initial time of learning is over.
    pub fn is_warm(&self) -> bool {
        self.at_ns.saturating_sub(self.began_ns) > self.settings.warm_up_ns
    }

    /// Each key with its normal rate and the rate above which it is a flood, in packets per second.
    pub fn normals(&self) -> impl Iterator<Item = (&K, f64, f64)> {
        let threshold = |track: &Track| track.threshold(&self.settings, self.is_warm());
        let tracks = self.tracks.iter();
        tracks.map(move |(key, track)| (key, track.normal_pps, threshold(track)))
    }

    /// The normal rate, in packets per second; `None` for a key that is not in the table.
    pub fn normal_pps(&self, subject: &Subject<K>) -> Option<f64> {
        self.track(subject).map(|track| track.normal_pps)
    }

    /// Whether the subject is currently flooded.
    pub fn is_flood(&self, subject: &Subject<K>) -> bool {
        self.track(subject).is_some_and(|t| t.flood.is_some())
    }

    fn track(&self, subject: &Subject<K>) -> Option<&Track> {
        match subject {
            Subject::Key(key) => self.tracks.get(key),
            Subject::Rest => Some(&self.rest),
        }
    }
}

#[cfg(test)]
mod tests;
