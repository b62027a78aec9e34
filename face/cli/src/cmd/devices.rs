//! `barewire devices`: the interfaces and what each supports.

use std::io::{self, Write};

use nic::{Interface, XdpHolder};
use serde_json::{Value, json};
use sys::link::XdpFeatures;
use sys::{Error, Result};

use crate::report::si;

/// Arguments.
#[derive(clap::Args)]
pub struct Args {
    /// Show only this interface
    interface: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Prints a block for each interface.
pub fn run(args: &Args) -> Result<()> {
    let all = match &args.interface {
        Some(name) => vec![nic::interface(name)?],
        None => nic::interfaces()?,
    };
    let mut out = Vec::new();
    let written = if args.json {
        let list: Vec<Value> = all.iter().map(to_json).collect();
        writeln!(out, "{}", json!({ "type": "devices", "interfaces": list }))
    } else {
        all.iter()
            .try_for_each(|interface| write_text(&mut out, interface))
    };
    written
        .and_then(|()| io::stdout().write_all(&out))
        .map_err(|e| Error::from_io("write the list", e))
}

fn state(interface: &Interface) -> &'static str {
    match (interface.link.is_up(), interface.link.is_running()) {
        (false, _) => "down",
        (true, false) => "no carrier",
        (true, true) => "up",
    }
}

fn driver_name(interface: &Interface) -> String {
    match &interface.driver {
        Some(info) => info.driver.clone(),
        None if interface.link.kind.is_empty() => "none".into(),
        None => interface.link.kind.clone(),
    }
}

fn address(interface: &Interface) -> String {
    let bytes: Vec<String> = interface
        .link
        .address
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    bytes.join(":")
}

fn write_text(out: &mut impl Write, interface: &Interface) -> io::Result<()> {
    let link = &interface.link;
    write!(out, "{}  {}", link.name, state(interface))?;
    if let Some(speed) = interface.speed_mbps {
        write!(out, ", {}", si(f64::from(speed) * 1e6, "bit/s"))?;
    }
    write!(out, ", MTU {}", link.mtu)?;
    if interface.has_default_route {
        write!(out, ", default route")?;
    }
    writeln!(out)?;
    let mut row = |name: &str, text: String| writeln!(out, "    {name:<10} {text}");
    let mut driver = driver_name(interface);
    if let Some(info) = interface
        .driver
        .as_ref()
        .filter(|info| !info.bus.is_empty())
    {
        driver += &format!(" at {}", info.bus);
    }
    if let Some(node) = interface.numa_node {
        driver += &format!(", NUMA node {node}");
    }
    row("driver", driver)?;
    row("queues", queues(interface))?;
    if let Some(rings) = interface.rings {
        row(
            "rings",
            format!(
                "RX {} of {}, TX {} of {}",
                rings.rx, rings.rx_max, rings.tx, rings.tx_max
            ),
        )?;
    }
    row("RSS", rss(interface))?;
    row("AF_XDP", modes(interface))?;
    row("metadata", metadata(interface))?;
    if interface.offloads.is_some_and(|o| o.lro) {
        row(
            "caution",
            format!(
                "LRO is on, so XDP is refused; ethtool -K {} lro off",
                link.name
            ),
        )?;
    }
    match interface.xdp.as_slice() {
        [] => row("XDP now", "free".into()),
        held => held
            .iter()
            .try_for_each(|holder| row("XDP now", held_by(holder, &link.name))),
    }
}

/// The modes that the driver supports. Whether the device accepts zero-copy shows only when a queue
/// is bound, which resets some cards.
fn modes(interface: &Interface) -> String {
    let modes = interface.attach_modes().join(", ");
    modes.replace("zero-copy", "zero-copy (if the device allows)")
}

fn queues(interface: &Interface) -> String {
    match interface.channels {
        Some(c) if c.combined_max > 0 => format!(
            "{} combined of {} (RX {} of {}, TX {} of {})",
            c.combined, c.combined_max, c.rx, c.rx_max, c.tx, c.tx_max
        ),
        Some(c) => format!("RX {} of {}, TX {} of {}", c.rx, c.rx_max, c.tx, c.tx_max),
        None => format!(
            "RX {}, TX {}",
            interface.link.rx_queue_max, interface.link.tx_queue_max
        ),
    }
}

fn rss(interface: &Interface) -> String {
    match &interface.rss {
        None => "not reported".into(),
        Some(rss) => format!(
            "{} table entries, {}-byte key, {}",
            rss.table.len(),
            rss.key.len(),
            if rss.is_symmetric() {
                "symmetric: both directions of a flow on one queue"
            } else {
                "not symmetric: the directions of a flow may be on two queues"
            }
        ),
    }
}

/// Per-packet metadata that the driver provides to XDP programs.
fn metadata_words(interface: &Interface) -> Vec<&'static str> {
    let bits = interface.xdp_features.unwrap_or_default().rx_metadata;
    [
        (XdpFeatures::META_TIMESTAMP, "time"),
        (XdpFeatures::META_HASH, "hash"),
        (XdpFeatures::META_VLAN, "VLAN"),
    ]
    .iter()
    .filter(|(bit, _)| bits & bit != 0)
    .map(|(_, word)| *word)
    .collect()
}

fn metadata(interface: &Interface) -> String {
    match metadata_words(interface).as_slice() {
        [] => "none from the driver; the XDP program takes timestamps".into(),
        words => words.join(", "),
    }
}

fn held_by(holder: &XdpHolder, interface: &str) -> String {
    let mut text = format!("program {}", holder.attached.program_id);
    if let Some(name) = holder.program_name.as_ref().filter(|name| !name.is_empty()) {
        text += &format!(" \"{name}\"");
    }
    text += &format!(", {}", holder.attached.place.word());
    text += &match holder.link_id {
        Some(id) => format!(", by link {id}"),
        None => ", without a link".into(),
    };
    let names: Vec<String> = holder
        .processes
        .iter()
        .map(|(pid, name)| format!("{name} ({pid})"))
        .collect();
    match (names.as_slice(), holder.link_id) {
        ([], None) => {
            text + &format!("; no process holds it; `ip link set dev {interface} xdp off` detaches")
        }
        ([], Some(_)) => text + "; holder not visible (pinned, or in another namespace)",
        (names, _) => text + &format!(", held by {}", names.join(", ")),
    }
}

fn to_json(interface: &Interface) -> Value {
    let link = &interface.link;
    let holders: Vec<Value> = interface
        .xdp
        .iter()
        .map(|holder| {
            let processes: Vec<Value> = holder
                .processes
                .iter()
                .map(|(pid, name)| json!({ "pid": pid, "name": name }))
                .collect();
            json!({
                "program_id": holder.attached.program_id,
                "program_name": holder.program_name,
                "attach_mode": holder.attached.place.word(),
                "link_id": holder.link_id,
                "processes": processes,
            })
        })
        .collect();
    let driver = interface.driver.as_ref();
    json!({
        "name": link.name,
        "ifindex": link.index,
        "kind": link.kind,
        "state": state(interface),
        "address": address(interface),
        "hardware_type": link.hardware,
        "mtu": link.mtu,
        "speed_mbps": interface.speed_mbps,
        "default_route": interface.has_default_route,
        "driver": driver.map(|d| json!({
            "name": d.driver, "version": d.version, "firmware": d.firmware, "bus": d.bus,
        })),
        "numa_node": interface.numa_node,
        "rx_queues": interface.rx_queue_count(),
        "channels": interface.channels.map(|c| json!({
            "rx": c.rx, "tx": c.tx, "combined": c.combined,
            "rx_max": c.rx_max, "tx_max": c.tx_max, "combined_max": c.combined_max,
        })),
        "rings": interface.rings.map(|r| json!({
            "rx": r.rx, "tx": r.tx, "rx_max": r.rx_max, "tx_max": r.tx_max,
        })),
        "rss": interface.rss.as_ref().map(|r| json!({
            "table_len": r.table.len(), "key_len": r.key.len(), "symmetric": r.is_symmetric(),
        })),
        "offloads": interface.offloads.map(|o| json!({
            "lro": o.lro, "ntuple": o.ntuple, "rx_hash": o.rx_hash, "rx_vlan": o.rx_vlan,
            "tx_vlan": o.tx_vlan,
        })),
        "attach_modes": interface.attach_modes(),
        "rx_metadata": metadata_words(interface),
        "stamps_all_packets": interface.stamps_all_packets,
        "xdp": holders,
    })
}
