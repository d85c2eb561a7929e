#!/bin/sh
# Install the Debian packages that some tests need, where that is allowed; else say what will not work.
# chromium: page tests open the report in it and look at its layout.
command -v chromium >/dev/null 2>&1 && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "installing chromium for the page tests ..."
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium; } >/dev/null 2>&1 && exit 0
fi
echo "chromium is missing: page tests cannot run. Install it with: sudo apt-get install chromium" >&2
exit 0
