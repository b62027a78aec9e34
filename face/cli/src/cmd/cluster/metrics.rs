//! The counters of a cluster as Prometheus metrics.

use export::prometheus::{Kind, Page};
use runtime::cluster::{InputPort, QueueStatus, Totals};

/// A metric of the whole cluster: name, description, value.
type OfCluster = (&'static str, &'static str, fn(&Totals) -> u64);

const CLUSTER: &[OfCluster] = &[
    (
        "barewire_cluster_received_packets_total",
        "Packets that the inputs delivered.",
        |totals| totals.received,
    ),
    (
        "barewire_cluster_received_bytes_total",
        "Bytes of packets that the inputs delivered.",
        |totals| totals.received_bytes,
    ),
    (
        "barewire_cluster_unqueued_packets_total",
        "Packets dropped before the queues: no free frame, or in too many frames.",
        |totals| totals.pool_empty + totals.too_long,
    ),
];

/// A metric of each queue: name, type, description, value.
type OfQueue = (&'static str, Kind, &'static str, fn(&QueueStatus) -> u64);

const QUEUES: &[OfQueue] = &[
    (
        "barewire_cluster_queue_delivered_packets_total",
        Kind::Counter,
        "Packets that readers of a queue have received and returned.",
        |queue| queue.counts.returned,
    ),
    (
        "barewire_cluster_queue_dropped_packets_total",
        Kind::Counter,
        "Packets for which a queue had no room.",
        |queue| queue.counts.dropped,
    ),
    (
        "barewire_cluster_queue_lost_packets_total",
        Kind::Counter,
        "Packets that readers of a queue had taken when they exited.",
        |queue| queue.counts.lost,
    ),
    (
        "barewire_cluster_queue_waiting_packets",
        Kind::Gauge,
        "Packets in a queue or with its reader.",
        |queue| queue.counts.waiting(),
    ),
    (
        "barewire_cluster_queue_has_reader",
        Kind::Gauge,
        "Whether a queue has a reader.",
        |queue| u64::from(queue.reader.is_some()),
    ),
];

/// A metric of each input: name, type, description, value.
type OfInput = (&'static str, Kind, &'static str, fn(&InputPort) -> u64);

const INPUTS: &[OfInput] = &[
    (
        "barewire_cluster_input_up",
        Kind::Gauge,
        "Whether an input is open: 0 while its device is gone.",
        |input| u64::from(!input.is_gone),
    ),
    (
        "barewire_cluster_input_losses_total",
        Kind::Counter,
        "How often the device of an input was gone.",
        |input| input.losses,
    ),
];

/// Renders the metrics page.
pub(super) fn page(
    cluster: &str,
    totals: &Totals,
    queues: &[QueueStatus],
    inputs: &[InputPort],
) -> Page {
    let mut page = Page::default();
    for (name, about, value) in CLUSTER {
        page.family(name, Kind::Counter, about);
        page.value(name, &[("cluster", cluster)], value(totals));
    }
    for (name, kind, about, value) in INPUTS {
        page.family(name, *kind, about);
        for input in inputs {
            let labels = [("cluster", cluster), ("port", input.port.as_str())];
            page.value(name, &labels, value(input));
        }
    }
    for (name, kind, about, value) in QUEUES {
        page.family(name, *kind, about);
        for queue in queues {
            let number = queue.index.to_string();
            let labels = [
                ("cluster", cluster),
                ("application", queue.application.as_str()),
                ("queue", number.as_str()),
            ];
            page.value(name, &labels, value(queue));
        }
    }
    page
}
