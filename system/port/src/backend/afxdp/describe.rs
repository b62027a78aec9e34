//! Describes the modes in use.

use xdp::ProgramClock;

use super::attach::Attachment;
use super::{BACKEND, Parts};
use crate::control::{Intake, PortDescription};
use crate::options::{PortOptions, TimestampSource};

/// Describes the opened port for users.
pub(super) fn describe(parts: &Parts<'_>) -> PortDescription {
    let (device, pool) = (&parts.device, &parts.pool);
    let yes = |on: bool| if on { "yes" } else { "no" }.to_owned();
    let mut facts: Vec<(&'static str, String)> = vec![("driver", device.driver.clone())];
    if let Some(attachment) = &parts.attachment {
        facts.push(("attach mode", attachment.mode.to_string()));
        if !attachment.refusals.is_empty() {
            facts.push(("attach refused", attachment.refusals.join("; ")));
        }
        facts.push(("time", time_source(attachment, parts.options)));
        facts.push(("metadata", metadata_words(attachment)));
    }
    let queues: Vec<String> = parts
        .opened
        .iter()
        .map(|queue| queue.shared.spec.queue_index.to_string())
        .collect();
    let word = if queues.len() == 1 { "queue" } else { "queues" };
    facts.push((word, queues.join(",")));
    if let Some(queue) = parts.opened.first() {
        let (shared, spec) = (&queue.shared, &queue.shared.spec);
        let mode = if shared.zero_copy {
            "zero-copy"
        } else {
            "copy"
        };
        facts.push(("bind mode", mode.into()));
        facts.push(("multi-buffer", yes(spec.multi_buffer)));
        facts.push(("need_wakeup", yes(spec.need_wakeup)));
        let lens = match (spec.has_rx, spec.has_tx) {
            (true, true) if spec.tx_len != spec.ring_len => {
                format!("{} received, {} sent", spec.ring_len, spec.tx_len)
            }
            (true, _) => spec.ring_len.to_string(),
            (false, _) => spec.tx_len.to_string(),
        };
        facts.push(("ring entries", lens));
        facts.push(("fill entries", spec.fill_count.to_string()));
        facts.push(("shared memory", yes(shared.joined)));
    }
    if let Some(budget) = parts.options.busy_poll_budget {
        facts.push(("busy polling", format!("{budget} packets per call")));
    }
    facts.push((
        "frames",
        format!("{} of {} bytes", pool.frame_count(), pool.frame_len()),
    ));
    facts.push(("huge pages", yes(pool.is_huge())));
    facts.push(("promiscuous", yes(parts.promiscuous.is_some())));
    if parts.options.filter.is_some() {
        facts.push(("filter", "XDP program".into()));
    }
    PortDescription {
        intake: Intake::Live,
        scheme: BACKEND.scheme,
        target: parts.name.target.clone(),
        link_type: 1,
        facts,
        memory_len: pool.memory_len(),
        interfaces: vec![(1, device.link.name.clone())],
    }
}

fn time_source(attachment: &Attachment, options: &PortOptions) -> String {
    let clock = match attachment.redirect.clock() {
        ProgramClock::Tai => "CLOCK_TAI",
        ProgramClock::Monotonic => "CLOCK_MONOTONIC",
    };
    match (options.timestamp, attachment.metadata.time) {
        (TimestampSource::None, _) => "none".into(),
        (TimestampSource::Batch, _) => "reader's clock, once per batch".into(),
        (_, xdp::TimestampSource::Device) => format!("device, else XDP program ({clock})"),
        (_, xdp::TimestampSource::Program) => format!("XDP program ({clock})"),
        (_, xdp::TimestampSource::None) => "none".into(),
    }
}

fn metadata_words(attachment: &Attachment) -> String {
    let metadata = &attachment.metadata;
    let mut words = Vec::new();
    if metadata.time != xdp::TimestampSource::None {
        words.push("time");
    }
    if metadata.hash {
        words.push("hash");
    }
    if metadata.vlan {
        words.push("VLAN");
    }
    match words.is_empty() {
        true => "none".into(),
        false => words.join(", "),
    }
}
