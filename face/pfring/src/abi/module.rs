//! The functions of a ring's module, which are fields of `struct __pfring`: programs test whether
//! one is there (pfcount with `recv_burst`).

use super::facts::*;
use super::open::*;
use super::receive::*;
use super::rules::*;
use super::send::*;
use super::settings::*;
use crate::visible::FUNCTION_COUNT;

/// Addresses of functions, 0 for null.
macro_rules! addresses {
    ($($function:expr),* $(,)?) => {
        [$($function as *const () as usize),*]
    };
}

/// Of a function that is not supported.
const NONE: *const () = std::ptr::null();

/// Number of those up to the ones of rules.
const FIRST: usize = 30;

/// The functions in the order of the structure.
fn first() -> [usize; FIRST] {
    addresses![
        pfring_close,
        pfring_stats,
        pfring_recv,
        pfring_set_poll_watermark,
        pfring_set_poll_watermark_timeout,
        pfring_set_poll_duration,
        pfring_set_tx_watermark,
        NONE,
        NONE,
        pfring_set_application_name,
        pfring_set_application_stats,
        NONE,
        pfring_set_vlan_id,
        pfring_bind,
        pfring_send,
        NONE,
        pfring_get_num_rx_channels,
        pfring_get_card_settings,
        pfring_set_sampling_rate,
        NONE,
        pfring_set_packet_slicing,
        pfring_get_selectable_fd,
        pfring_set_direction,
        pfring_set_socket_mode,
        pfring_set_cluster_consumer,
        pfring_remove_from_cluster,
        NONE,
        NONE,
        pfring_get_ring_id,
        pfring_get_num_queued_pkts,
    ]
}

/// Those of rules and the following ones.
fn others() -> [usize; FUNCTION_COUNT - FIRST] {
    addresses![
        pfring_get_hash_filtering_rule_stats,
        pfring_handle_hash_filtering_rule,
        pfring_purge_idle_hash_rules,
        pfring_add_filtering_rule,
        pfring_remove_filtering_rule,
        pfring_purge_idle_rules,
        NONE,
        pfring_toggle_filtering_policy,
        pfring_enable_rss_rehash,
        pfring_poll,
        pfring_is_pkt_available,
        pfring_next_pkt_time,
        NONE,
        pfring_version,
        pfring_get_bound_device_address,
        pfring_get_bound_device_ifindex,
        pfring_get_device_ifindex,
        pfring_get_slot_header_len,
        NONE,
        NONE,
        pfring_add_hw_rule,
        NONE,
        pfring_loopback_test,
        pfring_enable_ring,
        pfring_disable_ring,
        pfring_shutdown,
        pfring_set_bpf_filter,
        pfring_remove_bpf_filter,
        NONE,
        NONE,
        NONE,
        pfring_sync_indexes_with_kernel,
        pfring_send_last_rx_packet,
        pfring_flush_tx_packets,
        NONE,
        NONE,
        pfring_recv_burst,
        NONE,
        NONE,
        pfring_get_interface_speed,
        pfring_get_link_type,
    ]
}

/// The functions in the order of the structure; null for those that are not supported.
pub fn module_functions() -> [usize; FUNCTION_COUNT] {
    let (first, others) = (first(), others());
    std::array::from_fn(|at| match at < FIRST {
        true => first[at],
        false => others[at - FIRST],
    })
}
