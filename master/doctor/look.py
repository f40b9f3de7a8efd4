"""The doctor's access to Redis: reads that report refusals, and tests of rights, all read-only."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import redis

from es_queue.protocol.connection import first_line, settings_of
from es_queue.security.bounded_reads import to_text
from es_queue.security.sanitize import sanitize
from master.status.redis_reader import (
    LONGEST_NAME,
    RedisReader,
    Texts,
    read_texts,
    send_all,
)

Command = tuple[str, ...]


class CommandDenied(Exception):  # noqa: N818 - it is an answer
    """This user may not send the command, or the server lacks it; the text says which."""


class ReadOnlyClient:
    """One server. Raises RedisError if it does not respond at all, CommandDenied if the user may
    not send a command.
    """

    def __init__(self, server: RedisReader) -> None:
        self.server = server
        self.name = server.name
        self.redis: Any = server._client

    def ask(self, call: Callable[[Any], Any]) -> Any:
        """The reply; None if a key has another type than it should."""
        try:
            return call(self.redis)
        except redis.exceptions.NoPermissionError as error:
            raise CommandDenied(format_refusal(str(error))) from None
        except redis.exceptions.ResponseError as error:
            if re.search("unknown (sub)?command", str(error), re.IGNORECASE):
                why = f"the server does not know it ({sanitize(first_line(error), 80)})"
                raise CommandDenied(why) from None
            return None
        except (redis.exceptions.RedisError, OSError) as error:
            raise self.server.to_redis_error(error) from None

    def ping(self) -> float:
        """Seconds: the best of three on an open connection."""
        self.ask(lambda client: client.ping())
        return min(self._ping_seconds() for _ in range(3))

    def _ping_seconds(self) -> float:
        began = time.perf_counter()
        self.ask(lambda client: client.ping())
        return time.perf_counter() - began

    def clock_offset(self) -> float:
        """Seconds that the server's clock is ahead of ours, exact to half a round trip."""
        before = time.time()
        seconds, micros = self.ask(lambda client: client.time())
        return float(int(seconds) + int(micros) / 1e6 - (before + time.time()) / 2)

    def members(self, key: str, most: int) -> list[str]:
        """At most ``most`` members of a set, sorted, without those that are too long for a name."""
        names = {to_text(member) for member in self.ask(lambda client: client.smembers(key)) or ()}
        return sorted(name for name in names if len(name) <= LONGEST_NAME)[:most]

    def hashes(self, names: Sequence[str], fields: Sequence[str]) -> list[Texts]:
        """The short fields of each hash: a hostile value is never read."""
        return read_texts(self._ask_many, names, fields)

    def _ask_many(self, questions: Iterable[tuple[Any, ...]]) -> list[Any]:
        waiting = list(questions)

        def send(client: Any) -> list[Any]:
            answers = send_all(client, waiting)
            for answer in answers:
                if isinstance(answer, redis.exceptions.NoPermissionError):
                    raise answer
            return [None if isinstance(answer, Exception) else answer for answer in answers]

        results: list[Any] = self.ask(send) if waiting else []
        return results

    # --- this user

    @property
    def has_password(self) -> bool:
        return bool(settings_of(self.redis).get("password"))

    @property
    def user(self) -> str:
        with suppress(CommandDenied):
            if name := self.ask(lambda client: client.acl_whoami()):
                return sanitize(to_text(name), 60)
        return sanitize(settings_of(self.redis).get("username") or "this user", 60)

    @property
    def is_on_socket(self) -> bool:
        return bool(settings_of(self.redis).get("path"))

    def denied_commands(self, commands: Sequence[Command]) -> list[Command] | None:
        """The commands that this user may not send; None if not even MULTI is allowed.

        They are queued in a transaction, in which Redis checks each one's rights, and the
        transaction is discarded: none is executed. A server notes refusals in its ACL LOG.
        """
        pool = self.redis.connection_pool
        connection = self.ask(lambda _: pool.get_connection())
        begun = False
        try:
            # MULTI is sent on its own: without it the others would be executed.
            (is_refused,) = self._are_refused(connection, [("MULTI",)])
            begun = not is_refused
            if is_refused:
                return None
            refused = self._are_refused(connection, commands)
            return [command for command, no in zip(commands, refused, strict=True) if no]
        finally:
            with suppress(redis.exceptions.RedisError, OSError):
                if begun:
                    connection.send_command("DISCARD")
                    connection.read_response()
            connection.disconnect()
            pool.release(connection)

    def _are_refused(self, connection: Any, commands: Sequence[Command]) -> list[bool]:
        def answer() -> bool:
            try:
                connection.read_response()
            except redis.exceptions.NoPermissionError:
                return True
            except redis.exceptions.ResponseError:
                return False
            return False

        def send(_: Any) -> list[bool]:
            connection.send_packed_command(connection.pack_commands(commands), check_health=False)
            return [answer() for _ in commands]

        refusals: list[bool] = self.ask(send)
        return refusals


def format_refusal(sentence: str) -> str:
    """``this user may not INFO`` from "… has no permissions to run the 'info' command"; else the
    server's text.
    """
    word = sentence.split("'")
    if "run the" in sentence and len(word) >= 3:
        return f"this user may not {sanitize(word[-2].replace('|', ' ').upper(), 40)}"
    if "access one of the keys" in sentence or "access a key" in sentence:
        return "this user cannot read these keys"
    return f"this user may not ({sanitize(sentence, 80)})"
