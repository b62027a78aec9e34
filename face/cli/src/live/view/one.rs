//! Rates over time of the flows shown, and all data of the opened flow.

use std::collections::HashMap;

use flow::encode::json;
use flow::{EndReason, Extra, FlowKey, Record};
use inspect::Application;
use runtime::flows::Status;
use serde_json::Value;

use super::Flow;
use crate::live::picture::{Opened, Row};

/// Seconds of history per flow.
const HISTORY_LEN: usize = 120;

/// Histories of the flows shown.
#[derive(Default)]
pub struct Histories {
    /// Bits per second of both directions.
    flows: HashMap<FlowKey, Vec<u64>>,
    open: Option<Open>,
}

/// The opened flow. It stays unchanged once it has ended, or is no longer among the largest.
struct Open {
    key: FlowKey,
    title: String,
    fields: Vec<(String, String)>,
    history: Vec<u64>,
    has_ended: bool,
}

impl Histories {
    /// Adds another second for the flows shown; drops the others.
    pub fn push(&mut self, flows: &[Flow]) {
        let mut before = std::mem::take(&mut self.flows);
        for flow in flows {
            let mut history = before.remove(&flow.total.key).unwrap_or_default();
            let bytes = flow.rate.map_or(0, |rate| rate[0] + rate[1]);
            history.push(bytes.saturating_mul(8));
            if history.len() > HISTORY_LEN {
                history.remove(0);
            }
            if let Some(open) = &mut self.open
                && open.key == flow.total.key
            {
                open.history.clone_from(&history);
            }
            self.flows.insert(flow.total.key, history);
        }
    }

    pub fn open(&mut self, key: FlowKey) {
        self.open = Some(Open {
            key,
            title: String::new(),
            fields: Vec::new(),
            history: self.flows.get(&key).cloned().unwrap_or_default(),
            has_ended: false,
        });
    }

    pub fn close(&mut self) {
        self.open = None;
    }

    /// Handles the last record of a flow.
    pub fn ended(&mut self, record: &Record, extra: &Extra<'_>) {
        if let Some(open) = &mut self.open
            && open.key == *record.key()
        {
            let found = extra.application().unwrap_or(Application::EMPTY);
            open.fields = fields(record, &found);
            open.has_ended = true;
        }
    }

    /// Contents of the page of the opened flow.
    pub fn opened(&mut self, status: &Status<'_>, rows: &[Row]) -> Option<Opened> {
        let open = self.open.as_mut()?;
        let mut found: Option<(Record, Application)> = None;
        for queue in status.queues {
            let known = |at: usize| queue.live_applications.get(at);
            for (at, record) in queue.live.iter().enumerate() {
                if *record.key() != open.key {
                    continue;
                }
                let application = known(at).cloned().unwrap_or(Application::EMPTY);
                match &mut found {
                    None => found = Some((*record, application)),
                    // Its other direction, from another queue.
                    Some((sum, known)) => {
                        sum.merge(record);
                        known.merge(&application);
                    }
                }
            }
        }
        let remark = match (&found, open.has_ended) {
            (Some(_), _) => "",
            (None, true) => "ended",
            (None, false) => "no longer among the largest flows: not updated",
        };
        if let Some((record, application)) = found {
            open.fields = fields(&record, &application);
            open.has_ended = false;
        }
        if let Some(row) = rows.iter().find(|row| row.key == open.key) {
            let ends = [row.source.whole(), row.destination.whole()].join(" → ");
            open.title = format!("{} {ends}", row.protocol);
        }
        Some(Opened {
            title: open.title.clone(),
            remark,
            fields: open.fields.clone(),
            history: open.history.clone(),
        })
    }
}

/// All fields of the JSON record, in the same order.
fn fields(record: &Record, application: &Application) -> Vec<(String, String)> {
    let mut bytes = Vec::new();
    let mut text = Vec::new();
    flow::put_application(application, &mut bytes);
    let extra = Extra {
        application: &bytes,
        ..Extra::default()
    };
    json::line(record, EndReason::Idle, &mut text);
    let mut fields = of_object(&text, "");
    // A live flow has no end reason.
    fields.retain(|(name, _)| !matches!(name.as_str(), "type" | "reason" | "end reason"));
    let mut text = Vec::new();
    if json::application(record, &extra, &mut text) {
        fields.extend(of_object(&text, "application "));
    }
    fields
}

/// Names and values of a JSON object. The parser sorts names, so their positions in the text give
/// the original order.
fn of_object(text: &[u8], prefix: &str) -> Vec<(String, String)> {
    let Ok(Value::Object(object)) = serde_json::from_slice(text) else {
        return Vec::new();
    };
    let text = String::from_utf8_lossy(text);
    let mut members: Vec<(String, Value)> = object.into_iter().collect();
    members.sort_by_key(|(name, _)| text.find(&format!("\"{name}\":")));
    let mut fields = Vec::new();
    for (name, value) in members {
        let name = format!("{prefix}{}", name.replace('_', " "));
        match value {
            Value::Object(_) => {
                let inner = value.to_string();
                fields.extend(of_object(inner.as_bytes(), &format!("{name} ")));
            }
            Value::String(text) => fields.push((name, text.escape_debug().to_string())),
            value => fields.push((name, value.to_string())),
        }
    }
    fields
}
