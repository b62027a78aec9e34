//! Blocks that are copied as they are.

use super::*;

#[test]
fn blocks_are_copied_whole_in_either_order() {
    let mut file = ng_file();
    file.block(0xbad, &[7; 600_000]);
    let mut reader = Reader::new();
    reader.request_whole_blocks();
    let (mut position, mut copied, mut packets) = (0, Vec::new(), 0);
    while position < file.0.len() {
        let rest = &file.0[position..];
        let event = reader.next(rest).unwrap();
        let bytes = &rest[..event.used()];
        let block = pcapng::Block::of(bytes).unwrap();
        assert!(pcapng::is_block(bytes) && !pcapng::is_block(&bytes[..bytes.len() - 4]));
        if let Event::Packet(packet) = &event {
            assert_eq!(
                (block.packet(), packet.data.len()),
                (packet.data.clone(), block.cap_len as usize)
            );
            // Cut, it is still a block, with the first bytes of its packet.
            let mut out = std::vec![0; bytes.len()];
            let keep = block.cap_len / 2;
            let len = block
                .cut_packet(bytes, packet.data.start, keep, &mut out)
                .unwrap();
            let cut = pcapng::Block::of(&out[..len]).unwrap();
            assert!(cut.cap_len >= keep && cut.cap_len <= keep.next_multiple_of(4));
            let start = packet.data.start;
            assert_eq!(
                out[start..start + keep as usize],
                bytes[start..start + keep as usize]
            );
            packets += 1;
        }
        copied.extend_from_slice(bytes);
        position += event.used();
    }
    assert_eq!((copied == file.0, packets), (true, 6));
}
