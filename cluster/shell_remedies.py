"""Replace Python calls in error messages with the commands of the shell."""

from __future__ import annotations

import re
import shlex
from typing import Final

#: Each call that an error may name, and the equivalent command, which gets the call's arguments.
COMMANDS: Final[dict[str, str]] = {
    "Admin.create_topic": "raymq topic create",
    "Admin.delete_topic": "raymq topic delete",
    "Admin.update_topic": "raymq topic update",
    "Admin.transactions": "raymq transaction list",
    "Admin.resume_transaction": "raymq transaction resume",
    "Admin.topic_stats": "raymq topic stats",
    "Admin.topics": "raymq topic list",
    "Admin.groups": "raymq group list",
    "Admin.delete_group": "raymq group delete",
    "Admin.forget_topic": "raymq group forget",
    "Admin.dlq_redrive": "raymq dlq redrive",
    "Admin.cluster_info": "raymq cluster status",
    "Admin.add_broker": "raymq broker add",
    "Admin.remove_broker": "raymq broker remove",
    "Admin.forget_broker": "raymq broker forget",
    "cluster.start": "raymq cluster start",
}
#: Words without a command, in the form for the shell.
WORDS: Final[dict[str, str]] = {
    "cluster.connect() joins it as it is": "it can be used as it is",
    "name_servers=": "--name-servers",
    "(RAY_ADDRESS, address=)": "(RAY_ADDRESS, --address)",
    "(address=, RAY_ADDRESS)": "(--address, RAY_ADDRESS)",
}
_CALL: Final = re.compile(r"(?:Admin|cluster)\.[a-z_]+(?P<arguments>\((?P<texts>[^()]*)\))?")
_TEXT: Final = re.compile(r'"([^"]*)"')


def in_shell_words(text: str) -> str:
    """Return an error's text with shell commands in place of Python calls."""
    for words, shell in WORDS.items():
        text = text.replace(words, shell)
    return _CALL.sub(_command, text)


def _command(call: re.Match[str]) -> str:
    command = COMMANDS.get(call[0].partition("(")[0])
    if command is None:
        return call[0]
    return f"`{shlex.join([*command.split(), *_TEXT.findall(call['texts'] or '')])}`"
