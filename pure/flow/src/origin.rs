//! Enrichment of a flow's endpoint, from the user's files: the autonomous system, the country and
//! the city of an address, the MAC vendor. Lookups are done elsewhere.

use std::sync::Arc;

use crate::encode::json::number;
use crate::key::Side;

/// Which parts are reported. What a file does not know stays empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OriginParts {
    /// Number and name of the autonomous system.
    pub network: bool,
    /// Country and city.
    pub place: bool,
    /// Makers of network cards.
    pub vendor: bool,
}

impl OriginParts {
    /// Whether there is any.
    pub fn any(&self) -> bool {
        self.network || self.place || self.vendor
    }
}

/// What is known of one end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// Number of the autonomous system, 0 if not known.
    pub asn: u32,
    /// Code of the country (ISO 3166-1), two zeros if not known.
    pub country: [u8; 2],
    /// Name of the autonomous system.
    pub network: Option<Arc<str>>,
    /// Name of the city.
    pub city: Option<Arc<str>>,
    /// Maker of the network card.
    pub vendor: Option<Arc<str>>,
}

impl Origin {
    /// The country as text, empty if not known.
    pub fn country(&self) -> &str {
        match self.country {
            [0, _] => "",
            ref letters => std::str::from_utf8(letters).unwrap_or_default(),
        }
    }
}

impl Origin {
    /// The autonomous system for users: `AS64500 Example`.
    pub fn network_name(&self) -> Option<String> {
        let name = || match text(&self.network) {
            "" => format!("AS{}", self.asn),
            name => format!("AS{} {name}", self.asn),
        };
        (self.asn != 0).then(name)
    }
}

/// Of both ends, by [`Side`].
pub type Origins = [Origin; 2];

/// Whether a text is reported.
pub(crate) type IsIncluded = fn(&OriginParts) -> bool;

/// A text of an end.
pub(crate) type Text = fn(&Origin) -> &str;

fn text(value: &Option<Arc<str>>) -> &str {
    value.as_deref().unwrap_or_default()
}

/// The texts that lines and columns have, and when they are reported; before each name stands
/// `src_` or
/// `dst_`. The number of the autonomous system, which comes first, is no text.
pub(crate) const TEXTS: [(&str, IsIncluded, Text); 4] = [
    ("as_name", |parts| parts.network, |end| text(&end.network)),
    ("country", |parts| parts.place, Origin::country),
    ("city", |parts| parts.place, |end| text(&end.city)),
    ("mac_vendor", |parts| parts.vendor, |end| text(&end.vendor)),
];

/// The ends of a record with what is before their names: the side that began is the source.
pub(crate) fn ends(initiator: Side) -> [(&'static str, Side); 2] {
    [("src_", initiator), ("dst_", initiator.other())]
}

/// What is known, as members of an object of JSON, with a comma before each; what is not known is
/// left out.
pub(crate) fn json(origins: &Origins, initiator: Side, out: &mut Vec<u8>) {
    for (before, side) in ends(initiator) {
        let end = &origins[side as usize];
        let name = |name: &str, out: &mut Vec<u8>| {
            for part in [",\"", before, name, "\":"] {
                out.extend(part.as_bytes());
            }
        };
        if end.asn != 0 {
            name("asn", out);
            number(end.asn.into(), out);
        }
        for (of, _, text) in TEXTS {
            let text = text(end);
            if !text.is_empty() {
                name(of, out);
                inspect::json_string(text.as_bytes(), out);
            }
        }
    }
}
