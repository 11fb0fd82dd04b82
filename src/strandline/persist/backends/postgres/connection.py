"""A connection that can also ask a statement without a cursor, whose work is a fifth of a small commit."""

import re
import select
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import psycopg
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus, Format, TransactionStatus
from psycopg.pq.abc import PGresult

_LOOK_MS: Final = 1000  # a signal's handler runs at once all the same
_CANCEL_S: Final = 5
_PARAMETER: Final = re.compile(r"%\((\w+)\)b")


class Statement:
    """A statement with named parameters, `%(name)b`, whose types are told by number; they come in binary."""

    def __init__(self, name: str, text: str, types: Mapping[str, int]) -> None:
        self.name = name.encode()
        self.parameters: Sequence[str] = list(dict.fromkeys(_PARAMETER.findall(text)))
        self.types = [types[parameter] for parameter in self.parameters]
        self.formats = [Format.BINARY] * len(self.parameters)
        places = {parameter: f"${place}" for place, parameter in enumerate(self.parameters, 1)}
        self.text = _PARAMETER.sub(lambda found: places[found[1]], text).encode()


class Connection(psycopg.Connection[tuple[Any, ...]]):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._prepared_here: set[bytes] = set()
        self._poll = select.poll()
        self._poll.register(self.pgconn.socket, select.POLLIN)

    def has_input(self) -> bool:
        """Whether the server has something to say, or is gone."""
        return bool(self._poll.poll(0))

    def ask(self, statement: Statement, values: Mapping[str, bytes | None]) -> bytes | None:
        """The first column of the first row, in binary; None if there is no row."""
        given = [values[parameter] for parameter in statement.parameters]
        if self.pgconn.transaction_status != TransactionStatus.IDLE:
            return self._asked(statement, given, is_prepared=False)
        try:
            return self._asked(statement, given, is_prepared=True)
        except psycopg.errors.InvalidSqlStatementName:
            # psycopg drops all that are prepared now and then, after a rollback. In a transaction that would
            # have ended it; here nothing has happened yet.
            self._prepared_here.discard(statement.name)
            return self._asked(statement, given, is_prepared=True)

    def _asked(self, statement: Statement, given: list[bytes | None], *, is_prepared: bool) -> bytes | None:
        formats, pgconn = statement.formats, self.pgconn
        try:
            if not is_prepared:
                pgconn.send_query_params(statement.text, given, statement.types, formats, Format.BINARY)
            else:
                if statement.name not in self._prepared_here:
                    self._prepare(statement)
                pgconn.send_query_prepared(statement.name, given, formats, Format.BINARY)
            result = self._answer()
        except BaseException as error:
            if not isinstance(error, psycopg.Error):  # a signal: nobody waits any more for what is asked
                with suppress(psycopg.Error):
                    self.cancel_safe(timeout=_CANCEL_S)
                self.close()
            raise
        _refuse_error(result)
        return result.get_value(0, 0) if result.ntuples else None

    def _prepare(self, statement: Statement) -> None:
        self.pgconn.send_prepare(statement.name, statement.text, statement.types)
        with suppress(psycopg.errors.DuplicatePreparedStatement):
            _refuse_error(self._answer())
        self._prepared_here.add(statement.name)

    def _answer(self) -> PGresult:
        pgconn, result = self.pgconn, None
        while pgconn.flush():  # the server may have to be heard before it takes more
            _wait(pgconn.socket)
            pgconn.consume_input()
        while True:
            if pgconn.is_busy():
                self._poll.poll(_LOOK_MS)
                pgconn.consume_input()
            elif (found := pgconn.get_result()) is not None:
                result = found
            elif result is None:
                raise psycopg.OperationalError("the server gave no answer")
            else:
                return result


def _wait(fileno: int) -> None:
    poll = select.poll()
    poll.register(fileno, select.POLLIN | select.POLLOUT)
    poll.poll(_LOOK_MS)


def _refuse_error(result: PGresult) -> None:
    if result.status not in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
        raise error_from_result(result)
