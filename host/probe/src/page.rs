//! One self-contained HTML page with charts; it needs no network.
//!
//! Everything from packets is written as text only (`parts::safe`); in addition, the page's own
//! policy forbids everything but its style and its only script, identified by its hash.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::fs::{File, Metadata};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use export::Account;
use flow::digest::{DURATION_ENDS_NS, Digest, Shares};
use flow::series::Series;
use flow::top::{self, Order, Total};
use flow::{Extra, Record};
use port::PortDescription;
use runtime::flows::{QueueStatus, Report};
use sys::create::{CreateOptions, Made};
use sys::{Error, Result};

use crate::text::{bytes, duration, ends, protocol_name, si};
use parts::{Bar, bars, curve, histogram, instant, safe, safe_bytes};

mod accounts;
mod parts;

const STYLE: &str = include_str!("page/style.css");
const SCRIPT: &str = include_str!("page/script.js");
/// The hash of [`SCRIPT`], with which the page's policy allows it to run; a test in a browser
/// checks it.
const SCRIPT_SUM: &str = "sha256-uz7dYQw6vIWSDz6vwjo8YNjQhbOzYxaiEZMSqutMfIQ=";

/// Default number of flows in the table.
pub const FLOW_COUNT: usize = 50;
/// Number of rows in a bar chart.
const ROW_COUNT: usize = 10;

/// A page being built.
pub struct Page {
    path: PathBuf,
    file: File,
    /// Remove the file on drop: it was created for this page, or is incomplete.
    is_removed: bool,
    digest: Digest,
}

impl Page {
    /// Creates the file immediately, so that a wrong path is reported at once, and before
    /// privileges are dropped. An existing page stays until the new one is written. `-` is standard
    /// output.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn create(path: &Path) -> Result<Page> {
        let made = match path == Path::new("-") {
            true => std::io::stdout()
                .as_fd()
                .try_clone_to_owned()
                .map(|fd| Made {
                    file: File::from(fd),
                    is_new: false,
                }),
            false => CreateOptions::BY_UMASK.open(path),
        };
        let Made { file, is_new } =
            made.map_err(|e| Error::from_io(format!("write {}", path.display()), e))?;
        Ok(Page {
            path: path.to_owned(),
            is_removed: is_new,
            file,
            digest: Digest::default(),
        })
    }

    /// Adds a record.
    pub fn add(&mut self, record: &Record, extra: &Extra<'_>) {
        self.digest.add(record, extra);
    }

    /// Writes the page.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn finish(mut self, run: &Run<'_>) -> Result<PathBuf> {
        let text = render(run, &self.digest);
        let is_file = self.file.metadata().is_ok_and(|data| data.is_file());
        // What is before it in a redirected standard output stays.
        let is_file = is_file && self.path != Path::new("-");
        self.is_removed = is_file;
        let emptied = if is_file {
            self.file.set_len(0)
        } else {
            Ok(())
        };
        emptied
            .and_then(|()| self.file.write_all(text.as_bytes()))
            .map_err(|e| Error::from_io(format!("write {}", self.path.display()), e))?;
        self.is_removed = false;
        Ok(self.path.clone())
    }
}

impl Drop for Page {
    /// Removes an empty or incomplete file if the page was not written.
    fn drop(&mut self) {
        let of = |data: std::io::Result<Metadata>| data.ok().map(|data| (data.dev(), data.ino()));
        let ours = of(self.file.metadata());
        // By now there may be another file.
        if self.is_removed && ours.is_some() && ours == of(std::fs::symlink_metadata(&self.path)) {
            // Without permission it stays.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Contents of a page in addition to the sums over records.
pub struct Run<'a> {
    /// The port, as given.
    pub name: &'a str,
    /// Settings that produced the flows: names and descriptions.
    pub settings: &'a [(&'static str, String)],
    /// The outcome.
    pub report: &'a Report,
    /// Accounts of the exports.
    pub exports: &'a [(String, Account)],
    /// Number of flows in the table.
    pub flow_count: usize,
    /// What the largest flows are ordered by.
    pub order: Order,
}

fn render(run: &Run<'_>, digest: &Digest) -> String {
    let mut series = Series::default();
    for queue in &run.report.queues {
        if let Some(one) = &queue.series {
            series.merge(one);
        }
    }
    let name = safe(run.name);
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; \
         style-src 'unsafe-inline'; script-src '{SCRIPT_SUM}'\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
         <meta name=\"referrer\" content=\"no-referrer\">\n\
         <title>Flows of {name}</title>\n<style>\n{STYLE}</style></head>\n<body><main>\n"
    );
    let (start_ns, bins) = series.used();
    let span_ns = bins.len() as u64 * series.width_ns();
    let _ = write!(out, "<header><h1>Flows of {name}</h1>\n<p class=\"soft\">");
    if bins.is_empty() {
        out.push_str("no packets with a time");
    } else {
        let last_ns = start_ns.saturating_add(span_ns);
        let _ = write!(out, "{} to {}", instant(start_ns), instant(last_ns));
    }
    out.push_str("</p></header>\n");
    tiles(&mut out, run, digest, span_ns);
    out.push_str("<div class=\"cards\">\n");
    rates(&mut out, &series);
    lists(&mut out, digest);
    histograms(&mut out, digest);
    flows(&mut out, run, digest);
    accounts::cards(&mut out, run, digest);
    settings(&mut out, run);
    out.push_str("</div></main>\n<script>");
    out.push_str(SCRIPT);
    out.push_str("</script>\n</body></html>\n");
    out
}

fn tiles(out: &mut String, run: &Run<'_>, digest: &Digest, span_ns: u64) {
    let report = run.report;
    let total = QueueStatus::total(&report.queues);
    let seconds = (span_ns as f64 / 1e9).max(1e-9);
    let flows = total.meter.table.flows.saturating_sub(report.merged);
    let lost = report.account.rx_total().lost();
    let rate = |value: f64, unit: &str| match span_ns {
        0 => "–".to_owned(),
        _ => si(value.round(), unit),
    };
    let bits = total.wire_bytes as f64 * 8.0 / seconds;
    let tiles = [
        (grouped(total.meter.packets), "packets metered"),
        (bytes(total.wire_bytes), "on the wire"),
        (grouped(flows), "flows"),
        (duration(span_ns), "from first to last packet"),
        (rate(bits, "bit/s"), "on average"),
        (
            rate(total.meter.packets as f64 / seconds, "pps"),
            "on average",
        ),
        (grouped(lost), "packets lost by the port"),
        (
            format!(
                "{:.1} %",
                digest.one_way as f64 * 100.0 / digest.total.records.max(1) as f64
            ),
            "of records are unidirectional",
        ),
    ];
    out.push_str("<div class=\"tiles\">\n");
    for (value, what) in tiles {
        let _ = writeln!(
            out,
            "<div class=\"tile\"><b>{value}</b><span>{what}</span></div>"
        );
    }
    out.push_str("</div>\n");
}

/// A number with spaces between groups of three digits.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at != 0 && (digits.len() - at).is_multiple_of(3) {
            text.push('\u{2009}');
        }
        text.push(digit);
    }
    text
}

fn card(out: &mut String, title: &str, note: &str, is_wide: bool, body: &str) {
    let class = if is_wide { "card wide" } else { "card" };
    let _ = writeln!(
        out,
        "<section class=\"{class}\"><h2>{title}</h2>\n<p class=\"note\">{note}</p>\n{body}\
         </section>"
    );
}

fn rates(out: &mut String, series: &Series) {
    let note = format!(
        "by packet timestamps, {} per step",
        duration_short(series.width_ns())
    );
    let bits = curve(series, "bit/s", |bin| bin.bytes * 8, 1);
    card(out, "Bits per second on the wire", &note, false, &bits);
    let packets = curve(series, "pps", |bin| bin.packets, 2);
    card(out, "Packets a second", &note, false, &packets);
}

fn duration_short(ns: u64) -> String {
    match ns {
        0..1_000_000_000 => format!("{} ms", ns / 1_000_000),
        _ => format!("{:.3} s", ns as f64 / 1e9),
    }
}

/// Bars of the largest entries, with a note on their number. `rest` is a bar for what is in no
/// entry.
fn largest<K: Clone + Eq + std::hash::Hash + Ord>(
    shares: &Shares<K>,
    what: &str,
    label: impl Fn(&K) -> (String, String),
    (rest, total): (Option<Bar>, u64),
) -> (String, String) {
    let rows = shares.largest(ROW_COUNT).into_iter().map(|(key, share)| {
        let (label, remark) = label(&key);
        Bar {
            label,
            remark,
            share,
        }
    });
    let mut rows: Vec<Bar> = rows.collect();
    let note = match shares.is_exact() {
        true => format!("{} of {} {what}, by bytes", rows.len(), shares.len()),
        false => format!("the largest {what}; sums of the smallest were discarded"),
    };
    rows.extend(rest);
    rows.sort_by_key(|bar| std::cmp::Reverse(bar.share.bytes));
    (note, bars(&rows, total))
}

/// The bar of traffic of no known application, if there is any.
fn unknown(digest: &Digest) -> Option<Bar> {
    (digest.unknown.records != 0).then(|| Bar {
        label: "unknown".to_owned(),
        remark: String::new(),
        share: digest.unknown,
    })
}

fn lists(out: &mut String, digest: &Digest) {
    let total = digest.total.bytes;
    let address = |addr: &std::net::IpAddr| (addr.to_string(), String::new());
    let (note, body) = largest(&digest.senders, "addresses", address, (None, total));
    card(out, "Top senders", &note, false, &body);
    let (note, body) = largest(&digest.receivers, "addresses", address, (None, total));
    card(out, "Top receivers", &note, false, &body);
    let application = |(name, is_seen): &(Cow<'static, str>, bool)| {
        let remark = if *is_seen { "recognised" } else { "by port" };
        (safe(name), remark.to_owned())
    };
    let all = (unknown(digest), total);
    let (note, body) = largest(&digest.applications, "applications", application, all);
    card(out, "Applications", &note, false, &body);
    let service = |(protocol, port): &(u8, u16)| {
        let over = match protocol {
            6 => Some(inspect::Transport::Tcp),
            17 => Some(inspect::Transport::Udp),
            _ => None,
        };
        let guess = over.and_then(|over| inspect::guess(over, 0, *port));
        let label = format!("{} {port}", protocol_name(*protocol));
        (label, guess.unwrap_or_default().to_owned())
    };
    let (note, body) = largest(&digest.services, "ports", service, (None, total));
    let note = format!("of the responder; {note}");
    card(out, "Ports", &note, false, &body);
    let mut protocols: Vec<Bar> = digest
        .protocols
        .iter()
        .enumerate()
        .filter(|(_, share)| share.records != 0)
        .map(|(number, share)| Bar {
            label: protocol_name(number as u8),
            remark: String::new(),
            share: *share,
        })
        .collect();
    protocols.sort_by_key(|bar| std::cmp::Reverse(bar.share.bytes));
    protocols.truncate(ROW_COUNT);
    let [four, six] = digest.versions;
    let percent = |share: u64| share as f64 * 100.0 / total.max(1) as f64;
    let note = format!(
        "IPv4 {:.1} % of the bytes, IPv6 {:.1} %",
        percent(four.bytes),
        percent(six.bytes)
    );
    card(out, "IP protocols", &note, false, &bars(&protocols, total));
    if !digest.names.is_empty() {
        let name = |name: &Vec<u8>| (safe_bytes(name), String::new());
        let (note, body) = largest(&digest.names, "names", name, (None, total));
        let note = format!("requested by TLS, QUIC, HTTP, DNS and others; {note}");
        card(out, "Names", &note, false, &body);
    }
    for (list, title, what) in [
        (&digest.networks, "Autonomous systems", "networks"),
        (&digest.countries, "Countries", "countries"),
        (&digest.vendors, "MAC vendors", "makers"),
    ] {
        if !list.is_empty() {
            let name = |name: &String| (safe(name), String::new());
            let (note, body) = largest(list, what, name, (None, total));
            let note = format!("of either endpoint, from the enrichment files; {note}");
            card(out, title, &note, false, &body);
        }
    }
}

fn histograms(out: &mut String, digest: &Digest) {
    let sizes = digest.sizes.iter().enumerate().map(|(at, count)| {
        let words = match at {
            0 => "below 64 B".to_owned(),
            at => format!("from {}", bytes(32 << at)),
        };
        (*count, words)
    });
    let note = "records by bytes, both directions; each step doubles";
    let body = histogram(&sizes.collect::<Vec<_>>());
    card(out, "Flow sizes", note, false, &body);
    let durations = digest.durations.iter().enumerate().map(|(at, count)| {
        let words = match at.checked_sub(1) {
            None => "below 1 ms".to_owned(),
            Some(before) => format!("from {}", duration_words(DURATION_ENDS_NS[before])),
        };
        (*count, words)
    });
    let note = "records by the time from first to last packet";
    let body = histogram(&durations.collect::<Vec<_>>());
    card(out, "Flow durations", note, false, &body);
}

fn duration_words(ns: u64) -> String {
    match ns {
        0..1_000_000_000 => format!("{} ms", ns / 1_000_000),
        _ => format!("{} s", ns / 1_000_000_000),
    }
}

fn flows(out: &mut String, run: &Run<'_>, digest: &Digest) {
    let mut totals = run.report.top.largest(usize::MAX);
    top::sort(&mut totals, run.order);
    totals.truncate(run.flow_count);
    let mut body = String::from(
        "<div class=\"scroll\"><table class=\"sort\"><thead><tr><th class=\"opt\">start (UTC)</th>\
         <th class=\"n opt\">duration</th><th>protocol</th><th>source</th><th>destination</th>\
         <th>name</th><th class=\"n\">bytes</th><th class=\"n\">back</th>\
         <th class=\"n\">packets</th><th class=\"n\">back</th></tr></thead><tbody>\n",
    );
    for total in &totals {
        row(&mut body, total, digest);
    }
    body.push_str("</tbody></table></div>\n");
    if totals.is_empty() {
        body = "<p class=\"soft\">no flows</p>\n".into();
    }
    let exact = match run.report.top.is_exact() {
        true => "",
        false => "; flows of several records may be larger than their sum here",
    };
    let note = format!(
        "the {} largest, over all their records; click a column heading to sort{exact}",
        totals.len()
    );
    card(out, "Flows", &note, true, &body);
}

fn row(out: &mut String, total: &Total, digest: &Digest) {
    let (source, destination) = ends(total);
    let known = digest.known(&total.key);
    let protocol = protocol_name(total.key.protocol());
    let (application, name) = match known {
        Some((application, name)) => (format!("{} {protocol}", safe(application)), name),
        None => (protocol, &[][..]),
    };
    let span_ns = total.end_ns.saturating_sub(total.start_ns);
    let start = match total.is_timed() {
        true => instant(total.start_ns),
        false => String::new(),
    };
    let _ = write!(
        out,
        "<tr><td class=\"opt\" data-v=\"{}\">{}</td>\
         <td class=\"n opt\" data-v=\"{span_ns}\">{}</td>\
         <td>{application}</td><td class=\"e\">{}</td><td class=\"e\">{}</td>\
         <td class=\"w\">{}</td>",
        total.start_ns,
        start.trim_end_matches(" UTC"),
        duration(span_ns),
        safe(&source),
        safe(&destination),
        safe_bytes(name)
    );
    for value in total.bytes {
        let _ = write!(
            out,
            "<td class=\"n\" data-v=\"{value}\">{}</td>",
            bytes(value)
        );
    }
    for value in total.packets {
        let _ = write!(
            out,
            "<td class=\"n\" data-v=\"{value}\">{}</td>",
            grouped(value)
        );
    }
    out.push_str("</tr>\n");
}

fn settings(out: &mut String, run: &Run<'_>) {
    let mut body = String::from("<dl>\n");
    let mut add = |name: &str, words: &str| {
        let _ = writeln!(body, "<dt>{name}</dt><dd>{}</dd>", safe(words));
    };
    add("port", run.name);
    add("driven by", &describe(&run.report.description));
    for (name, words) in run.settings {
        add(name, words);
    }
    if let Some(error) = &run.report.error {
        add("ended early", &error.to_string());
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now_ns = now.map_or(0, |since| since.as_nanos() as u64);
    let made = format!(
        "{}, barewire {}",
        instant(now_ns),
        env!("CARGO_PKG_VERSION")
    );
    add("made", &made);
    body.push_str("</dl>\n");
    let note = "Bars and tables are sums over the records of ended flows; bytes are counted as \
                set above. The curves count every packet, by its timestamp. Applications are \
                identified from the first packets of each flow; <em>by port</em> marks a guess \
                from the port number.";
    card(out, "How these numbers were measured", note, true, &body);
}

fn describe(description: &PortDescription) -> String {
    let mut text = format!("{}: {}", description.scheme, description.target);
    for (name, value) in &description.facts {
        let _ = write!(text, ", {name} {value}");
    }
    text
}
