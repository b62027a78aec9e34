//! Metrics for Prometheus. The names are described in `docs/export.md`.

mod applications;

use std::time::{Duration, Instant};

use export::prometheus::{Endpoint, Kind, Page};
use export::{Account, DropReason};
use flow::{EndReason, Extra, Record};
use port::QueueAccount;
use runtime::flows::{QueueStatus, Status};
use wire::Reason;

use applications::Applications;

/// Interval at which the page is rendered.
const INTERVAL: Duration = Duration::from_secs(1);

/// The endpoint, and when its page was last rendered.
pub struct Metrics {
    endpoint: Endpoint,
    reported: Option<Instant>,
    applications: Applications,
    /// The port's interface, or its interfaces.
    interface: String,
}

impl Metrics {
    /// Creates the metrics of an endpoint, for a port on this interface.
    pub fn new(endpoint: Endpoint, interface: &str) -> Metrics {
        Metrics {
            endpoint,
            reported: None,
            applications: Applications::default(),
            interface: interface.to_owned(),
        }
    }

    /// Starts to serve.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(&mut self) -> sys::Result<()> {
        self.endpoint.start()
    }

    /// Whether the page is due to be rendered.
    pub fn is_due(&self) -> bool {
        self.reported.is_none_or(|at| at.elapsed() >= INTERVAL)
    }

    /// Adds a record to the counts by application.
    pub fn ended(&mut self, record: &Record, extra: &Extra<'_>) {
        self.applications.add(record, extra);
    }

    /// Renders the current state.
    pub fn show(&mut self, status: &Status<'_>, exports: &[(String, Account)]) {
        self.reported = Some(Instant::now());
        let mut page = Page::default();
        let interface = self.interface.as_str();
        program(&mut page, interface, status.elapsed);
        let queues = Queues::of(status, interface);
        metering(&mut page, &queues.by_interface());
        let sums = status.queues.iter().map(|queue| &queue.by_application);
        self.applications.set(sums);
        self.applications.write(&mut page, interface);
        let name = "barewire_records_dropped_total";
        let about = "Flow records dropped because the reader was too slow.";
        page.family(name, Kind::Counter, about);
        let labels = [("interface", interface)];
        page.value(name, &labels, status.records_dropped);
        port(&mut page, &queues);
        exported(&mut page, interface, exports);
        self.endpoint.show(page);
    }
}

/// The queues of a port, each with the name of its interface and its number there.
struct Queues<'s> {
    names: Vec<(&'s str, String)>,
    metered: &'s [QueueStatus],
    accounts: &'s [QueueAccount],
}

impl<'s> Queues<'s> {
    /// Of several interfaces the account has the names, such as `eth1/0`.
    fn of(status: &'s Status<'_>, interface: &'s str) -> Queues<'s> {
        let account = status.account;
        let queues = account.rx.iter().enumerate();
        let name = |(at, queue): (usize, &QueueAccount)| {
            let named = account.rx_names.get(at);
            let parts = named.and_then(|name| name.rsplit_once('/'));
            parts.map_or_else(
                || (interface, queue.queue_index.to_string()),
                |(interface, queue)| (interface, queue.to_owned()),
            )
        };
        Queues {
            names: queues.map(name).collect(),
            metered: status.queues,
            accounts: &account.rx,
        }
    }

    /// What was metered on each interface.
    fn by_interface(&self) -> Vec<(&'s str, QueueStatus)> {
        let mut sums: Vec<(&str, Vec<QueueStatus>)> = Vec::new();
        for ((interface, _), queue) in self.names.iter().zip(self.metered) {
            let counts = QueueStatus::total(std::slice::from_ref(queue));
            match sums.iter_mut().find(|(name, _)| name == interface) {
                Some((_, queues)) => queues.push(counts),
                None => sums.push((interface, vec![counts])),
            }
        }
        let sums = sums.into_iter();
        sums.map(|(name, queues)| (name, QueueStatus::total(&queues)))
            .collect()
    }
}

/// Build information and uptime.
fn program(page: &mut Page, interface: &str, elapsed: Duration) {
    let name = "barewire_build_info";
    page.family(name, Kind::Gauge, "1, labelled with what was built.");
    let profile = match cfg!(debug_assertions) {
        true => "debug",
        false => "release",
    };
    let labels = [
        ("version", env!("CARGO_PKG_VERSION")),
        ("arch", std::env::consts::ARCH),
        ("profile", profile),
    ];
    page.value(name, &labels, 1);
    let name = "barewire_uptime_seconds";
    page.family(name, Kind::Gauge, "Seconds since the probe started.");
    page.value(name, &[("interface", interface)], elapsed.as_secs());
}

fn metering(page: &mut Page, interfaces: &[(&str, QueueStatus)]) {
    type Value = fn(&QueueStatus) -> u64;
    let values: [(&str, Kind, &str, Value); 5] = [
        (
            "barewire_packets_total",
            Kind::Counter,
            "Packets received by the meter, those in no flow included.",
            |total| total.meter.packets,
        ),
        (
            "barewire_wire_bytes_total",
            Kind::Counter,
            "Bytes in metered packets, link headers included.",
            |total| total.wire_bytes,
        ),
        (
            "barewire_flows_total",
            Kind::Counter,
            "Flows started.",
            |total| total.meter.table.flows,
        ),
        (
            "barewire_flows_live",
            Kind::Gauge,
            "Flows currently in the flow tables.",
            |total| total.meter.table.live,
        ),
        (
            "barewire_flows_capacity",
            Kind::Gauge,
            "Capacity of the flow tables, in flows.",
            |total| total.capacity,
        ),
    ];
    for (name, kind, about, value) in values {
        page.family(name, kind, about);
        for (interface, total) in interfaces {
            page.value(name, &[("interface", interface)], value(total));
        }
    }
    let name = "barewire_flows_ended_total";
    page.family(name, Kind::Counter, "Flows ended, by reason.");
    for (interface, total) in interfaces {
        for reason in EndReason::ALL {
            let labels = [("interface", *interface), ("reason", reason.name())];
            let ended = total.meter.table.ended[reason as usize];
            page.value(name, &labels, ended);
        }
    }
    let name = "barewire_packets_refused_total";
    page.family(name, Kind::Counter, "Packets in no flow, by reason.");
    for (interface, total) in interfaces {
        for reason in Reason::ALL {
            let label = match reason {
                Reason::Complete => "not_ip",
                reason => reason.name(),
            };
            let labels = [("interface", *interface), ("reason", label)];
            page.value(name, &labels, total.meter.refused[reason as usize]);
        }
    }
}

fn port(page: &mut Page, queues: &Queues<'_>) {
    type Value = fn(&QueueAccount) -> u64;
    let values: [(&str, &str, Value); 4] = [
        (
            "barewire_port_seen_total",
            "Packets seen by the port.",
            |q| q.seen,
        ),
        (
            "barewire_port_delivered_total",
            "Packets delivered by the port.",
            |q| q.delivered,
        ),
        (
            "barewire_port_passed_total",
            "Packets passed on to the host.",
            |q| q.passed,
        ),
        (
            "barewire_port_filtered_total",
            "Packets that the filter rejected; they are not lost.",
            |q| q.dropped[port::DropReason::Filter as usize],
        ),
    ];
    let named = || queues.names.iter().zip(queues.accounts);
    for (name, about, value) in values {
        page.family(name, Kind::Counter, about);
        for ((interface, queue), account) in named() {
            let labels = [("interface", *interface), ("queue", queue.as_str())];
            page.value(name, &labels, value(account));
        }
    }
    let name = "barewire_port_lost_total";
    page.family(name, Kind::Counter, "Packets lost by the port, by reason.");
    let reasons = port::DropReason::ALL.into_iter();
    let reasons = reasons.filter(|reason| *reason != port::DropReason::Filter);
    for ((interface, queue), account) in named() {
        for reason in reasons.clone() {
            let labels = [
                ("interface", *interface),
                ("queue", queue.as_str()),
                ("reason", reason.name()),
            ];
            page.value(name, &labels, account.dropped[reason as usize]);
        }
    }
}

fn exported(page: &mut Page, interface: &str, exports: &[(String, Account)]) {
    type Value = fn(&Account) -> u64;
    let values: [(&str, Kind, &str, Value); 8] = [
        (
            "barewire_export_offered_flows_total",
            Kind::Counter,
            "Flow records offered to the destination.",
            |a| a.offered.flows,
        ),
        (
            "barewire_export_flows_total",
            Kind::Counter,
            "Flow records exported.",
            |a| a.exported.flows,
        ),
        (
            "barewire_export_packets_total",
            Kind::Counter,
            "Packets in exported records.",
            |a| a.exported.packets,
        ),
        (
            "barewire_export_queue_flows",
            Kind::Gauge,
            "Flow records in the export queue.",
            |a| u64::try_from(a.waiting()).unwrap_or(0),
        ),
        (
            "barewire_export_messages_total",
            Kind::Counter,
            "Export messages sent.",
            |a| a.messages,
        ),
        (
            "barewire_export_bytes_total",
            Kind::Counter,
            "Bytes in export messages.",
            |a| a.bytes,
        ),
        (
            "barewire_export_failures_total",
            Kind::Counter,
            "Failures: the destination was unreachable or closed the connection.",
            |a| a.failures,
        ),
        (
            "barewire_export_connected",
            Kind::Gauge,
            "1 if the destination is connected, else 0.",
            |a| a.is_connected.into(),
        ),
    ];
    for (name, kind, about, value) in values {
        page.family(name, kind, about);
        for (destination, account) in exports {
            let labels = [("interface", interface), ("destination", destination)];
            page.value(name, &labels, value(account));
        }
    }
    not_exported(page, interface, exports);
}

fn not_exported(page: &mut Page, interface: &str, exports: &[(String, Account)]) {
    let name = "barewire_export_dropped_flows_total";
    page.family(name, Kind::Counter, "Flow records not exported, by reason.");
    for (destination, account) in exports {
        for reason in DropReason::ALL {
            let labels = [
                ("interface", interface),
                ("destination", destination.as_str()),
                ("reason", reason.name()),
            ];
            page.value(name, &labels, account.dropped[reason as usize].flows);
        }
    }
}
