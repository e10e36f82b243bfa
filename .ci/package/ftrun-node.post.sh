# A hook that runs now goes on with the copy that it began with, so the copy that is in force stays until the next upgrade.
hooks=/opt/ftrun-node
for old in "$hooks"/lib-*; do
    [ -d "$old" ] && ! grep -q "lib=$old\$" "$hooks/prolog" 2>/dev/null && rm -rf "$old"
done
mkdir -p /etc/ftrun /var/lib/ftrun
"$python" -I -S /usr/lib/ftrun-node/ftrun-hook.pyz install --python "$python" "$hooks" >/usr/lib/ftrun-node/slurm.conf.txt ||
    refuse "ftrun-node: the hooks could not be copied to $hooks"
printf '#!/bin/sh\nexec %s -I -S /usr/lib/ftrun-node/ftrun-hook.pyz "$@"\n' "$python" >/usr/bin/ftrun-hook
chmod 0755 /usr/bin/ftrun-hook
echo "ftrun-node: the hooks are in $hooks; the lines for slurm.conf are in /usr/lib/ftrun-node/slurm.conf.txt"
