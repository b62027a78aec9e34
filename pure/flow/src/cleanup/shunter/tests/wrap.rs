//! Sequence numbers near 2^31 and 2^32: what passes is what passes elsewhere.

use super::*;

/// A segment: whether it is the client's, its flags, offsets of its number and acknowledgment from
/// the start of the server's data and of the client's, and the length of its data.
type Step = (bool, u16, u32, u32, usize);

/// A download beyond its limit (1 KiB), with segments out of order, and the acknowledgements after
/// it; and whether each passes.
const SCRIPT: &[(Step, bool)] = &[
    ((true, ACK, 0, 0, 40), true),
    ((false, ACK, 0, 40, 300), true),
    // The third before the second.
    ((false, ACK, 600, 40, 300), true),
    ((false, ACK, 300, 40, 300), true),
    // Beyond the limit: left out, and not waited for.
    ((false, ACK, 900, 40, 300), false),
    ((false, ACK, 1200, 40, 300), false),
    // All up to the first that covers the 900 bytes.
    ((true, ACK, 40, 300, 0), true),
    ((true, ACK, 40, 899, 0), true),
    ((true, ACK, 40, 0, 0), true),
    ((true, ACK, 40, 900, 0), true),
    ((true, ACK, 40, 901, 0), false),
    ((true, ACK, 40, 1200, 0), false),
    // The server's acknowledgement of the request came before.
    ((false, ACK, 1500, 39, 0), true),
    ((false, ACK, 1500, 40, 0), true),
    ((false, ACK, 1500, 41, 0), false),
    ((false, ACK | flag::FIN, 1500, 40, 0), true),
];

#[test]
fn sequence_numbers_may_wrap_anywhere() {
    let limits = [1_u64 << 31, 1 << 32].map(|limit| limit as u32);
    let mut flow = 0;
    for (server_limit, client_limit) in [(limits[0], limits[1]), (limits[1], limits[0])] {
        // The limit is before, at, within and behind each segment of the server, or of the client.
        for distance in (0..1600)
            .step_by(50)
            .chain([1, 299, 301, 599, 601, 899, 901])
        {
            let server = server_limit.wrapping_sub(distance);
            let client = client_limit.wrapping_sub(distance / 20);
            let mut shunter = shunter("1k");
            flow += 1;
            for (number, ((is_client, flags, sequence, ack, len), expected)) in
                SCRIPT.iter().enumerate()
            {
                let [own, other] = match is_client {
                    true => [client, server],
                    false => [server, client],
                };
                let numbers = [own.wrapping_add(*sequence), other.wrapping_add(*ack)];
                let packet = tcp(flow, *is_client, *flags, numbers, &vec![7; *len]);
                let what = format!("step {number} at {server:#x} and {client:#x}");
                assert_eq!(passes(&mut shunter, &packet, S), *expected, "{what}");
            }
        }
    }
}
