# Instructions that a packet costs on an emulated igb, by the user-mode driver and by AF_XDP with
# zero-copy: a SYN of a scan, and the same SYN again and again (`send`). In a guest whose clock
# counts instructions (docs/scan.md has the command line).
#
# Each program sends few packets and many; the difference is the cost of those between them. It is
# the processor time of the program's group, and of interrupts, which the kernel accounts in
# hundredths of a second: 10 million instructions.
mac=02:00:00:00:00:02
own=10.77.0.1
irq() { awk '/^cpu1 /{print $7 + $8}' /proc/stat; }
group=0
used() {
    group=$((group + 1))
    dir=/sys/fs/cgroup/$group
    mkdir $dir
    before=$(irq)
    taskset -c 1 sh -c "echo 0 > $dir/cgroup.procs; exec timeout 60 \"\$@\"" sh "$@" > /tmp/out 2>&1 ||
        cat /tmp/out
    program=$(awk '/^usage_usec/{print $2 * 1000}' $dir/cpu.stat)
    interrupts=$((($(irq) - before) * 10000000))
}
# The name, the two numbers of packets, and what differs between the two command lines.
compare() {
    name=$1 few=$2 many=$3 first=$4 second=$5
    shift 5
    used "$@" "$first"
    few_program=$program few_interrupts=$interrupts
    used "$@" "$second"
    awk "BEGIN { n = $many - $few; printf \"%s: %.1f + %.1f instructions a packet\n\", \"$name\", \
        ($program - $few_program) / n, ($interrupts - $few_interrupts) / n }"
}
both() {
    compare "$1 send" 40960 655360 -c40960 -c655360 \
        barewire send --tcp-syn --rate max --dst-mac $mac --src $own --dst 198.18.0.1 $1
    compare "$1 scan" 40960 655360 -p80-84 -p80-159 barewire scan --yes 198.18.0.0/19 \
        --rate 100Mpps --queues 1 --wait 0 --router-mac $mac --source-ip $own -e $1
}
mount -t cgroup2 none /sys/fs/cgroup
# Everything is done by one processor; the other one is idle.
echo 2 > /proc/irq/default_smp_affinity
ip link set igb1 up
ip addr add $own/24 dev igb1
ip route add 198.18.0.0/16 via 10.77.0.2
card=0000:01:00.0
echo $card > /sys/bus/pci/devices/$card/driver/unbind
echo vfio-pci > /sys/bus/pci/devices/$card/driver_override
echo $card > /sys/bus/pci/drivers_probe
for round in 1; do
    both vfio:$card
    both afxdp:igb1
done
