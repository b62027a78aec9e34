//! The primitives that libpcap's language does not have: the installed libpcap refuses each of
//! them, alone and within an expression, so that no expression has another meaning with them.

use std::net::IpAddr;

use filter::expression::{Names, Options, compile};
use lab::skip;
use sys::libpcap::PacketSource;

/// One of each form; the unit tests of the compiler check their verdicts.
const EXPRESSIONS: &str = include_str!("../../../testdata/filter/extended.txt");

struct Files;

impl Names for Files {
    fn prefixes(&self, _: &str) -> Result<Vec<(IpAddr, u8)>, String> {
        Ok(vec![([192, 0, 2, 0].into(), 24)])
    }
}

#[test]
fn libpcap_refuses_every_extended_primitive() {
    let by_libpcap = |text: &str| {
        let (link_type, swapped) = (1, false);
        let source = PacketSource::File { link_type, swapped };
        sys::libpcap::compile(text, source, 262_144, true)
    };
    if by_libpcap("tcp").is_err() {
        lab::require!(Err::<(), _>(skip::Missing::Machine("libpcap".into())));
    }
    let (mut count, mut accepted) = (0, Vec::new());
    for primitive in EXPRESSIONS.lines() {
        for text in [
            primitive.to_owned(),
            format!("not {primitive}"),
            format!("tcp and ({primitive})"),
            format!("{primitive} or udp"),
        ] {
            let options = Options {
                extended: true,
                names: &Files,
                ..Options::default()
            };
            compile(&text, &options).unwrap_or_else(|e| panic!("{e}\n{}", e.mark(&text)));
            // Not only because no host or file is called so.
            match by_libpcap(&text) {
                Ok(_) => accepted.push(text.clone()),
                Err(error) => {
                    let why = error.to_string();
                    let is_refused = why.contains("syntax error") || why.contains("unknown");
                    assert!(is_refused, "{text}: {why}");
                }
            }
            count += 1;
        }
    }
    assert!(accepted.is_empty(), "libpcap accepts {accepted:?}");
    assert!(count >= 100, "{count}");
}
