"""Layouts and numbers against the system's own <linux/fuse.h>, as a C compiler sees it."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass

import pytest

from tests.kernel.direct.kernel_side import LAYOUTS
from volfs.kernel.direct.wire import flags, layouts
from volfs.kernel.direct.wire.flags import InitFlag
from volfs.kernel.direct.wire.opcodes import Ioctl, Notice, Opcode

#: What the header calls its numbers, and where they are here.
_PREFIXES: dict[str, list[type]] = {
    "FUSE_": [Opcode, InitFlag, flags.InvalEntry],
    "FUSE_NOTIFY_": [Notice],
    "FUSE_DEV_IOC_": [Ioctl],
    "FATTR_": [flags.Fattr],
    "FOPEN_": [flags.Fopen],
    "FUSE_OPEN_": [flags.Open],
    "FUSE_GETATTR_": [flags.Getattr],
    "FUSE_READ_": [flags.Read],
    "FUSE_WRITE_": [flags.Write],
    "FUSE_RELEASE_": [flags.Release],
    "FUSE_FSYNC_": [flags.Fsync],
    "FUSE_LK_": [flags.Lock],
    "FUSE_SETXATTR_": [flags.Setxattr],
    "FUSE_ATTR_": [flags.Attribute],
}
_NUMBERS = {
    prefix + name: int(value)
    for prefix, groups in _PREFIXES.items()
    for group in groups
    for name, value in vars(group).items()
    if name.isupper() and not name.startswith("_")
} | {
    "FUSE_INVALID_UIDGID": flags.INVALID_ID,
    "FUSE_KERNEL_VERSION": flags.MAJOR,
    "FUSE_MIN_READ_BUFFER": flags.MIN_READ_BUFFER,
    "FUSE_ROOT_ID": flags.ROOT_ID,
    "FUSE_UNIQUE_RESEND": flags.UNIQUE_RESEND,
}
_STRUCTURES = {
    layout.c_name: layout for layout in LAYOUTS.values() if layout is not layouts.SETXATTR_IN_SHORT
}

#: Not spoken here (character devices, ioctl, poll, DAX, extensions, io_uring), or no number of the protocol.
_NUMBERS_LEFT_OUT = re.compile(
    r"CUSE_\w+|FUSE_(COMPAT|IOCTL|IO_URING|URING|SETUPMAPPING|REMOVEMAPPING)_\w+|FUSE_KERNEL_MINOR_VERSION"
    r"|FUSE_POLL_SCHEDULE_NOTIFY|FUSE_WRITE_KILL_PRIV|FUSE_DIRECT_IO_RELAX|FUSE_MAX_NR_SECCTX|FUSE_EXT_GROUPS"
    r"|FUSE_NOTIFY_CODE_MAX|FUSE_INIT_BSWAP_RESERVED|FUSE_NAME_OFFSET\w*|FUSE_DEV_IOC_(MAGIC|SYNC_INIT)"
)
_STRUCTURES_LEFT_OUT = re.compile(
    r"fuse_(ioctl|poll|bmap|uring|secctx)_?\w*|fuse_notify_poll_wakeup_out|fuse_(setup|remove)mapping_\w+"
    # These are parts of others, and checked there.
    r"|fuse_ext_header|fuse_supp_groups|fuse_file_lock|fuse_kstatfs|fuse_sx_time|fuse_statx"
)
_PADDING = re.compile(r"_*(padding|dummy|unused|spare|reserved)\d*")
#: These grew; an older header has the beginning.
_GREW = {"fuse_init_in", "fuse_setxattr_in"}


@dataclass(frozen=True)
class _Header:
    minor: int
    numbers: dict[str, int]
    sizes: dict[str, int]
    offsets: dict[tuple[str, str], int]
    unnamed: list[str]
    missing: list[str]


@pytest.fixture(scope="module")
def header(tmp_path_factory: pytest.TempPathFactory) -> _Header:
    """What a program compiled with the header says of all that both know."""
    text = _cc("-E", "-dD", "-", program="#include <linux/fuse.h>\n")
    macros = set(re.findall(r"^#define ((?:CUSE|FUSE|FATTR|FOPEN)_\w+) .", text, re.MULTILINE))
    listed = "".join(re.findall(r"enum fuse_\w+ \{(.*?)\}", text, re.DOTALL))
    numbers = macros | set(re.findall(r"\b[CF]USE_\w+", listed))
    bodies = dict(re.findall(r"struct (fuse_\w+) \{(.*?)\n\};", text, re.DOTALL))
    fields = {
        name: {field: kind for kind, field in re.findall(r"(\w+)\s+(\w+)(?:\[\w*\])?;", body)}
        for name, body in bodies.items()
    }

    shared = sorted(numbers & _NUMBERS.keys())
    both = sorted(bodies.keys() & _STRUCTURES.keys())
    pairs = [
        (name, field) for name in both for field in _STRUCTURES[name].fields if _has(fields, name, field)
    ]
    lines = [f'printf("%llu\\n", (unsigned long long)({name}));' for name in shared]
    lines += [f'printf("%zu\\n", sizeof(struct {name}));' for name in both]
    lines += [f'printf("%zu\\n", offsetof(struct {name}, {field}));' for name, field in pairs]
    program = tmp_path_factory.mktemp("header") / "program"
    includes = "#include <stddef.h>\n#include <stdio.h>\n#include <sys/ioctl.h>\n#include <linux/fuse.h>\n"
    _cc("-o", str(program), "-", program=includes + "int main(void) {" + "\n".join(lines) + "return 0; }\n")
    said = [int(line) for line in subprocess.check_output([program], timeout=30, text=True).split()]

    minor = re.search(r"#define FUSE_KERNEL_MINOR_VERSION (\d+)", text)
    assert minor is not None
    unnamed = [name for name in numbers - _NUMBERS.keys() if not _NUMBERS_LEFT_OUT.fullmatch(name)]
    unnamed += [name for name in bodies.keys() - set(both) if not _STRUCTURES_LEFT_OUT.fullmatch(name)]
    ours = {(name, field.split(".")[0]) for name in both for field in _STRUCTURES[name].fields}
    unnamed += [
        f"{name}.{field}"
        for name in both
        for field in fields[name]
        if (name, field) not in ours
        and not _PADDING.fullmatch(field)
        and (name, field) != ("fuse_dirent", "name")
    ]
    missing = [*(_NUMBERS.keys() - numbers), *(_STRUCTURES.keys() - bodies.keys())]
    missing += [f"{n}.{f}" for n in both for f in _STRUCTURES[n].fields if (n, f) not in set(pairs)]
    return _Header(
        int(minor[1]),
        dict(zip(shared, said, strict=False)),
        dict(zip(both, said[len(shared) :], strict=False)),
        dict(zip(pairs, said[len(shared) + len(both) :], strict=True)),
        sorted(unnamed),
        sorted(missing),
    )


def _has(fields: dict[str, dict[str, str]], name: str, path: str) -> bool:
    """Whether the structure has the field; of one with dots, whether the structure within has it."""
    first, _, rest = path.partition(".")
    return first in fields[name] and (not rest or _has(fields, fields[name][first], rest))


def _cc(*arguments: str, program: str) -> str:
    done = subprocess.run(
        ["cc", "-x", "c", *arguments], input=program, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_numbers(header: _Header) -> None:
    """Each opcode, flag, notification and ioctl has the header's number."""
    # 1 << 31 is a negative int to C.
    said = {
        name: value & 0xFFFFFFFF if value >> 32 == 0xFFFFFFFF else value
        for name, value in header.numbers.items()
    }
    assert len(said) > 100
    assert said == {name: _NUMBERS[name] for name in said}


def test_sizes(header: _Header) -> None:
    """Each structure has the header's size; what grew since has at least the size of an older header."""
    complete = {
        name: size
        for name, size in header.sizes.items()
        if name not in _GREW or not any(field.startswith(f"{name}.") for field in header.missing)
    }
    assert complete == {name: _STRUCTURES[name].size for name in complete}
    assert all(size <= _STRUCTURES[name].size for name, size in header.sizes.items())
    assert layouts.SETXATTR_IN_SHORT.size == layouts.SETXATTR_IN.offsets["setxattr_flags"]


def test_offsets(header: _Header) -> None:
    """Each field of a structure, and of a structure within, is where the header has it."""
    assert len(header.offsets) > 150
    assert header.offsets == {
        (name, field): _STRUCTURES[name].offsets[field] for name, field in header.offsets
    }


def test_nothing_is_overlooked(header: _Header) -> None:
    """What the header has is here, or left out on purpose; what an older header lacks is printed."""
    print(f"not compared, as the installed header speaks 7.{header.minor}: {', '.join(header.missing)}")
    if header.minor <= flags.MINOR:
        assert header.unnamed == []
    if header.minor >= flags.MINOR:
        assert header.missing == []
