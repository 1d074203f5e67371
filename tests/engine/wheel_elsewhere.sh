#!/bin/sh
# Installs a wheel of another architecture beside Debian's Python of that architecture and reads with it under qemu.
# Needs no root: apt keeps its lists and packages below the given directory.
# usage: wheel_elsewhere.sh ARCHITECTURE WHEEL DIRECTORY PYTHON
set -eu
arch=$1 wheel=$2 home=$3 python=$4
case $arch in aarch64) debian=arm64 ;; x86_64) debian=amd64 ;; *) echo "no Debian name for $arch"; exit 1 ;; esac
mkdir -p "$home/lists/partial" "$home/cache/archives/partial" "$home/root"
touch "$home/status"
cat >"$home/apt.conf" <<END
APT::Architecture "$debian";
APT::Architectures { "$debian"; };
APT::Sandbox::User "";
Dir::State "$home";
Dir::State::Lists "$home/lists";
Dir::State::status "$home/status";
Dir::Cache "$home/cache";
Debug::NoLocking "true";
END
export APT_CONFIG="$home/apt.conf"
if ! apt-get update -qq || ! apt-get install -y -qq --no-install-recommends --download-only python3 libstdc++6; then
  echo "NOT TESTED: the wheel of $arch under its own Python - Debian's packages of $debian cannot be had here"
  exit 0
fi
unset APT_CONFIG
for package in "$home"/cache/archives/*.deb; do dpkg-deb -x "$package" "$home/root"; done
there="qemu-$arch-static -L $home/root $home/root/usr/bin/python3"
version=$($there -c 'import sys; print("%d.%d" % sys.version_info[:2])')
"$python" -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --target "$home/site" --only-binary=:all: \
  --implementation cp --python-version "$version" --platform "manylinux2014_$arch" --platform "manylinux_2_27_$arch" \
  --platform "manylinux_2_28_$arch" "$wheel"
PYTHONPATH="$home/site" $there tests/engine/wheel_elsewhere.py
