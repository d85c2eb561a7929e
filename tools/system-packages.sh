#!/bin/sh
# Install the Debian packages that some tests need, where that is allowed; else say what will not work.
# chromium: page tests open the report in it and look at its layout.
# bubblewrap: programs that a model wrote are executed in it, and nowhere else.
need() { # COMMAND PACKAGE WHAT-FOR
    command -v "$1" >/dev/null 2>&1 && return
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        echo "installing $2 for $3 ..."
        { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$2"; } >/dev/null 2>&1 && return
    fi
    echo "$2 is missing: $3 cannot run. Install it with: sudo apt-get install $2" >&2
}
need chromium chromium "page tests"
need bwrap bubblewrap "execution of code that a model wrote"
exit 0
