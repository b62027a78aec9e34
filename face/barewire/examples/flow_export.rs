//! Exports the flows of a port: `flow_export eth0 ipfix:udp://192.0.2.1:4739`. Stop with Ctrl-C.

use barewire::probe::Probe;
use barewire::{Result, Stop};

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let [_, port, collector] = args.as_slice() else {
        panic!("usage: flow_export PORT DESTINATION");
    };
    let stop = Stop::on_signals()?;
    let done = Probe::open(port)?.export(collector)?.run(&stop)?;
    for (name, account) in &done.exports {
        println!("{name}: {} flows", account.exported.flows);
    }
    done.check()
}
