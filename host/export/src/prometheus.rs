//! Metrics for Prometheus: its text format (version 0.0.4), served as `/metrics` by an
//! [`Endpoint`], which adds those of the process.

mod endpoint;
mod process;

use std::fmt::Write as _;

pub use endpoint::Endpoint;

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A counter, which never decreases while the probe runs.
    Counter,
    /// A gauge, which goes up and down.
    Gauge,
}

/// A page under construction.
#[derive(Debug, Default)]
pub struct Page {
    text: String,
}

impl Page {
    /// Starts a metric family: its name, type and help text.
    pub fn family(&mut self, name: &str, kind: Kind, about: &str) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        };
        // Writing to a string cannot fail.
        let _ = write!(self.text, "# HELP {name} {about}\n# TYPE {name} {kind}\n");
    }

    /// Adds a value of the family, with labels.
    pub fn value(&mut self, name: &str, labels: &[(&str, &str)], value: u64) {
        self.text.push_str(name);
        for (at, (label, text)) in labels.iter().enumerate() {
            self.text.push(if at == 0 { '{' } else { ',' });
            self.text.push_str(label);
            self.text.push_str("=\"");
            for c in text.chars() {
                match c {
                    '\\' => self.text.push_str("\\\\"),
                    '"' => self.text.push_str("\\\""),
                    '\n' => self.text.push_str("\\n"),
                    c => self.text.push(c),
                }
            }
            self.text.push('"');
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        let _ = writeln!(self.text, " {value}");
    }

    /// Adds a value without labels, in hundredths of a second.
    fn seconds(&mut self, name: &str, hundredths: u64) {
        let (whole, rest) = (hundredths / 100, hundredths % 100);
        let _ = writeln!(self.text, "{name} {whole}.{rest:02}");
    }

    /// The page.
    pub fn text(&self) -> &str {
        &self.text
    }
}
