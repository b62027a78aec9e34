//! The trait for inspecting the first packets of flows.

use crate::key::Side;
use crate::record::Record;
use crate::table::Observed;

/// Looks at the first packets of flows that carry payload.
pub trait Inspect: Send {
    /// A packet, the nth of its flow with payload (from 0; 255 is that or more), before it is
    /// counted in the record.
    /// `handle` is the inspector's own number for the flow, 0 at the beginning. `payload` is what
    /// was captured. `flow` is its record and the side that began it, which stays the same when the
    /// flow continues in another record. False if no more of the flow are wanted.
    fn packet(
        &mut self,
        handle: &mut u32,
        nth: u8,
        flow: (&Record, Side),
        packet: &Observed,
        payload: &[u8],
    ) -> bool;

    /// The first byte of a direction has this TCP sequence number. Called when the record with the
    /// SYN ends and the flow continues in another one.
    fn begins(&mut self, handle: &mut u32, is_initiator: bool, sequence: u32) {
        let _ = (handle, is_initiator, sequence);
    }

    /// What was found so far goes to the end of `found`. It is called for each record if a flow is
    /// reported in several.
    fn known(&self, handle: u32, found: &mut Vec<u8>);

    /// No more packets of the flow will be passed, although it may continue: state that only
    /// decoding needs may be freed. What is known stays until it has ended.
    fn rest(&mut self, handle: &mut u32) {
        let _ = handle;
    }

    /// Whether the flow is selected ([`shunt`](super::ExtraConfig::shunt)); `None` if that is not
    /// known yet, or not needed.
    fn wants(&self, handle: u32) -> Option<bool> {
        let _ = handle;
        None
    }

    /// The flow has ended: what was found goes to the end of `found`. The handle is free again.
    fn ended(&mut self, handle: u32, found: &mut Vec<u8>);

    /// The end of input: all flows have ended.
    fn finished(&mut self) {}

    /// Bytes of memory that it takes and will ever take.
    fn memory_len(&self) -> usize {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing but what every inspector has to do.
    struct Least;

    impl Inspect for Least {
        fn packet(
            &mut self,
            _: &mut u32,
            _: u8,
            _: (&Record, Side),
            _: &Observed,
            _: &[u8],
        ) -> bool {
            false
        }

        fn known(&self, _: u32, _: &mut Vec<u8>) {}

        fn ended(&mut self, _: u32, _: &mut Vec<u8>) {}
    }

    #[test]
    fn missing_values_stay_unknown() {
        let mut least = Least;
        let mut handle = 7;
        least.rest(&mut handle);
        least.begins(&mut handle, true, 9);
        least.finished();
        assert_eq!(
            (handle, least.wants(handle), least.memory_len()),
            (7, None, 0)
        );
    }
}
