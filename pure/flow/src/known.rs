//! Decoder results for display: application and name of a bounded number of flows, of which the
//! smallest are evicted first.

use std::borrow::Cow;
use std::collections::HashMap;

use crate::extra::Extra;
use crate::key::FlowKey;
use crate::record::Record;

/// Maximum number of flows, after which the smaller half is evicted.
const COUNT_MAX: usize = 4096;
/// Maximum length of a name.
const NAME_LEN: usize = 96;

/// Applications and names by flow.
#[derive(Debug, Default)]
pub struct KnownFlows {
    flows: HashMap<FlowKey, Entry>,
}

#[derive(Debug, Default)]
struct Entry {
    bytes: u64,
    application: Cow<'static, str>,
    /// The name as in the packets.
    name: Vec<u8>,
}

impl KnownFlows {
    /// Adds the decoders' result for a record, if there is one.
    pub fn add(&mut self, record: &Record, extra: &Extra<'_>) {
        let Some(found) = extra.application() else {
            return;
        };
        let Some(application) = found.name() else {
            return;
        };
        let name = headline(&found);
        self.put(record.key(), record.bytes(), application, name);
    }

    pub(crate) fn put(
        &mut self,
        key: &FlowKey,
        bytes: u64,
        application: Cow<'static, str>,
        name: &[u8],
    ) {
        let entry = self.flows.entry(*key).or_default();
        entry.bytes += bytes;
        entry.application = application;
        if entry.name.is_empty() {
            entry.name = name.to_vec();
        }
        if self.flows.len() > COUNT_MAX {
            self.forget();
        }
    }

    #[inline(never)]
    fn forget(&mut self) {
        let mut sizes: Vec<u64> = self.flows.values().map(|entry| entry.bytes).collect();
        let (_, middle, _) = sizes.select_nth_unstable(COUNT_MAX / 2);
        let middle = *middle;
        let mut room = COUNT_MAX / 2;
        self.flows.retain(|_, entry| {
            let stays = entry.bytes >= middle && room > 0;
            room -= usize::from(stays);
            stays
        });
    }

    /// The application of a flow, and its name as in the packets: printable or not.
    pub fn get(&self, key: &FlowKey) -> Option<(&Cow<'static, str>, &[u8])> {
        let entry = self.flows.get(key)?;
        Some((&entry.application, &entry.name))
    }

    /// Number of flows.
    pub fn len(&self) -> usize {
        self.flows.len()
    }

    /// Whether there are no flows.
    pub fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }
}

/// The most informative name, at most [`NAME_LEN`] bytes of it.
pub(crate) fn headline(found: &inspect::Application) -> &[u8] {
    match found.headline() {
        Some(inspect::Value::Text { bytes, .. }) => &bytes[..bytes.len().min(NAME_LEN)],
        _ => &[],
    }
}
