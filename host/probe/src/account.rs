//! Accounts as JSON.

use export::Account;
use port::{DropReason, PortAccount, QueueAccount};
use runtime::flows::egress::EgressReport;
use serde_json::{Map, Value, json};

/// One queue's account as JSON.
pub fn queue_json(queue: &QueueAccount) -> Value {
    let dropped: Map<String, Value> = DropReason::ALL
        .iter()
        .map(|&reason| {
            (
                reason.name().to_owned(),
                queue.dropped[reason as usize].into(),
            )
        })
        .collect();
    json!({
        "queue": queue.queue_index,
        "seen": queue.seen,
        "delivered": queue.delivered,
        "delivered_bytes": queue.delivered_bytes,
        "passed": queue.passed,
        "in_flight": queue.in_flight,
        "wire_len_damaged": queue.wire_len_damaged,
        "time_clamped": queue.time_clamped,
        "time_missing": queue.time_missing,
        "filter_unsuitable": queue.filter_unsuitable,
        "capture_lost": queue.capture_lost,
        "dropped": dropped,
        "imbalance": queue.imbalance(),
    })
}

/// A port's account as JSON.
pub fn account_json(account: &PortAccount) -> Value {
    let sending: Vec<Value> = account
        .tx
        .iter()
        .map(|tx| {
            json!({
                "queue": tx.queue_index, "sent": tx.sent, "sent_bytes": tx.sent_bytes,
                "failed": tx.failed, "copied": tx.copied,
            })
        })
        .collect();
    let queues = account.rx.iter().enumerate().map(|(index, queue)| {
        let mut value = queue_json(queue);
        if let Some(name) = account.rx_names.get(index) {
            value["name"] = name.as_str().into();
        }
        value
    });
    json!({
        "total": queue_json(&account.rx_total()),
        "queues": queues.collect::<Vec<_>>(),
        "sending": sending,
        "interface_seen": account.interface_seen,
        "interface_sent": account.interface_sent,
    })
}

/// Accounts of destinations as JSON.
pub fn accounts_json(accounts: &[(String, Account)]) -> Value {
    let all = accounts.iter().map(|(name, account)| {
        let dropped: Map<String, Value> = export::DropReason::ALL
            .into_iter()
            .filter(|reason| account.dropped[*reason as usize].flows != 0)
            .map(|reason| {
                let sum = account.dropped[reason as usize];
                let value = json!({"flows": sum.flows, "packets": sum.packets});
                (reason.name().to_owned(), value)
            })
            .collect();
        json!({
            "destination": name,
            "offered": {"flows": account.offered.flows, "packets": account.offered.packets},
            "exported": {"flows": account.exported.flows, "packets": account.exported.packets},
            "data_records": account.data_records,
            "shortened": account.shortened,
            "time_clamped": account.time_clamped,
            "dropped": dropped,
            "messages": account.messages,
            "files": account.files,
            "bytes": account.bytes,
            "sessions": account.sessions,
            "failures": account.failures,
            "refused_by_host": account.refused_by_host,
            "last_failure": account.last_failure,
            "imbalance": account.waiting(),
        })
    });
    Value::Array(all.collect())
}

/// The account of an egress as JSON.
pub fn egress_json(egress: &EgressReport) -> Value {
    let status = &egress.status;
    let failed: u64 = egress.account.tx.iter().map(|tx| tx.failed).sum();
    json!({
        "chosen": status.chosen,
        "forwarded": status.forwarded,
        "forwarded_bytes": status.forwarded_bytes,
        "copied": status.copied,
        "filtered": status.filtered,
        "dropped": {
            "tx_full": status.tx_full,
            "too_long": status.too_long,
            "unsendable": status.unsendable,
        },
        "failed": failed,
        "imbalance": status.imbalance(),
    })
}
