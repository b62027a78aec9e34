//! Processes records in the collector's thread: enriches, sums up, exports and shows them.

use export::{Account, Changes, Exporters, FanOut, Observed, Target};
use flow::{EndReason, Extra, Record};
use port::PortDescription;
use runtime::Stop;
use runtime::flows::{Outlet, QueueStatus, RecordOutcome, Report, Selection, Status, Switch};
use runtime::notify::Manager;
use runtime::origin_table::OriginFiles;
use sys::{Error, Result};

use crate::Origins;
use crate::metrics::Metrics;
use crate::page::Page;
use crate::setup::Reported;
use crate::text::{counted, si};

/// An observer of a running probe. Called by the collector, which must not be delayed: output that
/// waits for a reader needs its own thread ([`runtime::output`]).
pub trait View {
    /// Called when a flow has ended and its record was passed to exporters.
    ///
    /// # Errors
    /// An error ends the probe.
    fn ended(
        &mut self,
        record: &Record,
        extra: &Extra<'_>,
        reason: EndReason,
    ) -> Result<RecordOutcome> {
        let _ = (record, extra, reason);
        Ok(RecordOutcome::Reported)
    }

    /// Called about ten times a second. `running` can be changed.
    ///
    /// # Errors
    /// An error ends the probe.
    fn pulse(&mut self, status: &Status<'_>, running: &mut Running) -> Result<()> {
        let _ = (status, running);
        Ok(())
    }

    /// Called when enrichment files were reloaded, or could not be.
    fn origins_read(&mut self, result: Result<()>) {
        let _ = result;
    }
}

/// No observer.
impl View for () {}

/// Properties of a running probe that can be changed.
pub struct Running {
    pub(crate) port: PortDescription,
    pub(crate) reported: Reported,
    pub(crate) exporters: Option<Exporters>,
    pub(crate) origins: Origins,
    pub(crate) manager: Manager,
    /// The stop request.
    pub(crate) stop: Stop,
}

/// New settings of a probe.
pub struct Change {
    /// All destinations: those that are not listed end.
    pub targets: Vec<Target>,
    /// Distribution of records to destinations.
    pub fan_out: FanOut,
    /// The port receives one in N packets.
    pub sampling_rate: u32,
    /// Selection of packets and records.
    pub selection: Selection,
    /// The enrichment files. They are reloaded if they have the same kinds of data as before, so
    /// that templates do not change.
    pub origins: OriginFiles,
}

/// The result of a change.
#[derive(Clone, Debug, Default)]
pub struct Changed {
    /// Changes of destinations.
    pub exports: Changes,
    /// Whether enrichment files are reloaded, if there are any.
    pub has_same_origins: bool,
}

impl Running {
    /// Notifies the service manager that the configuration is being reloaded.
    pub fn reloading(&self) {
        self.manager.reloading();
    }

    /// Notifies it that the reload is complete.
    pub fn ready(&self) {
        self.manager.ready();
    }

    /// Destinations and their accounts so far.
    pub fn exports(&mut self) -> Vec<(String, Account)> {
        let exporters = self.exporters.as_mut();
        exporters.map(Exporters::accounts).unwrap_or_default()
    }

    /// Changes destinations, sampling, filter and enrichment files.
    ///
    /// # Errors
    /// If a destination cannot be opened; then nothing has changed.
    pub fn change(&mut self, change: Change, switch: &Switch) -> Result<Changed> {
        let mut reported = self.reported.clone();
        let selection = &change.selection;
        reported.selectors = [selection.sampling, selection.record_sampling];
        (reported.fan_out, reported.sampling_rate) = (change.fan_out, change.sampling_rate);
        let setup = reported.setup(&self.port);
        let mut changed = Changed::default();
        match &mut self.exporters {
            Some(exporters) => changed.exports = exporters.replace(&change.targets, &setup)?,
            None if !change.targets.is_empty() => {
                let mut new = Exporters::open(&change.targets, &setup)?;
                let stop = self.stop.clone();
                new.end_when(move || stop.since());
                new.start()?;
                self.exporters = Some(new);
                let names = change.targets.iter().map(|target| target.text.clone());
                changed.exports.begun = names.collect();
            }
            None => {}
        }
        self.reported = reported;
        switch.select(change.selection);
        changed.has_same_origins = change.origins.parts() == self.reported.extra_fields.origin;
        if changed.has_same_origins && change.origins.parts().any() {
            self.origins.read_again(change.origins)?;
        }
        Ok(changed)
    }
}

/// The outlet of a probe.
pub(crate) struct Pipeline<'a> {
    pub(crate) running: Running,
    pub(crate) page: Option<Page>,
    pub(crate) metrics: Option<Metrics>,
    pub(crate) view: &'a mut dyn View,
    /// The error of the view. It is no longer called then, and the probe ends; exporters and the
    /// page still get every record.
    pub(crate) failed: Option<Error>,
}

impl Pipeline<'_> {
    fn take(
        &mut self,
        record: &Record,
        extra: &Extra<'_>,
        reason: EndReason,
    ) -> Result<RecordOutcome> {
        if let Some(exporters) = &mut self.running.exporters {
            exporters.ended_with(record, extra, reason);
        }
        if let Some(page) = &mut self.page {
            page.add(record, extra);
        }
        if let Some(metrics) = &mut self.metrics {
            metrics.ended(record, extra);
        }
        if self.failed.is_some() {
            return Ok(RecordOutcome::Dropped);
        }
        Ok(self
            .view
            .ended(record, extra, reason)
            .unwrap_or_else(|error| {
                self.failed = Some(error);
                RecordOutcome::Dropped
            }))
    }
}

impl Outlet for Pipeline<'_> {
    fn ended(
        &mut self,
        record: &Record,
        extra: &Extra<'_>,
        reason: EndReason,
    ) -> Result<RecordOutcome> {
        let origins = &self.running.origins;
        match origins.with(|table| table.of(record, extra)) {
            None => self.take(record, extra, reason),
            Some(origins) => {
                let extra = Extra {
                    origins: Some(&origins),
                    ..*extra
                };
                self.take(record, &extra, reason)
            }
        }
    }

    fn pulse(&mut self, status: &Status<'_>) -> Result<()> {
        if let Some(result) = self.running.origins.take() {
            self.view.origins_read(result);
        }
        let total = status.total();
        let lost = status.account.rx_total().lost();
        if let Some(exporters) = &mut self.running.exporters {
            exporters.pulse(observed(&total, lost));
            if exporters.is_over() && self.page.is_none() && self.metrics.is_none() {
                status.switch.end();
            }
        }
        if let Some(metrics) = &mut self.metrics
            && metrics.is_due()
        {
            let accounts = self.running.exporters.as_mut().map(Exporters::accounts);
            metrics.show(status, &accounts.unwrap_or_default());
        }
        self.running.manager.pulse(|| {
            let rate = total.meter.packets as f64 / status.elapsed.as_secs_f64().max(0.1);
            format!(
                "{} ({} on average), {} in the table, {} lost",
                counted(total.meter.packets, "packet"),
                si(rate.round(), "pps"),
                counted(total.meter.table.live, "flow"),
                counted(lost, "packet"),
            )
        });
        if self.failed.is_none() {
            self.failed = self.view.pulse(status, &mut self.running).err();
        }
        if self.failed.is_some() {
            status.switch.end();
        }
        Ok(())
    }
}

/// The final statistics of the metering process.
pub(crate) fn observed_at_end(report: &Report) -> Observed {
    let total = QueueStatus::total(&report.queues);
    observed(&total, report.account.rx_total().lost())
}

fn observed(total: &QueueStatus, lost: u64) -> Observed {
    let mut observed = Observed::default();
    observed.flows = total.meter.table.flows;
    observed.ignored_packets = total.meter.refused_total();
    observed.dropped_packets = lost;
    observed
}

#[cfg(test)]
mod tests {
    use port::PortOptions;
    use runtime::Stop;
    use sys::ErrorKind;

    use super::*;
    use crate::Probe;

    const FLOW_COUNT: u16 = 200;

    /// A view that fails with its first record, as if its reader had closed the pipe.
    struct Gone;

    impl View for Gone {
        fn ended(&mut self, _: &Record, _: &Extra<'_>, _: EndReason) -> Result<RecordOutcome> {
            Err(Error::new(ErrorKind::Io, "write", "nobody reads"))
        }
    }

    fn udp(source_port: u16) -> Vec<u8> {
        let mut packet = vec![2; 12];
        packet.extend([8, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0]);
        packet.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        packet.extend(source_port.to_be_bytes());
        packet.extend([0, 9, 0, 8, 0, 0]);
        packet
    }

    #[test]
    fn exporters_get_every_record_after_the_view_has_failed() {
        let mut port = port::open("memory:", &PortOptions::default()).unwrap();
        let mut tx = port.tx.remove(0);
        for number in 0..FLOW_COUNT {
            let mut batch = tx.reserve(1).unwrap();
            assert!(batch.write(&udp(1000 + number)));
            batch.submit().unwrap();
        }
        let name = format!("barewire-view-{}.json", std::process::id());
        let path = std::env::temp_dir().join(name);
        let destination = format!("json:{}", path.display());
        let probe = Probe::new(port).export(&destination).unwrap();
        let stop = Stop::new();
        stop.set();
        let done = probe.prepare().unwrap().run(&stop, &mut Gone).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(text.lines().count(), usize::from(FLOW_COUNT));
        assert_eq!(done.report.records_dropped, u64::from(FLOW_COUNT));
        let error = done.check().unwrap_err().to_string();
        assert!(error.contains("nobody reads"), "{error}");
    }
}
