//! The filter of a file, compiled for each link type whose packets come.
//!
//! Some programs write an interface block for each interface of a machine, also for those without a
//! packet. So a filter is compiled when the first packet of a link type comes. If it compiles for
//! other link types but not for this one, it cannot be true: such packets are rejected and counted.

use std::collections::HashMap;

use sys::Result;

use crate::matcher::Matcher;
use crate::options::{FilterTarget, PortOptions};

/// Link types that show whether an expression is wrong or only unsuitable for one link type:
/// together they have every kind of header that the language knows.
const PROBED: [u16; 9] = [1, 127, 276, 113, 101, 9, 0, 117, 11];

/// The filter for packets of one link type.
#[derive(Clone)]
enum Filter {
    /// Every packet is selected.
    All,
    /// Not compiled yet.
    Later(u16),
    /// Runs on each packet.
    Run(Matcher),
    /// Cannot be true.
    Never,
}

/// The filters of a file's interfaces.
pub(super) struct Filters {
    options: PortOptions,
    /// By index of the interface in the port.
    by_interface: Vec<Filter>,
    by_link: HashMap<u16, Filter>,
    /// Whether every packet of every interface is selected.
    all: bool,
    /// Packets rejected because the filter cannot be used on their link type, since the last
    /// [`Filters::take_unsuitable`].
    unsuitable: u64,
    /// Link types of these that are not reported yet.
    new_links: Vec<u16>,
}

impl Filters {
    pub(super) fn new(options: &PortOptions) -> Self {
        Self {
            options: options.clone(),
            by_interface: Vec::new(),
            by_link: HashMap::new(),
            all: true,
            unsuitable: 0,
            new_links: Vec::new(),
        }
    }

    /// Number of interfaces.
    pub(super) fn len(&self) -> usize {
        self.by_interface.len()
    }

    /// Whether no packet can be rejected.
    pub(super) fn select_all(&self) -> bool {
        self.all
    }

    /// Adds an interface.
    pub(super) fn add(&mut self, link_type: u16) {
        let is_none = self.options.filter.is_none() && self.options.filter_source.is_none();
        let known = self.by_link.get(&link_type).cloned();
        let filter = match is_none {
            true => Filter::All,
            false => known.unwrap_or(Filter::Later(link_type)),
        };
        self.all &= is_none;
        self.by_interface.push(filter);
    }

    /// Checks the expression before the first packet, with the link type of the first interface.
    ///
    /// # Errors
    /// Those of the compiler. If the expression suits other link types, only for a file whose only
    /// link type this is.
    pub(super) fn check(&mut self, link_type: u16, is_only: bool) -> Result<()> {
        let Err(error) = self.compile(link_type) else {
            return Ok(());
        };
        let suits = |link_type: &u16| self.options.for_packets(target(*link_type)).is_ok();
        match !is_only && PROBED.iter().any(suits) {
            true => Ok(()),
            false => Err(error),
        }
    }

    fn compile(&mut self, link_type: u16) -> Result<Filter> {
        let compiled = self.options.for_packets(target(link_type))?.filter;
        let filter = compiled.map_or(Filter::All, |program| Filter::Run(Matcher::new(program)));
        self.by_link.insert(link_type, filter.clone());
        Ok(filter)
    }

    /// Whether the filter selects a packet of an interface.
    #[inline]
    pub(super) fn selects(&mut self, index: u16, bytes: &[u8], wire_len: u32) -> bool {
        loop {
            match self.by_interface.get(usize::from(index)) {
                None | Some(Filter::All) => return true,
                Some(Filter::Run(filter)) => return filter.selects(bytes, wire_len),
                Some(Filter::Never) => {
                    self.unsuitable += 1;
                    return false;
                }
                Some(Filter::Later(link_type)) => self.compile_now(*link_type),
            }
        }
    }

    /// Compiles the filter for all interfaces of a link type.
    #[cold]
    fn compile_now(&mut self, link_type: u16) {
        let known = self.by_link.get(&link_type).cloned();
        let filter = known.unwrap_or_else(|| {
            self.compile(link_type).unwrap_or_else(|_| {
                self.new_links.push(link_type);
                let filter = Filter::Never;
                self.by_link.insert(link_type, filter.clone());
                filter
            })
        });
        for of_interface in &mut self.by_interface {
            if matches!(of_interface, Filter::Later(link) if *link == link_type) {
                *of_interface = filter.clone();
            }
        }
    }

    /// Packets rejected since the last call because the filter cannot be used on their link type,
    /// and link types of these that were not returned before.
    pub(super) fn take_unsuitable(&mut self) -> (u64, Vec<u16>) {
        (
            std::mem::take(&mut self.unsuitable),
            std::mem::take(&mut self.new_links),
        )
    }

    /// Selects every packet from here on.
    pub(super) fn end(&mut self) {
        (self.options.filter, self.options.filter_source) = (None, None);
        self.by_link.clear();
        self.by_interface.fill(Filter::All);
        self.all = true;
    }
}

fn target(link_type: u16) -> FilterTarget {
    FilterTarget {
        link_type,
        tap: None,
    }
}
