//! Extra fields that outlive the flow: sent to a collector, or held for the other half.

use inspect::Application;

use crate::extra::{
    ByteCounts, Extra, PacketNote, Timing, put_application, take_application, take_transactions,
};
use crate::key::KeyExtra;
use crate::origin::Origins;

/// A copy of an [`Extra`] whose memory is reused.
#[derive(Clone, Debug, Default)]
pub struct OwnedExtra {
    key: Option<KeyExtra>,
    packets: Vec<PacketNote>,
    timing: Option<Box<[Timing; 2]>>,
    bytes: Option<Box<ByteCounts>>,
    application: Vec<u8>,
    origins: Option<Box<Origins>>,
}

impl OwnedExtra {
    /// Copies `extra`.
    pub fn set(&mut self, extra: &Extra<'_>) {
        self.key = extra.key.copied();
        self.packets.clear();
        self.packets.extend_from_slice(extra.packets);
        copy(&mut self.timing, extra.timing);
        copy(&mut self.bytes, extra.bytes);
        self.application.clear();
        self.application.extend_from_slice(extra.application);
        self.origins = extra.origins.cloned().map(Box::new);
    }

    /// The copy as an [`Extra`].
    pub fn get(&self) -> Extra<'_> {
        Extra {
            key: self.key.as_ref(),
            packets: &self.packets,
            timing: self.timing.as_deref(),
            bytes: self.bytes.as_deref(),
            application: &self.application,
            origins: self.origins.as_deref(),
        }
    }

    /// Merges the extra fields of the flow's other half, which began `later_us` microseconds after
    /// this one (before it, if negative). The list of packets stays as long as the longer of both.
    pub fn merge(&mut self, other: &Extra<'_>, later_us: i64) {
        let count = self.packets.len().max(other.packets.len());
        let shift = |note: &PacketNote, by: i64| {
            let time = (i64::from(note.time_us) + by).clamp(0, u32::MAX.into());
            PacketNote {
                time_us: time as u32,
                ..*note
            }
        };
        let mut packets: Vec<PacketNote> = self
            .packets
            .iter()
            .map(|note| shift(note, (-later_us).max(0)))
            .collect();
        packets.extend(
            other
                .packets
                .iter()
                .map(|note| shift(note, later_us.max(0))),
        );
        packets.sort_by_key(|note| note.time_us);
        packets.truncate(count);
        self.packets = packets;
        if let (Some(timing), Some(more)) = (&mut self.timing, other.timing) {
            for (side, more) in timing.iter_mut().zip(more) {
                side.merge(more);
            }
        }
        if let (Some(bytes), Some(more)) = (&mut self.bytes, other.bytes) {
            for (count, more) in bytes.iter_mut().flatten().zip(more.iter().flatten()) {
                *count = count.saturating_add(*more);
            }
        }
        self.merge_applications(other.application);
    }

    /// Each half may have information that the other lacks: questions in one direction, answers in
    /// the other.
    fn merge_applications(&mut self, other: &[u8]) {
        let Some(theirs) = take_application(other) else {
            return;
        };
        let mut both = take_application(&self.application).unwrap_or(Application::EMPTY);
        // Lists from a single direction cannot be matched: the longer one is kept.
        let (mut list, mut count) = (Vec::new(), 0);
        for half in [&self.application[..], other] {
            if let Some(transactions) = take_transactions(half)
                && transactions.count > count
            {
                count = transactions.count;
                list.clear();
                transactions.put(&mut list);
            }
        }
        both.merge(&theirs);
        self.application.clear();
        put_application(&both, &mut self.application);
        self.application.extend(list);
    }
}

fn copy<T: Copy>(place: &mut Option<Box<T>>, value: Option<&T>) {
    match (place.as_deref_mut(), value) {
        (Some(place), Some(value)) => *place = *value,
        (_, value) => *place = value.map(|value| Box::new(*value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use inspect::{Field, FieldSink, Protocol, Value};

    #[test]
    fn applications_of_both_halves_are_merged() {
        let found = |field, text| {
            let (mut application, mut out) = (Application::EMPTY, Vec::new());
            application.named(Protocol::Tls);
            application.field(field, Value::text(text));
            put_application(&application, &mut out);
            out
        };
        let (asked, answered) = (found(Field::TlsSni, b"name"), found(Field::Ja4s, b"sum"));
        for [first, second] in [
            [&asked, &answered],
            [&answered, &asked],
            [&Vec::new(), &asked],
        ] {
            let extra = |application| Extra {
                application,
                ..Extra::default()
            };
            let mut owned = OwnedExtra::default();
            owned.set(&extra(first));
            owned.merge(&extra(second), 0);
            let both = owned.get().application().unwrap();
            assert_eq!(both.protocol(), Protocol::Tls);
            assert_eq!(both.get(Field::TlsSni), Some(Value::text(b"name")));
            assert_eq!(both.has(Field::Ja4s), !first.is_empty());
        }
    }

    /// The times of both halves are relative to the earlier start.
    #[test]
    fn packets_of_two_halves_are_in_order() {
        let note = |time_us, side| PacketNote {
            time_us,
            payload_len: 1,
            tcp_flags: 0,
            side,
        };
        let half = |times: &[u32], side| -> Vec<PacketNote> {
            times.iter().map(|time| note(*time, side)).collect()
        };
        let merged = |one: &[u32], other: &[u32], later_us| {
            let (one, other) = (half(one, 0), half(other, 1));
            let extra = |packets| Extra {
                packets,
                ..Extra::default()
            };
            let mut owned = OwnedExtra::default();
            owned.set(&extra(&one));
            owned.merge(&extra(&other), later_us);
            let packets = owned.packets.iter();
            packets
                .map(|note| (note.time_us, note.side))
                .collect::<Vec<_>>()
        };
        let both = [(0, 0), (5, 1), (10, 0), (15, 1)];
        assert_eq!(merged(&[0, 10, 20, 30], &[0, 10], 5), both);
        let other_first = [(0, 1), (5, 0), (10, 1), (15, 0)];
        assert_eq!(merged(&[0, 10], &[0, 10, 20, 30], -5), other_first);
        assert_eq!(merged(&[0, 10], &[0, 10], 0), [(0, 0), (0, 1)]);
    }
}
