//! Updates the slabs for each packet and flow of the table.

use super::{Extra, Extras, PacketNote, Timing, put};
use crate::expire::EndReason;
use crate::meter::Input;
use crate::record::{LATER, REASSEMBLED, Record};
use crate::table::{Observed, RecordSink, Watch};

/// The slabs, and the packets that were passed together.
pub(crate) struct Watching<'a, 'p> {
    pub(crate) extras: &'a mut Extras,
    pub(crate) inputs: &'a [Input<'p>],
}

/// The captured payload of a packet.
fn payload_in<'b>(inputs: &[Input<'b>], reassembled: &'b [u8], packet: &Observed) -> &'b [u8] {
    let bytes = match packet.marks & REASSEMBLED {
        0 => inputs
            .get(usize::from(packet.input_index))
            .map_or(&[][..], |input| input.bytes),
        _ => reassembled,
    };
    let from = packet.level.payload_offset as usize;
    let rest = bytes.get(from..).unwrap_or(&[]);
    rest.get(..packet.level.payload_len as usize)
        .unwrap_or(rest)
}

impl Watching<'_, '_> {
    /// Records the per-packet data.
    #[inline(never)]
    fn note(&mut self, index: u32, record: &Record, packet: &Observed) {
        let at = index as usize;
        let inputs = self.inputs;
        let side = packet.side as usize;
        if let Some(count) = self.extras.note_counts.get_mut(at)
            && *count < self.extras.config.packet_count
        {
            let place = at * usize::from(self.extras.config.packet_count) + usize::from(*count);
            *count += 1;
            let start_ns = record.start_ns().min(packet.time_ns);
            let passed_us = (packet.time_ns - start_ns) / 1000;
            self.extras.notes[place] = PacketNote {
                time_us: passed_us.min(u64::from(u32::MAX)) as u32,
                payload_len: packet.level.payload_len.min(u32::from(u16::MAX)) as u16,
                tcp_flags: packet.level.tcp_flags as u8,
                side: side as u8,
            };
        }
        if let Some(timing) = self.extras.timing.get_mut(at) {
            timing[side].add(&record.sent_by(packet.side), packet);
        }
        if let Some(counts) = self.extras.bytes.get_mut(at) {
            for byte in payload_in(inputs, &self.extras.reassembled, packet) {
                let count = &mut counts[side][usize::from(*byte)];
                *count = count.saturating_add(1);
            }
        }
    }
}

impl Watch for Watching<'_, '_> {
    const DETAIL: bool = true;
    const HAS_EXTRAS: bool = true;

    fn is_same(&self, record: u32, packet: &Observed) -> bool {
        let extras = &self.extras;
        !extras.with_key || extras.keys.get(record as usize) == Some(&packet.key_extra)
    }

    fn began(&mut self, record: u32, packet: &Observed, clock_ns: u64) {
        let (at, extras) = (record as usize, &mut *self.extras);
        if extras.with_key {
            put(&mut extras.keys, at, packet.key_extra);
        }
        let note_count = usize::from(extras.config.packet_count);
        if note_count != 0 {
            put(&mut extras.note_counts, at, 0);
            if extras.notes.len() < (at + 1) * note_count {
                extras
                    .notes
                    .resize((at + 1) * note_count, PacketNote::default());
            }
        }
        if extras.config.timing {
            put(&mut extras.timing, at, [Timing::EMPTY; 2]);
        }
        if extras.config.bytes {
            put(&mut extras.bytes, at, [[0; 256]; 2]);
        }
        if extras.config.inspect_count != 0 {
            let inspected = extras.take_over(packet, clock_ns);
            put(&mut extras.inspected, at, inspected);
        }
    }

    fn hold_bytes(&mut self, bytes: &[u8]) {
        // Within the capacity reserved.
        self.extras.reassembled.clear();
        self.extras.reassembled.extend_from_slice(bytes);
    }

    #[inline(always)]
    fn packet(&mut self, index: u32, record: &mut Record, packet: &Observed) {
        if self.extras.notes_packets {
            self.note(index, record, packet);
        }
        // Most packets end here: without payload, or of a flow that needs no further look.
        let is_wanted = packet.level.payload_len != 0 && packet.marks & LATER == 0;
        if self.extras.config.inspect_count != 0 && is_wanted && !record.is_inspected() {
            let reassembled = std::mem::take(&mut self.extras.reassembled);
            let payload = payload_in(self.inputs, &reassembled, packet);
            self.extras.inspect(index as usize, record, packet, payload);
            self.extras.reassembled = reassembled;
        }
        if self.extras.config.shunt.is_some() {
            self.extras.choose(index as usize, record, packet);
        }
    }

    fn walked(&mut self, clock_ns: u64) {
        self.extras.sweep(clock_ns);
    }

    fn ended(
        &mut self,
        index: u32,
        (record, reason): (&Record, EndReason),
        clock_ns: u64,
        sink: &mut dyn RecordSink,
    ) {
        let at = index as usize;
        let extras = &mut *self.extras;
        extras.report(at, (record, reason), clock_ns);
        let extra = Extra {
            key: extras.keys.get(at),
            packets: extras.notes_of(at),
            timing: extras.timing.get(at),
            bytes: extras.bytes.get(at),
            application: &extras.found,
            origins: None,
        };
        sink.leaving(index);
        sink.ended_with(record, &extra, reason);
    }
}
