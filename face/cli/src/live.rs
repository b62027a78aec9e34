//! The live view: rates, the largest flows, the loss account, on a terminal.
//!
//! The screen is the alternate one, and the terminal is put back however the view ends: on `q`, on
//! Ctrl-C (a key here, not a signal), on an error, on a panic (by a hook, since the program aborts
//! on one).

mod picture;

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use flow::top::{self, Order, Total};
use flow::{EndReason, FlowKey, Record};
use port::PortDescription;
use ratatui::DefaultTerminal;
use runtime::flows::{Fate, Outlet, Status};
use sys::{Error, Result};

use crate::cmd::flows::event_text;
use picture::{Picture, Row};

/// How often rates are computed.
const RATE_INTERVAL: Duration = Duration::from_secs(1);
/// Seconds of history under the rates.
const HISTORY_LEN: usize = 240;

/// The view.
pub struct Live {
    terminal: Option<DefaultTerminal>,
    picture: Picture,
    held: bool,
    at: Duration,
    packets: u64,
    wire_bytes: u64,
    begun: u64,
    /// Bytes of the flows shown, one interval ago.
    before: HashMap<FlowKey, u64>,
    rates: HashMap<FlowKey, f64>,
    /// Protocol and name of the flows shown, where decoders know them.
    applications: HashMap<FlowKey, (&'static str, String)>,
}

impl Live {
    /// Takes over the terminal.
    ///
    /// # Errors
    /// If it cannot be taken over.
    pub fn start(
        name: &str,
        description: &PortDescription,
        memory_len: usize,
        order: Order,
    ) -> Result<Live> {
        let terminal = ratatui::try_init().map_err(|e| {
            Error::from_io("draw on the terminal", e).with_hint("--plain draws nothing")
        })?;
        let modes: Vec<&str> = description
            .facts
            .iter()
            .filter(|(name, _)| matches!(*name, "attach mode" | "bind mode"))
            .map(|(_, value)| value.as_str())
            .collect();
        Ok(Live {
            terminal: Some(terminal),
            picture: Picture {
                name: name.to_owned(),
                facts: modes.join(", "),
                memory_len: memory_len as u64,
                order,
                ..Picture::default()
            },
            held: false,
            at: Duration::ZERO,
            packets: 0,
            wire_bytes: 0,
            begun: 0,
            before: HashMap::new(),
            rates: HashMap::new(),
            applications: HashMap::new(),
        })
    }

    /// What the flows are sorted by.
    pub fn order(&self) -> Order {
        self.picture.order
    }

    /// Answers keys. True if the picture must be drawn anew.
    fn keys(&mut self, status: &Status<'_>) -> std::io::Result<bool> {
        let mut changed = false;
        while event::poll(Duration::ZERO)? {
            let key = match event::read()? {
                Event::Key(key) if key.kind != KeyEventKind::Release => key,
                Event::Resize(..) => {
                    changed = true;
                    continue;
                }
                _ => continue,
            };
            changed = true;
            match key.code {
                KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                    status.switch.end();
                }
                KeyCode::Char('q') | KeyCode::Esc => status.switch.end(),
                KeyCode::Char('b') => self.sort(status, Order::Bytes),
                KeyCode::Char('p') => self.sort(status, Order::Packets),
                KeyCode::Char('d') => self.sort(status, Order::Duration),
                KeyCode::Char(' ') => self.held = !self.held,
                _ => {}
            }
        }
        Ok(changed)
    }

    fn sort(&mut self, status: &Status<'_>, order: Order) {
        status.switch.set_order(order);
        self.picture.order = order;
    }

    /// Sums of the flows that go on, with their records that have ended.
    fn totals(&self, status: &Status<'_>) -> Vec<Total> {
        let mut sums: HashMap<FlowKey, Total> = HashMap::new();
        for record in status.queues.iter().flat_map(|queue| &queue.live) {
            let total = Total::of(record);
            sums.entry(total.key)
                // Its other direction, in another queue.
                .and_modify(|sum| sum.add(&total))
                .or_insert(total);
        }
        for (key, sum) in &mut sums {
            if let Some(ended) = status.top.get(key) {
                sum.add(ended);
            }
        }
        let ended = status.top.largest(64);
        for total in ended {
            sums.entry(total.key).or_insert(total);
        }
        let mut totals: Vec<Total> = sums.into_values().collect();
        top::sort(&mut totals, self.picture.order);
        totals.truncate(64);
        totals
    }

    fn update(&mut self, status: &Status<'_>) {
        let total = status.total();
        let totals = self.totals(status);
        let passed = status.elapsed.saturating_sub(self.at);
        if passed >= RATE_INTERVAL {
            let seconds = passed.as_secs_f64();
            let picture = &mut self.picture;
            let since = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
            picture.pps = since(total.meter.packets, self.packets);
            picture.bps = since(total.wire_bytes, self.wire_bytes) * 8.0;
            picture.new_per_s = since(total.meter.table.flows, self.begun);
            picture.history.push(picture.pps as u64);
            if picture.history.len() > HISTORY_LEN {
                picture.history.remove(0);
            }
            self.rates.clear();
            for flow in &totals {
                if let Some(before) = self.before.get(&flow.key) {
                    let bytes = flow.bytes.iter().sum();
                    self.rates.insert(flow.key, since(bytes, *before) * 8.0);
                }
            }
            self.before.clear();
            for flow in &totals {
                self.before.insert(flow.key, flow.bytes.iter().sum());
            }
            self.at = status.elapsed;
            self.packets = total.meter.packets;
            self.wire_bytes = total.wire_bytes;
            self.begun = total.meter.table.flows;
        }
        for queue in status.queues {
            for (record, known) in queue.live.iter().zip(&queue.live_applications) {
                if let Some(words) = words(known) {
                    self.applications.insert(*record.key(), words);
                }
            }
        }
        // Of those that are not shown any more nothing is kept.
        let shown: HashSet<FlowKey> = totals.iter().map(|total| total.key).collect();
        self.applications.retain(|key, _| shown.contains(key));
        let picture = &mut self.picture;
        picture.elapsed = status.elapsed;
        picture.packets = total.meter.packets;
        picture.wire_bytes = total.wire_bytes;
        picture.live = total.meter.table.live;
        picture.capacity = total.capacity;
        picture.evicted = total.meter.table.ended[EndReason::Resources as usize];
        picture.refused = total.meter.refused_total();
        picture.account = status.account.clone();
        picture.rows = totals
            .iter()
            .map(|total| {
                let rate_bps = self.rates.get(&total.key).copied();
                Row::of(total, rate_bps, self.applications.get(&total.key))
            })
            .collect();
    }
}

/// Protocol and name, if anything was recognised. What a packet brought is made fit to be shown.
fn words(application: &inspect::Application) -> Option<(&'static str, String)> {
    if application.protocol() == inspect::Protocol::Unknown {
        return None;
    }
    let name = match application.headline() {
        Some(inspect::Value::Text { bytes, .. }) => bytes.escape_ascii().to_string(),
        Some(inspect::Value::Address(addr)) => addr.to_string(),
        _ => String::new(),
    };
    Some((application.protocol().name(), name))
}

impl Outlet for Live {
    fn ended(&mut self, _: &Record, _: EndReason) -> Result<Fate> {
        Ok(Fate::Told)
    }

    fn pulse(&mut self, status: &Status<'_>) -> Result<()> {
        let failed = |e| Error::from_io("draw on the terminal", e);
        for event in status.events {
            self.picture.event = event_text(event);
        }
        self.keys(status).map_err(failed)?;
        if !self.held {
            self.update(status);
        }
        self.picture.held = self.held;
        let picture = &self.picture;
        if let Some(terminal) = &mut self.terminal {
            terminal.draw(|frame| picture.draw(frame)).map_err(failed)?;
        }
        Ok(())
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        if self.terminal.take().is_some() {
            ratatui::restore();
        }
    }
}
