"""What went wrong with a folder or a bucket, as outcomes. No text has a key, a token or a signed URL in it.

credentials_missing, access_denied, bucket_missing, region_mismatch   held: the instance, until it is changed
throttled, put_failed                                                 failed: tried again later
encode_failed, key_conflict, object_too_large                         held: the strand
"""

import errno
import re
from typing import Final

from strandline.errors import NotFoundError, StrandlineError, UsageError
from strandline.sinks.sink import Outcome, Unit

_STATUS: Final = re.compile(r"status code: ([0-9]{3})")
_CODE: Final = re.compile(r"<Code>([A-Za-z0-9]{1,60})</Code>")
_ASKED_THE_MACHINE: Final = (
    "/latest/api/token",
    "/latest/meta-data",
    "computeMetadata",
    "/metadata/identity",
)
_THROTTLED_CODES: Final = frozenset(
    {"SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded", "TooManyRequests", "ServerBusy"}
)
_REGION_CODES: Final = frozenset(
    {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}
)
_DENIED_CODES: Final = frozenset(
    {"ExpiredToken", "InvalidToken", "InvalidAccessKeyId", "SignatureDoesNotMatch"}
)
_DENIED_NUMBERS: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_HOLD_INSTANCE: Final = frozenset(
    {"credentials_missing", "access_denied", "bucket_missing", "region_mismatch"}
)
_HOLD_STRAND: Final = frozenset({"encode_failed", "key_conflict", "object_too_large"})
_TOO_LARGE_CODES: Final = frozenset({"EntityTooLarge", "MaxMessageLengthExceeded", "RequestBodyTooLarge"})
_SMALLER: Final = (
    "make max_object_bytes or max_object_rows of the sink smaller, then rewind the strand with "
    "--abort-intent to where its open intent begins: what is under way keeps its size"
)


def outcome_of(unit: Unit, error: StrandlineError) -> Outcome:
    cause = str(error.__cause__ or "")
    status, code = _STATUS.search(cause), _CODE.search(cause)
    answer = f" ({code[1]})" if code else ""
    kind = _kind(error, int(status[1]) if status else 0, code[1] if code else "")
    hint = _SMALLER if kind == "object_too_large" else error.hint
    return fault(
        unit,
        kind,
        f"{error.message}{answer}" + (f"; {hint}" if hint else ""),
        http_status=int(status[1]) if status else 0,
    )


def fault(unit: Unit, kind: str, text: str, *, target: str = "", http_status: int = 0) -> Outcome:
    return Outcome(
        unit.lo,
        unit.hi,
        "held" if kind in _HOLD_INSTANCE | _HOLD_STRAND else "failed",
        kind=kind,
        text=text,
        target=target,
        http_status=http_status,
        scope="instance" if kind in _HOLD_INSTANCE else "strand",
    )


def _kind(error: StrandlineError, status: int, code: str) -> str:
    if error.kind in _HOLD_INSTANCE | _HOLD_STRAND:
        return error.kind
    cause = error.__cause__
    if isinstance(error, NotFoundError | UsageError) or isinstance(
        cause, FileNotFoundError | NotADirectoryError
    ):
        return "bucket_missing"
    if isinstance(cause, OSError):
        return "access_denied" if cause.errno in _DENIED_NUMBERS else "put_failed"
    text = str(cause)
    if code in _REGION_CODES or status == 301 or "incorrectly configured region" in text:
        return "region_mismatch"
    if any(path in text.partition("\n")[0] for path in _ASKED_THE_MACHINE):  # since nothing else had any
        return "credentials_missing"
    if status == 404:
        return "bucket_missing"
    if code in _TOO_LARGE_CODES or status == 413:
        return "object_too_large"
    if code in _THROTTLED_CODES or status in (429, 503):
        return "throttled"
    if code in _DENIED_CODES or status in (401, 403):
        return "access_denied"
    return "put_failed"
