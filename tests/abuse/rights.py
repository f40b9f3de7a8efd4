"""Commands and who may send them: ``python -m tests.abuse.rights`` writes the table of
docs/security.md.

``test_acl`` tries every cell on real servers; a line's letters are the users who may: master,
worker, viewer.
"""

from __future__ import annotations

import sys
from pathlib import Path

from es_queue.protocol.keys import (
    RQ_GROUPS,
    RQ_QUEUES,
    RunKeys,
    rq_cleaning,
    rq_failed,
    rq_job,
    rq_pubsub,
    rq_queue,
    rq_wip,
    rq_worker,
    rq_workers,
)

OWN = RunKeys("a-run")
PUBLICATION, SEAT, HOLDER = "0.1-00000000", "es-a-run-abcdef-1", "host-1-000000"
PARAMETERS, RESULTS, MOMENTS, CLAIMS, LIFE = (
    OWN.parameters(PUBLICATION),
    OWN.results(PUBLICATION, 0),
    OWN.moments(PUBLICATION, 0),
    OWN.claims(HOLDER),
    OWN.worker(HOLDER),
)
JOB, QUEUE, LISTENER, CHANNEL = rq_job(SEAT), rq_queue("default"), rq_worker("w1"), rq_pubsub("w1")

#: What it is about, the command, and who may.
CELLS: list[tuple[str, str, str]] = [
    ("look at a run", f"GET {OWN.config}", "mwv"),
    ("", f"GET {OWN.task}", "mwv"),
    ("", f"HGETALL {OWN.progress}", "m-v"),
    ("", f"HMGET {OWN.progress} state", "mwv"),
    ("", f"XRANGE {OWN.history} - + COUNT 1", "m-v"),
    ("", f"MGET {OWN.config} {OWN.task}", "---"),
    ("", f"GETRANGE {OWN.config} 0 0", "mwv"),
    ("", f"GETRANGE {PARAMETERS} 0 0", "mwv"),
    ("", f"GETRANGE {OWN.checkpoint} 0 0", "m-v"),
    ("", f"GET {OWN.checkpoint}", "m-v"),
    ("", f"LRANGE {OWN.errors} 0 -1", "m-v"),
    ("", f"LRANGE {OWN.commands} 0 -1", "m-v"),
    ("", f"GETRANGE {RESULTS} 0 0", "m-v"),
    ("", f"HGETALL {LIFE}", "m-v"),
    ("work for a run", f"BLMOVE {OWN.todo} {CLAIMS} LEFT RIGHT 0.001", "mw-"),
    ("", f"LREM {CLAIMS} 0 x", "mw-"),
    ("", f"LPUSH {OWN.todo} x", "mw-"),
    ("", f"APPEND {RESULTS} x", "mw-"),
    ("", f"APPEND {MOMENTS} x", "mw-"),
    ("", f"RPUSH {OWN.bell} 1", "mw-"),
    ("", f"EVALSHA {'0' * 40} 0", "mw-"),
    ("", f"HSET {LIFE} host x", "mw-"),
    ("", f"PEXPIRE {LIFE} 1000", "mw-"),
    ("", f"DEL {LIFE}", "mw-"),
    ("", f"SADD {OWN.workers} {HOLDER}", "mw-"),
    ("", f"RPUSH {OWN.errors} x", "mw-"),
    ("", f"LTRIM {OWN.errors} -200 -1", "mw-"),
    ("", f"INCRBY {OWN.seatno} 1", "mw-"),
    ("drive a run", f"SET {OWN.config} x", "m--"),
    ("", f"SET {OWN.task} x", "m--"),
    ("", f"SET {PARAMETERS} x", "m--"),
    ("", f"SET {OWN.epoch} 9-x", "m--"),
    ("", f"SET {OWN.master} x", "m--"),
    ("", f"SET {OWN.checkpoint} x", "m--"),
    ("", f"HSET {OWN.progress} state stopped", "m--"),
    ("", f"RPUSH {OWN.commands} x", "m--"),
    ("", f"HSET {OWN.refused} x 1", "m--"),
    ("", f"DEL {RESULTS}", "m--"),
    ("", f"SET {RESULTS} x", "m--"),
    ("", f"UNLINK {OWN.config} {OWN.todo}", "m--"),
    ("", f"RENAME {OWN.todo} {OWN.config}", "---"),
    ("", f"COPY {OWN.config} {JOB}", "---"),
    ("", "ZADD es:runs 0 a-run", "m--"),
    ("", "SCRIPT LOAD return", "m--"),
    ("RQ", f"HSET {JOB} status queued", "mw-"),
    ("", f"HGETALL {JOB}", "mw-"),
    ("", f"RPUSH {QUEUE} {SEAT}", "mw-"),
    ("", f"LRANGE {QUEUE} 0 -1", "mwv"),
    ("", f"LPOS {QUEUE} {SEAT}", "---"),
    ("", f"LMOVE {QUEUE} {QUEUE}:intermediate LEFT LEFT", "mw-"),
    ("", f"ZADD {rq_wip('default')} 0 {SEAT}", "mw-"),
    ("", f"SET {rq_cleaning('default')} x EX 1", "mw-"),
    ("", f"SMEMBERS {rq_job(':' + SEAT)}:dependencies", "mw-"),
    ("", f"SADD {RQ_QUEUES} {QUEUE}", "mw-"),
    ("", f"SMEMBERS {RQ_QUEUES}", "m-v"),
    ("", f"DEL {RQ_QUEUES}", "m--"),
    ("", f"SMEMBERS {RQ_GROUPS}", "mw-"),
    ("", f"SADD {RQ_GROUPS} x", "m--"),
    ("", f"HGETALL {LISTENER}", "mwv"),
    ("", f"HMGET {LISTENER} state state", "m-v"),
    ("", "EXISTS rq:suspended", "mwv"),
    ("", "SET rq:suspended 1", "m--"),
    ("", f"SUBSCRIBE {CHANNEL}", "mw-"),
    ("", f"PUBLISH {CHANNEL} x", "---"),
    ("RQ's other queues", f"RPUSH {rq_queue('other')} {SEAT}", "m--"),
    ("", f"LRANGE {rq_queue('other')} 0 -1", "m-v"),
    ("", f"DEL {rq_queue('other')}", "m--"),
    ("", f"LMOVE {rq_queue('other')} {QUEUE} LEFT LEFT", "m--"),
    ("", f"ZADD {rq_wip('other')} 0 {SEAT}", "m--"),
    ("", f"ZADD {rq_failed('other')} 0 {SEAT}", "m--"),
    ("", f"SADD {rq_workers('other')} {LISTENER}", "m--"),
    ("", f"SET {rq_cleaning('other')} x", "m--"),
    ("", f"HGETALL {rq_job('job')}", "m--"),
    ("", f"HSET {rq_job('job')} status queued", "m--"),
    ("", "SET rq:scheduler-lock:default x", "m--"),
    ("other people's keys", "GET theirs", "---"),
    ("", "SET theirs x", "---"),
    ("", "DEL theirs", "---"),
    ("", f"LMOVE theirs {QUEUE} LEFT LEFT", "---"),
    ("", "SUBSCRIBE theirs", "---"),
    ("", "SCAN 0", "m-v"),
    ("", "KEYS *", "---"),
    ("", "RANDOMKEY", "---"),
    ("", "DBSIZE", "---"),
    ("", "CLIENT TRACKING ON", "---"),
    ("", "CLIENT TRACKING ON BCAST", "---"),
    ("the server", "PING", "mwv"),
    ("", "INFO", "mwv"),
    ("", "TIME", "mwv"),
    ("", "ACL WHOAMI", "mwv"),
    ("", "MULTI", "mw-"),
    ("", "CONFIG GET bind", "---"),
    ("", "CONFIG SET dir /tmp", "---"),
    ("", "ACL LIST", "---"),
    ("", "ACL SETUSER worker +@all", "---"),
    ("", "CLIENT LIST", "---"),
    ("", "CLIENT SETNAME x", "mwv"),
    ("", "CLIENT KILL ID 999999", "---"),
    ("", "CLIENT PAUSE 1", "---"),
    ("", "MONITOR", "---"),
    ("", "EVAL return 0", "---"),
    ("", "SCRIPT FLUSH", "---"),
    ("", "SCRIPT KILL", "---"),
    ("", "FUNCTION LOAD x", "---"),
    ("", "FUNCTION FLUSH", "---"),
    ("", "FLUSHDB", "---"),
    ("", "FLUSHALL", "---"),
    ("", "SWAPDB 0 1", "---"),
    ("", f"MOVE {JOB} 1", "---"),
    ("", f"SORT {QUEUE}", "---"),
    ("", f"RESTORE {JOB} 0 x", "---"),
    ("", "SAVE", "---"),
    ("", "REPLICAOF NO ONE", "---"),
    ("", "DEBUG SLEEP 0", "---"),
    ("", "MODULE LIST", "---"),
    ("", "SHUTDOWN NOSAVE", "---"),
]

LETTERS = "mwv"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "security.md"
BEGIN, END = "<!-- table: written by python -m tests.abuse.rights -->", "<!-- end of the table -->"


def may(letters: str, user: str) -> bool:
    return user[0] in letters


def table() -> str:
    """The matrix as Markdown; whoever shows no password may do nothing at all."""
    lines = ["| | command | master | worker | viewer | nobody |", "|---|---|---|---|---|---|"]
    for about, command, letters in CELLS:
        shown = (
            command.replace("a-run", "RUN")
            .replace(PUBLICATION, "P")
            .replace(HOLDER, "WORKER")
            .replace("0" * 40, "SHA")
            .replace("es-RUN-abcdef-1", "SEAT")
        )
        cells = ["yes" if letter in letters else "no" for letter in LETTERS]
        lines.append(f"| {about} | `{shown}` | {' | '.join(cells)} | no |")
    return "\n".join(lines)


def written(text: str) -> str:
    """The page with the table in its place."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text("utf-8")), "utf-8")
    sys.exit(0)
