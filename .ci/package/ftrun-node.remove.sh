# slurm.conf may still name the hooks, and Slurm drains a node whose prolog is missing.
if grep -qs '^[^#]*/opt/ftrun-node/' "${SLURM_CONF:-/etc/slurm/slurm.conf}"; then
    refuse "ftrun-node: ${SLURM_CONF:-/etc/slurm/slurm.conf} names hooks in /opt/ftrun-node: take these lines out first"
fi
rm -rf /opt/ftrun-node /usr/bin/ftrun-hook /usr/lib/ftrun-node
