//! A flow being read: passes stream data to its conversation, and the findings of decoders to its
//! application.

use super::{Flow, InspectorConfig};
use crate::application::Application;
use crate::conversation::{Conversation, End, Tools};
use crate::decode::{Direction, Origin, Reason};
use crate::field::{Field, FieldSink, Protocol, Value};
use crate::slab::Slab;
use crate::stream::{Reader, Stream};
use crate::transaction::{Log, Tally};

/// Receives the findings of decoders.
pub(super) struct Reported<'a> {
    pub(super) application: &'a mut Application,
    pub(super) tally: &'a mut Tally,
    pub(super) logs: &'a mut Slab<Log>,
}

impl FieldSink for Reported<'_> {
    fn named(&mut self, protocol: Protocol) {
        self.application.named(protocol);
    }

    fn field(&mut self, field: Field, value: Value<'_>) {
        self.application.field(field, value);
    }

    fn transaction(&mut self, is_first: bool, fields: &[(Field, Value<'_>)]) {
        self.tally.add(is_first, fields, self.logs);
    }
}

/// A flow being read.
pub(super) struct Reading<'a> {
    conversation: &'a mut Conversation,
    reported: Reported<'a>,
    tools: &'a mut Tools,
    time_ns: u64,
    ports: [u16; 2],
    packets: &'a mut u16,
    /// Whether to abandon a flow with one unidentified direction.
    is_late: bool,
}

impl<'a> Reading<'a> {
    pub(super) fn of(
        flow: &'a mut Flow,
        tools: &'a mut Tools,
        logs: &'a mut Slab<Log>,
        config: &InspectorConfig,
    ) -> (Reading<'a>, &'a mut Stream) {
        let reading = Reading {
            conversation: &mut flow.conversation,
            reported: Reported {
                application: &mut flow.application,
                tally: &mut flow.tally,
                logs,
            },
            tools,
            time_ns: flow.time_ns,
            ports: flow.ports,
            is_late: flow.packets >= config.unknown_count_max,
            packets: &mut flow.packets,
        };
        (reading, &mut flow.stream)
    }

    fn origin(&self, from: Direction) -> Origin {
        Origin {
            from,
            time_ns: self.time_ns,
            ports: self.ports,
        }
    }

    /// The end of a flow in which one direction was not identified, and the other one not in time.
    fn or_late(&self, end: Option<End>, from: Direction, reason: Reason) -> Option<End> {
        if end.is_none() && self.is_late && self.conversation.is_unknown(from) {
            return Some(End::Rejected(reason));
        }
        end
    }

    pub(super) fn datagram(&mut self, from: Direction, bytes: &[u8]) -> Option<End> {
        let origin = self.origin(from);
        let (tools, out) = (&mut *self.tools, &mut self.reported);
        let end = self.conversation.datagram(&origin, bytes, tools, out);
        self.or_late(end, from, Reason::Unknown)
    }
}

impl Reader for Reading<'_> {
    type End = End;

    fn data(&mut self, from: Direction, bytes: &[u8]) -> Option<End> {
        let origin = self.origin(from);
        let (tools, out) = (&mut *self.tools, &mut self.reported);
        let end = self.conversation.stream(&origin, bytes, tools, out);
        self.or_late(end, from, Reason::Unknown)
    }

    fn gap(&mut self, from: Direction, len: u32) -> Option<End> {
        let (tools, out) = (&mut *self.tools, &mut self.reported);
        let end = self.conversation.gap(from, len, tools, out);
        self.or_late(end, from, Reason::Gap)
    }

    fn far(&mut self, _from: Direction) -> Option<End> {
        Some(End::Rejected(Reason::Gap))
    }

    fn again(&mut self, _from: Direction, bytes: &[u8], is_whole: bool) {
        // Keep-alives repeat one byte, any number of times.
        let is_one = u16::from(is_whole && bytes.len() == 1);
        *self.packets = self.packets.saturating_sub(is_one);
    }
}
