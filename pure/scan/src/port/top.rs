//! Ranking of ports to scan first: services by how often they are reachable, and how relevant they
//! are to someone who scans a network. The ranking is our own estimate, from no other program's
//! list; the ports listed here are followed by all others, in order. `tests/top_ports.rs` compares
//! it with the frequencies that nmap's authors have measured.

use super::Protocol;

/// TCP: web, remote access, mail, files and directories, databases, then the rest.
#[rustfmt::skip]
const TCP: &[u16] = &[
    443, 80, 22, 3389, 445, 8080, 21, 25, 8443, 53, 23, 3306, 5900, 139, 135, 143, 993, 110,
    995, 587, 465, 111, 5432, 1433, 6379, 8000, 27017, 9200, 5060, 1723, 8888, 2222, 7547, 8081,
    554, 389, 636, 88, 179, 2049, 5985, 5986, 1521, 11211, 1883, 8883, 6443, 2375, 2376, 10250,
    9090, 3000, 5000, 5001, 5601, 9100, 631, 515, 873, 548, 8008, 8009, 81, 82, 83, 8082,
    8083, 8088, 8090, 8181, 8880, 8889, 9000, 9001, 9080, 9443, 4443, 10443, 7443, 2082, 2083,
    2086, 2087, 2095, 2096, 2077, 2078, 10000, 20000, 7001, 7002, 4848, 8161, 61616, 5672, 5671,
    15672, 4369, 25672, 2181, 9092, 2379, 2380, 8500, 8600, 4646, 8200, 50070, 50075, 8020,
    9042, 9160, 7000, 7199, 5984, 28017, 27018, 27019, 26379, 6380, 7474, 7687, 8086, 3307,
    33060, 1434, 1526, 50000, 3050, 9300, 6666, 6667, 6697, 194, 5222, 5223, 5269, 5280, 1935,
    8554, 5061, 2000, 1720, 3478, 5349, 500, 1194, 1701, 4500, 51820, 3128, 1080, 8118, 9050,
    8123, 5555, 5800, 5901, 5902, 6000, 6001, 5938, 4899, 3283, 22022, 2022, 222, 10022, 24, 26,
    2525, 366, 691, 2121, 990, 989, 69, 115, 2323, 992, 107, 512, 513, 514, 544, 543, 1099,
    1098, 4444, 8787, 5005, 9999, 3690, 9418, 8140, 8089, 8834, 9389, 3268, 3269, 464, 593,
    49152, 49153, 49154, 49155, 49664, 49665, 49666, 49667, 47001, 902, 903, 8006, 16509, 5480,
    623, 5988, 5989, 17988, 17990, 161, 199, 705, 10050, 10051, 5666, 5693, 1311, 8383, 4040,
    7070, 7080, 8010, 8060, 8085, 8091, 8092, 8093, 8096, 8099, 8100, 8112, 8126, 8180, 8188,
    8222, 8280, 8300, 8333, 8444, 8543, 8545, 9002, 9008, 9030, 9091, 9093, 9094, 9095, 9110,
    9111, 9191, 9201, 9600, 9944, 18080, 18081, 30303, 37777, 34567, 8291, 8728, 8729, 502, 102,
    20256, 44818, 2404, 47808, 1911, 4911, 20547, 789, 1962, 2455, 5094, 13, 7, 9, 19, 17,
    37, 79, 70, 113, 119, 563, 427, 123, 43, 49, 1812, 3868, 2775, 5038, 4569, 6789, 1900, 5357,
    62078, 7100, 177, 1241, 9390, 55553, 3790, 3299, 3200, 8101, 1352, 1494, 2598, 1503, 3260,
    860, 2811, 6800, 6881, 51413, 25565, 27015, 19132, 64738, 9987, 30033, 32400, 8920,
    1400, 7676,
];

/// UDP: names, time, management, discovery, tunnels, voice, then the rest.
#[rustfmt::skip]
const UDP: &[u16] = &[
    53, 123, 161, 137, 500, 443, 1900, 5353, 67, 69, 111, 138, 4500, 5060, 3478, 389, 1194,
    51820, 631, 623, 520, 11211, 5683, 1434, 1701, 162, 514, 68, 19, 177, 3702, 10001, 17185,
    27015, 3283, 3389, 88, 464, 427, 1812, 1813, 1645, 1646, 2049, 5351, 5355, 5349, 5061, 4569,
    2427, 2727, 47808, 44818, 2222, 20000, 502, 34964, 7, 9, 13, 17, 37, 49, 80, 135, 139,
    445, 546, 547, 521, 1027, 1025, 1026, 1719, 2152, 2123, 3386, 3784, 4789, 6081, 8472,
    6343, 2055, 4739, 9995, 5000, 5004, 5005, 6881, 51413, 19132, 27960, 9987, 64738, 30303,
    32414, 48101, 37810, 41794, 53413, 8080,
];

/// Returns the first `count` ports of a protocol by rank, sorted by number.
pub fn top_ports(protocol: Protocol, count: u16) -> Vec<u16> {
    let listed = match protocol {
        Protocol::Udp => UDP,
        _ => TCP,
    };
    let mut taken = vec![false; 1 << 16];
    let ranked = listed.iter().copied().chain(1..=u16::MAX);
    let fresh = ranked.filter(|port| !std::mem::replace(&mut taken[usize::from(*port)], true));
    let mut ports: Vec<u16> = fresh.take(count.into()).collect();
    ports.sort_unstable();
    ports
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_number_of_ports_can_be_had_and_more_include_fewer() {
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            let mut before = Vec::new();
            for count in [1, 10, 100, 1000, 5000, u16::MAX] {
                let ports = top_ports(protocol, count);
                assert_eq!(ports.len(), usize::from(count));
                assert!(ports.is_sorted() && ports.windows(2).all(|two| two[0] != two[1]));
                assert!(before.iter().all(|port| ports.contains(port)));
                before = ports;
            }
        }
        // Each stands in its list once.
        for list in [TCP, UDP] {
            let mut ports = list.to_vec();
            ports.sort_unstable();
            let twice = ports.windows(2).find(|two| two[0] == two[1]);
            assert_eq!(twice, None);
        }
        assert_eq!(top_ports(Protocol::Tcp, 3), [22, 80, 443]);
        assert_eq!(top_ports(Protocol::Udp, 2), [53, 123]);
    }
}
