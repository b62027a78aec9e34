//! Building and running a probe.

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

/// `EPIPE`: the reader of a pipe has left.
const BROKEN_PIPE: i32 = 32;

/// A probe that is being put together: a port, and where its records go.
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
    /// Of the packets of an open port, with timeouts of 30 and 300 seconds and tables of a million
    /// flows.
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

    /// Of the packets of a port of this name: `eth0`, `afxdp:eth0`, `trace.pcap`.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn open(name: &str) -> Result<Probe> {
        Ok(Probe::new(port::open(name, &PortOptions::default())?))
    }

    /// What a flow is, when it ends, what is recorded of it.
    #[must_use]
    pub fn config(mut self, config: Config) -> Probe {
        self.config = config;
        self
    }

    /// Sends packets that [`flow::ExtraConfig::shunt`] chooses on to another port.
    #[must_use]
    pub fn egress(mut self, egress: Option<Egress>) -> Probe {
        self.egress = egress;
        self
    }

    /// Exports the Community ID with this seed. With decoders it is reported anyway.
    #[must_use]
    pub fn community_id(mut self, seed: Option<u16>) -> Probe {
        self.community_seed = seed;
        self
    }

    /// Writes all fields of records, to destinations whose format leaves some out otherwise.
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
    /// When it is no destination.
    pub fn export(mut self, destination: &str) -> Result<Probe> {
        self.targets.push(Target::parse(destination)?);
        Ok(self)
    }

    /// Exports records to these destinations, too.
    #[must_use]
    pub fn export_to(mut self, targets: &[Target]) -> Probe {
        self.targets.extend_from_slice(targets);
        self
    }

    /// Which of several destinations gets which records.
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

    /// Gives created directories to this user and group, which create files in them later.
    #[must_use]
    pub fn owner(mut self, owner: Option<(u32, u32)>) -> Probe {
        self.owner = owner;
        self
    }

    /// Serves figures for Prometheus at this address.
    #[must_use]
    pub fn metrics(mut self, address: Option<SocketAddr>) -> Probe {
        self.metrics = address;
        self
    }

    /// Writes a page of HTML with charts at the end. `settings` are shown there: how the flows were
    /// made, names and words.
    #[must_use]
    pub fn page(mut self, path: Option<PathBuf>, settings: Vec<(&'static str, String)>) -> Probe {
        self.page = path;
        self.page_settings = settings;
        self
    }

    /// Opens everything that may need rights: files, certificates, addresses to listen at. Threads
    /// are started when it runs, so privileges can be dropped in between.
    ///
    /// # Errors
    /// When something cannot be opened.
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
        let page = self.page.as_deref().map(Page::create).transpose()?;
        let tables = self.config.memory_len(self.port.rx.len());
        Ok(Prepared {
            memory_len: tables + Exporters::memory_len(&self.targets) + self.origins.memory_len(),
            metrics_address: metrics.as_ref().map(Endpoint::address),
            name: self.port.name.clone(),
            port: self.port,
            config: self.config,
            egress: self.egress,
            metrics: metrics.map(Metrics::new),
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
    /// When it cannot begin. What ends it early is in [`Finished::report`].
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
    /// What the port is.
    pub fn describe(&self) -> &PortDescription {
        &self.running.port
    }

    /// Receiving queues.
    pub fn queue_count(&self) -> usize {
        self.port.rx.len()
    }

    /// Bytes of memory for tables and queues, the port's own not included.
    pub fn memory_len(&self) -> usize {
        self.memory_len
    }

    /// Whether exporters create files while the probe runs, which takes the right to.
    pub fn creates_files(&self) -> bool {
        let exporters = self.running.exporters.as_ref();
        exporters.is_some_and(Exporters::creates_files)
    }

    /// Where figures are served.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics_address
    }

    /// What is added to the standard record, for [`crate::lines::Lines`].
    pub fn extra_fields(&self) -> ExtraFields {
        self.running.reported.extra_fields
    }

    /// Runs until the input ends, `stop` is set, or the view ends it; then sends what is left and
    /// writes the page. Once `stop` is set, a collector that takes nothing is waited for less than
    /// a second ([`Exporters::end_when`]).
    ///
    /// # Errors
    /// When threads cannot be started. What ends it early is in [`Finished::report`].
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

/// How a probe ended.
pub struct Finished {
    /// What was metered, and what ended it early.
    pub report: Report,
    /// Destinations, and what became of their records.
    pub exports: Vec<(String, Account)>,
    /// The page that was written.
    pub page: Result<Option<PathBuf>>,
}

impl Finished {
    /// What ended it early, that the page could not be written, or that an export lost records.
    ///
    /// # Errors
    /// That; [`ErrorKind::Lost`] for lost records.
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
