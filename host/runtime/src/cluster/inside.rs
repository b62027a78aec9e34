//! Opens what sends in the process of a cluster: the ports of the return path, and those that take
//! the place of readers.

use port::{Intake, Port, PortDescription, PortOptions};
use ring::Pool;
use ring::shared::{Offer, OwnerEnd, Terms};
use sys::Result;
use sys::memfd::Access;

use super::application::Application;
use super::back::Back;
use super::returns::{self, Lane, Opener};
use super::setup::{Setup, interfaces, what};

/// What sends.
pub(super) struct Sending {
    pub back: Back,
    pub lanes: Vec<Lane>,
    /// The queues that ports read.
    pub read_inside: Vec<usize>,
}

/// What ports that send are opened over.
pub(super) struct Inside<'a> {
    pub setup: &'a Setup,
    pub pool: &'a Pool,
    pub offer: &'a Offer,
    pub description: &'a PortDescription,
}

impl Inside<'_> {
    /// Opens the ports of the return path, of which those in `open` are inputs as well, and those
    /// that are readers.
    pub fn open(self, mut open: Vec<(String, Port)>, ends: &mut [OwnerEnd]) -> Result<Sending> {
        let setup = self.setup;
        let what = || what(&setup.name);
        let opener = Opener {
            what: &what,
            options: &setup.options,
            pool: self.pool,
        };
        let (mut lanes, mut outputs) = (Vec::new(), Vec::new());
        for named in returns::distinct(&setup.applications, &setup.returns) {
            let at = open.iter().position(|(name, _)| *name == named.port);
            let port = at.map(|at| open.swap_remove(at).1);
            let (lane, tx) = opener.give_back(named, port)?;
            lanes.push(lane);
            outputs.push(tx);
        }
        let (applications, returns) = (&setup.applications, &setup.returns);
        let interface_count = match self.description.intake {
            Intake::File => None,
            _ => Some(interfaces(self.description).len().max(1) as u16),
        };
        let inputs = &setup.inputs;
        let back = Back::new(applications, returns, inputs, outputs, interface_count);
        for (queue, end) in ends.iter_mut().enumerate() {
            end.set_may_send(back.may_send(queue));
        }
        let mut read_inside = Vec::new();
        for named in returns::reading(applications) {
            let its = |it: &&Application| it.name != named.reader_of;
            let before = applications.iter().take_while(its);
            let queue = before.map(|it| it.queue_count).sum::<u32>();
            let peer = self.offer.join(&mut ends[queue as usize], Access::Read)?;
            let terms = Terms {
                queue,
                interfaces: interfaces(self.description),
            };
            let rx = PortOptions {
                batch_max: setup.options.batch_max,
                ..PortOptions::default()
            };
            let from = port::of_peer(peer, &terms, &setup.name, &rx)?;
            lanes.push(opener.read(named, from)?);
            read_inside.push(queue as usize);
        }
        Ok(Sending {
            back,
            lanes,
            read_inside,
        })
    }
}
