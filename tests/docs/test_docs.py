"""The code in README and docs runs, top to bottom, as a reader types it; commands and links are right."""

import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import click
import pytest

from strandline.cli import cli
from strandline.lake.spark.connect import CONNECT_MODE
from strandline.persist import open_store
from tests.crash.pipeline_case import lake_of, session_conf
from tests.docs.page import ROOT, Block, blocks, commands, python, script
from tests.spark_sessions import ConnectServer
from tests.storage.places import BUCKET

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
IN_PROCESS = """
[spark]
master = "local[2]"
[spark.conf]
"spark.driver.memory" = "1g"
"""
IN_BUCKET = """
[content.conf]
endpoint = "{endpoint}"
region = "us-east-1"
[lake.conf]
"s3.endpoint" = "{endpoint}"
"s3.path-style-access" = "true"
"client.region" = "us-east-1"
"""
# `aws s3 sync FOLDER s3://BUCKET/PREFIX`
COPY = """
import os, sys
from pathlib import Path
import boto3
folder, (bucket, _, prefix) = Path(sys.argv[3]), sys.argv[4].removeprefix("s3://").partition("/")
s3 = boto3.client("s3", endpoint_url=os.environ["ENDPOINT"])
for file in folder.rglob("*"):
    if file.is_file():
        s3.upload_file(str(file), bucket, f"{prefix}/{file.relative_to(folder).as_posix()}")
"""
FILL = """
import strandline
with strandline.open("mynode") as node:
    node.append("visits", [{"ms": 1}, {"ms": 2}], source="web-1", request_id="first")
    node.flush("visits")
    print(node.end("visits"))
"""
GO_ON = """
import sys
import strandline
with strandline.open(".") as node:
    again = node.append("visits", [{"ms": 1}, {"ms": 2}], source="web-1", request_id="first")
    receipt = node.append("visits", [{"ms": 3}], source="web-1")
    node.flush("visits")
    new = [row["ms"] for page in node.scan("visits", since=sys.argv[1]) for row in page.rows]
    print(again.is_repeat, new, receipt.ranges["web-1"].hi)
"""
LINKING = [page for page in PAGES if page.exists()]


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial-store.md"])
def test_the_python_blocks_of_a_page_run_top_to_bottom(page: str, tmp_path: Path) -> None:
    """In a process of its own: the README starts Spark."""
    program = tmp_path / "page.py"
    program.write_text(python(ROOT / page))

    ended = subprocess.run(
        [sys.executable, program], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert (ended.returncode, ended.stderr) == (0, ""), ended.stderr
    assert len(list(tmp_path.iterdir())) > 1, "the example made its store"


@pytest.mark.parametrize(
    "page",
    [
        "docs/tutorial.md",
        "docs/how-to/full-disk.md",
        "docs/how-to/notebook.md",
        "docs/how-to/upgrade.md",
    ],
)
def test_all_that_a_page_says_to_type_works(
    page: str, connect_server: ConnectServer, tmp_path: Path
) -> None:  # L-CLI-1, L-CLI-4
    """On the Spark of the run, which a node is told by its configuration."""
    home = tmp_path / "mynode"
    conf = "".join(f'"{key}" = "{value}"\n' for key, value in session_conf(lake_of(home)).items())
    settings = f'\n[spark]\nremote = "{connect_server.remote}"\n[spark.conf]\n{conf}'
    home.mkdir()
    (home / "strandline.toml").write_text(f"version = 1\n{settings}")
    if "full-disk" in page:  # its file names another warehouse, and the session has to have the same
        settings = settings.replace(f"{home}/warehouse", f"{home}/elsewhere")

    ended = run(script(ROOT / page, settings), tmp_path)

    assert_printed(ROOT / page, ended)


def test_all_that_the_page_of_a_store_file_says_to_type_works(tmp_path: Path) -> None:  # P-OPS-2, P-INT-3
    """It needs no Spark: the page is about a store alone."""
    page = ROOT / "docs" / "how-to" / "store-file.md"
    open_store(tmp_path / "strandline.db").close()

    ended = run(script(page, ""), tmp_path)

    assert_printed(page, ended)
    assert (tmp_path / "copy.db").exists()


@pytest.mark.slow  # Spark in the process of each command, which has to trust the certificate
def test_rows_get_from_a_laptop_to_a_centre_as_the_page_says(tmp_path: Path) -> None:  # L-FWD-15, L-SRV-8
    page = ROOT / "docs" / "how-to" / "laptop-to-centre.md"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])

    ended = run(script(page, IN_PROCESS).replace("8443", port), tmp_path)

    assert_printed(page, ended)


@pytest.mark.slow  # fetches jars of 67 MB where they are not cached
def test_a_node_moves_to_postgres_and_a_bucket_as_the_page_says(
    tcp_postgres: str, s3_endpoint: str, tmp_path: Path
) -> None:  # L-CTL-7
    """Afterwards the old tokens and request ids are known, and numbers go on."""
    page, url = ROOT / "docs" / "how-to" / "outgrow.md", urlsplit(tcp_postgres)
    (tmp_path / "mynode").mkdir()
    (tmp_path / "mynode" / "strandline.toml").write_text(f"version = 1\n{IN_PROCESS}")
    token = run(f"{shlex.quote(sys.executable)} -c {shlex.quote(FILL)}", tmp_path).stdout.strip()
    aws = tmp_path / "bin" / "aws"
    aws.parent.mkdir()
    aws.write_text(f"#!{sys.executable}\n{COPY}")
    aws.chmod(0o755)
    text = script(page, IN_PROCESS + IN_BUCKET.format(endpoint=s3_endpoint), left_out=("pip ",))
    text = text.replace("s3://rows", f"s3://{BUCKET}/moved")
    text = text.replace(
        "strandline@db.example/strandline", f"{url.username}@{url.hostname}:{url.port}/postgres"
    )
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}
    path = f"{aws.parent}:{os.environ['PATH']}"

    ended = run(
        f"{text}\npython -c {shlex.quote(GO_ON)} '{token}'",
        tmp_path,
        **keys,
        PATH=path,
        ENDPOINT=s3_endpoint,
        PGPASSWORD=unquote(url.password or ""),
    )

    assert_printed(page, ended)
    assert ended.stdout.splitlines()[-1] == "True [3] 3"


def assert_printed(page: Path, ended: "subprocess.CompletedProcess[str]") -> None:
    """It ended well, and said what the page says that it says."""
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
    printed = [line for block in blocks(page) for line in answers(block)]
    assert [line for line in printed if line not in ended.stdout.splitlines()] == [], ended.stdout


def run(text: str, folder: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["bash", "-c", text],
        cwd=folder,
        env={key: value for key, value in os.environ.items() if key != CONNECT_MODE} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def answers(block: Block) -> list[str]:
    """What a block says that its commands print, where that is the same on every machine."""
    if block.language != "console":
        return []
    lines = re.sub(r"\\\n", " ", block.text).splitlines()
    return [
        line
        for line in lines
        if not line.startswith("$ ") and not re.search(r"…|listening|BYTES|export", line)
    ]


@pytest.mark.parametrize("page", LINKING, ids=named)
def test_every_link_inside_the_repository_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text())

    missing = [link for link in links if not (page.parent / link).exists()]

    assert missing == []


@pytest.mark.parametrize("page", LINKING, ids=named)
def test_every_command_of_a_page_is_one_with_options_that_it_has(page: Path) -> None:  # L-CLI-1
    """Those in blocks of a console, and those in the text between backticks."""
    text = page.read_text()
    typed = [command for block in blocks(page) for command in commands(block)]
    said = re.findall(
        r"`(strandline [^`]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    )

    faults = [fault for line in [*typed, *said] for call in calls(line) if (fault := fault_in(call))]

    assert faults == []


def calls(line: str) -> list[list[str]]:
    """The words after each `strandline` of a line of shell."""
    plain = re.sub(r"\$\(|\)|<[a-z-]+>", " ", line)
    found = re.findall(
        r"(?:^|[|;&=] ?|\s)strandline ((?:[^|;&<>\"']|\"[^\"]*\"|'[^']*')*)", " ".join(plain.split())
    )
    return [shlex.split(words) for words in found]


def fault_in(words: list[str]) -> str | None:
    """What is wrong with a call, as click would say; None if nothing."""
    command: click.Command = cli
    context = click.Context(cli, info_name="strandline")
    rest = list(words)
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        name = rest.pop(0)
        for each in name.split("|"):
            if command.get_command(context, each) is None:
                return f"{' '.join(words)!r}: there is no {each!r}"
        found = command.get_command(context, name.split("|")[0])
        assert found is not None
        command, context = found, click.Context(found, info_name=name, parent=context)
    known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
    for word in rest:
        option = word.strip("[]").partition("=")[0]
        if option.startswith("--") and option not in known:
            return f"{' '.join(words)!r}: it has no {option}"
    return None


@pytest.mark.parametrize(
    "words", ["no-such-verb", "sync --no-such-option", "sink no-such-verb", "dlq list|nothing"]
)
def test_a_command_that_is_not_there_is_found(words: str) -> None:
    assert fault_in(words.split()) is not None
