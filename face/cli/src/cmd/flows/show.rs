//! Shows the flows of a running probe: live, as JSON lines, as rates, or as one snapshot.

use std::io::IsTerminal;
use std::time::Duration;

use flow::{EndReason, Extra, KnownFlows, Record};
use probe::lines::{self, Lines};
use probe::{Finished, Prepared, Running, View};
use runtime::flows::{Outlet, RecordOutcome, Status};
use runtime::output::{Output, is_closed as is_closed_error};
use runtime::{Stop, TotalsRequest};
use sys::Result;

use super::service::Reloading;
use super::{Args, Origins, plain, report};
use crate::confine::ConfineArgs;
use crate::inputs::Inputs;
use crate::live::{Live, Once};
use crate::out::{self, say, warning};
use crate::report::counted;

/// How long after `--duration` the run ends if a stalled reader blocks: the records of a file wait
/// for their reader, and nothing else is checked meanwhile.
const LATE: Duration = Duration::from_millis(200);

/// Output of a probe's flows.
pub(super) struct Showing<'a> {
    pub(super) args: &'a Args,
    pub(super) inputs: &'a Inputs,
    /// The names of the ports in one line.
    pub(super) name: &'a str,
    pub(super) stop: Stop,
    pub(super) request: TotalsRequest,
    pub(super) stdout: Output,
    pub(super) reload: Option<Reloading>,
    pub(super) origins: Origins,
    pub(super) is_file: bool,
    /// Whether the live view draws on the terminal.
    pub(super) has_picture: bool,
    /// Why no packets may come, which the live view would hide.
    pub(super) warning: Option<String>,
}

impl Showing<'_> {
    /// Runs the probe, and shows its flows in the requested form.
    pub(super) fn run(mut self, probe: Prepared) -> Result<()> {
        let args = self.args;
        let memory = report::Memory {
            tables: probe.memory_len() + if args.json { lines::MEMORY_LEN } else { 0 },
            port: probe.describe().memory_len,
        };
        if args.is_live_view(self.is_file) {
            return self.live(probe, &memory);
        }
        let description = probe.describe();
        plain::start(self.name, description, probe.queue_count(), &memory);
        if args.once {
            return self.once(probe, &memory);
        }
        if args.json {
            let (out, extra_fields) = (self.stdout.clone(), probe.extra_fields());
            let mut outlet = Lines::new(out, !self.is_file, &self.stop, extra_fields);
            let mut with_events = plain::WithEvents {
                name: self.name,
                inner: &mut outlet,
            };
            let done = self.probe(probe, &mut with_events)?;
            let written = outlet.summary(&done, self.name, memory.total());
            if written.as_ref().is_err_and(is_closed_error) {
                let ended = done.report.error.as_ref().is_some_and(is_closed_error);
                if ended {
                    say!("{}", self.inputs.unread(&done.report.account, self.is_file));
                } else if !self.args.has_other_outputs() {
                    say!("standard output was closed before everything was printed");
                } else {
                    say!("standard output was closed; the other outputs were completed");
                }
                // That a reader has left is no failure.
                return done.check();
            }
            if done.report.records_dropped != 0 && written.is_ok() {
                warning!(
                    "dropped: {} with {}, because the reader of standard output is too slow",
                    counted(done.report.records_dropped, "record"),
                    counted(done.report.packets_in_dropped, "packet")
                );
            }
            return done.check().and(written);
        }
        let mut outlet = plain::Rates::new(self.name, self.inputs, self.is_file);
        let done = self.probe(probe, &mut outlet);
        outlet.end();
        let (known, order) = (&outlet.known, args.order());
        report::report(&self.stdout, done?, known, args.table_len(), order, &memory)
    }

    fn live(&mut self, probe: Prepared, memory: &report::Memory) -> Result<()> {
        let (name, order) = (self.name, self.args.order());
        let (out, stop) = (&self.stdout, &self.stop);
        let mut live = Live::start(out, stop, name, probe.describe(), memory.total(), order)?;
        live.show_origins(self.origins.clone());
        if let Some(warning) = self.warning.take() {
            live.show_event(warning);
        }
        self.has_picture = true;
        let done = self.probe(probe, &mut live);
        // The final table is printed on the terminal's normal screen.
        let order = live.order();
        let known = live.end();
        report::report(
            &self.stdout,
            done?,
            &known,
            self.args.table_len(),
            order,
            memory,
        )
    }

    fn once(&mut self, probe: Prepared, memory: &report::Memory) -> Result<()> {
        let (order, duration) = (self.args.order(), self.args.duration);
        let described = probe.describe();
        let mut once = Once::new(self.name, described, memory.total(), order, duration);
        once.show_origins(self.origins.clone());
        let mut with_events = plain::WithEvents {
            name: self.name,
            inner: &mut once,
        };
        let done = self.probe(probe, &mut with_events)?;
        let written = out::print(&self.stdout, once.text().into_bytes());
        let known = KnownFlows::default();
        report::report(&self.stdout, done, &known, 0, order, memory).and(written)
    }

    /// Runs the probe to its end.
    fn probe(&mut self, probe: Prepared, outlet: &mut dyn Outlet) -> Result<Finished> {
        let outlet = Watched {
            inner: outlet,
            has_others: self.args.has_other_outputs(),
            is_closed: false,
        };
        let mut view = Watching {
            outlet,
            stop: &self.stop,
            request: &self.request,
            has_picture: self.has_picture,
            duration: self.args.duration,
            reload: &mut self.reload,
            confine: self.args.port_args.confine,
        };
        if let Some(duration) = self.args.duration {
            self.stop.set_after(duration + LATE)?;
        }
        let done = probe.run(&self.stop, &mut view)?;
        if !self.is_file {
            out::over();
        }
        if let Ok(Some(path)) = &done.page
            && !self.args.reports_to_stdout()
        {
            say!("report: {}", path.display());
        }
        Ok(done)
    }
}

/// An outlet on standard output, whose reader may close it.
struct Watched<'a> {
    inner: &'a mut dyn Outlet,
    /// Whether records also go elsewhere: then the run continues without a reader.
    has_others: bool,
    is_closed: bool,
}

impl Watched<'_> {
    /// Handles the result of a call; `otherwise` is that of a closed output.
    fn after<T>(&mut self, result: Result<T>, otherwise: T) -> Result<T> {
        match result {
            Err(error) if self.has_others && is_closed_error(&error) => {
                self.is_closed = true;
                Ok(otherwise)
            }
            result => result,
        }
    }
}

/// An outlet that also handles `SIGHUP` and `SIGUSR1`.
struct Watching<'a> {
    outlet: Watched<'a>,
    stop: &'a Stop,
    request: &'a TotalsRequest,
    has_picture: bool,
    duration: Option<Duration>,
    reload: &'a mut Option<Reloading>,
    confine: ConfineArgs,
}

impl View for Watching<'_> {
    fn ended(
        &mut self,
        record: &Record,
        extra: &Extra<'_>,
        reason: EndReason,
    ) -> Result<RecordOutcome> {
        if self.outlet.is_closed {
            return Ok(RecordOutcome::Dropped);
        }
        let result = self.outlet.inner.ended(record, extra, reason);
        self.outlet.after(result, RecordOutcome::Dropped)
    }

    fn pulse(&mut self, status: &Status<'_>, running: &mut Running) -> Result<()> {
        if self.duration.is_some_and(|d| status.elapsed >= d) {
            // From now on stalled readers are not waited for.
            self.stop.set();
        }
        // The view shows the totals; lines on the same terminal would be printed over it.
        if self.request.take() && !(self.has_picture && std::io::stderr().is_terminal()) {
            out::words(report::so_far(status, &running.exports()));
        }
        if let Some(reload) = self.reload {
            reload.pulse(running, status.switch);
        }
        if self.outlet.is_closed {
            return Ok(());
        }
        let result = self.outlet.inner.pulse(status);
        self.outlet.after(result, ())
    }

    fn origins_read(&mut self, result: Result<()>) {
        match result {
            Ok(()) => say!("reloaded the files of --asn, --geo and --mac-vendors"),
            Err(error) => {
                warning!("kept the old files of --asn, --geo and --mac-vendors");
                crate::exit::print(&self.confine.explain(error));
            }
        }
    }
}
