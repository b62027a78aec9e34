//! Uses the decoders of `inspect` in a flow table: [`Inspector`] implements [`Inspect`].

use inspect::{DONE, Direction, Inspector, Segment};

use crate::encode::extra_fields::transport;
use crate::extra::{Inspect, put_application};
use crate::key::Side;
use crate::record::{Record, SYN};
use crate::table::Observed;

fn direction(is_initiator: bool) -> Direction {
    match is_initiator {
        true => Direction::Forward,
        false => Direction::Reverse,
    }
}

impl Inspect for Inspector {
    fn packet(
        &mut self,
        handle: &mut u32,
        _nth: u8,
        (record, initiator): (&Record, Side),
        packet: &Observed,
        payload: &[u8],
    ) -> bool {
        let Some(transport) = transport(record) else {
            return false;
        };
        let key = record.key();
        let segment = Segment {
            transport,
            from: direction(packet.side == initiator),
            time_ns: packet.time_ns,
            ports: [key.port(initiator), key.port(initiator.other())],
            sequence: packet.level.tcp_seq,
            is_syn: packet.level.tcp_flags & SYN != 0,
            begins: record.stream_begin(packet.side),
            payload,
            payload_len: packet.level.payload_len,
        };
        Inspector::packet(self, handle, &segment);
        *handle & DONE == 0
    }

    fn begins(&mut self, handle: &mut u32, is_initiator: bool, sequence: u32) {
        self.begin(handle, direction(is_initiator), sequence);
    }

    fn rest(&mut self, handle: &mut u32) {
        Inspector::rest(self, handle);
    }

    fn known(&self, handle: u32, found: &mut Vec<u8>) {
        if let Some(application) = self.application(handle) {
            put_application(application, found);
            if let Some(transactions) = self.transactions(handle) {
                transactions.put(found);
            }
        }
    }

    fn ended(&mut self, handle: u32, found: &mut Vec<u8>) {
        let mut number = handle;
        // Report what was held back first.
        Inspector::rest(self, &mut number);
        Inspect::known(self, number, found);
        self.end(&mut number, |_| ());
    }

    fn memory_len(&self) -> usize {
        Inspector::memory_len(self)
    }
}
