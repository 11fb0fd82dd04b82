"""Which answers come from a receiver of ours, and which of them are about the rows.

Proxies, captive portals and wrong paths answer with 4xx too. An answer is taken as a refusal of rows only if
it is JSON with an `error` that our receiver uses for rows. Everything else may be over when somebody has
repaired the way, so that no row is given up for it.
"""

from typing import Final

from strandline.sinks.forward.http import Answer

ACKS: Final = frozenset({200, 201, 202, 204})
UNEXPECTED: Final = "unexpected_answer"
MOST_BODY_CHARS: Final = 300  # of an unexpected answer, in its message

# What someone has to change at the receiver: neither the rows nor the request are at fault.
_HELD: Final = frozenset({(404, "dataset_unknown"), (403, "out_of_scope")})
_ROW_STATUS: Final = frozenset({400, 422})
_ROW_KINDS: Final = frozenset({"row_refused", "bad_rows", "schema_breaking", "usage"})
_STRAND_KINDS: Final = frozenset({"source_invalid"})  # true of every row of the strand


def is_ack(answer: Answer) -> bool:
    """Whether the rows are stored. A page is not an acknowledgement: captive portals answer 200."""
    return answer.status in ACKS and not answer.body.lstrip().startswith(b"<")


def is_held(answer: Answer) -> bool:
    return (answer.status, answer.kind) in _HELD


def blames_rows(answer: Answer) -> bool:
    """Whether our receiver refuses some of the rows: fewer of them may be taken."""
    return answer.status in _ROW_STATUS and answer.kind in _ROW_KINDS


def blames_strand(answer: Answer) -> bool:
    """Whether our receiver refuses all rows of the strand: fewer of them are refused too."""
    return answer.status in _ROW_STATUS and answer.kind in _STRAND_KINDS


def is_unexpected(answer: Answer) -> bool:
    """Whether someone should look at it, because it is not what a receiver says of rows. Server errors and
    time-outs pass by themselves."""
    return answer.status in ACKS or (400 <= answer.status < 500 and answer.status != 408)


def unexpected_text(url: str, status: int, body: str) -> str:
    began = " ".join(body.split())[:MOST_BODY_CHARS]
    said = f"the body begins {began!r}" if began else "the body is empty"
    return f"POST {url} got HTTP {status}, which is not a refusal of rows by a Strandline receiver; {said}"
