//! Segments with a wrong checksum, with that of the pseudo header only, and the peer's MSS.

use super::*;

const GREETING: &[u8] = b"220 mail.example ESMTP\r\n";

/// Returns the segments that are sent.
pub(super) fn sent(grabber: &mut BannerGrabber<'_>) -> Vec<Segment> {
    let mut out = [0; 2048];
    let mut segments = Vec::new();
    while grabber.next_len().is_some() {
        let len = grabber.write(&mut out).unwrap();
        segments.push(Segment::of(&out[..len]));
    }
    segments
}

#[test]
fn a_wrong_checksum_is_a_lost_segment() {
    let scene = Scene::new("25");
    let server = Server::new(Manner::says(GREETING), scene.syn(25));
    let none = &mut |_| panic!("no banner");
    for (change, is_valid) in [
        (&(|_: &mut Vec<u8>| {}) as &dyn Fn(&mut Vec<u8>), true),
        (&|packet| packet[50] ^= 1, false),
        (&|packet| packet[40] ^= 0x80, false),
        // What the kernel hands out where the card would complete it.
        (
            &|packet| {
                let len = (packet.len() - 34) as u16;
                let sum = !Sum::new().add_pseudo_ipv4(SERVER, CLIENT, 6, len).finish();
                packet[50..52].copy_from_slice(&sum.to_be_bytes());
            },
            true,
        ),
    ] {
        let mut grabber = scene.grabber(10);
        let mut packet = server.syn_ack().packet();
        change(&mut packet);
        let answer = AnswerClassifier::new(&scene.plan, &scene.cookies).classify(&packet);
        assert_eq!(answer.unwrap().is_intact(&packet), is_valid);
        grabber.receive(&packet, 0, none);
        assert_eq!(grabber.counted().connections, u64::from(is_valid));
        if !is_valid {
            continue;
        }
        let mut data = server.flight()[0].packet();
        let last = data.len() - 1;
        data[last] ^= 0xff;
        sent(&mut grabber);
        grabber.receive(&data, MS, none);
        assert_eq!(sent(&mut grabber).len(), 0);
        data[last] ^= 0xff;
        grabber.receive(&data, MS, none);
        assert_eq!(
            sent(&mut grabber)[0].ack,
            server.base.wrapping_add(1 + GREETING.len() as u32)
        );
    }
}

/// A SYN+ACK with these options.
fn with_options(segment: &Segment, options: &[u8]) -> Vec<u8> {
    let mut packet = segment.packet();
    packet[46] = 0x50 + (options.len() as u8 / 4) * 16;
    packet.extend(options);
    let len = (packet.len() - 14) as u16;
    packet[16..18].copy_from_slice(&len.to_be_bytes());
    packet[50..52].fill(0);
    let sum = Sum::new().add_pseudo_ipv4(SERVER, CLIENT, 6, len - 20);
    let sum = sum.add_bytes(&packet[34..]).finish();
    packet[50..52].copy_from_slice(&sum.to_be_bytes());
    packet
}

#[test]
fn segments_are_not_longer_than_the_peer_allows() {
    let scene = Scene::new("443");
    // The hello of TLS is shorter than the least segment that every host accepts.
    const HELLO_LEN: usize = 324;
    for (options, len) in [
        (&[][..], HELLO_LEN),
        (&[2, 4, 5, 0xb4], HELLO_LEN),
        (&[1, 1, 1, 1, 2, 4, 1, 44], 300),
        (&[2, 4, 0, 100], 100),
        (&[2, 4, 0, 0], 1),
    ] {
        let server = Server::new(Manner::says(b""), scene.syn(443));
        let mut grabber = scene.grabber(10);
        let none = &mut |_| panic!("no banner");
        let packet = with_options(&server.syn_ack(), options);
        grabber.receive(&packet, 0, none);
        assert_eq!(sent(&mut grabber)[0].data.len(), len, "{options:?}");
        // So are those that are sent again.
        let due_ns = grabber.due_ns().unwrap();
        grabber.tick(due_ns, none);
        assert_eq!(sent(&mut grabber)[0].data.len(), len, "{options:?}");
    }
}
