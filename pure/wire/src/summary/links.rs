//! Packets of rare link types as tcpdump prints them: tags of switches, and packets that have no
//! network header.

use core::fmt;

use crate::dsa::{DsaTag, Form};
use crate::pflog::Enc;
use crate::table::Header;
use crate::{Dissection, LayerKind, Reason};

/// Prints what IPsec did to a packet; and, unless a link header is printed, the tag of a switch.
pub(super) fn show_tag(kind: LayerKind, bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if let (LayerKind::Enc, Ok(enc)) = (kind, Enc::parse(bytes)) {
        return write!(f, "{enc}: ");
    }
    if f.alternate() {
        return Ok(());
    }
    // A tag in front of an Ethernet header is part of the link header only.
    let form = Form::of(kind).filter(|_| kind != LayerKind::DsaBroadcomPrepended);
    match form.map(|form| DsaTag::parse(bytes, form)) {
        Some(Ok((tag, _))) => write!(f, "{tag}, "),
        _ => Ok(()),
    }
}

/// Prints all that is known of a packet that ends in a header of a rare link type; false if that
/// header is not the last one or needs no line of its own.
pub(super) fn show_whole(
    d: &Dissection,
    kind: LayerKind,
    bytes: &[u8],
    f: &mut fmt::Formatter<'_>,
) -> Result<bool, fmt::Error> {
    if !kind.is_rare_link() || kind == LayerKind::PppDirected {
        return Ok(false);
    }
    let is_cut = matches!(d.reason, Reason::Truncated | Reason::Short);
    if let (Some(form), false) = (Form::of(kind), is_cut) {
        let ether_type = DsaTag::parse(bytes, form).map_or(0, |(_, value)| value);
        write!(f, "ethertype 0x{ether_type:04x}, length {}", d.payload_len)?;
        return Ok(true);
    }
    let is_line = matches!(
        kind,
        LayerKind::Vsock
            | LayerKind::Wpan
            | LayerKind::Usb
            | LayerKind::UsbMmapped
            | LayerKind::Slip
    );
    match is_cut {
        true => write!(f, " [|{}]", kind.name())?,
        false if is_line => write!(f, "{}", Header { kind, bytes })?,
        false => return Ok(false),
    }
    Ok(true)
}
