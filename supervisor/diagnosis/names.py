"""Which host a sentence means: the silent one, not the one that reports it. (pure)

"Ping failed on A: no reply from B" accuses B, "A could not forward to child B" accuses B, and "B (rank 3) has
disconnected" accuses B. A name that stands elsewhere in the sentence may be that of a victim, so it is not
taken. A name may also stand beside the sentence: in the fields of the same record, at the prompt at which a
person asked, in the answer to `uname`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ftrun.slurm.client import nodeset

NAME = r"(?:[A-Za-z][\w-]*(?:\.[\w-]+)*(?:\[[\d,-]+\])?|\d{1,3}(?:\.\d{1,3}){3})"

RECORD_LINES = 12
"""The most lines between the name of a record and what it tells."""

_A = r"(?:(?:the|its|a|remote|compute|worker|child|parent|node|host|hostname|server|machine|instance|daemon|broker|peer|ip|address|vm|blade|mom|agent|proxy|sister|at|on|with|id|name)\b[:=]? ?){0,4}"
_OBJECT = re.compile(
    r"(?:\b(?:no (?:reply|response|answer|heart-?beats?|ack\w*|contact)(?: \w+){0,2} (?:from|with|to)"
    r"|(?:lost|losing|loss of|broken) (?:the )?(?:contact|communications?|connections?|connectivity|heartbeats?)(?: \w+){0,2} (?:with|to|from)"
    r"|(?:connection|communication|contact|heartbeats?) (?:with|to|from)"
    r"|(?:could ?n.t|cannot|can't|could not|unable to|failed to|failure to|failing to) (?:re-?connect|connect|reach|contact|communicate|forward|ping|talk|ssh|hear)(?: \S+){0,5}? (?:to|with|from|child)"
    r"|(?:cannot|can't|could not|unable to|failed to) (?:reach|contact|ping)"
    r"|(?:waiting|timed out|time-?out) (?:for|on) (?:a )?(?:\w+ )?(?:reply|response|answer|heartbeat)?s? ?(?:from|of)?"
    r"|(?:marking|marked|declared|removing|draining|set(?:ting)?) (?=.{0,80}\b(?:dead|lost|down|offline|failed|unhealthy))"
    r"|remote daemon|route to|to child|from host|from node)"
    rf")[ :=(\[\"'<]+{_A}[\[\"'<(]?(?P<name>{NAME})",
    re.IGNORECASE,
)
_PLACE = re.compile(
    r"\b(?:(?:node[_ -]?fail(?:ure|ed)|failure|fault|failed|crash(?:ed)?|error|died|lost|dead|killed)(?: \w+)? on)"
    rf"[ :=(\[\"'<]+{_A}[\[\"'<(]?(?P<name>{NAME})",
    re.IGNORECASE,
)
_SUBJECT = re.compile(
    rf"(?P<name>{NAME})[\])\"'>]?(?: ?\([^)]{{0,60}}\))?[:,]? (?:node |host |machine |daemon |broker |which )?"
    r"(?:has |have |had |was |is |are |been |be |not |appears |seems |to be |got |suddenly |unexpectedly |did |does |n't |just |went |state |marked |as |now |no longer )*"
    r"(?:down|died|dead|lost|disconnected|unresponsive|unreachable|not responding|responding|respond|answer|answering|offline|rebooted|crashed|failed|unhealthy|gone|missing|unavailable|reachable|powered off|timed out|shepherd|node[_ -]?fail\w*)\b",
    re.IGNORECASE,
)
_KEYED = re.compile(
    rf"\b(?:node|host|hostname|machine|server|nodename|ip|instance)s?[ :=]+[\"'<\[(]?(?P<name>{NAME})",
    re.IGNORECASE,
)
_FIELD = re.compile(
    rf"^\W*(?:node(?:name|s|list)?|host ?(?:name|s)?|exec(?:ution)?[_ ]hosts?|task distribution|machine|server|failed node|system name|computer)\s*[:=]\s*(?P<name>{NAME})",
    re.IGNORECASE,
)
_PROMPT = re.compile(
    r"^(?:\(\S+\) ?)?\[?[\w.-]+@(?P<name>[A-Za-z][\w.-]*)[ :~\]].{0,80}[$#%>](?:\s|$)|^(?P<bare>[A-Za-z][\w-]*\d[\w.-]*)(?::\S{0,60})?[#$>%] ?\S"
)
_UNAME = re.compile(r"^Linux (?P<name>[A-Za-z][\w.-]*) \d+\.\d+")
_ADDRESS = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}$")
_RANK = re.compile(r"\brank[ :=#]*(\d{1,6})\b", re.IGNORECASE)
_DEVICE = re.compile(r"(?:gpu|cuda|npu|tpu|hpu|card|dev)[-_:]?\d$", re.IGNORECASE)
_FILE = re.compile(
    r"\.(?:py|c|cc|cpp|h|hpp|cu|so|sh|yaml|yml|json|txt|log|out|err|go|rs|java|f90|toml|com/\S*)$|^v?\d|^0x|^(?:rank|task|step|error|errno|exit|code|line|pid|port|mlx|ib|eth|cpu|core|thread|worker|job|stage|epoch|hl|nd|lane|slot|dimm|channel|attempt|signal|sig|type|version|python|cann|device|ens|enp|hsn|nvme|sd|qp|socket|chip|ost|mdt|nccl|http|ipv|ata|bar|tcp|md|x|sha|utf|int|float|bf|fp)s?[-_]?\d*(?:_\d+)*$",
    re.IGNORECASE,
)


def is_host_name(name: str) -> bool:
    """Whether a word can be a host's name: it has a digit, or is an address."""
    no_host = _FILE.search(name) or _DEVICE.match(name)
    return bool(_ADDRESS.match(name) or (re.search(r"\d", name) and not no_host))


def accused_hosts(sentence: str) -> tuple[str, ...]:
    """The hosts that a sentence calls silent or lost; () where it names none. Slurm's lists are unfolded."""
    for form in (_OBJECT, _SUBJECT, _PLACE, _KEYED):
        names = [found["name"] for found in form.finditer(sentence)]
        told = tuple(dict.fromkeys(one for name in names for one in _unfolded(name) if is_host_name(one)))
        if told:
            # A name that is only mentioned is meant if it is the only one.
            mentioned = form is _KEYED and len(told) > 1
            return () if mentioned else told[:1] if form is _OBJECT else told
    return ()


def accused_ranks(sentence: str) -> tuple[int, ...]:
    """The ranks that a sentence names."""
    return tuple(dict.fromkeys(int(found) for found in _RANK.findall(sentence)))


def recorded_hosts(texts: Sequence[str], at: int) -> tuple[str, ...]:
    """The hosts of the record around line `at`: the nearest labelled line, above before below."""
    near = [
        *range(at, max(-1, at - RECORD_LINES - 1), -1),
        *range(at + 1, min(len(texts), at + RECORD_LINES + 1)),
    ]
    for place in near:
        found = _FIELD.match(texts[place])
        if found:
            rest = texts[place][found.start("name") :]
            names = tuple(_unfolded(re.split(r"[\s+;]", rest)[0].split("/")[0]))
            return tuple(name for name in names if is_host_name(name))
    return ()


def asked_host(texts: Sequence[str]) -> str:
    """The one host at whose prompt the text was written, or that `uname` names; "" for none or several."""
    named = set()
    for text in texts:
        found = _PROMPT.match(text) or _UNAME.match(text)
        if found:
            groups = found.groupdict()
            named.add((groups.get("name") or groups.get("bare") or "").split(".")[0])
    named = {name for name in named if is_host_name(name)}
    return named.pop() if len(named) == 1 else ""


def _unfolded(name: str) -> Iterator[str]:
    name = name.rstrip(".,:;-")
    try:
        yield from nodeset.expand(name) if "[" in name else [name]
    except ValueError:
        return
