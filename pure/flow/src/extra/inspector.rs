//! The trait for inspecting the first packets of flows.

use crate::key::Side;
use crate::record::Record;
use crate::table::Observed;

/// Inspects the first packets with payload of each flow.
pub trait Inspect: Send {
    /// Inspects a packet, the nth of its flow with payload (from 0; 255 means that or more), before
    /// it is counted in the record. `handle` is the inspector's own number for the flow, initially
    /// 0. `payload` is the captured part. `flow` is its record and the initiator, which stays the
    /// same when the flow continues in another record. Returns false if no more packets of the flow
    /// are needed.
    fn packet(
        &mut self,
        handle: &mut u32,
        nth: u8,
        flow: (&Record, Side),
        packet: &Observed,
        payload: &[u8],
    ) -> bool;

    /// Sets the TCP sequence number of a direction's first byte. Called when the record with the
    /// SYN ends and the flow continues in another one.
    fn begins(&mut self, handle: &mut u32, is_initiator: bool, sequence: u32) {
        let _ = (handle, is_initiator, sequence);
    }

    /// Appends the findings so far to `found`. Called for each record if a flow is reported in
    /// several.
    fn known(&self, handle: u32, found: &mut Vec<u8>);

    /// Called when no more packets of the flow will be passed, although it may continue: state
    /// needed only for decoding may be freed. The results stay until the flow has ended.
    fn rest(&mut self, handle: &mut u32) {
        let _ = handle;
    }

    /// Whether the flow is selected ([`shunt`](super::ExtraConfig::shunt)); `None` if not known
    /// yet, or not needed.
    fn wants(&self, handle: u32) -> Option<bool> {
        let _ = handle;
        None
    }

    /// Ends the flow: appends the findings to `found` and releases the handle.
    fn ended(&mut self, handle: u32, found: &mut Vec<u8>);

    /// Handles the end of input: all flows have ended.
    fn finished(&mut self) {}

    /// Maximum memory it uses in bytes.
    fn memory_len(&self) -> usize {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An inspector that implements only the required methods.
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
