"""Reading a ``.prototxt``: the text form of a protocol buffer, as nested dictionaries, and typed access to them.

    name: "net"                                   {"name": ["net"],
    layer { name: "a" type: "ReLU" }        ──►    "layer": [{"name": ["a"], "type": ["ReLU"]},
    layer { name: "b" type: "ReLU" }                         {"name": ["b"], "type": ["ReLU"]}]}

Every field has a list of values: the text alone does not say which may be repeated; who asks a `Fields` says it.
The file is untrusted: its size is checked before it is read, and messages nest no deeper than `MAX_DEPTH`, on a stack
of our own. Comments may be in any encoding.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias, TypeVar

from deeptaylor.models.caffe.weights import CaffeError, read_bytes

__all__ = ["Fields", "read_prototxt"]

MAX_BYTES = 4 * 2**20  # the longest published networks have a tenth of it
MAX_TOKENS = 500_000  # words, numbers and marks
MAX_DEPTH = 32
MAX_INTEGER = 2**31 - 1

_T = TypeVar("_T")


class Word(str):
    """A bare word of the text: the name of a constant, true or false."""

    __slots__ = ()


Scalar: TypeAlias = "str | int | float"
Message: TypeAlias = "dict[str, list[Scalar | Message]]"


def read_prototxt(path: str | os.PathLike[str]) -> Fields:
    """The text of a network."""
    text = read_bytes(path, MAX_BYTES).decode("utf-8-sig", "replace")
    try:
        return Fields(_Reader(text).read(), "the network")
    except CaffeError as error:
        raise CaffeError(f"{path}: not the text of a Caffe network: {error}") from None


class Fields:
    """A message by the names of its fields; what has the wrong type is an error that says where."""

    def __init__(self, message: Message, where: str) -> None:
        self.message, self.where = message, where

    def has(self, name: str) -> bool:
        return bool(self.message.get(name))

    def messages(self, name: str) -> list[Fields]:
        values = self.message.get(name, [])
        found = [Fields(v, self.where) for v in values if isinstance(v, dict)]
        if len(found) != len(values):
            raise self.error(name, "a message in braces")
        return found

    def one(self, name: str) -> Fields:
        """The only message of this name; an empty one where there is none."""
        return self._only(name, self.messages(name)) or Fields({}, self.where)

    def strings(self, name: str) -> list[str]:
        values = self.message.get(name, [])
        found = [str(v) for v in values if isinstance(v, str)]
        if len(found) != len(values):
            raise self.error(name, "text")
        return found

    def string(self, name: str, default: str = "") -> str:
        return self._only(name, self.strings(name)) or default

    def integers(self, name: str, lowest: int = 0) -> list[int]:
        values = self.message.get(name, [])
        found = [v for v in values if isinstance(v, int) and lowest <= v <= MAX_INTEGER]
        if len(found) != len(values):
            raise self.error(name, f"a whole number from {lowest} to {MAX_INTEGER}")
        return found

    def integer(self, name: str, default: int, lowest: int = 0) -> int:
        value = self._only(name, self.integers(name, lowest))
        return default if value is None else value

    def numbers(self, name: str) -> list[float]:
        values = self.message.get(name, [])
        found = [float(v) for v in values if isinstance(v, (int, float)) and abs(v) < 1e38]
        if len(found) != len(values):
            raise self.error(name, "a number")
        return found

    def number(self, name: str, default: float) -> float:
        value = self._only(name, self.numbers(name))
        return default if value is None else value

    def flag(self, name: str, default: bool) -> bool:
        value = self._only(name, [str(v).lower() for v in self.message.get(name, []) if not isinstance(v, dict)])
        if value is None and not self.has(name):
            return default
        if value not in ("true", "t", "1", "false", "f", "0"):
            raise self.error(name, "true or false")
        return value in ("true", "t", "1")

    def choice(self, name: str, default: str, known: tuple[str, ...]) -> str:
        """A constant by name, or by the number of its place in `known`."""
        value = self._only(name, [v for v in self.message.get(name, []) if isinstance(v, (str, int))])
        if value is None and not self.has(name):
            return default
        if isinstance(value, int) and 0 <= value < len(known):
            return known[value]
        if value not in known:
            raise self.error(name, f"one of {', '.join(known)}")
        return str(value)

    def _only(self, name: str, values: list[_T]) -> _T | None:
        if len(self.message.get(name, [])) > 1:
            raise CaffeError(f"{self.where}: {name!r} is given {len(values)} times and can be given once.")
        return values[0] if values else None

    def error(self, name: str, wanted: str) -> CaffeError:
        given = ", ".join("{…}" if isinstance(v, dict) else repr(v)[:40] for v in self.message.get(name, [])[:4])
        return CaffeError(f"{self.where}: {name!r} should be {wanted}, got {given}.")


# --- the text -------------------------------------------------------------------------------------------------------

_TOKEN = re.compile(
    r"""(?P<space>\s++|\#[^\n]*+)
      | (?P<word>-?[A-Za-z_][A-Za-z0-9_.]*)
      | (?P<number>[-+]?(?:0[xX][0-9a-fA-F]+|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)[fF]?)
      | (?P<string>"(?:[^"\\\n]++|\\.)*+"|'(?:[^'\\\n]++|\\.)*+')
      | (?P<mark>[:{}<>\[\],;])""",
    re.VERBOSE,
)
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{1,2}|[0-7]{1,3}|.)")
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"', "?": "?"}
_CLOSING = {"{": "}", "<": ">"}


class _Token(NamedTuple):
    kind: str
    text: str
    line: int


def _tokens(text: str) -> Iterator[_Token]:
    at, line, count = 0, 1, 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise CaffeError(f"line {line}: {text[at : at + 20]!r} is no part of it.")
        token = _Token(str(match.lastgroup), match.group(), line)
        if token.kind != "space":
            count += 1
            if count > MAX_TOKENS:
                raise CaffeError(f"line {line}: it has more than {MAX_TOKENS:,} words.")
            yield token
        line += token.text.count("\n")
        at = match.end()
    yield _Token("end", "the end", line)


class _Reader:
    """One pass over the text; `token` is the next one."""

    def __init__(self, text: str) -> None:
        self.rest = _tokens(text)
        self.token = next(self.rest)

    def at(self, marks: str) -> bool:
        return self.token.kind == "mark" and self.token.text in marks

    def take(self) -> _Token:
        taken = self.token
        if taken.kind != "end":
            self.token = next(self.rest)
        return taken

    def expected(self, what: str) -> CaffeError:
        return CaffeError(f"line {self.token.line}: {what} expected, found {self.token.text[:40]!r}.")

    def read(self) -> Message:
        root: Message = {}
        stack = [(root, "")]
        while self.token.kind != "end":
            message, closing = stack[-1]
            if closing and self.at(closing):
                self.take()
                stack.pop()
            elif self.at(",;"):
                self.take()
            elif self.token.kind == "word":
                opened = self.field(message)
                if opened is not None:
                    stack.append(opened)
                if len(stack) > MAX_DEPTH:
                    raise CaffeError(f"line {self.token.line}: messages nest more than {MAX_DEPTH} deep.")
            else:
                raise self.expected("the name of a field")
        if len(stack) > 1:
            raise CaffeError(f"{len(stack) - 1} braces are not closed. It is cut short.")
        return root

    def field(self, message: Message) -> tuple[Message, str] | None:
        """A field with its value; or with the message that begins here, and what closes that."""
        values = message.setdefault(self.take().text, [])
        colon = self.at(":")
        if colon:
            self.take()
        if self.at("{<"):
            inner: Message = {}
            values.append(inner)
            return inner, _CLOSING[self.take().text]
        if not colon:
            raise self.expected("a colon or a brace")
        if not self.at("["):
            values.append(self.scalar())
            return None
        self.take()
        while not self.at("]"):
            values.append(self.scalar())
            if self.at(","):
                self.take()
            elif not self.at("]"):
                raise self.expected("a comma")
        self.take()
        return None

    def scalar(self) -> Scalar:
        if self.token.kind == "string":
            parts = []
            while self.token.kind == "string":
                parts.append(_unquoted(self.take()))
            return "".join(parts)
        if self.token.kind == "word":
            word = self.take().text
            return float(word) if word.lower().lstrip("-") in ("inf", "infinity", "nan") else Word(word)
        if self.token.kind == "number" and len(self.token.text) <= 64:
            return _number(self.take().text)
        raise self.expected("a value")


def _number(text: str) -> int | float:
    digits = text.lstrip("+-")
    if digits[:2] in ("0x", "0X"):
        return int(text, 16)
    if re.fullmatch(r"0[0-7]+", digits):
        return int(text, 8)
    return int(text) if digits.isdigit() else float(text.rstrip("fF"))


def _unquoted(token: _Token) -> str:
    def plain(match: re.Match[str]) -> str:
        code = match.group(1)
        if code in _ESCAPED:
            return _ESCAPED[code]
        if code[0] == "x" and len(code) > 1:
            return chr(int(code[1:], 16))
        if code[0] in "01234567":
            return chr(int(code, 8) & 0xFF)
        raise CaffeError(f"line {token.line}: the unknown escape \\{code}.")

    return _ESCAPE.sub(plain, token.text[1:-1])
