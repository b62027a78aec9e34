//! Settings of flood detection.

use std::time::Duration;

use ::guard::detect::Settings;

use crate::guard::parse_rate;
use crate::guard::rules::parse_time;

/// The response to a flood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Report a rule.
    Propose,
    /// Install a rule, and remove it when the flood is over.
    Install,
}

/// Settings of flood detection and the response to floods.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DetectSetup {
    /// The response.
    pub action: Action,
    /// One in this many packets is sampled.
    pub sample: u32,
    /// Thresholds and times.
    pub settings: Settings,
    /// Time after which an installed rule expires.
    pub expires_after: Duration,
}

impl DetectSetup {
    /// The default sampling.
    pub const SAMPLE: u32 = 16;

    /// The default settings.
    pub fn new(action: Action) -> Self {
        DetectSetup {
            action,
            sample: Self::SAMPLE,
            settings: Settings::default(),
            expires_after: Duration::from_secs(600),
        }
    }

    /// Changes settings, given as `least=1000/s,begin=3s`.
    ///
    /// # Errors
    /// Describes what was expected.
    pub fn set(&mut self, text: &str) -> Result<(), String> {
        for word in text.split(',') {
            let (key, value) = word.split_once('=').ok_or_else(|| expected(word))?;
            let settings = &mut self.settings;
            let time_ns = || parse_time(value).map(|time| time.as_nanos() as u64);
            let number = || match value.parse::<f64>() {
                Ok(number @ 1.0..=1e6) => Ok(number),
                _ => Err(format!("\"{value}\" is not a number from 1 to 1000000")),
            };
            match key.trim() {
                "least" => settings.rate_least_pps = parse_rate(value)?.into(),
                "most" => settings.rate_most_pps = parse_rate(value)?.into(),
                "factor" => settings.factor = number()?,
                "deviations" => settings.deviations = number()?,
                "learn" => settings.learn_ns = time_ns()?,
                "warm-up" => settings.warm_up_ns = time_ns()?,
                "begin" => settings.begin_ns = time_ns()?,
                "end" => settings.end_ns = time_ns()?,
                "expires" => self.expires_after = parse_time(value)?,
                _ => return Err(expected(word)),
            }
        }
        Ok(())
    }
}

fn expected(word: &str) -> String {
    format!(
        "\"{word}\": expected least=RATE, most=RATE, factor=NUMBER, deviations=NUMBER, learn=TIME, \
         warm-up=TIME, begin=TIME, end=TIME or expires=TIME"
    )
}
