"""The pages of a group's dead letters: the list, redrive and deletion."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from raymq.client import DeadMessage, InvalidInput, MessageNotFound, arguments
from raymq.console.body_view import preview_body
from raymq.console.console_context import CONTEXT
from raymq.console.form_fields import Fields, read_fields
from raymq.console.page_rendering import Page, path_part
from raymq.console.paging import ITEMS_PER_PAGE, page_number
from raymq.console.redrive_jobs import RedriveJob, RedriveRequest

#: The last page of the list; each has to read those before it.
_LAST_PAGE: Final = 50
#: An answer waits this long for a redrive; a longer one is shown as running.
_WAIT_SECONDS: Final = 3.0


async def dead_letters(request: web.Request) -> Page:
    """Return a page of a group's dead letters, the newest first.

    With `hide=redriven` it lacks those that were redriven.
    """
    context = request.app[CONTEXT]
    name = request.match_info["group"]
    page = min(page_number(request.query.get("page")), _LAST_PAGE)
    found = await context.admin.adlq_list(name, page * ITEMS_PER_PAGE, newest_first=True)
    hides_redriven = request.query.get("hide") == "redriven"
    of_page = found[(page - 1) * ITEMS_PER_PAGE :]
    shown = [message for message in of_page if not (hides_redriven and message.redriven)]
    data = {
        "group": name,
        "page": page,
        "dead_letters": [_row(message) for message in shown],
        "hides_redriven": hides_redriven,
        "hidden": len(of_page) - len(shown),
        "truncated": found.truncated,
        "not_asked": found.not_asked,
        "unreadable": found.unreadable,
    }
    view = {"has_more_pages": found.truncated and page < _LAST_PAGE}
    return Page("dead_letters", f"Dead letters of {name}", data, view, "groups")


def _row(message: DeadMessage) -> dict[str, object]:
    return {
        "message_id": message.message_id,
        "topic": message.topic,
        "keys": message.keys,
        "tags": message.tags,
        "broker": message.queue.broker,
        "queue_id": message.queue.queue_id,
        "offset": message.queue_offset,
        "born_timestamp": message.born_timestamp,
        "dead_at": message.dead_at,
        "reason": message.reason,
        "redriven": message.redriven,
        "size": len(message.body),
        "preview": preview_body(message.body),
    }


async def redrive(request: web.Request) -> Page:
    """Start a redrive of selected dead letters; return its result, or that it runs."""
    context = request.app[CONTEXT]
    fields = await read_fields(request)
    wanted = RedriveRequest(
        request.match_info["group"],
        _selected(fields),
        fields.rate("rate"),
        dry_run=fields.flag("dry_run"),
        force=fields.flag("force"),
    )
    job = context.jobs.start(context.admin, wanted)
    await context.jobs.wait(job, _WAIT_SECONDS)
    return _job_page(job)


async def redrive_state(request: web.Request) -> Page:
    """Return the state of a redrive."""
    context = request.app[CONTEXT]
    number = request.match_info["job"]
    job = context.jobs.get(int(number)) if number.isdecimal() and len(number) < 10 else None
    if job is None or job.request.group != request.match_info["group"]:
        raise MessageNotFound(f"this console knows no redrive {number}", remedy="it keeps the last ones until it ends")
    return _job_page(job)


def _job_page(job: RedriveJob) -> Page:
    data = job.as_data()
    return Page(
        "redrive",
        "Redrive",
        data,
        {"lists": {name: data[name] for name in data["counts"]}},
        "groups",
        address=f"/groups/{path_part(job.request.group)}/redrives/{job.number}",
    )


async def delete(request: web.Request) -> Page:
    """Delete the selected dead letters; without `confirm` say what would be deleted."""
    context = request.app[CONTEXT]
    fields = await read_fields(request)
    name, ids = request.match_info["group"], _selected(fields)
    confirmed = fields.flag("confirm")
    deleted = await context.admin.adlq_delete(name, ids) if confirmed else None
    data = {"group": name, "ids": ids, "confirmed": confirmed, "deleted": deleted}
    return Page("dead_letters_deleted", "Delete dead letters", data, section="groups")


def _selected(fields: Fields) -> list[str] | None:
    """Return the selected message ids, None for all.

    Raises:
        InvalidInput: nothing is selected, or an id is empty.
    """
    if fields.flag("all"):
        return None
    ids = fields.texts("ids")
    if not ids:
        raise InvalidInput(
            "ids", "at least one dead letter", "none", remedy="select some in the list, or choose all of them"
        )
    return [arguments.text("ids", each) for each in ids]
