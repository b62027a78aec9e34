//! Common code of the tests of `barewire forward`.

#![allow(
    dead_code,
    unused_imports,
    reason = "the other test binary uses the rest"
)]

use std::time::Duration;

pub use lab::inline::{X, Y};
use lab::process::{Process, Signal, barewire};
use lab::{End, Inline, Netns, Veth};
use serde_json::Value;

/// Time limit of a program; not a measurement.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Three namespaces in a row, of which the middle one forwards.
pub struct Path(Inline);

impl Path {
    pub fn new(veth: &Veth) -> Path {
        Path(Inline::new(veth).unwrap())
    }

    pub fn a(&self) -> &End {
        self.0.a()
    }

    pub fn b(&self) -> &End {
        self.0.b()
    }

    /// The namespace of the box.
    pub fn ns(&self) -> &Netns {
        self.0.ns()
    }

    /// `ip`'s output for an interface of the box.
    pub fn link(&self, name: &str) -> Value {
        self.0.link(name).unwrap()
    }

    /// Starts `barewire forward` in the box and waits until it forwards.
    pub fn forward(&self, args: &[&str]) -> Forward {
        let process = self
            .ns()
            .spawn(barewire().unwrap(), [&["forward", "--json"], args].concat())
            .unwrap();
        process.wait_stderr("forwarding", LIMIT).unwrap();
        // After a program is attached, the carrier takes a moment (veth turns NAPI on).
        self.a().wait_up(LIMIT).unwrap();
        self.b().wait_up(LIMIT).unwrap();
        Forward { process }
    }
}

/// A running `barewire forward`.
pub struct Forward {
    pub process: Process,
}

impl Forward {
    /// Stops it as Ctrl-C does and returns its account, in which every packet is accounted for.
    pub fn stop(mut self) -> Value {
        let finished = self.process.stop(Signal::SIGINT, LIMIT).unwrap();
        totals(&finished.checked().unwrap().stdout)
    }

    /// Waits until it ends by itself.
    pub fn wait(mut self) -> Value {
        let finished = self.process.wait(LIMIT).unwrap();
        totals(&finished.checked().unwrap().stdout)
    }
}

/// The last line of standard output; checks that every packet is accounted for.
pub fn totals(stdout: &str) -> Value {
    let line = stdout.lines().last().unwrap_or_default();
    let reported: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {stdout}"));
    assert_eq!(reported["type"], "totals", "{reported}");
    for way in reported["directions"].as_array().unwrap() {
        assert_eq!(way["imbalance"], 0, "{reported}");
    }
    for port in reported["ports"].as_array().unwrap() {
        assert_eq!(port["account"]["total"]["imbalance"], 0, "{reported}");
    }
    reported
}

/// A JSON number.
pub fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}
