"""Whether a predicate in SQL says the same of a row each time, told from its text alone.

A retry must withhold the rows that the first try withheld, and a purge must judge rows in quarantine as it
judges those of the table. So a predicate may depend on nothing but the row: not on the time, not on chance,
not on who asks, and on no other rows.
"""

import re
from typing import Final

_QUOTED: Final = re.compile(
    r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\"|`(?:[^`]|``)*`|--[^\n]*|/\*.*?\*/", re.DOTALL
)
_CALLED: Final = re.compile(r"\b([a-z_][a-z0-9_]*)\s*\(", re.IGNORECASE)
_WORD: Final = re.compile(r"(?<![\w.])([a-z_]\w*)\b(?!\s*[.(])", re.IGNORECASE)

_TIME: Final = "tells the time"
_CHANCE: Final = "draws lots"
_SESSION: Final = "tells who asks, and from where"
_PLACE: Final = "tells where a row happens to lie"
_BY_REASON: Final = {
    _TIME: "curdate current_date current_time current_timestamp localtime localtimestamp now",
    _CHANCE: "rand randn random randstr shuffle uniform uuid java_method reflect try_reflect",
    _SESSION: "current_catalog current_database current_path current_schema current_timezone current_user "
    "session_user user version",
    _PLACE: "input_file_block_length input_file_block_start input_file_name monotonically_increasing_id "
    "spark_partition_id",
}
_FUNCTIONS: Final = {name: reason for reason, names in _BY_REASON.items() for name in names.split()}
_BARE: Final = {name for name in _FUNCTIONS if name.startswith("current_")} | {"localtimestamp", "localtime"}
_NOW: Final = re.compile(r"\b(?:to_)?unix_timestamp\s*\(\s*\)", re.IGNORECASE)
_NOW_IN_WORDS: Final = re.compile(
    r"\b(?:date|timestamp\w*)\s*['\"]\s*(now|today|tomorrow|yesterday)\b", re.IGNORECASE
)


def without_quoted(sql: str, instead: str = " ") -> str:
    """Return the text with `instead` in place of each literal, quoted name and comment."""
    return _QUOTED.sub(instead, sql)


def why_unsteady(where: str) -> str | None:
    """What in a predicate may say something else of the same row another time; None if nothing does."""
    if word := _NOW_IN_WORDS.search(where):
        return f"'{word[1]}' {_TIME}"
    text = without_quoted(where, " '' ")
    if _NOW.search(text):
        return f"unix_timestamp() {_TIME}"
    for name in map(str.lower, _CALLED.findall(text)):
        if name in _FUNCTIONS:
            return f"{name}() {_FUNCTIONS[name]}"
    for name in map(str.lower, _WORD.findall(text)):
        if name in _BARE:
            return f"{name} {_FUNCTIONS[name]}"
        if name == "select":
            return "a query inside it looks at other rows"
    return None
