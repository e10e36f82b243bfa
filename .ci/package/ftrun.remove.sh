if [ -d /run/systemd/system ]; then systemctl disable --now ftrun-site ftrun-sweep.timer 2>/dev/null || :; fi
# The ledger in /var/lib/ftrun-site stays.
rm -rf /opt/ftrun
if [ "$(readlink /usr/bin/ftrun)" = /opt/ftrun/bin/ftrun ]; then rm -f /usr/bin/ftrun; fi
