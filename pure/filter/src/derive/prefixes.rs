//! The networks that hold most of a flood's addresses and few of the good ones.

use super::packet::Field;
use super::test::{PACKETS_MIN, PREFIX_MIN};

/// What another network has to gain, as a share of the flood.
const COST: f64 = 0.002;
/// Minimum number of different addresses in a network; fewer are hosts.
const HOSTS_MIN: usize = 8;

/// A network.
pub(super) struct Network {
    pub(super) prefix: (u128, u32),
    /// Number of packets with an address in it.
    pub(super) count: u32,
}

/// Addresses in ascending order, and sums over those before each.
struct Tree<'a> {
    values: &'a [u128],
    bits: u32,
    len_min: u32,
    counts: Vec<u32>,
    /// Number of different addresses of packets.
    hosts: Vec<u32>,
    gains: Vec<f64>,
}

/// A network by the ranks of its addresses.
#[derive(Clone, Copy)]
struct Node {
    start: usize,
    end: usize,
    len: u32,
}

/// Disjoint networks with the greatest sum of gains, less a cost for each; the largest first. The
/// counts are those of the packets that the networks are for; each network is as narrow as these
/// packets allow.
pub(super) fn best(field: &Field, values: &[u128], counts: &[u32], gains: &[f64]) -> Vec<Network> {
    let tree = Tree::new(field, values, counts, gains);
    let (_, nodes) = tree.best(0, values.len());
    let mut found: Vec<Network> = nodes.into_iter().map(|node| tree.network(node)).collect();
    found.sort_by_key(|network| std::cmp::Reverse(network.count));
    found
}

/// The narrowest network with this share of the packets, more than half of them.
pub(super) fn narrowest(
    field: &Field,
    values: &[u128],
    counts: &[u32],
    share: f64,
) -> Option<Network> {
    let tree = Tree::new(field, values, counts, &vec![0.0; values.len()]);
    let least = (share * f64::from(tree.count(0, values.len()))).max(1.0);
    let (mut start, mut end) = (0, values.len());
    let mut found = None;
    while f64::from(tree.count(start, end)) >= least {
        let node = tree.node(start, end);
        found = Some(node);
        let Some(middle) = tree.middle(node) else {
            break;
        };
        let is_low = tree.count(node.start, middle) > tree.count(middle, node.end);
        (start, end) = match is_low {
            true => (node.start, middle),
            false => (middle, node.end),
        };
    }
    found
        .filter(|node| node.len >= tree.len_min)
        .map(|node| tree.network(node))
}

impl<'a> Tree<'a> {
    fn new(field: &Field, values: &'a [u128], counts: &[u32], gains: &[f64]) -> Self {
        let mut tree = Tree {
            values,
            bits: 8 * field.len as u32,
            len_min: PREFIX_MIN[usize::from(field.class.is_v6)],
            counts: vec![0],
            hosts: vec![0],
            gains: vec![0.0],
        };
        let (mut count, mut hosts, mut gain) = (0, 0, 0.0);
        for at in 0..values.len() {
            count += counts[at];
            hosts += u32::from(counts[at] > 0);
            gain += gains[at];
            tree.counts.push(count);
            tree.hosts.push(hosts);
            tree.gains.push(gain);
        }
        tree
    }

    fn network(&self, node: Node) -> Network {
        Network {
            prefix: (self.prefix(node.start, node.len), node.len),
            count: self.count(node.start, node.end),
        }
    }

    fn count(&self, start: usize, end: usize) -> u32 {
        self.counts[end] - self.counts[start]
    }

    /// The leading bits of an address, the others zero.
    fn prefix(&self, at: usize, len: u32) -> u128 {
        match self.bits - len {
            128 => 0,
            shift => self.values[at] >> shift << shift,
        }
    }

    /// The narrowest network for the packets among these addresses, at least one.
    fn node(&self, start: usize, end: usize) -> Node {
        // The first and the last address that packets have.
        let first = self
            .counts
            .partition_point(|sum| *sum <= self.counts[start])
            - 1;
        let last = self.counts.partition_point(|sum| *sum < self.counts[end]) - 1;
        let same = (self.values[first] ^ self.values[last]).leading_zeros();
        let len = same - (128 - self.bits);
        let prefix = self.prefix(first, len);
        let is_in = |at: &usize| self.prefix(*at, len) == prefix;
        let start = (start..first)
            .rev()
            .take_while(is_in)
            .last()
            .unwrap_or(first);
        let last = (last + 1..end).take_while(is_in).last().unwrap_or(last);
        Node {
            start,
            end: last + 1,
            len,
        }
    }

    /// Where the next bit becomes 1; `None` if there is no next bit.
    fn middle(&self, node: Node) -> Option<usize> {
        let bit = self.bits.checked_sub(node.len + 1)?;
        let of_node = &self.values[node.start..node.end];
        Some(node.start + of_node.partition_point(|value| value >> bit & 1 == 0))
    }

    /// The best networks among these addresses, and the sum of their gains. The recursion is as
    /// deep as an address has bits.
    fn best(&self, start: usize, end: usize) -> (f64, Vec<Node>) {
        if (self.count(start, end) as usize) < PACKETS_MIN {
            return (0.0, Vec::new());
        }
        let node = self.node(start, end);
        let hosts = (self.hosts[node.end] - self.hosts[node.start]) as usize;
        let is_network = node.len >= self.len_min && hosts >= HOSTS_MIN;
        let own = match is_network || node.len == self.bits {
            true => self.gains[node.end] - self.gains[node.start] - COST,
            false => f64::NEG_INFINITY,
        };
        let (parts, mut nodes) = match self.middle(node) {
            Some(middle) => {
                let (zeros, mut nodes) = self.best(node.start, middle);
                let (ones, more) = self.best(middle, node.end);
                nodes.extend(more);
                (zeros + ones, nodes)
            }
            None => (0.0, Vec::new()),
        };
        if own > 0.0 && own >= parts {
            nodes = vec![node];
        }
        (own.max(parts), nodes)
    }
}
