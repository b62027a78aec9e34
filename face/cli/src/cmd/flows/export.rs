//! `--export`: records to collectors and files, and what became of them.

use std::io::{self, Write};
use std::net::SocketAddr;

use clap::ValueEnum;
use export::prometheus::Endpoint;
use export::{Account, DropReason, Exporters, FanOut, Observed, Setup, Target};
use flow::element::Column;
use flow::encode::beyond::Beyond;
use flow::{EndReason, Extra, Record, Sampling};
use port::PortDescription;
use runtime::flows::{Fate, Outlet, QueueStatus, Report, Status};
use serde_json::{Map, Value, json};
use sys::Result;

use super::metrics::Metrics;
use super::service::Service;
use crate::report::bytes;

/// Where records go beside the screen.
#[derive(clap::Args)]
#[command(next_help_heading = "Export")]
pub struct ExportArgs {
    /// Send records to a collector or a file, for example ipfix:udp://192.0.2.1:4739,
    /// netflow9:udp://HOST, csv:FILE, parquet:FOLDER, json:kafka://BROKER/TOPIC; may be given
    /// several times (docs/export.md)
    #[arg(long, value_name = "URL", value_parser = parse_target)]
    export: Vec<Target>,
    /// Who gets which records when there are several destinations
    #[arg(long, value_enum, default_value = "all", value_name = "WHO")]
    export_mode: Mode,
    /// The sampling rate that is told to collectors: one of N packets comes here
    #[arg(long, default_value_t = 1, value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..))]
    sampling_rate: u32,
    /// Serve figures for Prometheus at http://ADDRESS/metrics, for example 127.0.0.1:9100
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<SocketAddr>,
}

/// What collectors are told beside the records.
pub struct Told {
    /// Whether VLAN ids are part of the key.
    pub has_vlan: bool,
    /// Whether the interface of a capture is.
    pub has_interface: bool,
    /// Whether bytes are those of whole packets.
    pub is_layer2: bool,
    /// What goes out beyond records.
    pub beyond: Beyond,
    /// How packets, and then records, are chosen.
    pub selectors: [Sampling; 2],
}

impl Told {
    /// One in how many packets is in the records, on the average.
    fn sampling_interval(&self) -> f64 {
        self.selectors.iter().map(Sampling::interval).product()
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Mode {
    /// Everybody gets all
    All,
    /// Each gets a part of the flows, by a hash of the key
    Hash,
}

fn parse_target(text: &str) -> std::result::Result<Target, String> {
    Target::parse(text).map_err(|error| match error.hint() {
        Some(hint) => format!("{}\nhint: {hint}", error.why()),
        None => error.why().to_owned(),
    })
}

impl ExportArgs {
    /// Opens the destinations. Files are made and certificates read here, before rights are given
    /// up. `None` if there are none.
    pub fn open(&self, port: &PortDescription, told: &Told) -> Result<Option<Exporters>> {
        if self.export.is_empty() {
            return Ok(None);
        }
        Exporters::open(&self.export, &self.setup(port, told)).map(Some)
    }

    /// The destinations.
    pub fn targets(&self) -> &[Target] {
        &self.export
    }

    /// What formats are told beside records.
    pub fn setup(&self, port: &PortDescription, told: &Told) -> Setup {
        let is_file = port.scheme == "file";
        let mut setup = Setup {
            fan_out: match self.export_mode {
                Mode::All => FanOut::All,
                Mode::Hash => FanOut::Hash,
            },
            // What was sampled before us, and what we sampled. Out of range becomes the limit.
            sampling: (f64::from(self.sampling_rate) * told.sampling_interval()).round() as u32,
            selectors: told.selectors,
            beyond: told.beyond,
            can_wait: is_file,
            is_layer2: told.is_layer2,
            ..Setup::default()
        };
        if told.has_vlan {
            // 58 is what most collectors show; 243 and 245 are what IEEE means.
            let names = ["vlanId", "dot1qVlanId", "dot1qCustomerVlanId"];
            setup
                .columns
                .extend(names.into_iter().filter_map(Column::find));
        }
        if is_file && told.has_interface {
            // Interfaces of a capture count from 1.
            setup.interface = 1;
            let named = port.interfaces.iter().enumerate();
            let named = named.filter(|(_, (_, name))| !name.is_empty());
            setup.interfaces = named
                .map(|(index, (_, name))| (index as u32 + 1, name.clone()))
                .collect();
        } else if let Some(index) = interface_index(&port.target).filter(|_| !is_file) {
            setup.interface = index;
            setup.interfaces.push((index, port.target.clone()));
        }
        setup
    }

    /// Serves figures, if that is asked for.
    pub fn metrics(&self) -> Result<Option<Metrics>> {
        let Some(address) = self.metrics else {
            return Ok(None);
        };
        let endpoint = Endpoint::bind(address)?;
        eprintln!("figures at http://{}/metrics", endpoint.address());
        Ok(Some(Metrics::new(endpoint)))
    }

    /// Bytes of memory that the queues may take.
    pub fn memory_len(&self) -> usize {
        Exporters::memory_len(&self.export)
    }
}

/// The kernel's number of an interface of this namespace.
fn interface_index(name: &str) -> Option<u32> {
    let path = format!("/sys/class/net/{name}/ifindex");
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// An outlet that also exports.
pub struct Exporting<'a> {
    /// The outlet of the screen.
    pub inner: &'a mut dyn Outlet,
    /// Where else records go.
    pub exporters: &'a mut Option<Exporters>,
    /// Who is told figures.
    pub metrics: &'a mut Option<Metrics>,
    /// Who manages this service, if it is one.
    pub service: &'a mut Service,
}

impl Outlet for Exporting<'_> {
    fn ended(&mut self, record: &Record, extra: &Extra<'_>, reason: EndReason) -> Result<Fate> {
        if let Some(exporters) = self.exporters {
            exporters.ended_with(record, extra, reason);
        }
        self.inner.ended(record, extra, reason)
    }

    fn pulse(&mut self, status: &Status<'_>) -> Result<()> {
        if let Some(exporters) = self.exporters {
            exporters.pulse(observed(&status.total(), status.account.rx_total().lost()));
        }
        if let Some(metrics) = self.metrics
            && metrics.is_due()
        {
            let accounts = self.exporters.as_mut().map(Exporters::accounts);
            metrics.show(
                &status.total(),
                status.account,
                &accounts.unwrap_or_default(),
            );
        }
        self.service.pulse(self.exporters, status);
        self.inner.pulse(status)
    }
}

fn observed(total: &QueueStatus, lost: u64) -> Observed {
    let mut observed = Observed::default();
    observed.flows = total.meter.table.flows;
    observed.ignored_packets = total.meter.refused_total();
    observed.dropped_packets = lost;
    observed
}

/// Sends what is left, and gives the accounts.
pub fn finish(exporters: Option<Exporters>, report: &Report) -> Vec<(String, Account)> {
    let Some(mut exporters) = exporters else {
        return Vec::new();
    };
    let total = QueueStatus::total(&report.queues);
    exporters.finish(observed(&total, report.account.rx_total().lost()))
}

/// Accounts for people.
pub fn write_accounts(out: &mut impl Write, accounts: &[(String, Account)]) -> io::Result<()> {
    for (name, account) in accounts {
        writeln!(
            out,
            "\nexport {name}: {} flows ({} packets) in {} messages, {}",
            account.exported.flows,
            account.exported.packets,
            account.messages,
            bytes(account.bytes),
        )?;
        for reason in DropReason::ALL {
            let sum = &account.dropped[reason as usize];
            if sum.flows != 0 {
                let name = reason.name().replace('_', " ");
                writeln!(
                    out,
                    "  {} flows ({} packets) not exported: {name}",
                    sum.flows, sum.packets
                )?;
            }
        }
        if account.files != 0 {
            writeln!(out, "  {} files are complete", account.files)?;
        }
        if account.sessions > 1 {
            writeln!(out, "  {} connections were made", account.sessions)?;
        }
        if account.refused_by_host != 0 {
            writeln!(
                out,
                "  the host said {} times that nobody listens there: what was sent then is lost",
                account.refused_by_host
            )?;
        }
        if let Some(failure) = &account.last_failure {
            writeln!(out, "  {} failures, the last: {failure}", account.failures)?;
        }
        let waiting = account.waiting();
        if waiting == 0 {
            writeln!(
                out,
                "  handed over = {} exported + {} not: adds up",
                account.exported.flows,
                account.dropped_total().flows
            )?;
        } else {
            writeln!(
                out,
                "  {waiting} flows are neither exported nor dropped: a fault of this program"
            )?;
        }
    }
    Ok(())
}

/// Accounts for programs.
pub fn accounts_json(accounts: &[(String, Account)]) -> Value {
    let all = accounts.iter().map(|(name, account)| {
        let dropped: Map<String, Value> = DropReason::ALL
            .into_iter()
            .filter(|reason| account.dropped[*reason as usize].flows != 0)
            .map(|reason| {
                let sum = account.dropped[reason as usize];
                let value = json!({"flows": sum.flows, "packets": sum.packets});
                (reason.name().to_owned(), value)
            })
            .collect();
        json!({
            "destination": name,
            "offered": {"flows": account.offered.flows, "packets": account.offered.packets},
            "exported": {"flows": account.exported.flows, "packets": account.exported.packets},
            "data_records": account.data_records,
            "dropped": dropped,
            "messages": account.messages,
            "files": account.files,
            "bytes": account.bytes,
            "sessions": account.sessions,
            "failures": account.failures,
            "refused_by_host": account.refused_by_host,
            "last_failure": account.last_failure,
            "imbalance": account.waiting(),
        })
    });
    Value::Array(all.collect())
}
