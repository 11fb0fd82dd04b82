"""The keys of a profile in AWS's own files, as options for a bucket: obstore itself reads none of them.

Profiles that get their keys elsewhere (single sign-on, a role, a process) have none in these files: export
them, as `aws configure export-credentials --format env` prints them.
"""

import os
from collections.abc import Mapping
from configparser import ConfigParser, Error
from pathlib import Path
from typing import Final

from strandline.errors import HeldError

_OPTIONS: Final = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
    "region": "region",
}


class CredentialsMissing(HeldError):
    """A destination wants credentials, and there are none."""


def profile_options(profile: str, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Keys, and the region where one is named; CredentialsMissing if the profile has no keys."""
    environment = os.environ if environment is None else environment
    home = Path(environment.get("HOME", "~")).expanduser() / ".aws"
    config = Path(environment.get("AWS_CONFIG_FILE", home / "config"))
    credentials = Path(environment.get("AWS_SHARED_CREDENTIALS_FILE", home / "credentials"))
    section = profile if profile == "default" else f"profile {profile}"
    found = {**_section(config, section), **_section(credentials, profile)}
    options = {ours: found[theirs] for theirs, ours in _OPTIONS.items() if theirs in found}
    if not {"access_key_id", "secret_access_key"} <= set(options):
        raise CredentialsMissing(
            f"the AWS profile {profile!r} has no keys in {credentials} or {config}",
            hint="put them there, or name them in the configuration as env:NAME",
        )
    return options


def _section(path: Path, name: str) -> dict[str, str]:
    parser = ConfigParser(interpolation=None, default_section="")
    try:
        parser.read(path, encoding="utf-8")
    except (Error, UnicodeDecodeError, OSError) as error:
        raise CredentialsMissing(f"{path} cannot be read", hint="correct it, or remove it") from error
    return dict(parser[name]) if parser.has_section(name) else {}
