#!/bin/sh
# Makes sure that the programs are there with which the tests start a Docker engine of their own and make its
# base image. Where they may not be installed, the tests that need them say so (and fail in CI).
set -eu
missing=""
command -v dockerd >/dev/null 2>&1 || missing="$missing docker.io"
command -v debootstrap >/dev/null 2>&1 || missing="$missing debootstrap"
[ -n "$missing" ] || exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "installing$missing" >&2
    # shellcheck disable=SC2086
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $missing >/dev/null
else
    echo "for the Docker tests run: sudo apt-get install$missing" >&2
fi
