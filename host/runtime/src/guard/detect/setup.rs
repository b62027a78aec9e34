//! How floods are detected.

use std::time::Duration;

use ::guard::detect::Settings;

use crate::guard::parse_rate;
use crate::guard::rules::parse_time;

/// What is done about a flood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A rule is reported.
    Propose,
    /// A rule is installed, and removed when the flood is over.
    Install,
}

/// How floods are detected, and what is done about them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DetectSetup {
    /// What is done.
    pub action: Action,
    /// One in so many packets is looked at.
    pub sample: u32,
    /// How a flood is recognized.
    pub settings: Settings,
    /// How long a rule lasts at most.
    pub expires_after: Duration,
}

impl DetectSetup {
    /// The sampling that suits most interfaces.
    pub const SAMPLE: u32 = 16;

    /// With the usual settings.
    pub fn new(action: Action) -> Self {
        DetectSetup {
            action,
            sample: Self::SAMPLE,
            settings: Settings::default(),
            expires_after: Duration::from_secs(600),
        }
    }

    /// Changes settings: `least=1000/s,begin=3s`.
    ///
    /// # Errors
    /// What was expected.
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
