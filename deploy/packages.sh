# shellcheck shell=bash
# Installs Debian packages that are missing. Sourced by deploy/demo.sh and tests/run.sh.

# need_packages PACKAGE...: returns at once when everything is there; needs root or sudo otherwise.
need_packages() {
    local missing=() package
    for package in "$@"; do
        dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    local root=()
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null || {
            echo "missing packages: ${missing[*]} (install them, or run this as root or with sudo)" >&2
            return 1
        }
        root=(sudo)
    fi
    echo "installing ${missing[*]}"
    "${root[@]}" apt-get update -qq
    "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" \
        >/dev/null
}

YOKE_BUILD_PACKAGES=(gcc libc6-dev cmake ninja-build pkg-config libevent-dev libnng-dev libhttp-parser-dev libsqlite3-dev
    libmsgpack-dev libopenblas-dev libjansson-dev zlib1g-dev libjpeg62-turbo-dev libpng-dev
    libmbedtls-dev libcmocka-dev)
