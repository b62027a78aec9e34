//! A card that barewire drives itself (`vfio:`): no kernel resolves MAC addresses there, or answers
//! for the scan's.

use std::time::{Duration, Instant};

use ::scan::{AddrRange, Advertiser, LinkChange, NextHops, RangeList, Targets};
use port::{Port, PortEvent};
use sys::{Error, ErrorKind, Result};
use wire::Mac;

use super::respond::{Replies, Responder};
use super::{Notice, Scan, now, sweep};
use crate::Stop;

/// How long the link may take to come up before the wait for it is reported.
const QUIET: Duration = Duration::from_secs(10);
/// Interval between two checks.
const LOOK: Duration = Duration::from_millis(20);

/// Whether a port is a card that no kernel interface has.
pub(super) fn is_card(name: &str) -> bool {
    name.starts_with("vfio:")
}

/// What answers for the scan's addresses on a card.
pub(super) struct OwnCard {
    pub responder: Responder,
    /// Its replies, until the sending threads take them.
    pub replies: Option<Replies>,
}

impl Scan {
    /// Takes the MAC address of a card and waits for its link; `None` for other ports.
    pub(super) fn own_card(
        &self,
        port: &mut Port,
        stop: &Stop,
        notice: &mut impl FnMut(Notice<'_>) -> Result<()>,
    ) -> Result<Option<OwnCard>> {
        let Some(mac) = port.control.mac().map(Mac) else {
            return Ok(None);
        };
        self.local.set_mac(mac);
        wait_for_link(port, stop, notice)?;
        let advertiser = Advertiser {
            source: self.local.source,
            mac,
        };
        let (responder, replies) = Responder::new(advertiser);
        Ok(Some(OwnCard {
            responder,
            replies: Some(replies),
        }))
    }

    /// Learns the next hops of all targets, which are resolved on the card itself.
    pub(super) fn hops_by(
        &self,
        on: sweep::On<'_>,
        hops: &mut NextHops,
        stop: &Stop,
    ) -> Result<()> {
        let routers = self.local.routers_needed(&self.addresses, &self.on_link)?;
        let ranges = routers.iter().copied().map(AddrRange::single);
        let ranges: RangeList = self.on_link.ranges().chain(ranges).collect();
        let asked = Targets::new(ranges, Vec::new()).unwrap_or_default();
        if asked.count() == 0 {
            return Ok(());
        }
        let found = sweep::resolve(&self.local, on, &asked, &self.setup.rate, stop)?;
        for router in routers {
            let Some(mac) = found.get(&router).copied() else {
                // Nothing is sent any more.
                if stop.is_set() {
                    continue;
                }
                let what = format!("find the router {router}");
                let why = format!(
                    "no answer to ARP or Neighbor Discovery on {}",
                    self.local.name
                );
                return Err(Error::new(ErrorKind::NotFound, what, why)
                    .with_hint("check --router-ip, or give --router-mac MAC"));
            };
            match router.is_ipv6() {
                true => hops.router_v6 = Some(mac),
                false => hops.router_v4 = Some(mac),
            }
        }
        hops.learn_all(found);
        Ok(())
    }
}

/// Waits until the link is up: it comes up after the card is opened.
fn wait_for_link(
    port: &mut Port,
    stop: &Stop,
    notice: &mut impl FnMut(Notice<'_>) -> Result<()>,
) -> Result<()> {
    let began = Instant::now();
    let mut is_reported = false;
    loop {
        // What has happened until here is no change of the scan's link.
        while let Some(event) = port.control.event() {
            if event == PortEvent::DeviceGone {
                let what = format!("scan on {}", port.name);
                return Err(Error::new(ErrorKind::Gone, what, "the card is gone"));
            }
        }
        if port.control.link_is_up() != Some(false) || stop.is_set() {
            break;
        }
        if !is_reported && began.elapsed() >= QUIET {
            is_reported = true;
            notice(Notice::Link(LinkChange::Down, now()))?;
        }
        std::thread::sleep(LOOK);
    }
    if is_reported && !stop.is_set() {
        notice(Notice::Link(LinkChange::Up(began.elapsed()), now()))?;
    }
    Ok(())
}
