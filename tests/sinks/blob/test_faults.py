"""What goes wrong with a bucket or a folder is an outcome of the right kind, and tells no secret."""

import base64
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from strandline.errors import StrandlineError, UnavailableError
from strandline.sinks.blob.aws_profile import CredentialsMissing, profile_options
from strandline.sinks.blob.blob_sink import BlobSink, put_s
from strandline.sinks.blob.encode import EncodeFailed
from strandline.sinks.blob.faults import outcome_of
from strandline.sinks.sink import Limits, Outcome, Unit
from strandline.storage import objects
from tests.sinks.shipping import SHIPMENT, part, ship
from tests.storage.places import BUCKET

KEYS = {
    "access_key_id": "AKIA-OF-A-TEST",
    "secret_access_key": "secret-of-a-test",
    "session_token": "token-x",
}
LIMITS = Limits(10, encoder="jsonl")


@dataclass
class Bucket:
    """A server on loopback that says to each method what it is told to, and keeps what it was sent."""

    answers: Mapping[str, tuple[int, bytes]]
    seen: list[tuple[str, Mapping[str, str], bytes]] = field(default_factory=list)
    port: int = 0

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def bucket(**answers: tuple[int, bytes]) -> Iterator[Bucket]:
    found = Bucket(answers)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            found.seen.append((self.command, dict(self.headers), body))
            status, answer = found.answers.get(self.command, (404, b""))
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.send_header("ETag", '"1"')
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer)

        do_HEAD = do_GET = do_PUT = do_POST = answer  # noqa: N815

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.port = server.server_port
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


LISTING = (200, b"<ListBucketResult><Name>b</Name><KeyCount>0</KeyCount></ListBucketResult>")


def error(code: str, more: str = "") -> bytes:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>m</Message>{more}</Error>".encode()


def sink_at(endpoint: str, **options: Any) -> BlobSink:
    return BlobSink(
        "s3",
        bucket="b",
        prefix="p",
        region="us-east-1",
        endpoint=endpoint,
        **{"credentials": KEYS, **options},
    )


def send(sink: BlobSink) -> Outcome:
    [told] = ship(sink, part("web", 0, 10, LIMITS), range(1, 11))
    return told.outcome


def shape(outcome: Outcome) -> tuple[str, str, str]:
    return outcome.status, outcome.kind, outcome.scope


@pytest.mark.parametrize(
    ("put", "shape_of_it"),
    [
        ((403, error("AccessDenied")), ("held", "access_denied", "instance")),
        (
            (403, error("InvalidAccessKeyId", "<AWSAccessKeyId>AKIA-OF-A-TEST</AWSAccessKeyId>")),
            ("held", "access_denied", "instance"),
        ),
        ((400, error("ExpiredToken", "<Token-0>token-x</Token-0>")), ("held", "access_denied", "instance")),
        ((404, error("NoSuchBucket")), ("held", "bucket_missing", "instance")),
        ((301, error("PermanentRedirect")), ("held", "region_mismatch", "instance")),
        ((400, error("AuthorizationHeaderMalformed")), ("held", "region_mismatch", "instance")),
        ((503, error("SlowDown")), ("failed", "throttled", "strand")),
        ((429, b""), ("failed", "throttled", "strand")),
        ((500, error("InternalError")), ("failed", "put_failed", "strand")),
        ((400, error("EntityTooLarge")), ("held", "object_too_large", "strand")),
        ((413, error("RequestBodyTooLarge")), ("held", "object_too_large", "strand")),
        ((413, b""), ("held", "object_too_large", "strand")),
    ],
)
def test_an_answer_of_a_bucket_has_its_kind(
    put: tuple[int, bytes], shape_of_it: tuple[str, str, str]
) -> None:  # L-BLOB-10
    with bucket(PUT=put, GET=LISTING) as found:
        told = send(sink_at(found.endpoint))

    assert shape(told) == shape_of_it
    for secret in KEYS.values():
        assert secret not in told.text


def test_an_object_that_no_bucket_takes_is_not_sent_and_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # L-BLOB-10
    monkeypatch.setattr("strandline.storage.objects.bucket.MAX_STREAM_BYTES", 100)
    with bucket(PUT=(200, b""), GET=LISTING) as found:
        told = send(sink_at(found.endpoint))

    assert shape(told) == ("held", "object_too_large", "strand")
    assert "a bucket takes 100 in one request; make max_object_bytes" in told.text
    assert "PUT" not in [method for method, _, _ in found.seen]


def test_an_object_is_created_by_one_request_however_large_it_is() -> None:  # L-BLOB-5, L-BLOB-7
    data = bytes(3 * objects.PART_BYTES)
    with bucket(PUT=(200, b""), POST=(500, b"")) as found:
        place = objects.BucketObjects("s3://b", endpoint=found.endpoint, region="us-east-1", **KEYS)
        assert place.create_whole("large", memoryview(data), {"intent": "i"})

    [(method, headers, body)] = found.seen
    assert (method, headers["if-none-match"], body) == ("PUT", "*", data)
    assert headers["x-amz-meta-intent"] == "i"


def test_a_larger_object_may_take_longer() -> None:  # L-BLOB-7
    sink = BlobSink("s3", bucket="b")
    assert put_s(sink) == put_s(replace(sink, max_object_bytes=1)) == 600
    assert put_s(replace(sink, max_object_bytes=1024**3)) == 2 * 2048


def test_a_missing_bucket_is_told_before_rows_are_encoded(s3_endpoint: str) -> None:  # L-BLOB-10
    told = send(replace(sink_at(s3_endpoint), bucket="nobody-made-it"))

    assert shape(told) == ("held", "bucket_missing", "instance")
    assert "nobody-made-it" in told.text


def test_no_credentials_anywhere_hold_the_instance(monkeypatch: pytest.MonkeyPatch) -> None:  # L-BLOB-10
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with bucket() as found:  # it also stands for the machine that gives out keys, and has none
        told = send(sink_at(found.endpoint, credentials={"metadata_endpoint": found.endpoint}))

    assert shape(told) == ("held", "credentials_missing", "instance")


def test_a_bucket_that_does_not_answer_may_answer_later() -> None:  # L-BLOB-10
    with bucket() as found:
        endpoint = found.endpoint

    assert shape(send(sink_at(endpoint))) == ("failed", "put_failed", "strand")


def test_a_signed_url_in_an_error_is_not_told() -> None:  # L-BLOB-10
    with bucket() as found:
        host = f"http://127.0.0.1:{found.port}"
    azure = BlobSink(
        "azure",
        bucket="container",
        endpoint=host,
        credentials={"account_name": "account", "sas_key": "sv=2024-01-01&sig=signature-of-a-test&sp=rw"},
    )

    told = send(azure)

    assert told.kind == "put_failed"
    assert "signature-of-a-test" not in told.text
    assert "container" in told.text


def test_an_object_goes_up_in_one_request_that_never_overwrites_and_has_its_checksum() -> (
    None
):  # L-BLOB-5, L-BLOB-7
    with bucket(PUT=(200, b""), GET=LISTING) as found:
        told = send(sink_at(found.endpoint, sse="aws:kms:key-1"))

    assert told.status == "stored"
    [(_, headers, body)] = [each for each in found.seen if each[0] == "PUT"]
    assert sha256(body).hexdigest() == told.digest
    lower = {name.lower(): value for name, value in headers.items()}
    assert lower["x-amz-checksum-sha256"] == base64.b64encode(sha256(body).digest()).decode()
    assert lower["if-none-match"] == "*"
    assert lower["x-amz-server-side-encryption-aws-kms-key-id"] == "key-1"
    assert lower["x-amz-meta-rows"] == "10"


AZURE_LISTING = (200, b"<EnumerationResults><Blobs></Blobs><NextMarker/></EnumerationResults>")


@pytest.mark.parametrize(
    ("destination", "credentials", "listing", "created", "condition", "metadata"),
    [
        (
            "azure",
            {"account_name": "account", "account_key": "a2V5"},
            AZURE_LISTING,
            201,
            ("if-none-match", "*"),
            "x-ms-meta-",
        ),
        (
            "gcs",
            {"bearer_token": "token-y"},
            LISTING,
            200,
            ("x-goog-if-generation-match", "0"),
            "x-goog-meta-",
        ),
    ],
)
def test_other_clouds_get_the_same(
    destination: Any,
    credentials: dict[str, str],
    listing: tuple[int, bytes],
    created: int,
    condition: tuple[str, str],
    metadata: str,
) -> None:  # L-BLOB-5, L-BLOB-7
    with bucket(PUT=(created, b""), GET=listing) as found:
        sink = BlobSink(destination, bucket="box", endpoint=found.endpoint, credentials=credentials)
        told = send(sink)

    assert told.status == "stored", told.text
    [(_, headers, body)] = [each for each in found.seen if each[0] == "PUT"]
    lower = {name.lower(): value for name, value in headers.items()}
    assert lower[condition[0]] == condition[1]
    assert (lower[f"{metadata}intent"], lower[f"{metadata}rows"]) == ("intent-1", "10")
    assert lower[f"{metadata}sha256"] == sha256(body).hexdigest()


def test_an_answer_that_was_lost_is_found_again(s3_endpoint: str) -> None:  # L-BLOB-5
    with bucket(PUT=(412, error("PreconditionFailed")), GET=LISTING) as found:
        told = send(sink_at(found.endpoint))  # whatever is there, a look does not find it

    assert shape(told) == ("failed", "put_failed", "strand")
    assert send(replace(sink_at(s3_endpoint), bucket=BUCKET, prefix=f"p-{found.port}")).status == "stored"


@pytest.mark.parametrize(
    ("number", "kind"), [(13, "access_denied"), (28, "put_failed"), (30, "access_denied")]
)
def test_an_error_of_a_folder_has_its_kind(number: int, kind: str) -> None:  # L-BLOB-10
    failed = UnavailableError("cannot put", hint="look at the disk")
    failed.__cause__ = OSError(number, "of the disk")

    assert outcome_of(UNIT, failed).kind == kind


UNIT = Unit(SHIPMENT, "intent-1", 0, "web", 0, 10, 0, LIMITS)


def test_a_folder_that_cannot_be_one_holds_the_instance(tmp_path: Path) -> None:  # L-BLOB-10
    (tmp_path / "file").write_text("no folder")

    told = send(BlobSink("local", dir=str(tmp_path / "file" / "out")))

    assert shape(told) == ("held", "bucket_missing", "instance")


def test_every_unit_of_a_dead_destination_fails_by_itself(tmp_path: Path) -> None:  # F-33
    (tmp_path / "file").write_text("no folder")
    sink = BlobSink("local", dir=str(tmp_path / "file" / "out"))

    told = ship(sink, part("web", 0, 30, LIMITS), range(1, 31))

    assert [shape(each.outcome)[0] for each in told] == ["held"] * 3


def test_a_profile_gives_keys_and_region(tmp_path: Path) -> None:
    (tmp_path / "credentials").write_text(
        "[default]\naws_access_key_id = d\naws_secret_access_key = e\n"
        "[site]\naws_access_key_id = k\naws_secret_access_key = s%s\naws_session_token = t\n"
    )
    (tmp_path / "config").write_text(
        "[profile site]\nregion = eu-west-1\n[profile sso]\nregion = eu-west-1\n"
    )
    environment = {
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"),
        "AWS_CONFIG_FILE": str(tmp_path / "config"),
    }

    assert profile_options("site", environment) == {
        "access_key_id": "k",
        "secret_access_key": "s%s",
        "session_token": "t",
        "region": "eu-west-1",
    }
    assert profile_options("default", environment) == {"access_key_id": "d", "secret_access_key": "e"}
    for missing in ("sso", "nobody"):
        with pytest.raises(CredentialsMissing):
            profile_options(missing, environment)


def test_a_profile_is_read_where_the_sink_is_made_or_where_it_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, s3_endpoint: str
) -> None:  # L-BLOB-10
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    sink = replace(sink_at(s3_endpoint, credentials={}, profile="site"), bucket=BUCKET, prefix="profiles")
    assert shape(send(sink)) == ("held", "credentials_missing", "instance")

    (tmp_path / "credentials").write_text("[site]\naws_access_key_id = k\naws_secret_access_key = s\n")

    assert sink.renewed().credentials == {"access_key_id": "k", "secret_access_key": "s"}
    assert send(sink).status in ("stored", "known")


@pytest.mark.parametrize(
    "error_", [EncodeFailed("logs", "jsonl", "why"), CredentialsMissing("none", hint="h")]
)
def test_an_error_survives_pickling(error_: StrandlineError) -> None:
    import pickle

    again = pickle.loads(pickle.dumps(error_))

    assert (type(again), again.message, again.facts) == (type(error_), error_.message, error_.facts)
