//! Sends a packet repeatedly with sendmmsg(2) on an AF_PACKET socket, batches of 64, queueing
//! discipline bypassed: what a careful program does without rings. With a rate it sleeps between
//! batches, so that what is not needed stays idle. Prints packets sent.

use std::io::IoSlice;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use nix::sys::socket::{
    AddressFamily, LinkAddr, MsgFlags, MultiHeaders, SockFlag, SockType, sendmmsg, socket,
};

const BATCH: usize = 64;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let usage = "usage: baseline-sendmmsg INTERFACE LENGTH SECONDS [PACKETS_A_SECOND]";
    let interface = args.next().ok_or(usage)?;
    let length: usize = args.next().ok_or(usage)?.parse()?;
    let seconds: f64 = args.next().ok_or(usage)?.parse()?;
    let rate: f64 = args.next().map_or(Ok(f64::INFINITY), |word| word.parse())?;
    let index = nix::net::if_::if_nametoindex(interface.as_str())?;
    let socket = socket(
        AddressFamily::Packet,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    bind(&socket, index)?;
    // PACKET_QDISC_BYPASS (20) at SOL_PACKET (263): straight to the driver, as trafgen does.
    bypass(&socket)?;
    let mut packet = vec![0u8; length];
    packet[..14].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]);
    let slices = [IoSlice::new(&packet)];
    let mut headers = MultiHeaders::<LinkAddr>::preallocate(BATCH, None);
    let messages: Vec<&[IoSlice<'_>]> = (0..BATCH).map(|_| &slices[..]).collect();
    let addresses: Vec<Option<LinkAddr>> = vec![None; BATCH];
    let start = Instant::now();
    let limit = Duration::from_secs_f64(seconds.min(60.0));
    let mut sent = 0u64;
    while start.elapsed() < limit {
        let due = Duration::from_secs_f64(sent as f64 / rate);
        if let Some(early) = due
            .checked_sub(start.elapsed())
            .filter(|early| !early.is_zero())
        {
            std::thread::sleep(early);
        }
        let flags = MsgFlags::empty();
        match sendmmsg(
            socket.as_raw_fd(),
            &mut headers,
            &messages,
            &addresses,
            [],
            flags,
        ) {
            Ok(results) => sent += results.count() as u64,
            Err(nix::errno::Errno::ENOBUFS | nix::errno::Errno::EAGAIN) => {}
            Err(error) => return Err(error.into()),
        }
    }
    println!(
        "{sent} packets sent in {:.6} s",
        start.elapsed().as_secs_f64()
    );
    Ok(())
}

fn bind(socket: &std::os::fd::OwnedFd, index: u32) -> Result<(), Box<dyn std::error::Error>> {
    use nix::libc;
    // SAFETY: zero is a valid sockaddr_ll; the call reads the size given.
    let result = unsafe {
        let mut address: libc::sockaddr_ll = std::mem::zeroed();
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_ifindex = index as i32;
        let len = size_of::<libc::sockaddr_ll>() as u32;
        libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len)
    };
    if result < 0 {
        Err(std::io::Error::last_os_error().into())
    } else {
        Ok(())
    }
}

fn bypass(socket: &std::os::fd::OwnedFd) -> Result<(), Box<dyn std::error::Error>> {
    use nix::libc;
    let on: i32 = 1;
    // SAFETY: an integer option of four bytes.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            20,
            (&raw const on).cast(),
            4,
        )
    };
    if result < 0 {
        Err(std::io::Error::last_os_error().into())
    } else {
        Ok(())
    }
}
