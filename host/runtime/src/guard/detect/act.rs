//! What a guard does about floods: its part of detection.

use std::time::Instant;

use sys::Result;

use super::{Action, Detection, Step, Tap};
use crate::guard::{Guard, Notice, RuleSpec, Totals};

/// Detection and where its packets come from.
pub(in crate::guard) struct Detecting {
    detection: Detection,
    tap: Tap,
    began: Instant,
}

impl Detecting {
    pub(in crate::guard) fn new(detection: Detection, tap: Tap) -> Self {
        Detecting {
            detection,
            tap,
            began: Instant::now(),
        }
    }

    pub(in crate::guard) fn tap(&mut self) -> &mut Tap {
        &mut self.tap
    }

    /// A rule has expired.
    pub(in crate::guard) fn expired(&mut self, rule: &str) {
        self.detection.expired(rule);
    }
}

impl Guard {
    /// Looks at the packets that have come. Without them there is no detection any more; the rules
    /// stay in force.
    pub(in crate::guard) fn read_tap(&mut self, notice: &mut impl FnMut(Notice<'_>)) {
        let Some(detecting) = &mut self.detecting else {
            return;
        };
        if let Err(error) = detecting.tap.read(&mut detecting.detection) {
            self.detecting = None;
            notice(Notice::DetectionEnded(error));
        }
    }

    /// Ends a second of detection.
    pub(in crate::guard) fn detect(
        &mut self,
        totals: &Totals,
        notice: &mut impl FnMut(Notice<'_>),
    ) -> Result<()> {
        let Some(mut detecting) = self.detecting.take() else {
            return Ok(());
        };
        // In a dry run the tap sees what a rule would drop.
        let is_dry_run = self.setup.dry_run;
        let dropped = |name: &str| {
            let rule = totals.rules.iter().find(|rule| rule.spec.name == name);
            rule.filter(|_| !is_dry_run)
                .map_or(0, |rule| rule.counters.dropped)
        };
        let now_ns = detecting.began.elapsed().as_nanos() as u64;
        for step in detecting.detection.tick(now_ns, dropped) {
            self.act(&mut detecting.detection, step, notice)?;
        }
        self.detecting = Some(detecting);
        Ok(())
    }

    fn act(
        &mut self,
        detection: &mut Detection,
        step: Step,
        notice: &mut impl FnMut(Notice<'_>),
    ) -> Result<()> {
        match &step {
            Step::Rule(found) if detection.action() == Action::Install => {
                if let Err(error) = self.install(&found.spec) {
                    detection.refused(&found.spec.name);
                    notice(Notice::Flood(&Step::NoRule {
                        of: found.of.clone(),
                        why: format!("\"{}\" is refused: {error}", found.spec.expression),
                    }));
                    return Ok(());
                }
            }
            Step::Remove(name) if self.found.iter().any(|spec| spec.name == *name) => {
                self.found.retain(|spec| spec.name != *name);
                let next = self.table.next(self.specs()?, self.setup.dry_run)?;
                self.replace(next)?;
            }
            // Was only proposed.
            Step::Remove(_) => return Ok(()),
            _ => {}
        }
        notice(Notice::Flood(&step));
        Ok(())
    }

    fn install(&mut self, spec: &RuleSpec) -> Result<()> {
        self.found.push(spec.clone());
        let installed = self.reload();
        if installed.is_err() {
            self.found.pop();
        }
        installed.map(drop)
    }
}
