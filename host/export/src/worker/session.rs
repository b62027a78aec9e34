//! Sessions of a destination: their start and end, their messages, and the result of each message.

use std::time::Instant;

use flow::encode::Statistics;

use super::{BACKOFF_MAX, BACKOFF_MIN, Running, lock, now_ns};
use crate::sink::Sent;

impl Running {
    /// Collects results of messages; returns the number of those without a result.
    pub(super) fn settle(&mut self) -> usize {
        if !self.worker.sink.is_deferred() {
            return 0;
        }
        let settled = self.worker.sink.settle();
        if settled.done.flows != 0 {
            self.step();
        }
        let mut account = lock(&self.worker.shared.account);
        account.exported.add(&settled.done);
        account.dropped[self.worker.lost_as as usize].add(&settled.lost);
        if settled.last_failure.is_some() {
            account.failures += 1;
            account.last_failure = settled.last_failure;
        }
        settled.waiting
    }

    /// Ends the session to rotate its file; the next one starts with the next record.
    pub(super) fn rotate(&mut self) {
        if self.send() {
            self.end_session();
            self.is_connected = false;
            self.is_resting = true;
            self.next_attempt = Instant::now();
        }
    }

    /// Sends the closing messages and ends the session.
    pub(super) fn end_session(&mut self) {
        let statistics = self.statistics();
        let messages = self.worker.encoder.end_session(now_ns(), &statistics);
        for message in messages {
            match self.worker.sink.send(&message) {
                Sent::Done => {
                    let mut account = lock(&self.worker.shared.account);
                    account.messages += 1;
                    account.bytes += message.len() as u64;
                }
                // Earlier messages count without them.
                Sent::Lost(error) => {
                    let mut account = lock(&self.worker.shared.account);
                    account.failures += 1;
                    account.last_failure = Some(error.to_string());
                }
                Sent::Broken(error) => return self.failed(&error),
            }
        }
        let is_staged = self.worker.sink.is_staged();
        let ended = self.worker.sink.close();
        self.settle();
        let staged = std::mem::take(&mut self.staged);
        let mut account = lock(&self.worker.shared.account);
        match ended {
            Ok(()) => {
                account.exported.add(&staged);
                account.files += u64::from(is_staged);
            }
            Err(error) => {
                account.dropped[self.worker.lost_as as usize].add(&staged);
                account.failures += 1;
                account.last_failure = Some(error.to_string());
            }
        }
    }

    /// Starts a session if it is time to; returns whether there is one.
    pub(super) fn connect(&mut self) -> bool {
        if Instant::now() < self.next_attempt {
            return false;
        }
        match self.worker.sink.connect() {
            Ok(()) => {
                self.is_connected = true;
                self.next_refresh = Instant::now() + self.worker.refresh;
                {
                    let is_staged = self.worker.sink.is_staged();
                    let mut account = lock(&self.worker.shared.account);
                    // All files count as one session.
                    account.sessions = match is_staged {
                        true => 1,
                        false => account.sessions + 1,
                    };
                    account.is_connected = true;
                }
                let messages = self.worker.encoder.begin_session(now_ns());
                if self.send_control(messages) {
                    self.backoff = BACKOFF_MIN;
                }
                self.is_connected
            }
            Err(error) => {
                self.failed(&error);
                false
            }
        }
    }

    /// The session failed, or could not start.
    fn failed(&mut self, error: &std::io::Error) {
        self.is_connected = false;
        self.lose_staged();
        self.next_attempt = Instant::now() + self.backoff;
        self.backoff = (self.backoff * 2).min(BACKOFF_MAX);
        let mut account = lock(&self.worker.shared.account);
        account.is_connected = false;
        account.failures += 1;
        account.last_failure = Some(error.to_string());
    }

    /// Counts the records of a file that could not be completed as lost.
    pub(super) fn lose_staged(&mut self) {
        let staged = std::mem::take(&mut self.staged);
        let mut account = lock(&self.worker.shared.account);
        account.dropped[self.worker.lost_as as usize].add(&staged);
    }

    /// Sends the encoder's contents. False: the session broke, and the encoder still holds them.
    pub(super) fn send(&mut self) -> bool {
        self.next_flush = None;
        let held = self.worker.encoder.held();
        if held.flows == 0 {
            return self.is_connected;
        }
        if !self.is_connected {
            return false;
        }
        self.keep_rate(held.flows);
        let data_records = self.worker.encoder.record_count();
        let message = self.worker.encoder.message(now_ns());
        let len = message.len() as u64;
        match self.worker.sink.send_held(message, &held) {
            Sent::Done => {
                if !self.worker.sink.is_deferred() {
                    self.step();
                }
                let mut account = lock(&self.worker.shared.account);
                if self.worker.sink.is_staged() {
                    self.staged.add(&held);
                } else if !self.worker.sink.is_deferred() {
                    account.exported.add(&held);
                }
                account.data_records += data_records;
                account.shortened = self.worker.encoder.shortened();
                account.messages += 1;
                account.bytes += len;
                account.refused_by_host = self.worker.sink.refused_by_host();
            }
            Sent::Lost(error) => {
                let mut account = lock(&self.worker.shared.account);
                account.dropped[self.worker.lost_as as usize].add(&held);
                account.failures += 1;
                account.last_failure = Some(error.to_string());
            }
            Sent::Broken(error) => {
                self.failed(&error);
                return false;
            }
        }
        self.worker.encoder.next();
        true
    }

    /// Sends templates or options.
    pub(super) fn send_control(&mut self, messages: Vec<Vec<u8>>) -> bool {
        for message in messages {
            match self.worker.sink.send(&message) {
                Sent::Done => {
                    let mut account = lock(&self.worker.shared.account);
                    account.messages += 1;
                    account.bytes += message.len() as u64;
                }
                Sent::Lost(error) if !self.worker.is_reliable => {
                    let mut account = lock(&self.worker.shared.account);
                    account.failures += 1;
                    account.last_failure = Some(error.to_string());
                }
                // They are not repeated: without them the session is useless.
                Sent::Lost(error) | Sent::Broken(error) => {
                    self.failed(&error);
                    return false;
                }
            }
        }
        true
    }

    pub(super) fn statistics(&self) -> Statistics {
        let observed = *lock(&self.worker.shared.observed);
        Statistics {
            observed_flows: observed.flows,
            ignored_packets: observed.ignored_packets,
            dropped_packets: observed.dropped_packets,
            ..lock(&self.worker.shared.account).statistics()
        }
    }
}
