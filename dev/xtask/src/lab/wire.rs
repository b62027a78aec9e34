//! Cables that a job unplugs and plugs in again: inside the guest a job cannot take down the link
//! of a card driven in user space.
//!
//! The job prints `@@lab link CARD off` or `on` on a line of its own; the host acts through QEMU's
//! monitor without a reply: the card's link state shows it.

use super::guest::Card;

/// Prefix of such a line.
const MARK: &str = "@@lab link ";

/// The index in `cards` of the card in a line, and whether its cable is to be plugged in. `None`
/// for any other line, and for cards that the guest does not have.
pub fn asked(line: &str, cards: &[Card]) -> Option<(usize, bool)> {
    let (name, state) = line.strip_prefix(MARK)?.split_once(' ')?;
    let index = cards.iter().position(|card| card.name == name)?;
    match state {
        "off" => Some((index, false)),
        "on" => Some((index, true)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::guest::CARDS;
    use super::*;

    #[test]
    fn only_cables_of_existing_cards_are_unplugged() {
        let asked = |line| asked(line, CARDS);
        assert_eq!(asked("@@lab link igb0 off"), Some((0, false)));
        assert_eq!(asked("@@lab link igb1 on"), Some((1, true)));
        for other in [
            "@@lab link igb9 off",
            "@@lab link igb0",
            "@@lab link igb0 offer",
            "@@lab link igb0 off; quit",
            "@@lab begin igb0 off",
            "test link ... @@lab link igb0 off",
        ] {
            assert_eq!(asked(other), None, "{other}");
        }
    }
}
