#!/bin/sh
# Makes the base image of Docker sandboxes from Debian packages alone: no image registry is needed.
set -eu

SUITE=bookworm
TAG=taskgen-python:3.11
PACKAGES=python3,python3-venv,python3-dev,gcc,libc6-dev,git,ca-certificates
MIRROR=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
FORCE=no

usage() {
    cat <<USAGE
usage: make-base-image.sh [--force] [--tag TAG] [--mirror URL]

Make the base image of Docker sandboxes (Debian $SUITE, Python 3.11, gcc, git) with debootstrap
and import it into the Docker engine. Does nothing when the engine has the image already.

  --force       make it anew even if the engine has it
  --tag TAG     name of the image (default: $TAG)
  --mirror URL  Debian mirror (default: \$DEBIAN_MIRROR or $MIRROR)
  --help        show this text

Needs root, debootstrap, and a Docker engine (\$DOCKER_HOST names another than the default one).
Takes about a minute and 700 MB in \$TMPDIR (or /var/tmp) while it runs.
USAGE
}

fail() {
    echo "make-base-image.sh: $1" >&2
    exit 1
}

while [ $# -gt 0 ]; do
    case $1 in
        --force) FORCE=yes ;;
        --tag) [ $# -gt 1 ] || fail "--tag needs a value"; TAG=$2; shift ;;
        --mirror) [ $# -gt 1 ] || fail "--mirror needs a value"; MIRROR=$2; shift ;;
        --help | -h) usage; exit 0 ;;
        *) usage >&2; exit 2 ;;
    esac
    shift
done

command -v docker >/dev/null || fail "docker is missing; install it: apt-get install docker.io"
docker version >/dev/null 2>&1 || fail "no Docker engine answers (DOCKER_HOST=${DOCKER_HOST:-unset})"
if [ "$FORCE" = no ] && docker image inspect "$TAG" >/dev/null 2>&1; then
    echo "$TAG is there already"
    exit 0
fi
command -v debootstrap >/dev/null || fail "debootstrap is missing; install it: apt-get install debootstrap"
[ "$(id -u)" = 0 ] || fail "debootstrap needs root; run: sudo $0"

root=$(mktemp -d "${TMPDIR:-/var/tmp}/taskgen-base.XXXXXX")
# debootstrap may leave /proc mounted when it is interrupted: never delete through a mount.
trap 'umount "$root/proc" "$root/sys" 2>/dev/null || true; rm -rf --one-file-system "$root"' EXIT
trap 'exit 130' INT TERM

debootstrap --variant=minbase --include="$PACKAGES" "$SUITE" "$root" "$MIRROR" >"$root.log" 2>&1 || {
    tail -n 20 "$root.log" >&2
    fail "debootstrap failed; the whole log is in $root.log"
}
rm -f "$root.log"

# Code in a sandbox runs as uid 1000. /env is on the root file system, so that committing keeps it.
echo 'agent:x:1000:1000:agent:/home/agent:/bin/sh' >>"$root/etc/passwd"
echo 'agent:x:1000:' >>"$root/etc/group"
mkdir -p "$root/env" "$root/workspace" "$root/home/agent"
chown 1000:1000 "$root/env" "$root/workspace" "$root/home/agent"
rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/* "$root"/var/log/*.log
# set-uid programs are of no use in a sandbox.
find "$root" -xdev -type f -perm /6000 -exec chmod a-s {} +

tar --numeric-owner --one-file-system -C "$root" -c . |
    docker import --change 'ENV LANG=C.UTF-8' --change 'LABEL taskgen=1' - "$TAG" >/dev/null
echo "made $TAG"
