"""A message as people and programs read it: subject, text, JSON. (pure)"""

from __future__ import annotations

import hashlib
import hmac
import json
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import formatdate

from ftrun.slurm.records import dataclass
from ftrun.supervisor.notices.notice import one_line
from ftrun.supervisor.notices.schedule import Message

SHOWN_MAX = 40
SUBJECT_CHARS = 120


@dataclass(frozen=True, slots=True)
class Letter:
    """What is sent. `id`: the same for the same notices, so that a receiver can know one that comes twice."""

    id: str
    subject: str
    text: str
    body: str  # JSON


def letter_of(message: Message, by: str) -> Letter:
    """The message, written; `by`: who sends it, such as ann@login1."""
    notices = message.notices
    shown = notices[:SHOWN_MAX]
    runs = sorted({one.run for one in notices if one.run})
    if message.summary:
        subject = f"[ftrun] {len(notices)} notices of {len(runs)} run{'s' if len(runs) != 1 else ''}"
    elif len(notices) > 1:
        subject = f"[ftrun] {len(notices)} notices: {', '.join(runs)}"
    else:
        subject = f"[ftrun] {notices[0].what}"
    lines = [f"{one.what}\n{one.then}\n" for one in shown]
    if len(notices) > len(shown):
        lines.append(f"... and {len(notices) - len(shown)} more; see `ftrun history`\n")
    text = "\n".join([*lines, f"-- \nftrun, {one_line(by, 80)}\n"])
    identity = hashlib.sha256("\n".join(one.id for one in notices).encode()).hexdigest()[:32]
    facts = {
        "v": 1,
        "id": identity,
        "by": one_line(by, 80),
        "summary": message.summary,
        "text": text,
        "notices": [one.facts for one in shown],
        "more": len(notices) - len(shown),
    }
    return Letter(identity, one_line(subject, SUBJECT_CHARS), text, json.dumps(facts))


def mail_of(letter: Letter, sender: str, to: tuple[str, ...], now_s: float) -> EmailMessage:
    """The letter as a mail. `sender` "" = whom sendmail puts in."""
    mail = EmailMessage(policy=SMTP.clone(max_line_length=78))
    mail["Subject"] = letter.subject
    if sender:
        mail["From"] = sender
    mail["To"] = ", ".join(to)
    mail["Date"] = formatdate(now_s)
    mail["Message-ID"] = f"<{letter.id}@ftrun>"
    mail["Auto-Submitted"] = "auto-generated"  # no answer of a machine is wanted
    mail.set_content(letter.text)
    return mail


def signature(key: str, timestamp: str, body: bytes) -> str:
    """HMAC-SHA256 of `<timestamp>.<body>`, in hexadecimal digits."""
    return hmac.new(key.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()
