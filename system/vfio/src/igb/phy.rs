//! The PHY (§3.5.8, §4.5.7): starts link negotiation.

use std::thread;
use std::time::Duration;

use super::registers as reg;
use crate::registers::Registers;

/// Number of polls for the PHY's response, 10 µs apart: an access takes 64 µs.
const LOOKS: u32 = 100;
/// Number of attempts to take a semaphore, 100 µs apart.
const TRIES: u32 = 200;

/// Makes a copper PHY renegotiate its link. Fiber and backplanes need different code, which does
/// not exist here (`cards.rs` excludes such cards). If the firmware does not release the PHY, or
/// the PHY does not respond, the link is left unchanged: its state shows this, which is no reason
/// not to open the card.
pub(super) fn negotiate<R: Registers>(regs: &R) {
    if regs.read32(reg::CTRL_EXT) & reg::CTRL_EXT_LINK_MODE != 0 {
        return;
    }
    let lan = regs.read32(reg::STATUS) >> reg::STATUS_LAN_SHIFT & 1;
    let ours = reg::SYNC_PHY << lan;
    if !take(regs, ours) {
        return;
    }
    if let Some(control) = access(regs, reg::MDIC_READ | reg::PHY_CONTROL) {
        let control = u32::from(control) & !reg::PHY_POWER_DOWN;
        let control = control | reg::PHY_NEGOTIATE | reg::PHY_RESTART;
        let register = reg::PHY_CONTROL << reg::MDIC_REGISTER_SHIFT;
        access(regs, reg::MDIC_WRITE | register | control);
    }
    give(regs, ours);
}

/// One access to the PHY; returns its value.
fn access<R: Registers>(regs: &R, what: u32) -> Option<u16> {
    regs.write32(reg::MDIC, reg::MDIC_PHY | what);
    regs.wait32(reg::MDIC, LOOKS, |mdic| mdic & reg::MDIC_READY != 0);
    let mdic = regs.read32(reg::MDIC);
    let sound = mdic & (reg::MDIC_READY | reg::MDIC_ERROR) == reg::MDIC_READY;
    sound.then_some(mdic as u16)
}

/// §4.7: takes the semaphore of the PHY from other drivers and the firmware.
fn take<R: Registers>(regs: &R, ours: u32) -> bool {
    let theirs = ours << reg::SYNC_FIRMWARE_SHIFT;
    for _ in 0..TRIES {
        if lock(regs) {
            let sync = regs.read32(reg::SW_FW_SYNC);
            let free = sync & (ours | theirs) == 0;
            if free {
                regs.write32(reg::SW_FW_SYNC, sync | ours);
            }
            unlock(regs);
            if free {
                return true;
            }
        }
        thread::sleep(Duration::from_micros(100));
    }
    // Its holder is gone without releasing it: a driver that was killed.
    if lock(regs) {
        let sync = regs.read32(reg::SW_FW_SYNC);
        if sync & theirs == 0 {
            regs.write32(reg::SW_FW_SYNC, sync | ours);
            unlock(regs);
            return true;
        }
        unlock(regs);
    }
    false
}

/// Releases it.
fn give<R: Registers>(regs: &R, ours: u32) {
    for _ in 0..TRIES {
        if lock(regs) {
            regs.change32(reg::SW_FW_SYNC, ours, 0);
            unlock(regs);
            return;
        }
        thread::sleep(Duration::from_micros(100));
    }
}

/// The semaphore that guards the semaphores: first among drivers, then with the firmware.
fn lock<R: Registers>(regs: &R) -> bool {
    if regs.read32(reg::SWSM) & reg::SWSM_DRIVERS != 0 {
        return false;
    }
    regs.change32(reg::SWSM, 0, reg::SWSM_FIRMWARE);
    let got = regs.read32(reg::SWSM) & reg::SWSM_FIRMWARE != 0;
    if !got {
        unlock(regs);
    }
    got
}

fn unlock<R: Registers>(regs: &R) {
    regs.change32(reg::SWSM, reg::SWSM_DRIVERS | reg::SWSM_FIRMWARE, 0);
}
