//! How a guard responds to detected floods: installs and removes rules.

use std::time::Instant;

use sys::Result;

use super::{Action, DetectSetup, Detection, FlowChoice, Step, Tap, TapCounts};
use crate::guard::steer::random;
use crate::guard::{Guard, Notice, RuleSpec, Totals};

/// Detection and the tap that samples its packets.
pub(in crate::guard) struct Detecting {
    detection: Detection,
    tap: Tap,
    /// At the last tick.
    counts: TapCounts,
    began: Instant,
}

impl Detecting {
    /// Opens the tap on an interface.
    pub(in crate::guard) fn open(interface: &str, setup: DetectSetup) -> Result<Self> {
        let choice = FlowChoice::new(setup.sample, random() as u32);
        Ok(Detecting {
            detection: Detection::new(setup, choice),
            tap: Tap::open(interface, &choice)?,
            counts: TapCounts::default(),
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

    /// Runs detection for the last second, and acts on what it found.
    pub(in crate::guard) fn detect(
        &mut self,
        totals: &Totals,
        notice: &mut impl FnMut(Notice<'_>),
    ) {
        let Some(mut detecting) = self.detecting.take() else {
            return;
        };
        // In a dry run the tap still receives the packets that a rule would drop.
        let is_dry_run = self.setup.dry_run;
        let dropped = |name: &str| {
            let rule = totals.rules.iter().find(|rule| rule.spec.name == name);
            rule.filter(|_| !is_dry_run)
                .map_or(0, |rule| rule.counters.dropped)
        };
        if let Ok(counts) = detecting.tap.counts() {
            let before = std::mem::replace(&mut detecting.counts, counts);
            let sampled = counts.sampled.saturating_sub(before.sampled);
            let lost = counts.lost.saturating_sub(before.lost);
            detecting.detection.lost(sampled, lost);
        }
        let now_ns = detecting.began.elapsed().as_nanos() as u64;
        for step in detecting.detection.tick(now_ns, dropped) {
            self.act(&mut detecting.detection, step, notice);
        }
        self.detecting = Some(detecting);
    }

    fn act(&mut self, detection: &mut Detection, step: Step, notice: &mut impl FnMut(Notice<'_>)) {
        match &step {
            Step::Rule(found) if detection.action() == Action::Install => {
                if let Err(error) = self.install(&found.spec) {
                    detection.refused(&found.spec.name);
                    return notice(Notice::Flood(&Step::NoRule {
                        of: found.of.clone(),
                        why: format!("\"{}\" is refused: {error}", found.spec.expression),
                    }));
                }
            }
            Step::Remove(name) if self.found.iter().any(|spec| spec.name == *name) => {
                if let Err(error) = self.remove(name) {
                    return notice(Notice::Kept(error));
                }
            }
            // The rule was only proposed.
            Step::Remove(_) => return,
            _ => {}
        }
        notice(Notice::Flood(&step));
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
