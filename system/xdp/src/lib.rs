//! XDP: programs generated at run time, their maps, their attachment to devices, and kernel feature
//! detection.
//!
//! A [`Redirect`] is the program that redirects a device's packets to AF_XDP sockets. It is loaded
//! from a [`RedirectSpec`], attached by an [`XdpLink`], and counts the outcome for each packet.
//! A [`Guard`] drops packets by rules, in XDP or at tc's ingress.
//! When the last descriptor of the link is closed, even by kill -9, the kernel detaches it.
#![forbid(unsafe_code)]

pub mod btf;
pub mod feature;
mod link;
mod live;
mod map;
pub mod metadata;
mod program;
pub mod programs;
mod spec;
mod tc;
pub mod verifier;

pub use link::{PinnedLink, XdpLink};
pub use live::turns::{Turns, with_identifier};
pub use live::{LIVE_HOST_HEAD_LEN, LIVE_LEN_MAX, LIVE_LEN_MIN, LiveAccount, LiveTransmitter};
pub use map::{QueueCounters, XskMap};
pub use program::XdpProgram;
pub use programs::guard::{
    GUARD_NAME, Guard, GuardFeatures, GuardHook, GuardLink, GuardMaps, GuardNames, GuardProgram,
    GuardSpec, SourceMap,
};
pub use programs::redirect::{Redirect, RedirectCounters};
pub use spec::{AttachMode, MetadataSpec, ProgramClock, RedirectSpec, TimestampSource};
pub use tc::{TcLink, TcProgram};
