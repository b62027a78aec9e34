//! What a dry run prints: the plan, and the first packets.

use std::fmt::Write as _;

use runtime::scan::Scan;
use serde_json::json;
use sys::Result;
use wire::{Dissection, LinkType, Summary, dissect};

use super::{number, plan_line};
use crate::out;

/// Number of probes shown.
const SAMPLE_COUNT: usize = 5;

/// A packet in the format of `capture`.
fn shown(packet: &[u8], is_bare: bool) -> String {
    let mut found = Dissection::EMPTY;
    let link_type = match is_bare {
        true => LinkType::RAW,
        false => LinkType::ETHERNET,
    };
    dissect(link_type, packet, packet.len() as u32, &mut found);
    let (dissection, bytes) = (&found, packet);
    Summary { dissection, bytes }.to_string()
}

/// Prints the packets that would be sent.
///
/// # Errors
/// When it cannot be printed.
pub fn dry_run(scan: &Scan, json: bool) -> Result<()> {
    let frames = scan.sample(SAMPLE_COUNT);
    let shown = |packet: &Vec<u8>| shown(packet, scan.is_bare());
    let mut text = String::new();
    if json {
        let plan = scan.plan();
        let line = json!({
            "type": "plan",
            "interface": scan.interface(),
            "port": scan.port_name(),
            "addresses": number(plan.addr_count()),
            "pairs": plan.pairs().len(),
            "reserved": number(scan.reserved),
            "opted_out": number(scan.opted_out),
            "on_link": number(scan.on_link_count()),
            "own": number(scan.own_count()),
            "ports": scan.setup().ports.as_slice().len(),
            "probes": number(plan.probe_count()),
            "seed": scan.setup().seed,
            "first": frames.iter().map(shown).collect::<Vec<_>>(),
        });
        let _ = writeln!(text, "{line}");
    } else {
        let _ = writeln!(
            text,
            "{}\n(dry run: nothing is sent) The first probes:",
            plan_line(scan)
        );
        for frame in &frames {
            let _ = writeln!(text, "  {}", shown(frame));
            let hex: String = frame.iter().map(|byte| format!("{byte:02x}")).collect();
            let _ = writeln!(text, "    {hex}");
        }
    }
    let stdout = out::stdout(1)?;
    out::print(&stdout, text.into_bytes())
}
