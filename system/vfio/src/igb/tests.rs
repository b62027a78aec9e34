//! The driver on the model of its card: properties common to all drivers. The crate `port` tests
//! the resulting ports.

use super::{Igb, IgbModel};
use crate::laws::{Rig, laws};
use crate::model::{Fault, Model, ModelCard};

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];

struct IgbRig;

impl Rig for IgbRig {
    type Model = IgbModel;
    type Driver = Igb<ModelCard<IgbModel>>;

    const ENDS: bool = true;

    fn room(frame_len: u32) -> usize {
        // §8.10.2: whole KiB.
        if frame_len == 4096 { 3072 } else { 2048 }
    }

    fn card() -> ModelCard<IgbModel> {
        ModelCard::new(|memory, events| IgbModel::new(memory, events, MAC))
    }

    fn receive(model: &mut IgbModel, queue: u32, packet: &[u8]) -> bool {
        let before = model.without_descriptor(queue);
        model.receive(packet) && model.without_descriptor(queue) == before
    }

    fn fault(model: &mut IgbModel, fault: Option<Fault>) {
        model.set_fault(fault);
    }

    fn break_down(model: &mut IgbModel) {
        model.reset();
    }

    fn vanish(model: &mut IgbModel) {
        model.set_fault(Some(Fault::Gone));
        model.step();
    }

    fn mark_sent(model: &mut IgbModel, entry: u32) -> bool {
        model.mark_sent(entry);
        true
    }

    fn doorbells(model: &IgbModel) -> u32 {
        model.doorbells()
    }

    fn violations(_: &IgbModel) -> &[String] {
        &[]
    }
}

laws!(IgbRig);

#[test]
fn a_plain_descriptor_has_no_unusual_flag_and_fits() {
    crate::intel::plain_is_plain::<super::rx::RxQueue>();
}
