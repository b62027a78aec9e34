//! Enrichment of a flow's endpoints from the user's databases: autonomous system, country and city
//! of an address, MAC vendor. Look-ups are done elsewhere.

use std::sync::Arc;

use crate::encode::json::number;
use crate::key::Side;

/// Parts to report. Unknown parts stay empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OriginParts {
    /// Number and name of the autonomous system.
    pub network: bool,
    /// Country and city.
    pub place: bool,
    /// MAC vendors.
    pub vendor: bool,
}

impl OriginParts {
    /// Whether any part is selected.
    pub fn any(&self) -> bool {
        self.network || self.place || self.vendor
    }
}

/// Enrichment of one endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// Number of the autonomous system, 0 if unknown.
    pub asn: u32,
    /// Country code (ISO 3166-1), two zeros if unknown.
    pub country: [u8; 2],
    /// Name of the autonomous system.
    pub network: Option<Arc<str>>,
    /// Name of the city.
    pub city: Option<Arc<str>>,
    /// MAC vendor.
    pub vendor: Option<Arc<str>>,
}

impl Origin {
    /// The country code as text, empty if unknown.
    pub fn country(&self) -> &str {
        match self.country {
            [0, _] => "",
            ref letters => std::str::from_utf8(letters).unwrap_or_default(),
        }
    }
}

impl Origin {
    /// The autonomous system for display: `AS64500 Example`.
    pub fn network_name(&self) -> Option<String> {
        let name = || match text(&self.network) {
            "" => format!("AS{}", self.asn),
            name => format!("AS{} {name}", self.asn),
        };
        (self.asn != 0).then(name)
    }
}

/// Enrichment of both endpoints, by [`Side`].
pub type Origins = [Origin; 2];

/// Whether a text is to be reported.
pub(crate) type IsIncluded = fn(&OriginParts) -> bool;

/// A text of an endpoint.
pub(crate) type Text = fn(&Origin) -> &str;

fn text(value: &Option<Arc<str>>) -> &str {
    value.as_deref().unwrap_or_default()
}

/// The texts in lines and columns, and when they are reported; their names are prefixed with `src_`
/// or `dst_`. The number of the autonomous system, which comes first, is not a text.
pub(crate) const TEXTS: [(&str, IsIncluded, Text); 4] = [
    ("as_name", |parts| parts.network, |end| text(&end.network)),
    ("country", |parts| parts.place, Origin::country),
    ("city", |parts| parts.place, |end| text(&end.city)),
    ("mac_vendor", |parts| parts.vendor, |end| text(&end.vendor)),
];

/// The endpoints of a record with their name prefixes: the initiator is the source.
pub(crate) fn ends(initiator: Side) -> [(&'static str, Side); 2] {
    [("src_", initiator), ("dst_", initiator.other())]
}

/// Appends the known parts as members of a JSON object, each after a comma.
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
