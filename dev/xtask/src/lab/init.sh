#!/bin/busybox sh
# The first program of the guest: mounts, modules, names of interfaces; then runs /job, its output
# on one virtio port, its exit code on another, what it left in /out as an archive on a third.
export PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb
/bin/busybox --install -s /bin
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs tmp /tmp
mount -t tmpfs run /run
mkdir -p /dev/shm /dev/pts /run/netns
mount -t tmpfs shm /dev/shm
mount -t devpts -o ptmxmode=666 devpts /dev/pts
mount -t bpf bpf /sys/fs/bpf
mount -t tracefs trace /sys/kernel/tracing
while read -r module; do
    insmod "/modules/$module.ko" || echo "init: module $module was not loaded"
done </modules/order

# Names by address, because the order in which cards are found is nobody's promise.
while read -r mac name; do
    for address in /sys/class/net/*/address; do
        if [ "$(cat "$address")" = "$mac" ]; then
            ip link set "$(basename "$(dirname "$address")")" name "$name"
        fi
    done
done </cards
ip link set lo up
# For whoever asks a guest that hangs.
echo 1 >/proc/sys/kernel/sysrq

port() {
    for name in /sys/class/virtio-ports/*/name; do
        [ "$(cat "$name")" = "$1" ] && echo "/dev/$(basename "$(dirname "$name")")"
    done
}
# The host tells of them when it comes to it.
for _ in $(seq 100); do
    output=$(port output)
    status=$(port status)
    files=$(port files)
    [ -n "$output" ] && [ -n "$status" ] && [ -n "$files" ] && break
    sleep 0.3
done
if [ -z "$output" ] || [ -z "$status" ] || [ -z "$files" ]; then
    echo "init: the virtio ports are not there"
    ls /sys/class/virtio-ports
    poweroff -f
fi
echo "init: up after $(cut -d' ' -f1 /proc/uptime) s"
cd /root
sh /job >"$output" 2>&1 </dev/null
echo $? >"$status"
dmesg >/out/dmesg
tar c -C /out . >"$files"
sync
poweroff -f
