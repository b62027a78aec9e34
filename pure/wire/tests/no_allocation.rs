//! Dissection, printing, checksums and file framing do not allocate, checked by a per-thread
//! counting allocator. The crate is `no_std` without `alloc`, so this can fail only if that
//! changes.

use barewire_wire::file::{Event, Interface, Reader, pcap};
use barewire_wire::table::PROTOCOLS;
use barewire_wire::{Dissection, LinkType, Summary, Timestamp, checksum, dissect, dissect_inner};
use std::fmt::Write;

struct Sink(usize);

impl Write for Sink {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0 += text.len();
        Ok(())
    }
}

fn packets() -> Vec<(LinkType, Vec<u8>)> {
    let links = PROTOCOLS
        .iter()
        .flat_map(|row| row.links.iter().map(move |l| (*l, row)));
    let tagged = PROTOCOLS
        .iter()
        .flat_map(|row| row.ether_types.iter().map(move |t| (*t, row)));
    let mut all: Vec<_> = links
        .map(|(link, row)| (link, row.sample.to_vec()))
        .collect();
    all.extend(tagged.map(|(ether_type, row)| {
        let head = [
            &[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2][..],
            &ether_type.to_be_bytes(),
        ]
        .concat();
        (LinkType::ETHERNET, [&head, row.sample].concat())
    }));
    all
}

#[test]
fn the_counter_counts() {
    let counted = allocation_counter::measure(|| drop(std::hint::black_box(vec![1u8; 100])));
    assert_eq!(counted.count_total, 1);
}

#[test]
fn nothing_is_allocated() {
    let packets = packets();
    let mut file = Vec::new();
    let mut head = [0; pcap::HEADER_LEN];
    pcap::emit_header(
        &mut head,
        LinkType::ETHERNET,
        0,
        pcap::Precision::Nanoseconds,
    );
    file.extend(head);
    for (_, packet) in &packets {
        let mut record = [0; pcap::RECORD_LEN];
        let len = packet.len() as u32;
        pcap::emit_record(
            &mut record,
            Timestamp(1),
            len,
            len,
            pcap::Precision::Nanoseconds,
        );
        file.extend(record);
        file.extend(packet);
    }

    let (mut levels, mut printed, mut read) = (0, Sink(0), 0);
    let counted = allocation_counter::measure(|| {
        for (link, packet) in &packets {
            let mut level = Dissection::EMPTY;
            dissect(*link, packet, packet.len() as u32, &mut level);
            write!(
                printed,
                "{}",
                Summary {
                    dissection: &level,
                    bytes: packet
                }
            )
            .unwrap();
            printed.0 += usize::from(checksum::checksum(packet));
            let mut inner = Dissection::EMPTY;
            levels += 1;
            while dissect_inner(packet, &level, &mut inner) {
                level = inner;
                levels += 1;
            }
        }
        let mut reader = Reader::with([Interface::default(); 1], 65_536);
        let mut at = 0;
        loop {
            match reader.next(&file[at..]).unwrap() {
                Event::Need(_) => break,
                event => {
                    read += usize::from(matches!(event, Event::Packet(_)));
                    at += event.used();
                }
            }
        }
    });
    assert!(levels > packets.len() && printed.0 > 0);
    assert_eq!(read, packets.len());
    assert_eq!(counted.count_total, 0);
}
