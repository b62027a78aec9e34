//! Numbers of flows, by which programs name a flow that they want no more packets of
//! (`PF_RING_FLOW_OFFLOAD`).

use std::hash::{BuildHasher as _, RandomState};

use super::Flow;

/// Flows that are remembered, by the last bits of their numbers.
const COUNT: usize = 1 << 16;

/// The flows of recent packets.
#[derive(Debug)]
pub struct Numbers {
    /// Random, so that no sender can choose the number of its flow.
    hasher: RandomState,
    recent: Vec<Option<(u32, Flow)>>,
}

impl Numbers {
    /// Remembers nothing yet.
    pub fn new() -> Self {
        Self {
            hasher: RandomState::new(),
            recent: vec![None; COUNT],
        }
    }

    /// The number of a flow, which is remembered.
    pub fn number(&mut self, flow: Flow) -> u32 {
        let number = self.hasher.hash_one(flow) as u32;
        self.recent[number as usize % COUNT] = Some((number, flow));
        number
    }

    /// The flow of a number, unless another one has taken its place.
    pub fn find(&self, number: u32) -> Option<Flow> {
        let (found, flow) = self.recent[number as usize % COUNT]?;
        (found == number).then_some(flow)
    }
}
