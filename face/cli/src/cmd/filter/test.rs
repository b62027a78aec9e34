//! `barewire filter test`: runs a filter on the packets of a capture file.

use ::filter::dns::QuerySet;
use ::filter::p0f::Start;
use port::{PortOptions, RxBatch};
use runtime::capture::{Context, Held, Printer, Style, TimeStyle};
use runtime::filter::link::ip_packet;
use runtime::filter::select::{Select, start_of};
use runtime::{Engine, Pacing, Stop, Verdict, worker};
use sys::{Error, Result};

use super::FilterArgs;
use crate::out::say;
use crate::report::counted;

/// Arguments.
#[derive(clap::Args)]
pub struct Args {
    /// Capture file; - is standard input
    file: String,
    #[command(flatten)]
    filter: FilterArgs,
    /// Print only the number of packets selected
    #[arg(long)]
    count: bool,
    /// Print one JSON object per packet
    #[arg(long)]
    json: bool,
}

/// Prints the selected packets and the counts.
pub fn run(args: &Args) -> Result<()> {
    let select = args.filter.select()?;
    // A table of names has no limit on their number, and needs no program.
    let queries = match &select {
        Select::Dns(queries) => Some(QuerySet::new(queries)),
        _ => None,
    };
    let options = PortOptions {
        filter_source: queries.is_none().then(|| select.source()),
        ..PortOptions::default()
    };
    let mut port = port::open(&file_port(&args.file), &options)?;
    let stop = Stop::on_signals()?;
    let description = port.control.describe();
    let links = description.interfaces.clone();
    let style = Style {
        time: TimeStyle::Clock,
        number: !args.json,
        json: args.json,
        ..Style::default()
    };
    let mut test = Test {
        selected: 0,
        queries,
        link_type: description.link_type,
        links,
        printer: (!args.count).then(|| Printer::new(style)),
    };
    let ended = match port.rx.first_mut() {
        Some(rx) => worker::run(rx, &mut test, &stop, Pacing::Wait),
        None => return Ok(()),
    };
    test.flush()?;
    let total = port.control.account()?.rx_total();
    if args.count && !args.json {
        super::print(&format!("{}\n", test.selected))?;
    } else if args.count {
        let (packets, selected) = (total.seen, test.selected);
        let counts = serde_json::json!({
            "type": "totals", "packets": packets, "selected": selected,
        });
        super::print(&format!("{counts}\n"))?;
    }
    say!(
        "{} of {} selected",
        test.selected,
        counted(total.seen, "packet")
    );
    ended.map(drop)
}

/// The port name that reads a file.
pub(super) fn file_port(name: &str) -> String {
    match name.starts_with("file:") {
        true => name.to_owned(),
        false => format!("file:{name}"),
    }
}

/// Queued text is written once it has this many bytes.
const FLUSH_LEN: usize = 64 << 10;

struct Test {
    selected: u64,
    queries: Option<QuerySet>,
    link_type: u16,
    links: Vec<(u16, String)>,
    printer: Option<Printer>,
}

impl Test {
    fn flush(&mut self) -> Result<()> {
        let Some(printer) = &mut self.printer else {
            return Ok(());
        };
        printer
            .flush(&mut std::io::stdout())
            .map_err(|e| Error::from_io("write to standard output", e))
    }
}

/// Whether a packet of any link type is a query; on Ethernet without VLAN tags.
fn is_query(queries: &QuerySet, link_type: u16, bytes: &[u8]) -> bool {
    match start_of(link_type) {
        Ok(start) => queries.matches(start, bytes),
        Err(_) => ip_packet(link_type, bytes).is_some_and(|ip| queries.matches(Start::Ip, ip)),
    }
}

impl Engine for Test {
    fn batch(&mut self, batch: &mut RxBatch<'_>) -> Result<Verdict> {
        for packet in batch.iter() {
            let interface = packet.interface_index();
            let of_file = self.links.get(usize::from(interface));
            let (link_type, name) = of_file.map_or((self.link_type, ""), |(link_type, name)| {
                (*link_type, name.as_str())
            });
            let segments: Vec<&[u8]> = packet.segments().collect();
            let joined;
            let bytes = match segments[..] {
                [one] => one,
                _ => {
                    joined = segments.concat();
                    &joined[..]
                }
            };
            if let Some(queries) = &self.queries
                && !is_query(queries, link_type, bytes)
            {
                continue;
            }
            self.selected += 1;
            let Some(printer) = &mut self.printer else {
                continue;
            };
            let held = Held {
                time_ns: packet.time_ns().unwrap_or(0),
                cap_len: packet.cap_len(),
                wire_len: packet.wire_len(),
                interface,
                outgoing: packet.recorded_outgoing(),
                vlan: packet.vlan(),
                bytes,
            };
            let context = Context {
                link_type,
                interface: name,
                has_way: false,
            };
            printer.packet(&held, &context);
        }
        if self
            .printer
            .as_ref()
            .is_some_and(|p| p.waiting() >= FLUSH_LEN)
        {
            self.flush()?;
        }
        Ok(Verdict::Continue)
    }
}
