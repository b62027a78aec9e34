//! Checks whether rules would drop packets of the SSH session that barewire runs in.

use std::net::IpAddr;

use ::guard::{Rule, Verdict};
use nic::Session;

/// TCP flags of the client's segments: PSH and ACK, ACK.
const FLAGS: [u8; 2] = [0x18, 0x10];
/// Payload bytes of an SSH keystroke (RFC 4253): length, padding, payload and MAC.
const PAYLOAD_LEN: usize = 36;

/// The first of these rules, in order, that drops packets of the client. `user`: rules in user
/// space. `is_detected`: by their names, those of detection, whose limits cut off the client as
/// well: a flood uses them up.
pub fn cut_by<'a>(
    session: &Session,
    rules: &'a [Rule],
    user: &'a [Rule],
    is_detected: impl Fn(&str) -> bool,
) -> Option<&'a Rule> {
    FLAGS.iter().find_map(|&flags| {
        let packet = packet(session, flags);
        let (client, server) = (session.client.ip(), session.server.ip());
        let decides =
            |rule: &&Rule| rule.verdict.decides() && rule.matches(&packet, client, server);
        let mut first = rules.iter().find(decides)?;
        if first.verdict == Verdict::User {
            first = user.iter().find(decides)?;
        }
        let is_cut = match first.verdict {
            Verdict::Drop => true,
            Verdict::Limit(_) => is_detected(&first.name),
            _ => false,
        };
        is_cut.then_some(first)
    })
}

/// A segment from the client.
fn packet(session: &Session, flags: u8) -> Vec<u8> {
    let (client, server) = (session.client, session.server);
    let payload_len = if flags == 0x18 { PAYLOAD_LEN } else { 0 };
    let tcp_len = 32 + payload_len;
    let mut packet = vec![0; 12];
    match (client.ip(), server.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let len = (20 + tcp_len) as u16;
            packet.extend([0x08, 0, 0x45, 0]);
            packet.extend(len.to_be_bytes());
            packet.extend([0x12, 0x34, 0x40, 0, 64, 6, 0, 0]);
            packet.extend(from.octets());
            packet.extend(to.octets());
        }
        (from, to) => {
            let six = |address: IpAddr| match address {
                IpAddr::V4(v4) => v4.to_ipv6_mapped(),
                IpAddr::V6(v6) => v6,
            };
            packet.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            packet.extend((tcp_len as u16).to_be_bytes());
            packet.extend([6, 64]);
            packet.extend(six(from).octets());
            packet.extend(six(to).octets());
        }
    }
    packet.extend(client.port().to_be_bytes());
    packet.extend(server.port().to_be_bytes());
    packet.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x80, flags, 0x10, 0, 0, 0, 0, 0]);
    // Timestamps, as all current stacks send.
    packet.extend([1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 1]);
    packet.resize(packet.len() + payload_len, 0xa5);
    packet
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::{ListSpec, RuleSpec};

    fn session(client: &str, server: &str) -> Session {
        Session {
            client: client.parse().unwrap(),
            server: server.parse().unwrap(),
        }
    }

    fn cut(session: &Session, specs: &[RuleSpec]) -> Option<String> {
        let rules: Vec<Rule> = specs.iter().map(|s| s.compile().unwrap()).collect();
        cut_by(session, &rules, &[], |_| false).map(|rule| rule.name.clone())
    }

    #[test]
    fn a_rule_that_drops_the_session_is_found() {
        let v4 = session("192.0.2.7:50000", "198.51.100.1:22");
        let v6 = session("[2001:db8::7]:50000", "[2001:db8:1::1]:22");
        let drop = |e: &str| RuleSpec::new(e, Verdict::Drop);
        let deny = |list: &str| {
            let list = ListSpec::argument(list).unwrap();
            RuleSpec::of_sources("deny", list, Verdict::Drop)
        };
        for (session, rule, is_cut) in [
            (&v4, drop("tcp dst port 22"), true),
            (&v6, drop("tcp dst port 22"), true),
            (&v4, drop("src net 192.0.2.0/24"), true),
            (&v4, drop("udp"), false),
            (&v4, drop("tcp[tcpflags] & tcp-syn != 0"), false),
            (&v4, drop("greater 90"), true),
            (&v6, deny("2001:db8::/32"), true),
            (&v4, deny("192.0.2.0/30,2001:db8::/32"), false),
        ] {
            let name = rule.name.clone();
            assert_eq!(cut(session, &[rule]).is_some(), is_cut, "{name}");
        }
    }

    #[test]
    fn rules_in_user_space_are_asked_about_steered_packets() {
        let v4 = session("192.0.2.7:50000", "198.51.100.1:22");
        let rule = |text: &str, verdict| RuleSpec::new(text, verdict).compile().unwrap();
        let steer = [rule("tcp", Verdict::User)];
        let drop = [
            rule("port 80", Verdict::Drop),
            rule("port 22", Verdict::Drop),
        ];
        assert_eq!(
            cut_by(&v4, &steer, &drop, |_| false).unwrap().name,
            "port 22"
        );
        assert!(cut_by(&v4, &steer, &drop[..1], |_| false).is_none());
        assert!(cut_by(&v4, &[], &drop, |_| false).is_none());
    }

    #[test]
    fn a_limit_of_detection_cuts_off_the_session() {
        let v4 = session("192.0.2.7:50000", "198.51.100.1:22");
        let limit = ::guard::Limit::new(1_000, ::guard::Limit::burst_of(1_000)).unwrap();
        let rule = |expression: &str| {
            let spec = RuleSpec::new(expression, Verdict::Limit(limit));
            spec.compile().unwrap()
        };
        let rules = [rule("udp"), rule("dst host 198.51.100.1")];
        let is_cut = |is_detected: bool| cut_by(&v4, &rules, &[], |_| is_detected).is_some();
        assert!(is_cut(true) && !is_cut(false));
        assert!(cut_by(&v4, &rules[..1], &[], |_| true).is_none());
    }

    #[test]
    fn packets_passed_by_an_earlier_rule_are_not_cut_off() {
        let v4 = session("192.0.2.7:50000", "198.51.100.1:22");
        let allow = RuleSpec::allow(ListSpec::argument("192.0.2.7").unwrap());
        let count = RuleSpec::new("tcp", Verdict::Count);
        let drop = RuleSpec::new("tcp", Verdict::Drop);
        assert_eq!(cut(&v4, &[allow, drop.clone()]), None);
        assert_eq!(cut(&v4, &[count, drop]).as_deref(), Some("tcp"));
    }
}
