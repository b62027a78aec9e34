//! Tags between a switch chip and its processor (Linux's Distributed Switch Architecture), as they
//! are captured on the processor's interface: LINKTYPE_DSA_TAG_BRCM, _BRCM_PREPEND, _DSA and _EDSA.
//!
//! ```text
//! destination 6 bytes, source 6 bytes, tag, EtherType u16       (BRCM_PREPEND: tag, Ethernet)
//! Broadcom, to the switch:   operation (3 bits), ..., traffic class, ports (9 bits)
//! Broadcom, from the switch: operation (3 bits), ..., reason u8, traffic class (3), port (5)
//! Marvell: mode (2 bits), tagged (1), device (5), port or trunk (5), trunk (1), code (1), CFI (1),
//!          priority (3), code (1), VLAN id (12); EDSA: EtherType u16 and two bytes before it
//! ```

use crate::table::{self, Protocol};
use crate::walk::{Next, Walk};
use crate::{LayerKind, LinkType, Reason, be16, ethernet};
use core::fmt;

/// Bytes of the two addresses.
const ADDRESSES_LEN: usize = 12;
/// Bytes of the EtherType after the tag.
const TYPE_LEN: usize = 2;

/// The kind of a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Broadcom's.
    Broadcom,
    /// Marvell's.
    Marvell,
    /// Marvell's, after an EtherType of its own.
    MarvellTyped,
}

impl Form {
    const fn len(self) -> usize {
        match self {
            Form::Broadcom | Form::Marvell => 4,
            Form::MarvellTyped => 8,
        }
    }

    /// The form of a layer's tag.
    pub fn of(kind: LayerKind) -> Option<Form> {
        match kind {
            LayerKind::DsaBroadcom | LayerKind::DsaBroadcomPrepended => Some(Form::Broadcom),
            LayerKind::Dsa => Some(Form::Marvell),
            LayerKind::Edsa => Some(Form::MarvellTyped),
            _ => None,
        }
    }
}

/// A tag in an Ethernet header.
///
/// The alternate form, `{:#}`, has all fields, as in a link header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DsaTag<'a> {
    form: Form,
    /// The tag alone.
    tag: &'a [u8],
}

impl<'a> DsaTag<'a> {
    /// The tag between the addresses and the EtherType, and the EtherType.
    pub fn parse(bytes: &'a [u8], form: Form) -> Result<(Self, u16), Reason> {
        let rest = bytes.get(ADDRESSES_LEN..).ok_or(Reason::Truncated)?;
        let (tag, rest) = rest.split_at_checked(form.len()).ok_or(Reason::Truncated)?;
        let [high, low] = *rest.first_chunk::<TYPE_LEN>().ok_or(Reason::Truncated)?;
        Ok((DsaTag { form, tag }, be16(high, low)))
    }

    /// A tag at the start of the bytes.
    pub fn prepended(bytes: &'a [u8]) -> Result<Self, Reason> {
        let form = Form::Broadcom;
        let tag = bytes.get(..form.len()).ok_or(Reason::Truncated)?;
        Ok(DsaTag { form, tag })
    }
}

impl fmt::Display for DsaTag<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.form, self.tag) {
            (Form::Broadcom, &[a, b, c, d]) => broadcom([a, b, c, d], f),
            (Form::Marvell, &[a, b, c, d]) => {
                f.write_str(if f.alternate() {
                    "Marvell DSA "
                } else {
                    "DSA "
                })?;
                marvell([a, b, c, d], f)
            }
            (Form::MarvellTyped, &[high, low, e, g, a, b, c, d]) => {
                let kind = be16(high, low);
                match f.alternate() {
                    true => write!(
                        f,
                        "Marvell EDSA ethertype 0x{kind:04x} (Unknown), rsvd {e} {g}, "
                    )?,
                    false => write!(f, "EDSA 0x{kind:04x}, ")?,
                }
                marvell([a, b, c, d], f)
            }
            _ => Ok(()),
        }
    }
}

fn broadcom([a, b, c, d]: [u8; 4], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_str(if a == 0 {
        "BRCM tag OP: EG"
    } else {
        "BRCM tag OP: IG"
    })?;
    if a & 0x20 != 0 {
        let te = ["None", "Untag", "Header", "Reserved"][usize::from(b & 3)];
        let (class, ts, ports) = (b >> 2 & 7, b >> 7, be16(c, d) & 0x1ff);
        return write!(
            f,
            ", TC: {class}, TE: {te}, TS: {ts}, DST map: 0x{ports:04x}"
        );
    }
    let reason = match c {
        1 => "mirror",
        2 => "MAC learning",
        4 => "switching",
        8 => "prot term",
        16 => "prot snoop",
        32 => "exception",
        _ => "reserved",
    };
    let (class, port) = (d >> 5, d & 0x1f);
    write!(f, ", CID: {b}, RC: {reason}, TC: {class}, port: {port}")
}

/// Modes of Marvell's tag.
const TO_CPU: u8 = 0;
const FROM_CPU: u8 = 1;
const TO_SNIFFER: u8 = 2;

/// What the switch sends to the processor.
const CODES: [&str; 8] = [
    "BPDU (MGMT) Trap",
    "Frame2Reg",
    "IGMP/MLD Trap",
    "Policy Trap",
    "ARP Mirror",
    "Policy Mirror",
    "reserved",
    "reserved",
];

fn marvell([a, b, c, d]: [u8; 4], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let (mode, is_tagged, device) = (a >> 6, a & 0x20 != 0, a & 0x1f);
    let (port, is_trunk) = (b >> 3, b & 4 != 0);
    let what = if is_trunk { "trunk" } else { "port" };
    let id = be16(c, d) & 0x0fff;
    if !f.alternate() {
        match mode {
            TO_CPU => write!(f, "port {device}.{port} > CPU")?,
            FROM_CPU => write!(f, "CPU > port {device}.{port}")?,
            TO_SNIFFER => {
                let side = if is_trunk { "Rx" } else { "Tx" };
                write!(f, "port {device}.{port} > {side} Sniffer")?;
            }
            _ => write!(f, "Forward {what} {device}.{port}")?,
        }
        return write!(f, ", VLAN {id}{}", if is_tagged { 't' } else { 'u' });
    }
    match mode {
        TO_CPU => {
            let code = CODES[usize::from(b & 6 | c >> 4 & 1)];
            write!(
                f,
                "mode To CPU, source dev {device}, port {port}, code {code}"
            )?;
        }
        FROM_CPU => write!(f, "mode From CPU, target dev {device}, port {port}")?,
        TO_SNIFFER => {
            let side = if is_trunk { "ingress" } else { "egress" };
            write!(
                f,
                "mode To Sniffer, source dev {device}, port {port}, {side} sniff"
            )?;
        }
        _ => write!(f, "mode Forward, dev {device}, {what} {port}")?,
    }
    f.write_str(if is_tagged { ", tagged" } else { ", untagged" })?;
    f.write_str(if b & 1 != 0 { ", CFI" } else { "" })?;
    write!(f, ", VID {id}, FPri {}", c >> 5)
}

fn step<const LEN: usize>(walk: &mut Walk<'_, '_>) -> Next {
    let head = walk.peek::<LEN>()?;
    walk.advance(LEN)?;
    ethernet::next_of_type(walk, be16(head[LEN - 2], head[LEN - 1]))
}

fn step_prepended(walk: &mut Walk<'_, '_>) -> Next {
    walk.peek::<4>()?;
    walk.advance(4)?;
    Ok(LayerKind::Ethernet)
}

fn show(bytes: &[u8], form: Form, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    table::show(DsaTag::parse(bytes, form).map(|(tag, _)| tag), f)
}

pub(crate) const BROADCOM: Protocol = Protocol {
    name: "brcm-tag",
    spec: "LINKTYPE_DSA_TAG_BRCM",
    links: &[LinkType::DSA_TAG_BRCM],
    sample: &[
        2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0, 9, 4, 0x25, 0x88, 0xb5, 1, 2,
    ],
    step: step::<18>,
    show: |bytes, f| show(bytes, Form::Broadcom, f),
    ..Protocol::BASE
};

pub(crate) const BROADCOM_PREPENDED: Protocol = Protocol {
    name: "brcm-tag-prepend",
    spec: "LINKTYPE_DSA_TAG_BRCM_PREPEND",
    links: &[LinkType::DSA_TAG_BRCM_PREPEND],
    sample: &[
        0x20, 5, 0, 3, 2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5, 1, 2,
    ],
    step: step_prepended,
    show: |bytes, f| table::show(DsaTag::prepended(bytes), f),
    ..Protocol::BASE
};

pub(crate) const MARVELL: Protocol = Protocol {
    name: "dsa",
    spec: "LINKTYPE_DSA_TAG_DSA",
    links: &[LinkType::DSA_TAG_DSA],
    sample: &[
        2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0xc0, 0x28, 0x20, 5, 0x88, 0xb5, 1, 2,
    ],
    step: step::<18>,
    show: |bytes, f| show(bytes, Form::Marvell, f),
    ..Protocol::BASE
};

pub(crate) const MARVELL_TYPED: Protocol = Protocol {
    name: "edsa",
    spec: "LINKTYPE_DSA_TAG_EDSA",
    links: &[LinkType::DSA_TAG_EDSA],
    sample: &[
        2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0xda, 0xda, 0, 0, 0x41, 0x18, 0, 1, 0x88, 0xb5, 1, 2,
    ],
    step: step::<22>,
    show: |bytes, f| show(bytes, Form::MarvellTyped, f),
    ..Protocol::BASE
};
