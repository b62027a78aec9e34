//! Why a dissection stopped: one byte, the index of a counter.

/// Why a dissection stopped. `reason as usize` indexes an array of [`Reason::COUNT`] counters.
///
/// The fields of a [`Dissection`](crate::Dissection) filled before the stop stay valid whatever the
/// reason: a packet with an unsupported transport still has its addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Reason {
    /// Everything up to and including the transport header was read.
    #[default]
    Complete = 0,
    /// The capture ends inside a header; the packet on the wire did not.
    Truncated,
    /// The packet itself, or the length that an outer header gives, ends inside a header.
    Short,
    /// A version field has a value that the header above does not allow.
    BadVersion,
    /// A header's length field is below its fixed part.
    BadHeaderLength,
    /// A length field contradicts the header that it is in.
    BadLength,
    /// More headers than [`MAX_LAYERS`](crate::MAX_LAYERS), or more tunnels than
    /// [`MAX_TUNNEL_DEPTH`](crate::MAX_TUNNEL_DEPTH).
    TooDeep,
    /// No dissector for the link type of the capture.
    UnsupportedLink,
    /// No dissector for the Ethernet type, LLC service or PPP protocol.
    UnsupportedType,
    /// No dissector for the IP protocol; addresses and lengths are filled.
    UnsupportedProtocol,
    /// A tunnel was recognised, but not what it carries.
    UnsupportedTunnel,
    /// A fragment that is not the first: no transport header in it.
    LaterFragment,
    /// What follows is encrypted (ESP).
    Encrypted,
}

impl Reason {
    /// How many reasons there are.
    pub const COUNT: usize = 13;

    /// All reasons, in the order of their values.
    pub const ALL: [Reason; Reason::COUNT] = [
        Reason::Complete,
        Reason::Truncated,
        Reason::Short,
        Reason::BadVersion,
        Reason::BadHeaderLength,
        Reason::BadLength,
        Reason::TooDeep,
        Reason::UnsupportedLink,
        Reason::UnsupportedType,
        Reason::UnsupportedProtocol,
        Reason::UnsupportedTunnel,
        Reason::LaterFragment,
        Reason::Encrypted,
    ];

    /// A stable name for counters and JSON: lower case, words joined by `_`.
    pub const fn name(self) -> &'static str {
        match self {
            Reason::Complete => "complete",
            Reason::Truncated => "truncated",
            Reason::Short => "short",
            Reason::BadVersion => "bad_version",
            Reason::BadHeaderLength => "bad_header_length",
            Reason::BadLength => "bad_length",
            Reason::TooDeep => "too_deep",
            Reason::UnsupportedLink => "unsupported_link",
            Reason::UnsupportedType => "unsupported_type",
            Reason::UnsupportedProtocol => "unsupported_protocol",
            Reason::UnsupportedTunnel => "unsupported_tunnel",
            Reason::LaterFragment => "later_fragment",
            Reason::Encrypted => "encrypted",
        }
    }

    /// Whether the packet breaks a rule of its protocols (as opposed to: cut short by the capture,
    /// or simply not known here).
    pub const fn is_malformed(self) -> bool {
        matches!(
            self,
            Reason::Short | Reason::BadVersion | Reason::BadHeaderLength | Reason::BadLength
        )
    }
}

impl core::fmt::Display for Reason {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::Reason;

    #[test]
    fn all_is_in_order_and_names_differ() {
        for (index, reason) in Reason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, index);
            assert!(
                Reason::ALL[..index]
                    .iter()
                    .all(|r| r.name() != reason.name())
            );
        }
    }
}
