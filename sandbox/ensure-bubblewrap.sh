#!/bin/sh
# Makes sure that a sandbox is there: nothing to do where bubblewrap or a Docker engine works; else installs
# bubblewrap where it may, or prints the one command to run.
set -eu
if command -v bwrap >/dev/null 2>&1 || docker info >/dev/null 2>&1; then
    exit 0
fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "installing bubblewrap" >&2
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq bubblewrap git >/dev/null
    exit 0
fi
echo "taskgen needs a sandbox; run: sudo apt-get install bubblewrap" >&2
exit 1
