//! Binding: zero-copy or copy, multi-buffer or not, and the error if neither works.

use ring::Pool;
use sys::link::XdpPlace;
use sys::{Error, ErrorKind, Result};

use super::attach::{Attachment, Device};
use super::plan::Plan;
use super::socket::{self, Queue, Shared, SocketSpec};
use crate::options::{BindMode, PortOptions};

/// Maximum time that one busy-polling call looks for packets, in µs.
const BUSY_POLL_US: u32 = 20;
/// Bytes of packets queued in the kernel in copy mode: sockets are otherwise limited to about 250
/// packets.
const SEND_BUFFER_LEN: u32 = 8 << 20;

/// Binds a socket to each queue and adds it to `opened`; the first one determines the mode, which
/// the others must use. After an error `opened` has those that were bound before it.
pub(super) fn bind_all(
    device: &Device,
    options: &PortOptions,
    plan: &Plan,
    pool: &Pool,
    attachment: Option<&Attachment>,
    opened: &mut Vec<Queue>,
) -> Result<()> {
    let mut modes = modes(device, options, attachment)?;
    for &queue_index in &plan.queues {
        let mut last = modes.is_empty().then(|| frame_too_short(device));
        for &(zero_copy, multi_buffer) in &modes {
            let spec = SocketSpec {
                ifindex: device.link.index,
                queue_index,
                has_rx: plan.has_rx,
                has_tx: plan.has_tx,
                ring_len: plan.ring_len,
                tx_len: plan.tx_len,
                fill_count: plan.fill_frames(zero_copy),
                zero_copy,
                multi_buffer,
                need_wakeup: options.need_wakeup,
            };
            match socket::open(pool, &spec) {
                Ok(queue) => {
                    opened.push(queue);
                    prepare(&opened[opened.len() - 1].shared, options, plan)?;
                    last = None;
                    break;
                }
                Err(error) => {
                    let fatal = matches!(
                        error.kind(),
                        ErrorKind::Busy | ErrorKind::Permission | ErrorKind::NoSpace
                    );
                    last = Some(error);
                    if fatal {
                        break;
                    }
                }
            }
        }
        if let Some(error) = last {
            return Err(explain_bind(error, device, queue_index, options));
        }
        if let Some(first) = opened.first() {
            modes = vec![(first.shared.spec.zero_copy, first.shared.spec.multi_buffer)];
        }
    }
    Ok(())
}

/// The modes to try, best first: zero-copy or not, and multi-buffer or not.
fn modes(
    device: &Device,
    options: &PortOptions,
    attachment: Option<&Attachment>,
) -> Result<Vec<(bool, bool)>> {
    let native = match attachment {
        Some(attachment) => attachment.mode == xdp::AttachMode::Native,
        None => device
            .link
            .xdp
            .iter()
            .any(|xdp| xdp.place == XdpPlace::Native),
    };
    let zero_copy: &[bool] = match options.bind {
        BindMode::Copy => &[false],
        BindMode::ZeroCopy if !native && device.may_zero_copy() => return Err(not_native(device)),
        BindMode::ZeroCopy if !device.may_zero_copy() => return Err(no_zero_copy(device)),
        BindMode::ZeroCopy => &[true],
        BindMode::Auto if native && device.may_zero_copy() => &[true, false],
        BindMode::Auto => &[false],
    };
    let frags = attachment.is_none_or(|a| a.frags);
    let mut modes = Vec::new();
    for &zero_copy in zero_copy {
        modes.extend(frags.then_some((zero_copy, true)));
        modes.extend((!device.needs_frags(zero_copy)).then_some((zero_copy, false)));
    }
    Ok(modes)
}

/// Sets other socket options.
fn prepare(shared: &Shared, options: &PortOptions, plan: &Plan) -> Result<()> {
    let socket = &shared.socket;
    if plan.has_tx && !shared.zero_copy {
        socket.set_tx_budget(plan.tx_len);
        socket.set_send_buffer(SEND_BUFFER_LEN);
    }
    if let Some(budget) = options.busy_poll_budget {
        socket.set_busy_poll(BUSY_POLL_US, budget).map_err(|e| {
            e.with_hint(
                "busy polling needs Linux 5.11 and, above net.core.busy_read, CAP_NET_ADMIN",
            )
        })?;
    }
    Ok(())
}

fn not_native(device: &Device) -> Error {
    Error::new(
        ErrorKind::Unsupported,
        format!("bind to {} with zero-copy", device.link.name),
        format!(
            "zero-copy needs the program in the driver ({})",
            device.circumstances()
        ),
    )
    .with_hint("bind=auto falls back to copy mode")
}

fn no_zero_copy(device: &Device) -> Error {
    Error::new(
        ErrorKind::Unsupported,
        format!("bind to {} with zero-copy", device.link.name),
        format!(
            "the driver has no AF_XDP zero-copy ({})",
            device.circumstances()
        ),
    )
    .with_hint("bind=auto falls back to copy mode")
}

/// The error when no mode is left: zero-copy was requested with frames that the card cannot fill.
fn frame_too_short(device: &Device) -> Error {
    Error::new(
        ErrorKind::Unsupported,
        format!("bind to {} with zero-copy", device.link.name),
        format!(
            "the card fills frames of {} bytes in steps of 1024, which is too short for the MTU, \
             and the driver or program has no multi-buffer support ({})",
            device.frame_len,
            device.circumstances()
        ),
    )
    .with_hint("use a pool with frames of 4096 bytes, or lower the MTU")
}

fn explain_bind(error: Error, device: &Device, queue_index: u32, options: &PortOptions) -> Error {
    let name = &device.link.name;
    let forced = options.bind == BindMode::ZeroCopy;
    match error.os_code() {
        Some(libc::EOPNOTSUPP | libc::EINVAL) if forced && device.needs_frags(true) => {
            frame_too_short(device)
        }
        Some(libc::EBUSY) => error
            .with_why(format!(
                "another AF_XDP socket is bound to queue {queue_index} of {name}"
            ))
            .with_hint("stop the program that holds it, or use another queue"),
        Some(libc::EOPNOTSUPP | libc::EINVAL | libc::EPROTONOSUPPORT) if forced => {
            let why = format!(
                "the driver has no AF_XDP zero-copy for this queue ({})",
                device.circumstances()
            );
            error
                .with_kind(ErrorKind::Unsupported)
                .with_why(why)
                .with_hint("bind=auto falls back to copy mode")
        }
        Some(libc::EOPNOTSUPP | libc::EINVAL) if device.needs_frags(false) => {
            let why = format!(
                "packets of this MTU need several buffers, which the kernel or driver does not \
                 support ({})",
                device.circumstances()
            );
            error
                .with_kind(ErrorKind::Unsupported)
                .with_why(why)
                .with_hint(format!(
                    "ip link set dev {name} mtu 1500; Linux 6.6 supports this"
                ))
        }
        Some(libc::ENODEV | libc::ENXIO) => error
            .with_kind(ErrorKind::Gone)
            .with_why(format!("{name} was removed")),
        _ => error,
    }
}
