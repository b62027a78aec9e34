//! An interface with a guard: packets meet the rules that detection installs, and the tap samples
//! those that pass.

use ::guard::{Counters, Verdict};
use traffic::Rng;

use super::*;

/// One packet in this many is sampled, as by default.
const ONE_IN: u32 = 16;

/// A rule in force.
struct InForce {
    found: Found,
    program: Program,
    counters: Counters,
    /// What a limit still lets through in this second.
    room: u64,
}

/// The interface; see the module.
pub struct World {
    detection: Detection,
    choice: FlowChoice,
    rng: Rng,
    rules: Vec<InForce>,
    sampled: u64,
    passed: u64,
    pub second: u64,
    pub steps: Vec<Step>,
    /// Whether rules cannot be installed.
    pub refuses: bool,
}

impl World {
    pub fn new(settings: &str) -> World {
        let mut setup = DetectSetup::new(Action::Install);
        setup.set(settings).unwrap();
        let choice = FlowChoice::new(ONE_IN, 99);
        World {
            detection: Detection::new(setup, choice),
            choice,
            rng: Rng::new(5),
            rules: Vec::new(),
            sampled: 0,
            passed: 0,
            second: 0,
            steps: Vec::new(),
            refuses: false,
        }
    }

    /// A number below this one.
    pub fn below(&mut self, bound: u32) -> u32 {
        self.rng.up_to(u128::from(bound - 1)) as u32
    }

    /// A packet arrives; whether it passes.
    pub fn send(&mut self, bytes: &[u8]) -> bool {
        let len = bytes.len() as u32;
        let is_hit = |rule: &&mut InForce| vm_cbpf::run(&rule.program, bytes, len) != 0;
        if let Some(rule) = self.rules.iter_mut().find(is_hit) {
            rule.counters.packets += 1;
            let is_within = rule.room > 0;
            rule.room = rule.room.saturating_sub(1);
            if !is_within {
                rule.counters.dropped += 1;
                return false;
            }
        }
        self.passed += 1;
        let ip = ip_packet(ETHERNET, bytes).and_then(|(_, ip)| Segment::of(ip));
        let is_chosen = ip.is_some_and(|segment| self.choice.has_packet(&segment, bytes.len()));
        if self.below(ONE_IN) == 0 || is_chosen {
            self.sampled += 1;
            self.detection.packet(bytes, false);
        }
        true
    }

    /// Ends a second, and does what detection says.
    pub fn tick(&mut self) {
        self.second += 1;
        self.detection.lost(std::mem::take(&mut self.sampled), 0);
        self.detection
            .passed(std::mem::take(&mut self.passed) as f64);
        let rules = &self.rules;
        let counters = |name: &str| {
            let rule = rules.iter().find(|rule| rule.found.spec.name == name);
            rule.map(|rule| rule.counters)
        };
        let steps = self.detection.tick(self.second * S, counters);
        for step in &steps {
            match step {
                Step::Rule(found) if self.refuses => self.detection.refused(&found.spec.name),
                Step::Rule(found) => self.install(found),
                Step::Remove(name) if self.detection.has_rule(name) => {}
                Step::Remove(name) => self.rules.retain(|rule| rule.found.spec.name != *name),
                _ => {}
            }
        }
        self.steps.extend(steps);
        for rule in &mut self.rules {
            if let Verdict::Limit(limit) = rule.found.spec.verdict {
                rule.room = limit.rate_pps().into();
            }
        }
    }

    /// A simulated host does not answer SYNs.
    fn install(&mut self, found: &Found) {
        let mut found = found.clone();
        if let Some((otherwise, _)) = found.otherwise.take() {
            self.detection.replaced(&otherwise);
            found.spec = otherwise;
        }
        let program = compile(&found.spec.expression, 1).unwrap().unwrap();
        self.rules.push(InForce {
            found,
            program,
            counters: Counters::default(),
            room: 0,
        });
    }

    /// The rules in force.
    pub fn found(&self) -> Vec<&Found> {
        self.rules.iter().map(|rule| &rule.found).collect()
    }

    /// The floods in progress.
    pub fn floods(&self) -> Vec<FloodTotals> {
        self.detection.floods()
    }

    /// Steps so far, in words.
    pub fn words(&self) -> Vec<&'static str> {
        words(&self.steps)
    }
}

/// A UDP packet.
pub fn udp(source: u32, destination: u32, ports: (u16, u16), ttl: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![2; 12];
    let len = 28 + payload.len() as u16;
    packet.extend([0x08, 0, 0x45, 0]);
    packet.extend(len.to_be_bytes());
    packet.extend([0, 0, 0x40, 0, ttl, 17, 0, 0]);
    packet.extend(source.to_be_bytes());
    packet.extend(destination.to_be_bytes());
    packet.extend(ports.0.to_be_bytes());
    packet.extend(ports.1.to_be_bytes());
    packet.extend((len - 20).to_be_bytes());
    packet.extend([0, 0]);
    packet.extend(payload);
    packet
}

/// A TCP segment with these sequence and acknowledgment numbers and a payload of zeros.
pub fn tcp(
    (source, destination): (u32, u32),
    ports: (u16, u16),
    numbers: (u32, u32),
    (flags, payload_len): (u8, u16),
) -> Vec<u8> {
    let [a, b, c, d] = numbers.0.wrapping_mul(2_654_435_761).to_be_bytes();
    let options = match flags {
        0x02 => vec![
            2,
            4,
            5,
            180,
            4,
            2,
            8,
            10,
            a,
            b,
            c,
            d | 1,
            0,
            0,
            0,
            0,
            1,
            3,
            3,
            7,
        ],
        _ => vec![1, 1, 8, 10, a, b, c, d, 0, 8, 8, 8],
    };
    let hops = (source % 20) as u8;
    let mut packet = vec![2; 12];
    let len = 40 + options.len() as u16 + payload_len;
    packet.extend([0x08, 0, 0x45, 0]);
    packet.extend(len.to_be_bytes());
    packet.extend([a, c, 0x40, 0, 60 - hops, 6, 0, 0]);
    packet.extend(source.to_be_bytes());
    packet.extend(destination.to_be_bytes());
    packet.extend(ports.0.to_be_bytes());
    packet.extend(ports.1.to_be_bytes());
    packet.extend(numbers.0.to_be_bytes());
    packet.extend(numbers.1.to_be_bytes());
    packet.extend([
        (((20 + options.len()) / 4) << 4) as u8,
        flags,
        0xfa,
        0xf0,
        0,
        0,
        0,
        0,
    ]);
    packet.extend(&options);
    packet.resize(packet.len() + usize::from(payload_len), 0);
    packet
}
