//! Property tests: what must hold for any input from a netlink socket. Used by tests and a fuzz
//! target; they panic if a property is violated. Not part of the interface.

use super::{Family, HEADER_LEN, Reply, attributes, check_error, messages, number, text};
use crate::link::Link;
use crate::neighbour::{self, Neighbour};
use crate::route;

/// How deeply nested attributes are followed.
const DEPTH_MAX: u32 = 6;

/// Treats any bytes as one piece read from a socket: its messages lie within it, each is parsed as
/// every supported kind, and an error has a message.
pub fn reply_input(input: &[u8]) {
    let mut taken = 0;
    let mut replies = Vec::new();
    for (head, body) in messages(input) {
        taken += HEADER_LEN + body.len();
        assert!(taken <= input.len(), "bytes are in two messages");
        let is_refusal = body.first_chunk().is_some_and(|code| *code != [0; 4]);
        match check_error("try", head.flags, body) {
            Ok(()) => assert!(!is_refusal),
            Err(error) => assert!(is_refusal && !error.to_string().is_empty()),
        }
        let body = body.to_vec();
        for fixed_len in [0, 4, 12, 16] {
            let reply = Reply {
                kind: head.kind,
                body: body.clone(),
            };
            let bytes = body.get(fixed_len..).unwrap_or(&[]);
            assert!(reply.attributes(fixed_len).eq(attributes(bytes)));
            nested(bytes, 0);
        }
        link_and_route(&body);
        replies.push(Reply {
            kind: head.kind,
            body,
        });
    }
    let family = Family::of(&replies);
    assert!(family.groups.len() * 4 <= input.len());
    for (name, id) in &family.groups {
        let found = family.group(name);
        assert!(found == Some(*id) || family.groups.iter().filter(|(n, _)| n == name).count() > 1);
    }
}

/// Attributes, also nested ones, lie within the bytes that contain them.
fn nested(bytes: &[u8], depth: u32) {
    let mut taken = 0;
    for (_, value) in attributes(bytes) {
        taken += 4 + value.len();
        assert!(taken <= bytes.len(), "bytes are in two attributes");
        assert!(number(value).is_none_or(|_| value.len() <= 8));
        assert!(!text(value).contains('\0'));
        if depth < DEPTH_MAX {
            nested(value, depth + 1);
        }
    }
}

fn link_and_route(body: &[u8]) {
    let as_kind = |kind| Reply {
        kind,
        body: body.to_vec(),
    };
    if let Some(link) = Link::parse(&as_kind(libc::RTM_NEWLINK)) {
        assert!(link.address.len() <= body.len() && link.xdp.len() * 4 <= body.len());
    }
    if let Some(route) = route::parse(&as_kind(libc::RTM_NEWROUTE)) {
        assert!(route.interfaces.len() * 4 <= body.len());
    }
    if let Some(neighbour) = Neighbour::parse(&as_kind(libc::RTM_NEWNEIGH)) {
        assert!(neighbour.address.len() + neighbour.link_address.len() <= 2 * body.len());
    }
    let gateway = neighbour::gateway(&as_kind(libc::RTM_NEWROUTE));
    assert!(gateway.is_none() || body.len() >= 16);
}
