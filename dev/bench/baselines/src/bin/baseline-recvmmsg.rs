//! Receives UDP with recvmmsg(2), batches of 64, pinned to a processor, until SIGTERM: what a
//! careful program gets out of the kernel's stack. Touches each datagram; prints how many came.

use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::libc;

const BATCH: usize = 64;
const LEN: usize = 2048;
/// Room in the socket: more than a ring of the card holds.
const RECEIVE_BUFFER: i32 = 8 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let usage = "usage: baseline-recvmmsg ADDRESS:PORT PROCESSOR";
    let socket = UdpSocket::bind(args.next().ok_or(usage)?)?;
    pin(args.next().ok_or(usage)?.parse()?)?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, stop.clone())?;
    }
    // The handler restarts system calls, so that the flag is looked at now and then.
    socket.set_read_timeout(Some(Duration::from_millis(100)))?;
    enlarge(&socket)?;
    let mut bytes = vec![[0u8; LEN]; BATCH];
    let mut slices: Vec<libc::iovec> = bytes
        .iter_mut()
        .map(|buffer| libc::iovec {
            iov_base: buffer.as_mut_ptr().cast(),
            iov_len: LEN,
        })
        .collect();
    let mut messages: Vec<libc::mmsghdr> = slices
        .iter_mut()
        .map(|slice| {
            // SAFETY: zero is a valid mmsghdr: no address, no control data.
            let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
            message.msg_hdr.msg_iov = slice;
            message.msg_hdr.msg_iovlen = 1;
            message
        })
        .collect();
    println!("receiving");
    let (mut packets, mut sum) = (0u64, 0u64);
    while !stop.load(Ordering::Relaxed) {
        // SAFETY: headers, slices and buffers live on, and nothing else refers to the buffers
        // during the call.
        let count = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                messages.as_mut_ptr(),
                BATCH as u32,
                libc::MSG_WAITFORONE,
                std::ptr::null_mut(),
            )
        };
        let Ok(count) = usize::try_from(count) else {
            let error = std::io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EINTR) => continue,
                _ => return Err(error.into()),
            }
        };
        packets += count as u64;
        for message in &messages[..count] {
            // SAFETY: the buffer after the message, which is read byte-wise at its start.
            sum += u64::from(unsafe { *(*message.msg_hdr.msg_iov).iov_base.cast::<u8>() });
        }
    }
    println!("{packets} packets received, sum {sum}");
    Ok(())
}

fn pin(processor: usize) -> Result<(), Box<dyn std::error::Error>> {
    // SAFETY: an empty set, filled by the macro within its size, and read by the call.
    let result = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(processor, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set)
    };
    checked(result)
}

fn enlarge(socket: &UdpSocket) -> Result<(), Box<dyn std::error::Error>> {
    let len = RECEIVE_BUFFER;
    // SAFETY: an integer option of four bytes.
    checked(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVBUFFORCE,
            (&raw const len).cast(),
            4,
        )
    })
}

fn checked(result: i32) -> Result<(), Box<dyn std::error::Error>> {
    if result < 0 {
        Err(std::io::Error::last_os_error().into())
    } else {
        Ok(())
    }
}
