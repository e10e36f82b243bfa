"""The services that apprise knows, by its library: the extra ftrun[notify]. (I/O)

Called in the child process of one delivery (`delivery`), whose stderr nobody reads: apprise's log names URLs.
"""

from __future__ import annotations

import logging


def send(url: str, subject: str, text: str) -> str:
    """Send to one address; "" or why it was not sent."""
    try:
        import apprise
    except ImportError:
        return "this scheme needs apprise: pip install 'ftrun[notify]'"
    logging.disable(logging.CRITICAL)
    service = apprise.Apprise()
    if not service.add(url):
        return "apprise does not know this address"
    sent = service.notify(body=text, title=subject, body_format=apprise.NotifyFormat.TEXT)
    return "" if sent else "apprise could not send it"
