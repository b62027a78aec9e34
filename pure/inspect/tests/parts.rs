//! The parts of the crate used alone, by programs without a flow table: with their own TCP, or
//! their own frames.

mod samples;

use barewire_inspect::identify::{Found, Identifier, StreamStart};
use barewire_inspect::{
    Application, Conversation, Decoders, Direction, End, Field, Origin, Tools, Transport, Value,
    laws,
};

fn text(application: &Application, field: Field) -> Option<String> {
    match application.get(field)? {
        Value::Text { bytes, .. } => Some(String::from_utf8_lossy(bytes).into_owned()),
        other => Some(format!("{other:?}")),
    }
}

/// A scanner reads banners with its own TCP: no segments, no sequence numbers.
#[test]
fn a_conversation_reads_streams_reassembled_elsewhere() {
    let mut tools = Tools::new(Decoders::ALL, 2);
    for sample in samples::all() {
        if sample.transport != Transport::Tcp {
            continue;
        }
        let (mut conversation, mut found) = (Conversation::NEW, Application::EMPTY);
        for (from, bytes) in sample.pieces() {
            let origin = Origin {
                from,
                time_ns: 7,
                ports: sample.ports,
            };
            let end = conversation.stream(&origin, bytes, &mut tools, &mut found);
            if end.is_some() {
                break;
            }
        }
        conversation.finish(&mut tools, &mut found);
        assert!(tools.arena().is_empty(), "{}", sample.name);
        let by_segments = laws::whole(&sample.pieces(), sample.ports);
        assert_eq!(found.bytes(), by_segments.bytes(), "{}", sample.name);
    }
}

#[test]
fn a_banner_is_read_in_four_lines() {
    let mut tools = Tools::new(Decoders::ALL, 1);
    let (mut conversation, mut found) = (Conversation::NEW, Application::EMPTY);
    let origin = Origin {
        from: Direction::Reverse,
        time_ns: 0,
        ports: [40_000, 2222],
    };
    let banner = b"SSH-2.0-OpenSSH_9.2p1\r\n";
    let end = conversation.stream(&origin, banner, &mut tools, &mut found);
    assert_eq!((end, found.protocol().name()), (None, "ssh"));
    assert_eq!(
        text(&found, Field::SshServer).as_deref(),
        Some("SSH-2.0-OpenSSH_9.2p1")
    );
    // No room for another: reported, not waited for.
    let mut other = Conversation::NEW;
    let hello = b"\x16\x03\x01\x02\x00\x01";
    let end = other.stream(&origin, hello, &mut tools, &mut { Application::EMPTY });
    assert_eq!(end, Some(End::NoRoom));
    conversation.finish(&mut tools, &mut found);
}

#[test]
fn the_automaton_works_alone() {
    let identifier = Identifier::new(Decoders::ALL);
    let mut beginning = StreamStart::NEW;
    let (found, used) = identifier.stream(&mut beginning, b"GE", [1, 2]);
    assert_eq!((found, used), (Found::Undecided, 2));
    let (found, used) = identifier.stream(&mut beginning, b"T /index.html", [1, 2]);
    let Found::Known(row) = found else {
        panic!("{found:?}");
    };
    assert_eq!(
        (row.row().name, used, beginning.bytes()),
        ("http", 3, &b"GET /"[..])
    );
}
