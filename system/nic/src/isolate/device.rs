//! The requests to a card that isolating a queue needs.

use std::os::unix::fs::MetadataExt;

use sys::ethtool::{Ethtool, NtupleFeature, Rule, RuleTable};
use sys::link::Link;
use sys::{Error, Result};

/// A card's steering. `None`: its driver does not have it.
pub trait Device {
    /// Name of the interface.
    fn name(&self) -> String;

    /// What identifies the interface on this machine, across renaming: a file name.
    fn key(&self) -> String;

    /// Driver and bus address, on one line.
    fn card(&self) -> String;

    /// Number of receive queues.
    fn ring_count(&self) -> Result<Option<u32>>;

    /// The RSS indirection table.
    fn table(&self) -> Result<Option<Vec<u32>>>;

    /// The indirection table of a further RSS context.
    fn context_table(&self, context: u32) -> Result<Option<Vec<u32>>>;

    /// Replaces the indirection table; an empty one means the kernel's default.
    fn set_table(&self, table: &[u32]) -> Result<()>;

    /// The feature that allows rules.
    fn ntuple(&self) -> Result<Option<NtupleFeature>>;

    /// Switches it.
    fn set_ntuple(&self, on: bool) -> Result<()>;

    /// The rules.
    fn rules(&self) -> Result<Option<RuleTable>>;

    /// Adds a rule; returns its location.
    fn insert(&self, rule: &Rule, queue: u32, location: Option<u32>) -> Result<u32>;

    /// Deletes the rule at a location.
    fn delete(&self, location: u32) -> Result<()>;
}

/// An interface of this network namespace.
#[derive(Debug)]
pub struct Live {
    ethtool: Ethtool,
    name: String,
    index: u32,
    namespace: u64,
}

impl Live {
    /// Opens an interface by its name.
    ///
    /// # Errors
    /// `NotFound` if it does not exist.
    pub fn by_name(name: &str) -> Result<Self> {
        Self::of(Link::by_name(name)?)
    }

    /// Opens an interface by its index.
    ///
    /// # Errors
    /// `NotFound` if it does not exist.
    pub fn by_index(index: u32) -> Result<Self> {
        Self::of(Link::by_index(index)?)
    }

    /// Its index.
    pub fn index(&self) -> u32 {
        self.index
    }

    fn of(link: Link) -> Result<Self> {
        let file = "/proc/thread-self/ns/net";
        let namespace = std::fs::metadata(file).map_err(|e| Error::from_io(file, e))?;
        Ok(Self {
            ethtool: Ethtool::open()?,
            name: link.name,
            index: link.index,
            namespace: namespace.ino(),
        })
    }
}

impl Device for Live {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn key(&self) -> String {
        format!("{}-{}", self.namespace, self.index)
    }

    fn card(&self) -> String {
        let info = self.ethtool.driver_info(&self.name).ok().flatten();
        let info = info.unwrap_or_default();
        let text = format!("{} {}", info.driver, info.bus);
        text.replace(char::is_control, " ").trim().to_owned()
    }

    fn ring_count(&self) -> Result<Option<u32>> {
        self.ethtool.rx_ring_count(&self.name)
    }

    fn table(&self) -> Result<Option<Vec<u32>>> {
        Ok(self.ethtool.rss(&self.name)?.map(|rss| rss.table))
    }

    fn context_table(&self, context: u32) -> Result<Option<Vec<u32>>> {
        self.ethtool.context_table(&self.name, context)
    }

    fn set_table(&self, table: &[u32]) -> Result<()> {
        self.ethtool.set_indirection(&self.name, table)
    }

    fn ntuple(&self) -> Result<Option<NtupleFeature>> {
        self.ethtool.ntuple(&self.name)
    }

    fn set_ntuple(&self, on: bool) -> Result<()> {
        self.ethtool.set_ntuple(&self.name, on)
    }

    fn rules(&self) -> Result<Option<RuleTable>> {
        self.ethtool.rule_table(&self.name)
    }

    fn insert(&self, rule: &Rule, queue: u32, location: Option<u32>) -> Result<u32> {
        self.ethtool.insert_rule(&self.name, rule, queue, location)
    }

    fn delete(&self, location: u32) -> Result<()> {
        self.ethtool.delete_rule(&self.name, location)
    }
}
