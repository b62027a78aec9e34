//! Tests on this machine: real interfaces in their own namespaces, programs as peers, captures.
//!
//! They form a single program, so that common code is linked once: each file is a module here.
//! Tests that need the emulated cards are in `guest.rs`. Tests share the process and its threads:
//! tests that change the process (user, limits, directory, environment, signals) use a child
//! (`lab::process::own_test`).

#![allow(
    clippy::duplicate_mod,
    reason = "the tests of AF_PACKET run over both of its rings"
)]

// Shared by tests.
mod afxdp;
mod capture;
mod capture_any;
mod export;
mod forward;

// Tests.
mod afpacket;
mod afpacket_tpacket;
mod afxdp_detached;
mod afxdp_life;
mod afxdp_metadata;
mod afxdp_rx;
mod afxdp_tx;
mod afxdp_walk;
mod bpf_filter;
mod capture_extcap;
mod capture_files;
mod capture_limits;
mod capture_live;
mod cli_completion;
mod cli_fifo;
mod cli_files;
mod cli_hints;
mod cli_machine;
mod cli_signals;
mod cli_stalled;
mod cluster_live;
mod cluster_merge;
mod confined;
mod confined_files;
mod doc_examples;
mod export_applications;
mod export_collectors;
mod export_fields;
mod export_kafka;
mod export_lost;
mod export_metrics;
mod export_nfdump;
mod export_parquet;
mod export_tshark;
mod facade_examples;
mod file_corpus;
mod filter_circuits;
mod filter_command;
mod filter_derive;
mod filter_expression;
mod filter_links;
mod filter_manual;
mod filter_object;
mod filter_p0f;
mod flow_applications;
mod flow_blocked;
mod flow_egress;
mod flow_expected;
mod flow_file;
mod flow_gone;
mod flow_laws;
mod flow_live;
mod flow_ndpi;
mod flow_oracle;
mod flow_origins;
mod flow_report;
mod flow_reshaped;
mod flow_service;
mod flow_shortcut;
mod flow_terminal;
mod flow_tunnels;
mod flow_view;
mod forward_gone;
mod forward_live;
mod guard_challenge;
mod guard_detect;
mod guard_face;
mod guard_flood;
mod guard_interpreted;
mod guard_iptables;
mod guard_iptables_installed;
mod guard_live;
mod guard_many;
mod guard_names;
mod guard_program;
mod guard_samples;
mod guard_steer;
mod guard_steer_load;
mod guard_steer_traffic;
mod guard_tc;
mod inspect_certificates;
mod inspect_oracle;
mod inspect_samples;
mod nic_host_dependency;
mod package;
mod pcap_dropin;
mod pcap_dropin_calls;
mod pcap_dropin_live;
mod pfring_dropin;
mod port_embedding;
mod privileges;
mod scan_adaptive;
mod scan_banners;
mod scan_firewall;
mod scan_live;
mod scan_nmap;
mod scan_output;
mod scan_probes;
mod scan_queues;
mod scan_servers;
mod scan_services;
mod scan_tables;
mod scan_targets;
mod scan_tun;
mod send_generate;
mod send_neighbour;
mod send_replay;
mod send_source;
mod send_xdplive;
mod several_inputs;
mod suricata_queues;
mod vm_live;
mod wire_corpus;
mod wire_tcpdump;
mod wire_tshark;
mod xdp_live;
mod xdp_programs;
mod xtask_demo;
