"""What stands in front of a line's text: time, launcher, rank, host, process, level. (pure)

Each layer that handles a line puts its own prefix in front, so prefixes are peeled from outside inwards, and
what is left is what the program said. A rank is global only where the prefix says so: torchrun's `[default3]:`
counts the processes of one host, and naming it would accuse another machine. Of several ranks the innermost
counts; of several hosts, too: the outer one is often that of the collector.
"""

from __future__ import annotations

import re

from ftrun.slurm.records import dataclass

LINE_CHARS = 2000
"""A line is read up to here."""

PREFIXES_MAX = 8
"""How many prefixes a line may have."""

_HOST = r"(?P<host>[A-Za-z][\w-]*(?:\.[\w-]+)*|\d{1,3}(?:\.\d{1,3}){3})"
_TIME = r"\d\d:\d\d:\d\d(?:[.,]\d+)?"
_STAMP = (
    rf"(?:\d{{4}}[-/](?:\d\d|[A-Z][a-z]{{2}})[-/]\d\d[T ,]+\d\d:\d\d(?::\d\d)?(?:[.,]\d+)?(?:Z| ?[+-]\d\d:?\d\d)?(?: UTC)?"
    rf"|(?:[A-Z][a-z]{{2}} )?[A-Z][a-z]{{2}} +\d{{1,2}} {_TIME}(?: \d{{4}})?"
    rf"|\d\d/\d\d/\d{{2,4}} {_TIME}|{_TIME}| *\d+\.\d{{4,6}})"
)
_LEVEL = r"(?P<level>TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|ERR|CRITICAL|CRIT|FATAL|SEVERE)"
_DAEMONS = r"kernel|systemd|slurmd|slurmctld|pbs_mom|pbs_server|[\w./-]{1,40}\[\d+\]"

# In this order; each takes what it means with it.
_FORMS = tuple(
    re.compile(form)
    for form in (
        rf"{_HOST}: (?:kern|daemon|user|syslog): +(?P<level>\w+): (?:\[{_STAMP}\]:? ?)?",
        rf"<\d{{1,3}}>(?=\S)|\[{_STAMP}\]:? *|{_STAMP}(?:[:,|]? +(?:- )?|$)",
        rf"{_HOST} (?:{_DAEMONS}): ?(?:\[ *\d+\.\d+\] ?)?",
        r"\[(?:\d+,)?(?P<rank>\d+)\](?:<std\w+>)?:? *(?=\S)",
        r"\[default\d+\]:? ?",
        r"\[?[Rr]ank[ _]?(?P<rank>\d+)\]?: ?|\[[Rr]ank ?(?P<within>\d+)\] ?",
        rf"{_HOST}:\d+:\d+ \[\d+\] ?",
        rf"\[(?:\w+[@:])?(?:\d+:\d+@)?{_HOST}(?::\d+){{1,3}}\] ?|\[(?:mpiexec|proxy:\d+:\d+)@(?P<proxy>[\w.-]+)\] ?",
        rf"\([\w. ]{{0,40}}(?:pid=\d+)?(?:, ?)?ip={_HOST}\) ?|\([\w.: ]{{1,40}} ?pid=\d+\) ?|\(raylet\) ?",
        r"\[?(?P<level>[IWEFD])(?:\d{4} \d\d:\d\d:\d+\.\d+ +\d+)? ?[\w./:-]{0,80}\](?::? |$)",
        r"\d{2,8}:\d{2,8} +(?=[A-Z])",
        rf"(?:(?:[NR]CCL|UCX|OFI) +)?\[?{_LEVEL}\]?(?=[\s:|\]-]|$)[\s:|-]*",
        r"[\w.]{1,60} - (?=[A-Z]{4,8} - )",
        rf"[A-Z][a-z]{{2}}-\d\d {_TIME} +",
        rf"\[[\w -]{{1,60}}\] +{_LEVEL} +[\w.$]{{1,80}} - ",
        r"(?P<rank>\d{1,6}): +(?=\S)",
        r"(?P<host>[A-Za-z][\w.-]*\d[\w-]*): (?=\S)",
    )
)
_NO_HOSTS = frozenset({"localhost", "mpiexec", "mpirun", "line"})


@dataclass(frozen=True, slots=True)
class Spoken:
    """A line without its prefixes, and what those said. `rank` is global, None if unknown; `host` and `level`
    are "" if unknown, the level in lower case and by its first letter (e, w, i, d, f).
    """

    text: str
    host: str = ""
    rank: int | None = None
    level: str = ""


def peeled(line: str) -> Spoken:
    """`line` without its prefixes."""
    text = line[:LINE_CHARS].strip()
    host, rank, level = "", None, ""
    for _ in range(PREFIXES_MAX):
        found = next((match for form in _FORMS if (match := form.match(text))), None)
        if found is None or not found.end():
            break
        named = found.groupdict()
        told = named.get("host") or named.get("proxy") or ""
        if told and told.lower() not in _NO_HOSTS and not told.endswith((".py", ".c", ".cc", ".cpp")):
            host = told
        number = named.get("rank") or named.get("within")
        rank = int(number) if number else rank
        level = (named.get("level") or level).lower()[:1]
        text = text[found.end() :].lstrip()
    return Spoken(text, host, rank, level)
