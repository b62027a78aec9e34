//! How a guard responds to detected floods: installs and removes rules.

use std::fs;
use std::net::IpAddr;
use std::time::Instant;

use sys::{KernelVersion, Result};
use xdp::AttachMode;

use super::{
    Action, DetectSetup, Detection, FloodTotals, FlowChoice, Found, Step, Tap, TapCounts, listeners,
};
use crate::guard::attach::{device, unanswered};
use crate::guard::steer::random;
use crate::guard::{Guard, GuardHook, Notice, RuleSpec, SYN_COOKIES, Setup, Totals, check_cookies};

/// Detection and the tap that samples its packets.
pub(in crate::guard) struct Detecting {
    detection: Detection,
    tap: Tap,
    /// At the last tick.
    counts: TapCounts,
    /// Packets that had passed at the last tick, and when it was.
    passed: u64,
    at: Instant,
    began: Instant,
}

impl Detecting {
    /// Opens the tap on the interface.
    pub(in crate::guard) fn open(guard: &Setup, setup: DetectSetup) -> Result<Self> {
        let choice = FlowChoice::new(setup.sample, random() as u32);
        let mut detection = Detection::new(setup, choice);
        // At tc's ingress taps get packets before the program does.
        if guard.dry_run || guard.hook == GuardHook::Tc {
            detection.sees_dropped();
        }
        Ok(Detecting {
            detection,
            tap: Tap::open(&guard.interface, &choice)?,
            counts: TapCounts::default(),
            passed: 0,
            at: Instant::now(),
            began: Instant::now(),
        })
    }

    pub(in crate::guard) fn tap(&mut self) -> &mut Tap {
        &mut self.tap
    }

    /// Records that a rule has expired.
    pub(in crate::guard) fn expired(&mut self, rule: &str) {
        self.detection.expired(rule);
    }
}

impl Guard {
    /// Reads the sampled packets. If that fails, detection ends; the rules stay in force.
    pub(in crate::guard) fn read_tap(&mut self, notice: &mut impl FnMut(Notice<'_>)) {
        let Some(detecting) = &mut self.detecting else {
            return;
        };
        if let Err(error) = detecting.tap.read(&mut detecting.detection) {
            self.detecting = None;
            notice(Notice::DetectionEnded(error));
        }
    }

    /// Runs detection for the last second, and acts on what it found. Returns the floods in
    /// progress; `None` without detection.
    pub(in crate::guard) fn detect(
        &mut self,
        totals: &Totals,
        notice: &mut impl FnMut(Notice<'_>),
    ) -> Option<Vec<FloodTotals>> {
        let mut detecting = self.detecting.take()?;
        let counters = |name: &str| {
            let rule = totals.rules.iter().find(|rule| rule.spec.name == name);
            rule.map(|rule| rule.counters)
        };
        if let Ok(counts) = detecting.tap.counts() {
            let before = std::mem::replace(&mut detecting.counts, counts);
            let sampled = counts.sampled.saturating_sub(before.sampled);
            let lost = counts.lost.saturating_sub(before.lost);
            detecting.detection.lost(sampled, lost);
        }
        let seconds = detecting.at.elapsed().as_secs_f64().max(1e-3);
        detecting.at = Instant::now();
        let before = std::mem::replace(&mut detecting.passed, totals.passed());
        let passed = totals.passed().saturating_sub(before);
        detecting.detection.passed(passed as f64 / seconds);
        let now_ns = detecting.began.elapsed().as_nanos() as u64;
        for step in detecting.detection.tick(now_ns, counters) {
            self.act(&mut detecting.detection, step, notice);
        }
        let floods = detecting.detection.floods();
        self.detecting = Some(detecting);
        Some(floods)
    }

    fn act(&mut self, detection: &mut Detection, step: Step, notice: &mut impl FnMut(Notice<'_>)) {
        let step = match step {
            Step::Rule(found) => match self.act_on(detection, found) {
                Ok(found) => Step::Rule(found),
                Err(step) => step,
            },
            // The rule that was to take its place is refused.
            Step::Remove(name) if detection.has_rule(&name) => return,
            Step::Remove(name) if self.found.iter().any(|spec| spec.name == name) => {
                if let Err(error) = self.remove(&name) {
                    return notice(Notice::Kept(error));
                }
                Step::Remove(name)
            }
            // The rule was only proposed.
            Step::Remove(_) => return,
            other => other,
        };
        notice(Notice::Flood(&step));
    }

    /// Installs a rule, if rules are to be installed. What the host cannot answer is limited.
    fn act_on(
        &mut self,
        detection: &mut Detection,
        mut found: Box<Found>,
    ) -> std::result::Result<Box<Found>, Step> {
        let is_installed = detection.action() == Action::Install;
        if let Some((otherwise, services)) = found.otherwise.take() {
            let can = self.can_answer(&found.spec, &services);
            let is_done = can && (!is_installed || self.install(&found.spec).is_ok());
            if is_done {
                return Ok(found);
            }
            found.spec = otherwise;
            detection.replaced(&found.spec);
        }
        if !is_installed {
            return Ok(found);
        }
        match self.install(&found.spec) {
            Ok(()) => Ok(found),
            Err(error) => {
                detection.refused(&found.spec.name);
                Err(Step::NoRule {
                    why: format!("\"{}\" is refused: {error}", found.spec.expression),
                    of: found.of,
                })
            }
        }
    }

    /// Whether SYNs to these services can be answered by the program: it is in XDP, in a mode in
    /// which answers arrive, the kernel makes cookies, and each service listens on this host.
    fn can_answer(&self, spec: &RuleSpec, services: &[(IpAddr, u16)]) -> bool {
        let is_new = KernelVersion::running().is_some_and(|k| k >= KernelVersion::new(5, 18));
        let is_native = self.link.mode() == Some(AttachMode::Native);
        let loses = |device| unanswered(&device, std::slice::from_ref(spec)).is_some();
        let loses_answers = is_native && device(&self.setup.interface).map_or(true, loses);
        self.setup.hook == GuardHook::Xdp
            && is_new
            && !loses_answers
            && check_cookies(fs::read_to_string(SYN_COOKIES)).is_ok()
            && listeners::listen(services)
    }

    /// Adds a rule to the active ones. The rule file is not read: it may be half edited.
    fn install(&mut self, spec: &RuleSpec) -> Result<()> {
        let mut specs = self.table.specs();
        specs.push(spec.clone());
        self.setup.check_session(self.session.as_ref(), &specs)?;
        self.load(specs)?;
        self.found.push(spec.clone());
        Ok(())
    }

    /// Removes an installed rule. If that fails, the rule stays until it expires.
    fn remove(&mut self, name: &str) -> Result<()> {
        self.found.retain(|spec| spec.name != name);
        let mut specs = self.table.specs();
        specs.retain(|spec| spec.name != name);
        self.load(specs)
    }
}
