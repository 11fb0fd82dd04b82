"""The files below a table, in a folder or a bucket, without Spark."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from strandline.config.lake_settings import LakeSettings
from strandline.errors import StrandlineError
from strandline.lake.metadata.iceberg import load_table
from strandline.lake.ports.purge import FileListing, FilesUnlisted

if TYPE_CHECKING:
    from pyiceberg.table import Table

_DATA_PATHS: Final = ("write.data.path", "write.folder-storage.path", "write.object-storage.path")
# Metadata files and statistics hold no row and no bounds of one.
_WITHOUT_ROWS: Final = (
    ".metadata.json",
    ".metadata.json.gz",
    ".stats",
    ".puffin",
    "version-hint.text",
    ".crc",
)


def list_table_files(lake: LakeSettings, dataset: str) -> FileListing:
    """Return the files that may hold rows or bounds of rows. Raises FilesUnlisted."""
    from pyarrow.fs import FileSelector

    try:
        table = load_table(lake, dataset)
        places = {
            table.location(),
            *(table.properties[key] for key in _DATA_PATHS if key in table.properties),
        }
        files = set()
        for place in places:
            system, path = _place(table, place)
            found = system.get_file_info(FileSelector(path, recursive=True, allow_not_found=True))
            files |= {each.path for each in found if each.is_file}
    except StrandlineError:
        raise
    except Exception as error:  # of whichever client the storage has
        raise FilesUnlisted(dataset, str(error)) from error
    keeps = ""
    if table.properties.get("gc.enabled", "true").lower() == "false":
        keeps = "gc.enabled is false: the catalog keeps files that another branch may name"
    return FileListing(tuple(sorted(each for each in files if not each.endswith(_WITHOUT_ROWS))), keeps)


def remove_table_files(lake: LakeSettings, dataset: str, files: Sequence[str]) -> list[str]:
    """Remove files of `list_table_files`; return those that are still there."""
    left = []
    table = load_table(lake, dataset)
    system, _ = _place(table, table.location())
    for file in files:
        try:
            system.delete_file(file)
        except FileNotFoundError:
            continue  # someone else removed it
        except OSError:
            left.append(file)
    return left


def _place(table: "Table", location: str) -> tuple[Any, str]:
    """Return the file system of a location, and its path in there."""
    from pyiceberg.io.pyarrow import PyArrowFileIO

    io = PyArrowFileIO(table.io.properties)
    scheme, netloc, path = io.parse_location(location, table.io.properties)
    return io.fs_by_scheme(scheme, netloc), path.rstrip("/")
