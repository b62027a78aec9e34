# Makes a root directory from unpacked packages and executes a program in it. Of this machine it
# has devices, /proc, /sys, and what is given; no configuration, no users, no libraries, no
# sockets. Runs as root of a mount namespace of its own, so that nothing of it remains.
#
# Arguments: the directory of the packages; files and directories to give, under their own paths;
# "--"; the program and its arguments.
set -eu
here=$(pwd -P) packages=$1
shift
cd -P "$packages"
# On top of the packages, which remain reachable as the working directory: no path that is given
# can be below it.
root=$(pwd -P)
mount -t tmpfs -o mode=755 tmpfs "$root"
for name in etc var; do
    if [ -d "./$name" ]; then cp -dR --preserve=mode "./$name" "$root/"; else mkdir "$root/$name"; fi
done
mkdir "$root/usr" "$root/dev" "$root/proc" "$root/sys" "$root/run" "$root/tmp"
chmod 1777 "$root/tmp"
attach() { mkdir "$root/$1" && mount --no-canonicalize --bind "./$1" "$root/$1"; }
# One by one, so that a path below /usr can be given, too.
for name in usr/*; do
    if [ -L "$name" ] || [ ! -d "$name" ]; then cp -d "$name" "$root/usr/"; else attach "$name"; fi
done
for name in bin sbin lib lib64; do
    if [ -d "./$name" ] && [ ! -L "./$name" ]; then attach "$name"; else ln -s "usr/$name" "$root/$name"; fi
done

# The users of all packages.
mkdir -p "$root/etc"
printf '%s\n' root:x:0:0::/:/bin/sh nobody:x:65534:65534::/:/bin/false > "$root/etc/passwd"
printf '%s\n' root:x:0: nogroup:x:65534: postdrop:x:200: > "$root/etc/group"
id=100
for name in www-data sshd postfix postgres dovecot dovenull mysql mosquitto ftp; do
    id=$((id + 1))
    echo "$name:x:$id:$id::/tmp:/bin/false" >> "$root/etc/passwd"
    echo "$name:x:$id:" >> "$root/etc/group"
done

# Process 1 is in a process namespace of its own.
if [ $$ = 1 ]; then mount -t proc proc "$root/proc"; else mount --rbind /proc "$root/proc"; fi
mount --rbind /sys "$root/sys"
mkdir -m 1777 "$root/dev/shm"
for name in fd:fd stdin:fd/0 stdout:fd/1 stderr:fd/2; do
    ln -s "/proc/self/${name#*:}" "$root/dev/${name%:*}"
done
give() {
    if [ -d "$1" ]; then
        mkdir -p "$root$1"
    else
        mkdir -p "$root${1%/*}"
        : > "$root$1"
    fi
    mount --bind "$1" "$root$1"
}
for name in null zero full random urandom tty kvm net/tun; do
    if [ -e "/dev/$name" ]; then give "/dev/$name"; fi
done
while [ "$1" != -- ]; do
    give "$1"
    shift
done
shift
[ -d "$root$here" ] || here=/
exec unshare --root="$root" --wd="$here" -- "$@"
