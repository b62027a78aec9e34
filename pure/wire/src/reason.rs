//! Why a dissection stopped: one byte, the index of a counter.

/// Why a dissection stopped. `reason as usize` indexes an array of [`Reason::COUNT`] counters.
///
/// The fields of a [`Dissection`](crate::Dissection) filled before the stop are always valid: a
/// packet with an unsupported transport still has its addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Reason {
    /// Everything up to and including the transport header was read.
    #[default]
    Complete = 0,
    /// The capture ends inside a header, but the packet on the wire does not.
    Truncated,
    /// The packet itself, or the length in an outer header, ends inside a header.
    Short,
    /// A version field has a value that the preceding header does not allow.
    BadVersion,
    /// A header's length field is less than its fixed part.
    BadHeaderLength,
    /// A length field contradicts its own header.
    BadLength,
    /// More headers than [`MAX_LAYERS`](crate::MAX_LAYERS), or more tunnels than
    /// [`MAX_TUNNEL_DEPTH`](crate::MAX_TUNNEL_DEPTH).
    TooDeep,
    /// No dissector for the link type of the capture.
    UnsupportedLink,
    /// No dissector for the Ethernet type, LLC service or PPP protocol.
    UnsupportedType,
    /// No dissector for the IP protocol; addresses and lengths are valid.
    UnsupportedProtocol,
    /// A tunnel was recognised, but its payload is not supported.
    UnsupportedTunnel,
    /// A fragment other than the first: it has no transport header.
    LaterFragment,
    /// The rest is encrypted (ESP).
    Encrypted,
}

impl Reason {
    /// Number of reasons.
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

    /// A stable name for counters and JSON: lower case, words separated by `_`.
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

    /// Whether the packet violates its protocols (as opposed to: truncated by the capture, or not
    /// supported).
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
    fn reasons_are_in_order_and_names_differ() {
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
