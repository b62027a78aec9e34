//! Metrics for Prometheus. The names are described in `docs/export.md`.

mod applications;

use std::time::{Duration, Instant};

use export::prometheus::{Endpoint, Kind, Page};
use export::{Account, DropReason};
use flow::{EndReason, Extra, Record};
use port::PortAccount;
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
}

impl Metrics {
    /// Creates the metrics of an endpoint.
    pub fn new(endpoint: Endpoint) -> Metrics {
        Metrics {
            endpoint,
            reported: None,
            applications: Applications::default(),
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
        let (total, account) = (&status.total(), status.account);
        let mut page = Page::default();
        program(&mut page, status.elapsed);
        metering(&mut page, total);
        self.applications.write(&mut page);
        let name = "barewire_records_dropped_total";
        let about = "Flow records dropped because the reader was too slow.";
        page.family(name, Kind::Counter, about);
        page.value(name, &[], status.records_dropped);
        port(&mut page, account);
        exported(&mut page, exports);
        self.endpoint.show(page);
    }
}

/// Build information and uptime.
fn program(page: &mut Page, elapsed: Duration) {
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
    page.value(name, &[], elapsed.as_secs());
}

fn metering(page: &mut Page, total: &QueueStatus) {
    let (meter, table) = (&total.meter, &total.meter.table);
    for (name, kind, about, value) in [
        (
            "barewire_packets_total",
            Kind::Counter,
            "Packets received by the meter, those in no flow included.",
            meter.packets,
        ),
        (
            "barewire_wire_bytes_total",
            Kind::Counter,
            "Bytes in metered packets, link headers included.",
            total.wire_bytes,
        ),
        (
            "barewire_flows_total",
            Kind::Counter,
            "Flows started.",
            table.flows,
        ),
        (
            "barewire_flows_live",
            Kind::Gauge,
            "Flows currently in the flow tables.",
            table.live,
        ),
        (
            "barewire_flows_capacity",
            Kind::Gauge,
            "Capacity of the flow tables, in flows.",
            total.capacity,
        ),
    ] {
        page.family(name, kind, about);
        page.value(name, &[], value);
    }
    let name = "barewire_flows_ended_total";
    page.family(name, Kind::Counter, "Flows ended, by reason.");
    for reason in EndReason::ALL {
        page.value(
            name,
            &[("reason", reason.name())],
            table.ended[reason as usize],
        );
    }
    let name = "barewire_packets_refused_total";
    page.family(name, Kind::Counter, "Packets in no flow, by reason.");
    for reason in Reason::ALL {
        let label = match reason {
            Reason::Complete => "not_ip",
            reason => reason.name(),
        };
        page.value(name, &[("reason", label)], meter.refused[reason as usize]);
    }
}

fn port(page: &mut Page, account: &PortAccount) {
    type Value = fn(&port::QueueAccount) -> u64;
    let values: [(&str, &str, Value); 3] = [
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
    ];
    for (name, about, value) in values {
        page.family(name, Kind::Counter, about);
        for queue in &account.rx {
            let index = queue.queue_index.to_string();
            page.value(name, &[("queue", &index)], value(queue));
        }
    }
    let name = "barewire_port_dropped_total";
    page.family(
        name,
        Kind::Counter,
        "Packets dropped by the port, by reason; the filter is one of them.",
    );
    for queue in &account.rx {
        let index = queue.queue_index.to_string();
        for reason in port::DropReason::ALL {
            let labels = [("queue", index.as_str()), ("reason", reason.name())];
            page.value(name, &labels, queue.dropped[reason as usize]);
        }
    }
}

fn exported(page: &mut Page, exports: &[(String, Account)]) {
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
            page.value(name, &[("destination", destination)], value(account));
        }
    }
    let name = "barewire_export_dropped_flows_total";
    page.family(name, Kind::Counter, "Flow records not exported, by reason.");
    for (destination, account) in exports {
        for reason in DropReason::ALL {
            let labels = [
                ("destination", destination.as_str()),
                ("reason", reason.name()),
            ];
            page.value(name, &labels, account.dropped[reason as usize].flows);
        }
    }
}
