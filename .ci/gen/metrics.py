"""Write the table of series and that of alerts into docs/metrics.md; `--check` compares. (I/O)"""

from __future__ import annotations

import re

from marked import DOCS, keep_current

from ftrun.supervisor.publish.series import SERIES

BEGIN = "<!-- series: begin, written by `make docs` from supervisor/publish/series.py -->"
END = "<!-- series: end -->"
BEGIN_ALERTS = "<!-- alerts: begin, written by `make docs` from supervisor/publish/alerts.yml -->"
END_ALERTS = "<!-- alerts: end -->"
_ALERT = re.compile(r'- alert: (\w+).*?severity: (\w+).*?summary: "(.*?)"', re.DOTALL)


def series() -> str:
    """Return the series as a table."""
    rows = ["| series | kind | labels | what it is |", "|---|---|---|---|"]
    for row in SERIES:
        labels = ", ".join(f"`{name}`" for name in row.labels)
        rows.append(f"| `{row.name}` | {row.kind} | {labels} | {row.help} |")
    return "\n".join(rows)


def alerts() -> str:
    """Return the alerts as a table."""
    text = (DOCS.parent / "supervisor/publish/alerts.yml").read_text(encoding="utf-8")
    rows = ["| alert | severity | when |", "|---|---|---|"]
    for name, severity, summary in _ALERT.findall(text):
        plain = re.sub(r"{{ *\$(?:labels\.)?(\w+).*?}}", r"*\1*", summary)
        rows.append(f"| `{name}` | {severity} | {plain} |")
    return "\n".join(rows)


if __name__ == "__main__":
    keep_current("metrics.md", "the table of series", BEGIN, END, series())
    keep_current("metrics.md", "the table of alerts", BEGIN_ALERTS, END_ALERTS, alerts())
