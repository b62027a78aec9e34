//! `barewire flows --report`: the page in a real browser, with text from hostile packets.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::export::{Folder, LIMIT};
use lab::oracle::write_pcap;
use lab::packet::{Addresses, Udp};
use lab::process::{Finished, Process, barewire};
use lab::{require, skip};

const BROWSER: &str = "chromium-headless-shell";

/// A TCP segment between two hosts over Ethernet and IPv4, without checksums.
fn segment(number: u8, is_back: bool, flags: u8, payload: &[u8]) -> Vec<u8> {
    let (mut ends, mut ports) = (
        [[10, 0, 0, 1], [10, 0, 0, 2]],
        [40_000 + u16::from(number), 80],
    );
    if is_back {
        ends.reverse();
        ports.reverse();
    }
    let mut packet = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0];
    packet.extend((40 + payload.len() as u16).to_be_bytes());
    packet.extend([0, 1, 0x40, 0, 64, 6, 0, 0]);
    packet.extend(ends.concat());
    packet.extend(ports.iter().flat_map(|port| port.to_be_bytes()));
    let seq = if payload.is_empty() { 0_u32 } else { 1 };
    packet.extend(seq.to_be_bytes());
    packet.extend([0, 0, 0, 1, 0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
    packet.extend(payload);
    packet
}

/// Host names that attempt injection.
const HOSTILE: [&[u8]; 6] = [
    b"<script>document.title='owned'</script>",
    b"\"><img src=x onerror=\"document.title='owned'\">",
    b"</title></style></script><h1>owned</h1>",
    b"' onmouseover='document.title=1",
    b"\xe2\x80\xaegnp.evil\xff\xfe",
    b"&lt;b&gt;",
];

fn report(capture: &Path, page: &Path) -> Finished {
    let mut command = Command::new(barewire().unwrap());
    command.args(["flows", "--plain", "--decode", "all", "--report"]);
    command.arg(page).arg(capture);
    Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap()
}

/// The document after its script has run, in a window of this width.
fn document(page: &Path, width: u32) -> String {
    let mut command = Command::new(BROWSER);
    let size = format!("--window-size={width},1000");
    let address = format!("file://{}", page.display());
    command.args([
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        &size,
        "--dump-dom",
        &address,
    ]);
    let finished = Process::spawn(&mut command)
        .unwrap()
        .wait(Duration::from_secs(120))
        .unwrap();
    finished.checked().unwrap().stdout
}

fn title(document: &str) -> &str {
    let (_, rest) = document.split_once("<title>").expect("a title");
    rest.split_once("</title>").expect("its end").0
}

fn hostile_page(folder: &Folder) -> std::path::PathBuf {
    let mut packets = Vec::new();
    for (at, host) in HOSTILE.iter().enumerate() {
        let number = at as u8;
        packets.push(segment(number, false, 2, b""));
        packets.push(segment(number, true, 0x12, b""));
        let request = [b"GET / HTTP/1.1\r\nHost: ", *host, b"\r\n\r\n"].concat();
        packets.push(segment(number, false, 0x18, &request));
    }
    let capture = write_pcap(&packets).unwrap();
    let page = folder.0.join("hostile.html");
    let finished = report(capture.path(), &page);
    assert_eq!(finished.code(), Some(0), "{}", finished.stderr);
    page
}

/// Without a browser: nothing from a packet is markup, and there are no external references.
#[test]
fn a_page_contains_text_and_no_external_references() {
    let folder = Folder::new("report-text");
    let page = hostile_page(&folder);
    let text = std::fs::read_to_string(&page).unwrap();
    for marks in [
        "<script>document.title",
        "<img",
        "<h1>owned",
        "onmouseover='",
        "\u{202e}",
    ] {
        assert!(!text.contains(marks), "{marks}");
    }
    assert!(text.contains("&lt;script&gt;document.title=&#39;owned&#39;&lt;/script&gt;"));
    assert!(text.contains("\\u{202e}gnp.evil\\xff\\xfe") && text.contains("&amp;lt;b&amp;gt;"));
    for reference in ["http://", "https://", "src=", "url(", "@import", "<link"] {
        assert!(
            !text
                .replace("&quot;&gt;&lt;img src=x", "")
                .contains(reference),
            "{reference}"
        );
    }
    assert_eq!(text.matches("<script>").count(), 1);
    // All of it is HTTP.
    assert!(!text.contains(">unknown<"));
    assert_eq!(text.matches("adds up").count(), 2);
    // A path that cannot be written is reported before anything is read.
    let finished = report(&page, &folder.0.join("no/such/folder.html"));
    assert_eq!(finished.code(), Some(1));
    assert!(finished.stderr.contains("hint:"), "{}", finished.stderr);
}

/// Traffic that neither content nor port names is a row, of one capture with three packets of it
/// and one of DNS.
#[test]
fn shares_of_applications_are_of_all_traffic() {
    let folder = Folder::new("report-unknown");
    let packet = |destination_port| {
        let udp = Udp {
            source_mac: [2, 0, 0, 0, 0, 1],
            destination_mac: [2, 0, 0, 0, 0, 2],
            addresses: Addresses::V4([192, 0, 2, 1].into(), [192, 0, 2, 2].into()),
            source_port: 40_000,
            destination_port,
            flow_count: 1,
            vlan: None,
        };
        udp.build(0, 100)
    };
    let packets = [53, 9999, 9998, 9997].map(packet);
    let capture = write_pcap(&packets).unwrap();
    let page = folder.0.join("unknown.html");
    assert_eq!(report(capture.path(), &page).code(), Some(0));
    let text = std::fs::read_to_string(&page).unwrap();
    let share = |name: &str| {
        let (_, rest) = text
            .split_once(&format!("<span class=\"l\">{name}"))
            .expect(name);
        let (_, rest) = rest.split_once("<small>").unwrap();
        // A guess has a remark before its share.
        let rest = rest
            .strip_prefix("by port</small>")
            .map_or(rest, |rest| rest.split_once("<small>").unwrap().1);
        rest.split_once(" %").unwrap().0.to_owned()
    };
    assert_eq!(
        (share("unknown"), share("dns")),
        ("75.0".to_owned(), "25.0".to_owned())
    );
}

/// The script runs under the page's own policy, hostile names have no effect, and the page fits any
/// window width.
#[test]
fn a_browser_renders_the_report() {
    require!(skip::program(
        "chromium-headless-shell",
        "chromium-headless-shell"
    ));
    let folder = Folder::new("report-browser");
    let mixture =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/captures/lab-mix.pcapng");
    let page = folder.0.join("mixture.html");
    let finished = report(&mixture, &page);
    assert_eq!(finished.code(), Some(0), "{}", finished.stderr);
    for page in [hostile_page(&folder), page] {
        let shown = document(&page, 1280);
        assert!(title(&shown).starts_with("Flows of "), "{}", title(&shown));
        let buttons = shown.matches("<button>").count();
        assert_eq!(buttons, 10, "the script made the table's heads buttons");
        assert!(shown.contains("<svg") && !shown.contains("<img") && !shown.contains("<h1>owned"));
        // A copy that reports its width, and the effect of sorting.
        let text = std::fs::read_to_string(&page).unwrap();
        let (head, rest) = text.split_once("<meta http-equiv").unwrap();
        let (_, rest) = rest.split_once(">\n").unwrap();
        let probe = "<script>\
            var head=document.querySelectorAll('table.sort button')[6];\
            var first=function(){head.click();\
            return +document.querySelector('table.sort tbody td.n:not(.opt)').dataset.v};\
            var down=first(),up=first();\
            var fits=document.documentElement.scrollWidth<=innerWidth;\
            document.title=[fits,down>=up].join(' ')</script></body>";
        let copy = folder.0.join("copy.html");
        std::fs::write(&copy, format!("{head}{rest}").replace("</body>", probe)).unwrap();
        for width in [1280, 800, 400] {
            let shown = document(&copy, width);
            assert_eq!(title(&shown), "true true", "{width} px");
        }
    }
}
