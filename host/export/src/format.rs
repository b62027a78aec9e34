//! Formats by name, and their encoders.

use flow::element::{Column, OWN_ENTERPRISE};
use flow::encode::extra_fields::ExtraFields;
use flow::encode::{Encode, csv, eve, ipfix, json, lines, netflow5, netflow9};
use flow::{EndReason, Extra, Record};

use std::sync::Arc;
use std::sync::mpsc::Receiver;

use sys::Result;

use crate::exporters::Setup;
use crate::one::One;
use crate::sink::{FILE, KAFKA, Names};
use crate::target::Target;
use crate::worker::{Batch, Shared};
use crate::{avro, parquet};

/// A format.
pub struct Format {
    /// The name before the first colon.
    pub name: &'static str,
    /// One line of help.
    pub about: &'static str,
    /// Schemes of the sinks it supports.
    pub sinks: &'static [&'static str],
    /// Options that only this format has.
    pub options: &'static [&'static str],
    /// Whether it reports the sampling of packets and records.
    pub reports_sampling: bool,
    /// Whether it can hold measured fields in addition to the record ([`flow::encode::measured`]).
    pub holds_measured: bool,
    /// The default port; 0: required.
    pub port: u16,
    /// The default port if the sink is encrypted.
    pub port_encrypted: u16,
    /// Creates its encoder or store.
    pub(crate) make: Make,
    /// Memory in bytes that it takes in addition to the queue, if significant.
    pub(crate) memory_len: fn(&Target) -> usize,
}

/// How a format is created.
#[derive(Clone, Copy)]
pub(crate) enum Make {
    /// An encoder of messages, for a sink.
    Messages(fn(&Target, &Setup) -> Box<dyn Encode>),
    /// A store that takes records and does the rest itself.
    Store(MakeWork),
}

/// The work of a thread.
pub(crate) type Work = Box<dyn FnOnce() + Send>;

/// Creates the work for a queue.
type MakeWork = fn(&Target, &Setup, Receiver<Batch>, Arc<Shared>) -> Result<Work>;

/// All formats.
pub static FORMATS: &[Format] = &[
    Format {
        name: "ipfix",
        about: "IPFIX (RFC 7011), biflows by RFC 5103; a file is one by RFC 5655",
        sinks: &["udp", "tcp", "tls", "sctp", FILE],
        options: &["domain", "uniflow", "fields", "enterprise"],
        reports_sampling: true,
        holds_measured: true,
        port: 4739,
        // RFC 7011 §10.3.4.
        port_encrypted: 4740,
        make: Make::Messages(make_ipfix),
        memory_len: none,
    },
    Format {
        name: "netflow9",
        about: "NetFlow version 9 (RFC 3954), a record for each direction",
        sinks: &["udp"],
        options: &["domain", "fields"],
        reports_sampling: true,
        holds_measured: false,
        port: 2055,
        port_encrypted: 2055,
        make: Make::Messages(make_netflow9),
        memory_len: none,
    },
    Format {
        name: "netflow5",
        about: "NetFlow version 5: IPv4 only",
        sinks: &["udp"],
        options: &["domain"],
        reports_sampling: true,
        holds_measured: false,
        port: 2055,
        port_encrypted: 2055,
        make: Make::Messages(make_netflow5),
        memory_len: none,
    },
    Format {
        name: "json",
        about: "one JSON object per record, as barewire flows --json prints it",
        sinks: &["udp", "tcp", "tls", KAFKA, FILE],
        options: &[],
        reports_sampling: false,
        holds_measured: true,
        port: 0,
        port_encrypted: 0,
        make: Make::Messages(|target, setup| {
            let extra_fields = setup.extra_fields;
            make_lines(
                move |r, extra, reason, out| {
                    json::line_with_extra(r, extra, &extra_fields, reason, out)
                },
                "",
                target,
            )
        }),
        memory_len: none,
    },
    Format {
        name: "eve",
        about: "one JSON object per record, with the fields of Suricata's EVE",
        sinks: &["udp", "tcp", "tls", KAFKA, FILE],
        options: &[],
        reports_sampling: false,
        holds_measured: false,
        port: 0,
        port_encrypted: 0,
        make: Make::Messages(|target, setup| {
            let (extra_fields, interfaces) = (setup.extra_fields, setup.interfaces.clone());
            make_lines(
                move |r, extra, reason, out| {
                    eve::line_with_extra(r, extra, &extra_fields, &interfaces, reason, out);
                },
                "",
                target,
            )
        }),
        memory_len: none,
    },
    Format {
        name: "csv",
        about: "comma-separated values with a header line",
        sinks: &["tcp", "tls", FILE],
        options: &["text", "columns"],
        reports_sampling: false,
        holds_measured: true,
        port: 0,
        port_encrypted: 0,
        make: Make::Messages(|target, setup| {
            let (extra_fields, texts) = (extra_fields(target, setup), target.options.texts);
            make_lines(
                move |r, extra, reason, out| {
                    csv::line_with_extra(r, extra, &extra_fields, texts, reason, out);
                },
                &csv::head(&extra_fields),
                target,
            )
        }),
        memory_len: none,
    },
    Format {
        name: "avro",
        about: "an Avro value without a header for each record; docs/flow.avsc is the schema",
        sinks: &[KAFKA],
        options: &[],
        reports_sampling: false,
        holds_measured: true,
        port: 9092,
        port_encrypted: 9092,
        make: Make::Messages(|_, setup| Box::new(avro::Encoder::new(setup.extra_fields))),
        memory_len: none,
    },
    Format {
        name: "parquet",
        about: "columnar files in a directory, date=…/hour=…/NAME.parquet",
        sinks: &[FILE],
        options: &["partition", "rows", "times"],
        reports_sampling: false,
        holds_measured: true,
        port: 0,
        port_encrypted: 0,
        make: Make::Store(|target, setup, batches, shared| {
            let store = parquet::open(target, setup, shared)?;
            Ok(Box::new(move || store.run(&batches)))
        }),
        memory_len: |target| {
            let rows = target.options.group_len.unwrap_or(parquet::GROUP_LEN);
            rows * parquet::ROW_MEMORY_LEN
        },
    },
];

fn none(_: &Target) -> usize {
    0
}

/// Finds a format by name.
pub fn find(name: &str) -> Option<&'static Format> {
    FORMATS.iter().find(|format| format.name == name)
}

fn message_len_max(target: &Target) -> usize {
    target.options.mtu.unwrap_or(target.sink.message_len_max)
}

/// The fields added to the standard record for a destination.
fn extra_fields(target: &Target, setup: &Setup) -> ExtraFields {
    ExtraFields {
        record: setup.extra_fields.record || target.options.has_all_fields,
        ..setup.extra_fields
    }
}

/// Bytes of lines that are compressed together.
const PACKED_LEN: usize = 256 << 10;

fn make_ipfix(target: &Target, setup: &Setup) -> Box<dyn Encode> {
    let mut extra = setup.columns.clone();
    match setup.extra_fields.record && target.options.fields.is_empty() {
        true => extra.extend(Column::all()),
        false => extra.extend(&target.options.fields),
    }
    Box::new(ipfix::Encoder::new(ipfix::Config {
        domain: target.options.domain,
        message_len_max: message_len_max(target),
        is_biflow: !target.options.is_uniflow,
        extra,
        extra_fields: setup.extra_fields,
        sampling: setup.sampling,
        selectors: setup.selectors,
        interface: setup.interface,
        interfaces: setup.interfaces.clone(),
        own_enterprise: target.options.enterprise.unwrap_or(OWN_ENTERPRISE),
        is_layer2: setup.is_layer2,
        is_reliable: target.sink.is_reliable,
        // A file that is read again from its start needs them to the end.
        withdraws: target.sink.is_reliable && target.sink.names != Names::File,
    }))
}

fn make_netflow5(target: &Target, setup: &Setup) -> Box<dyn Encode> {
    let domain = target.options.domain;
    Box::new(netflow5::Encoder::new(
        domain,
        setup.sampling,
        setup.interface,
    ))
}

fn make_netflow9(target: &Target, setup: &Setup) -> Box<dyn Encode> {
    let mut extra = setup.columns.clone();
    extra.extend(&target.options.fields);
    Box::new(netflow9::Encoder::new(netflow9::Config {
        domain: target.options.domain,
        message_len_max: message_len_max(target),
        extra,
        extra_fields: setup.extra_fields,
        sampling: setup.sampling,
        interface: setup.interface,
        interfaces: setup.interfaces.clone(),
    }))
}

fn make_lines(
    write: impl Fn(&Record, &Extra<'_>, EndReason, &mut Vec<u8>) + Send + 'static,
    head: &str,
    target: &Target,
) -> Box<dyn Encode> {
    let limit = match target.is_packed() {
        true => PACKED_LEN,
        false => message_len_max(target),
    };
    let lines = Box::new(lines::Encoder::new(write, head, limit));
    match target.sink.names {
        Names::Topic => Box::new(One(lines)),
        Names::Host | Names::File => lines,
    }
}

#[cfg(test)]
mod tests;
