//! Lists of fixed size.

/// Numbers in the order of arrival.
#[derive(Clone)]
pub(in crate::decode::tls) struct List<T, const N: usize> {
    items: [T; N],
    len: u16,
    pub(in crate::decode::tls) is_cut: bool,
}

impl<T: Copy + Default, const N: usize> List<T, N> {
    pub(super) fn new() -> List<T, N> {
        List {
            items: [T::default(); N],
            len: 0,
            is_cut: false,
        }
    }

    pub(super) fn clear(&mut self) {
        self.len = 0;
        self.is_cut = false;
    }

    pub(super) fn push(&mut self, item: T) {
        match self.items.get_mut(usize::from(self.len)) {
            Some(place) => {
                *place = item;
                self.len += 1;
            }
            None => self.is_cut = true,
        }
    }

    pub(in crate::decode::tls) fn items(&self) -> &[T] {
        &self.items[..usize::from(self.len).min(N)]
    }
}
