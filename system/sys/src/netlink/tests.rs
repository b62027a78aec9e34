//! Built messages can be read back, parsing ends at damage, and the kernel answers.

use super::*;

#[test]
fn built_messages_are_read_back() {
    let message = Message::new(7, 0)
        .raw(&[1, 2, 3])
        .attr_u32(5, 77)
        .nest(6, |m| m.attr_text(1, "name").attr(2, &[9]));
    let reply = Reply {
        kind: 7,
        body: message.bytes[HEADER_LEN..].to_vec(),
    };
    let all: Vec<_> = reply.attributes(3).collect();
    assert_eq!(all[0], (5, &77u32.to_ne_bytes()[..]));
    assert_eq!(all[1].0, 6);
    let inner: Vec<_> = attributes(all[1].1).collect();
    assert_eq!(inner, [(1, &b"name\0"[..]), (2, &[9][..])]);
    assert_eq!(text(inner[0].1), "name");
    assert_eq!(number(inner[1].1), Some(9));
}

#[test]
fn damage_ends_the_walk() {
    let message = Message::new(7, 0).attr_u32(5, 77).attr(6, &[1, 2, 3]);
    let bytes = &message.bytes[HEADER_LEN..];
    for len in 0..bytes.len() {
        assert!(attributes(&bytes[..len]).count() < 2 || len >= bytes.len() - 1);
    }
    // A length below the header's own must not loop or slice backwards.
    for len in 0u16..4 {
        let mut bytes = len.to_ne_bytes().to_vec();
        bytes.extend([0; 6]);
        assert_eq!(attributes(&bytes).count(), 0, "{len}");
    }
    assert_eq!(messages(&[0; 64]).count(), 0);
}

#[test]
fn refusals_have_the_kernels_words() {
    let mut socket = Socket::route().unwrap();
    let none = [0u8; 16];
    let ask = Message::new(libc::RTM_GETLINK, 0)
        .raw(&none)
        .attr_text(3, "no-such-if0");
    let error = socket.request("look for it", ask).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    let family = Socket::generic().unwrap().family("no-such-family");
    assert_eq!(family.unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn families_are_found() {
    let family = Socket::generic().unwrap().family("nlctrl").unwrap();
    assert_eq!((family.id, family.group("notify").is_some()), (16, true));
}
