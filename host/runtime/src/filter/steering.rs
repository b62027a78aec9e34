//! Expressions as rules of a card's steering table (ntuple filters).

use ::filter::expression as compiler;
use compiler::steering::{self, Layer};
use sys::Result;
use sys::ethtool::{Fields, IpFields, Masked, Rule};

use super::{Expression, select};

/// The rules of an expression.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Each packet of the expression matches at least one; none if the expression is blank.
    pub list: Vec<Rule>,
    /// Whether the expression also matches fragments of IPv6, which the rules do not.
    pub omits_fragments: bool,
}

/// Converts an expression to rules.
///
/// # Errors
/// `InvalidInput` for an invalid expression, `Unsupported` for one that rules cannot express.
pub fn rules(expression: &Expression) -> Result<Rules> {
    if expression.is_empty() {
        return Ok(Rules::default());
    }
    let options = compiler::Options {
        extended: true,
        names: &*expression.names,
        ..compiler::Options::default()
    };
    let text = &expression.text;
    let rules = steering::rules(text, &options).map_err(|error| {
        let refused = select::refused("the expression as rules of a card", text, &error);
        match error.expected.is_empty() {
            true => refused,
            false => refused.with_hint(error.expected),
        }
    })?;
    Ok(Rules {
        list: rules.list.iter().map(rule).collect(),
        omits_fragments: rules.omits_fragments,
    })
}

fn masked<T>(field: steering::Masked<T>) -> Masked<T> {
    let steering::Masked { value, mask } = field;
    Masked { value, mask }
}

fn rule(rule: &steering::Rule) -> Rule {
    let fields = match rule.layer {
        Layer::Ethernet { source, ether_type } => Fields::Ethernet {
            source: masked(source),
            ether_type,
        },
        Layer::Ip(ip) => Fields::Ip(IpFields {
            is_v6: ip.is_v6,
            source: masked(ip.source),
            destination: masked(ip.destination),
            tos: masked(ip.tos),
            protocol: ip.protocol,
            source_port: masked(ip.source_port),
            destination_port: masked(ip.destination_port),
        }),
    };
    Rule {
        destination: masked(rule.destination),
        vlan_type: rule.vlan_type,
        vlan_tci: masked(rule.vlan_tci),
        fields,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(expression: &str) -> Vec<String> {
        let found = rules(&Expression::new(expression)).unwrap();
        found.list.iter().map(Rule::to_string).collect()
    }

    #[test]
    fn expressions_are_arguments_of_ethtool() {
        assert_eq!(
            texts("udp dst port 53"),
            ["udp6 dst-port 53", "udp4 dst-port 53"]
        );
        assert_eq!(
            texts("vlan 5 and ip src net 192.0.2.0/24"),
            ["ip4 src-ip 192.0.2.0 m 0.0.0.255 vlan 0x5 m 0xf000"]
        );
        assert_eq!(
            texts("ether dst 02:00:00:00:00:01 and tcp src port 80 and ip6"),
            ["tcp6 src-port 80 dst-mac 02:00:00:00:00:01"]
        );
        assert!(texts(" ").is_empty());
    }

    #[test]
    fn what_rules_cannot_express_is_an_error_with_the_possible() {
        let error = rules(&Expression::new("tcp[13] & 2 != 0")).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("byte 13 of the transport header"), "{text}");
        let hint = error.hint().unwrap_or_default();
        assert!(
            hint.contains("rules of a card test MAC addresses"),
            "{hint}"
        );
    }
}
