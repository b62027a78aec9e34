//! Tests with real-world and damaged files.

use super::*;

fn table(name: &str, network: &[u8], place: &[u8]) -> Result<OriginTable> {
    let folder = std::env::temp_dir().join(format!("barewire-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (networks, places) = (folder.join("networks"), folder.join("places"));
    std::fs::write(&networks, network).unwrap();
    std::fs::write(&places, place).unwrap();
    let table = OriginTable::open(&OriginFiles {
        networks: vec![networks],
        places: vec![places],
        vendors: Vec::new(),
    });
    std::fs::remove_dir_all(folder).unwrap();
    table
}

#[test]
fn a_list_of_networks_can_give_countries() {
    let list = b"192.0.2.0\t192.0.2.255\t64500\tDE\tEXAMPLE Example GmbH\n";
    let mut table = table("origins", list, list).unwrap();
    // Twice: the second time it is cached.
    for _ in 0..2 {
        let origin = table.of_address("192.0.2.9".parse().unwrap());
        assert_eq!((origin.asn, origin.country()), (64500, "DE"));
        assert_eq!(origin.network.as_deref(), Some("EXAMPLE Example GmbH"));
        assert_eq!(
            origin.network_name().unwrap(),
            "AS64500 EXAMPLE Example GmbH"
        );
        // The name is that of the network.
        assert_eq!(origin.city, None);
        let nobody = table.of_address("198.51.100.1".parse().unwrap());
        assert_eq!(nobody, Origin::default());
    }
}

#[test]
fn errors_name_the_file() {
    let good = &b"192.0.2.0/24,64500,x\n"[..];
    let error = table("origins-wrong", good, b"192.0.2.0/24,DE\n???\n")
        .err()
        .unwrap();
    let text = error.to_string();
    assert!(text.contains("places") && text.contains("line 2"), "{text}");
    // The marker alone is not a valid file.
    let error = table("origins-mark", b"\xab\xcd\xefMaxMind.com", good)
        .err()
        .unwrap();
    assert!(error.to_string().contains("networks"), "{error}");
}

#[test]
fn a_compressed_file_is_reported_as_such() {
    for packed in [
        &b"\x1f\x8b\x08\0"[..],
        b"\x28\xb5\x2f\xfd\0",
        b"PK\x03\x04\n",
    ] {
        let error = table("origins-packed", packed, packed).err().unwrap();
        assert!(error.to_string().contains("compressed"), "{error}");
        assert!(error.hint().unwrap().contains("decompress"), "{error:?}");
    }
}

#[test]
fn a_city_without_a_country_is_used() {
    let folder = std::env::temp_dir().join(format!("barewire-cities-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let places = ["first", "second"].map(|name| folder.join(name));
    std::fs::write(&places[0], "192.0.2.0/25,Berlin\n").unwrap();
    std::fs::write(&places[1], "192.0.2.0/24,FR,Paris\n").unwrap();
    let files = OriginFiles {
        places: places.to_vec(),
        ..OriginFiles::default()
    };
    let mut table = OriginTable::open(&files).unwrap();
    std::fs::remove_dir_all(folder).unwrap();
    let mut of = |addr: &str| table.of_address(addr.parse().unwrap());
    assert_eq!(of("192.0.2.1").city.as_deref(), Some("Berlin"));
    assert_eq!(of("192.0.2.1").country(), "");
    assert_eq!(of("192.0.2.200").city.as_deref(), Some("Paris"));
    assert_eq!(of("192.0.2.200").country(), "FR");
}

/// A MaxMind DB file with one network: a tree of 32 nodes of 24 bits, a record.
fn database() -> Vec<u8> {
    const NODES: u32 = 32;
    let (addr, mut bytes) = (u32::from_be_bytes([192, 0, 2, 9]), Vec::new());
    for depth in 0..NODES {
        let next = match depth {
            31 => NODES + 16,
            depth => depth + 1,
        };
        let bit = addr >> (31 - depth) & 1;
        for way in 0..2 {
            let value = if way == bit { next } else { NODES };
            bytes.extend(&value.to_be_bytes()[1..]);
        }
    }
    bytes.extend([0; 16]);
    let text = |text: &str| {
        [
            &[0x40 | text.len().min(29) as u8][..],
            &long(text),
            text.as_bytes(),
        ]
        .concat()
    };
    fn long(text: &str) -> Vec<u8> {
        match text.len().checked_sub(29) {
            Some(more) => vec![more as u8],
            None => Vec::new(),
        }
    }
    let map = |pairs: &[(&str, Vec<u8>)]| {
        let mut out = vec![0xe0 | pairs.len() as u8];
        for (key, value) in pairs {
            out.extend(text(key));
            out.extend(value);
        }
        out
    };
    let number = |kind: u8, value: u32| [&[kind << 5 | 4][..], &value.to_be_bytes()].concat();
    let short = |kind: u8, value: u16| [&[kind << 5 | 2][..], &value.to_be_bytes()].concat();
    bytes.extend(map(&[
        ("autonomous_system_number", number(6, 64500)),
        ("autonomous_system_organization", text("Example")),
        ("country", map(&[("iso_code", text("DE"))])),
        ("city", map(&[("names", map(&[("en", text("Berlin"))]))])),
    ]));
    bytes.extend(database::MARK);
    bytes.extend(map(&[
        ("node_count", number(6, NODES)),
        ("record_size", short(5, 24)),
        ("ip_version", short(5, 4)),
        ("database_type", text("Test")),
        ("languages", vec![0, 4]),
        ("binary_format_major_version", short(5, 2)),
        ("binary_format_minor_version", short(5, 0)),
        ("build_epoch", vec![4, 2, 0x60, 0, 0, 0]),
        ("description", map(&[])),
    ]));
    bytes
}

#[test]
fn databases_are_read_and_damaged_ones_cause_no_panic() {
    let bytes = database();
    let addr: IpAddr = "192.0.2.9".parse().unwrap();
    let mut whole = table("origins-db", &bytes, &bytes).unwrap();
    let origin = whole.of_address(addr);
    assert_eq!((origin.asn, origin.country()), (64500, "DE"));
    assert_eq!(origin.network.as_deref(), Some("Example"));
    assert_eq!(origin.city.as_deref(), Some("Berlin"));
    assert_eq!(
        whole.of_address("192.0.2.8".parse().unwrap()),
        Origin::default()
    );
    for at in 0..bytes.len() {
        for value in [0, 1, 0x20, 0x7f, 0xe0, 0xff, bytes[at] ^ 4] {
            let mut damaged = bytes.clone();
            damaged[at] = value;
            if let Ok(database) = Database::new(damaged) {
                let found = database.find(addr);
                let _ = database.find("::1".parse().unwrap());
                assert!(found.city.len() <= bytes.len());
            }
        }
        if let Ok(database) = Database::new(bytes[..at].to_vec()) {
            let _ = database.find(addr);
        }
    }
}

/// Seeds of the fuzz target.
fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let four = |last| {
        let mut address = [0; 16];
        address[..4].copy_from_slice(&[192, 0, 2, last]);
        address
    };
    let six = std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 9).octets();
    let mac = [2, 0, 0x5e, 0x10, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let ranges = b"192.0.2.0\t192.0.2.255\t64500\tDE\tEXAMPLE Example GmbH\n\
                   2001:db8::\t2001:db8::ffff\t64501\tFR\tOTHER\n";
    let prefixes = b"network,autonomous_system_number,name\n\
                     192.0.2.0/25,64500,\"Example, Inc.\"\n\
                     192.0.2.0/24,64501,b\n2001:db8::/32,7,c\n";
    let ieee = b"Registry,Assignment,Organization Name,Organization Address\r\n\
                 MA-L,02005E,Example,\"Street 1\r\nCity\"\r\nMA-M,02005E1,Other,x\r\n";
    let manuf = b"# remark\n02:00:5E\tShort\tLong name\n02:00:5E:10:00:00/28\tOther\tOther\n";
    let mut cut = database();
    cut.truncate(cut.len() - 30);
    vec![
        ("ranges", laws::input_of(0, four(9), ranges)),
        ("ranges-six", laws::input_of(0, six, ranges)),
        ("prefixes", laws::input_of(0, four(200), prefixes)),
        ("makers-of-ieee", laws::input_of(1, mac, ieee)),
        ("makers-of-wireshark", laws::input_of(1, mac, manuf)),
        ("database", laws::input_of(2, four(9), &database())),
        ("database-cut", laws::input_of(2, four(9), &cut)),
    ]
}

/// `BAREWIRE_BLESS=1 cargo test -p barewire-runtime corpus` rewrites the corpus.
#[test]
fn the_laws_hold_for_the_corpus() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/origins");
    if std::env::var_os("BAREWIRE_BLESS").is_some() {
        std::fs::create_dir_all(&folder).unwrap();
        for (name, input) in seeds() {
            std::fs::write(folder.join(name), input).unwrap();
        }
    }
    for entry in std::fs::read_dir(&folder).unwrap() {
        laws::file_input(&std::fs::read(entry.unwrap().path()).unwrap());
    }
    for (name, input) in seeds() {
        let there = std::fs::read(folder.join(name)).unwrap_or_default();
        assert!(
            there == input,
            "{name} is not what is made here: BAREWIRE_BLESS=1 writes it anew"
        );
    }
}
