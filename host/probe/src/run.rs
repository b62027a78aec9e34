//! Builds and runs a probe.

use std::net::SocketAddr;
use std::path::PathBuf;

use export::prometheus::Endpoint;
use export::{Account, Exporters, FanOut, Target};
use flow::OriginParts;
use flow::encode::extra_fields::ExtraFields;
use port::{Port, PortDescription, PortOptions};
use runtime::Stop;
use runtime::flows::egress::Egress;
use runtime::flows::{self, Config, Report};
use runtime::notify::Manager;
use runtime::origin_table::OriginFiles;
use sys::{Error, ErrorKind, Result};

use crate::Origins;
use crate::metrics::Metrics;
use crate::page::{self, Page};
use crate::pipeline::{Pipeline, Running, View, observed_at_end};
use crate::setup::Reported;

/// `EPIPE`: the reader of a pipe has closed it.
const BROKEN_PIPE: i32 = 32;

/// A probe being built: a port, and the destinations of its records.
pub struct Probe {
    port: Port,
    config: Config,
    egress: Option<Egress>,
    community_seed: Option<u16>,
    has_all_fields: bool,
    origins: Origins,
    origin_parts: OriginParts,
    targets: Vec<Target>,
    fan_out: FanOut,
    sampling_rate: u32,
    owner: Option<(u32, u32)>,
    metrics: Option<SocketAddr>,
    page: Option<PathBuf>,
    page_settings: Vec<(&'static str, String)>,
}

impl Probe {
    /// Creates a probe of the packets of an open port, with timeouts of 30 and 300 seconds and
    /// tables of a million flows.
    pub fn new(port: Port) -> Probe {
        Probe {
            config: Config::new(port.rx.len()),
            port,
            egress: None,
            community_seed: None,
            has_all_fields: false,
            origins: Origins::default(),
            origin_parts: OriginParts::default(),
            targets: Vec::new(),
            fan_out: FanOut::All,
            sampling_rate: 1,
            owner: None,
            metrics: None,
            page: None,
            page_settings: Vec::new(),
        }
    }

    /// Creates a probe of the packets of a port by name: `eth0`, `afxdp:eth0`, `trace.pcap`.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn open(name: &str) -> Result<Probe> {
        Ok(Probe::new(port::open(name, &PortOptions::default())?))
    }

    /// Sets the flow key, timeouts and recorded fields.
    #[must_use]
    pub fn config(mut self, config: Config) -> Probe {
        self.config = config;
        self
    }

    /// Forwards packets that [`flow::ExtraConfig::shunt`] selects to another port.
    #[must_use]
    pub fn egress(mut self, egress: Option<Egress>) -> Probe {
        self.egress = egress;
        self
    }

    /// Exports the Community ID with this seed. With decoders it is always exported.
    #[must_use]
    pub fn community_id(mut self, seed: Option<u16>) -> Probe {
        self.community_seed = seed;
        self
    }

    /// Writes all fields of records to destinations whose format omits some by default.
    #[must_use]
    pub fn all_fields(mut self, has_all_fields: bool) -> Probe {
        self.has_all_fields = has_all_fields;
        self
    }

    /// Enriches records from `origins`, which were read from `files`.
    #[must_use]
    pub fn origins(mut self, origins: &Origins, files: &OriginFiles) -> Probe {
        self.origins = origins.clone();
        self.origin_parts = files.parts();
        self
    }

    /// Exports records to a collector or file, such as `ipfix:udp://192.0.2.1:4739` or
    /// `csv:flows.csv`; may be called several times.
    ///
    /// # Errors
    /// If the destination is invalid.
    pub fn export(mut self, destination: &str) -> Result<Probe> {
        self.targets.push(Target::parse(destination)?);
        Ok(self)
    }

    /// Exports records also to these destinations.
    #[must_use]
    pub fn export_to(mut self, targets: &[Target]) -> Probe {
        self.targets.extend_from_slice(targets);
        self
    }

    /// Sets the distribution of records to several destinations.
    #[must_use]
    pub fn fan_out(mut self, fan_out: FanOut) -> Probe {
        self.fan_out = fan_out;
        self
    }

    /// Reports to collectors that the port receives one of this many packets.
    #[must_use]
    pub fn sampled_before(mut self, rate: u32) -> Probe {
        self.sampling_rate = rate;
        self
    }

    /// Sets the owner of created directories, in which that user creates files later.
    #[must_use]
    pub fn owner(mut self, owner: Option<(u32, u32)>) -> Probe {
        self.owner = owner;
        self
    }

    /// Serves Prometheus metrics at this address.
    #[must_use]
    pub fn metrics(mut self, address: Option<SocketAddr>) -> Probe {
        self.metrics = address;
        self
    }

    /// Writes an HTML page with charts at the end. It shows `settings`, by name: how the flows were
    /// made.
    #[must_use]
    pub fn page(mut self, path: Option<PathBuf>, settings: Vec<(&'static str, String)>) -> Probe {
        self.page = path;
        self.page_settings = settings;
        self
    }

    /// Opens everything that may need privileges: files, certificates, listening sockets. Threads
    /// are started when it runs, so privileges can be dropped in between.
    ///
    /// # Errors
    /// If something cannot be opened.
    pub fn prepare(mut self) -> Result<Prepared> {
        if self.page.is_some() {
            self.config.series = true;
            self.config.top_count = self.config.top_count.max(page::FLOW_COUNT);
        }
        let port = self.port.control.describe();
        let mut reported = Reported::of(
            &self.config,
            self.community_seed,
            self.origin_parts,
            self.has_all_fields,
        );
        (reported.fan_out, reported.sampling_rate) = (self.fan_out, self.sampling_rate);
        let exporters = match self.targets.as_slice() {
            [] => None,
            targets => {
                let mut setup = reported.setup(&port);
                setup.owner = self.owner;
                Some(Exporters::open(targets, &setup)?)
            }
        };
        let metrics = self.metrics.map(Endpoint::bind).transpose()?;
        self.config.by_application = metrics.is_some();
        let page = self.page.as_deref().map(Page::create).transpose()?;
        let tables = self.config.memory_len(self.port.rx.len());
        Ok(Prepared {
            memory_len: tables + Exporters::memory_len(&self.targets) + self.origins.memory_len(),
            metrics_address: metrics.as_ref().map(Endpoint::address),
            name: self.port.name.clone(),
            port: self.port,
            config: self.config,
            egress: self.egress,
            metrics: metrics.map(|endpoint| Metrics::new(endpoint, &port.target)),
            page,
            page_settings: self.page_settings,
            running: Running {
                port,
                reported,
                exporters,
                origins: self.origins,
                manager: Manager::from_environment(),
                stop: Stop::new(),
            },
        })
    }

    /// Runs until the input ends, or `stop` is set.
    ///
    /// # Errors
    /// If it cannot start. A later error is in [`Finished::report`].
    pub fn run(self, stop: &Stop) -> Result<Finished> {
        self.prepare()?.run(stop, &mut ())
    }
}

/// A probe with everything open.
pub struct Prepared {
    name: String,
    port: Port,
    config: Config,
    egress: Option<Egress>,
    metrics: Option<Metrics>,
    metrics_address: Option<SocketAddr>,
    page: Option<Page>,
    page_settings: Vec<(&'static str, String)>,
    running: Running,
    memory_len: usize,
}

impl Prepared {
    /// The port's description.
    pub fn describe(&self) -> &PortDescription {
        &self.running.port
    }

    /// Number of receive queues.
    pub fn queue_count(&self) -> usize {
        self.port.rx.len()
    }

    /// Memory in bytes of tables and queues, excluding the port's own.
    pub fn memory_len(&self) -> usize {
        self.memory_len
    }

    /// Whether exporters create files while the probe runs, which needs the permission to.
    pub fn creates_files(&self) -> bool {
        let exporters = self.running.exporters.as_ref();
        exporters.is_some_and(Exporters::creates_files)
    }

    /// The address at which metrics are served.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics_address
    }

    /// Fields added to the standard record, for [`crate::lines::Lines`].
    pub fn extra_fields(&self) -> ExtraFields {
        self.running.reported.extra_fields
    }

    /// Runs until the input ends, `stop` is set, or the view ends it; then sends what is left and
    /// writes the page. Once `stop` is set, a stalled collector is waited for less than a second
    /// ([`Exporters::end_when`]).
    ///
    /// # Errors
    /// If threads cannot be started. A later error is in [`Finished::report`].
    pub fn run(mut self, stop: &Stop, view: &mut dyn View) -> Result<Finished> {
        self.running.stop = stop.clone();
        if let Some(exporters) = &mut self.running.exporters {
            let stop = stop.clone();
            exporters.end_when(move || stop.since());
            exporters.start()?;
        }
        if let Some(metrics) = &mut self.metrics {
            metrics.start()?;
        }
        let mut pipeline = Pipeline {
            running: self.running,
            page: self.page,
            metrics: self.metrics,
            view,
            failed: None,
        };
        pipeline.running.manager.ready();
        let mut report =
            flows::run_with(self.port, self.egress, &self.config, stop, &mut pipeline)?;
        let Pipeline {
            running,
            page,
            failed,
            ..
        } = pipeline;
        report.error = report.error.or(failed);
        running.manager.stopping();
        let mut exports = Vec::new();
        if let Some(mut exporters) = running.exporters {
            exports = exporters.finish(observed_at_end(&report));
        }
        let page = match page {
            None => Ok(None),
            Some(page) => page
                .finish(&page::Run {
                    name: &self.name,
                    settings: &self.page_settings,
                    report: &report,
                    exports: &exports,
                    flow_count: self.config.top_count,
                    order: self.config.order,
                })
                .map(Some),
        };
        Ok(Finished {
            report,
            exports,
            page,
        })
    }
}

/// The outcome of a probe.
pub struct Finished {
    /// What was metered, and the error that ended it early.
    pub report: Report,
    /// Destinations and their accounts.
    pub exports: Vec<(String, Account)>,
    /// The page that was written.
    pub page: Result<Option<PathBuf>>,
}

impl Finished {
    /// Returns the error that ended it early, that the page could not be written, or that an export
    /// lost records.
    ///
    /// # Errors
    /// As above; [`ErrorKind::Lost`] for lost records.
    pub fn check(self) -> Result<()> {
        let lost = self.check_exports();
        match self.report.error {
            // That a reader has left is no failure, and hides none.
            Some(error) if error.os_code() == Some(BROKEN_PIPE) => lost.and(Err(error)),
            Some(error) => Err(error),
            None => self.page.map(drop).and(lost),
        }
    }

    /// Whether every destination got its records, apart from those that its format cannot hold.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`], with the first destination that did not.
    pub fn check_exports(&self) -> Result<()> {
        let mut losses = self.exports.iter().filter_map(|(name, account)| {
            let words = account.loss()?;
            Some(format!("{name}: {words}"))
        });
        let Some(mut why) = losses.next() else {
            return Ok(());
        };
        match losses.count() {
            0 => {}
            1 => why += "; another destination lost records, too",
            count => why += &format!("; {count} other destinations lost records, too"),
        }
        Err(Error::new(ErrorKind::Lost, "export all records", why))
    }
}
