//! Three namespaces in a row: two hosts, and a box between them.
//!
//! ```text
//!   A: left0 ── X: right0   the box   Y: left0 ── B: right0
//! ```
//!
//! A and B have addresses in one network and static neighbour entries; the box has no addresses.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::veth::{LEFT, RIGHT};
use crate::{End, Netns, Pair, Veth};

/// The box's interface towards A.
pub const X: &str = RIGHT;
/// The box's interface towards B.
pub const Y: &str = LEFT;

/// How long a link may take to come up.
const LIMIT: Duration = Duration::from_secs(20);

/// A, the box, and B; deleted on drop.
#[derive(Debug)]
pub struct Inline {
    left: Pair,
    right: Pair,
}

impl Inline {
    /// Creates two pairs like this, and moves an end of each into the box.
    ///
    /// # Errors
    /// As [`Veth::create`].
    pub fn new(veth: &Veth) -> Result<Inline> {
        let (left, right) = (veth.create()?, veth.create()?);
        // The box is the namespace of the left pair's right end; the other end moves there.
        let there = left.right.ns.name();
        right.left.ns.ip(["link", "set", Y, "netns", there])?;
        let row = Inline { left, right };
        let ns = row.ns();
        ns.sysctl(&format!("net/ipv6/conf/{Y}/disable_ipv6"), "1")?;
        ns.ip(["address", "flush", "dev", X])?;
        ns.ip(["link", "set", Y, "up"])?;
        row.b().wait_up(LIMIT)?;
        Ok(row)
    }

    /// The host at one end.
    pub fn a(&self) -> &End {
        &self.left.left
    }

    /// The host at the other end.
    pub fn b(&self) -> &End {
        &self.right.right
    }

    /// The box's interface towards A.
    pub fn x(&self) -> &End {
        &self.left.right
    }

    /// The namespace of the box.
    pub fn ns(&self) -> &Netns {
        &self.left.right.ns
    }

    /// `ip`'s output for an interface of the box.
    ///
    /// # Errors
    /// If there is none of this name.
    pub fn link(&self, name: &str) -> Result<Value> {
        let args = ["-s", "-s", "-j", "-d", "link", "show", "dev", name];
        let text = self.ns().ip(args)?;
        let mut value: Value = serde_json::from_str(&text).context("JSON of ip link")?;
        Ok(value[0].take())
    }
}
