"""Bytes: write, append, truncate, holes, flags of open, signals; on one mount, and what the backing has after
it.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys

import pytest

from tests.conftest import Area
from tests.mount.calls import error_of, in_process

pytestmark = pytest.mark.modes("local", "cached", "cached-background")


def test_truncate_of_a_file_that_is_not_open(area: Area) -> None:
    """truncate(2) by path shrinks and grows with zeros, in the backing too."""
    path = area.here / "tr"
    path.write_bytes(b"\1" * 100_000)
    area.settle()
    os.truncate(path, 5)
    assert path.stat().st_size == 5
    assert path.read_bytes() == b"\1" * 5
    os.truncate(path, 9)
    assert path.read_bytes() == b"\1" * 5 + bytes(4)

    area.settle()
    assert (area.back / "tr").read_bytes() == b"\1" * 5 + bytes(4)
    os.truncate(path, 0)
    os.truncate(path, 9)
    area.settle()
    assert (area.back / "tr").read_bytes() == bytes(9)


def test_size_grows_monotonically_under_appends(area: Area) -> None:
    """stat during 2,000 appends never shows a smaller size than before."""
    path = area.here / "z"
    path.touch()
    sizes: list[int] = []

    source = "import sys\nwith open(sys.argv[1],'ab',0) as f:\n for _ in range(2000): f.write(b'x'*100)"
    writer = in_process(source, path)
    while writer.poll() is None:
        sizes.append(path.stat().st_size)
    writer.communicate()

    assert sizes == sorted(sizes)
    assert path.stat().st_size == 200_000
    assert len(set(sizes)) > 3, "the test did not overlap"


def test_duplicated_descriptor(area: Area) -> None:
    """W3a: closing one of two duplicates flushes and goes on; both writes are there; an open after it sees
    them.
    """
    path = area.here / "dp"
    first = os.open(path, os.O_WRONLY | os.O_CREAT)
    second = os.dup(first)
    os.write(first, b"one\n")
    os.close(first)
    os.write(second, b"two\n")
    os.close(second)
    assert path.read_bytes() == b"one\ntwo\n"
    for i in range(200):
        path.write_text(str(i))
        assert path.read_text() == str(i)

    area.settle()
    assert (area.back / "dp").read_text() == "199"


def test_appends_of_several_writers(area: Area) -> None:
    """Four processes append 250 lines each, opening each time: 1,000 whole lines."""
    source = (
        "import os,sys\n"
        "for i in range(250):\n"
        "    f=os.open(sys.argv[1],os.O_WRONLY|os.O_APPEND|os.O_CREAT)\n"
        "    os.write(f,f'{sys.argv[2]}-{i}\\n'.encode()); os.close(f)"
    )
    path = area.here / "ap"
    writers = [in_process(source, path, k) for k in range(4)]
    for writer in writers:
        writer.communicate()
        assert writer.returncode == 0

    assert len(set(path.read_text().splitlines())) == 1000
    area.settle()
    assert sorted((area.back / "ap").read_text().splitlines()) == sorted(
        f"{k}-{i}" for k in range(4) for i in range(250)
    )


def test_append_ignores_the_offset(area: Area) -> None:
    """With O_APPEND each write lands at the end, wherever another handle left it."""
    path = area.here / "a"
    one = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    two = os.open(path, os.O_RDWR | os.O_APPEND)
    for handle, text in ((one, b"1"), (two, b"2"), (one, b"3")):
        os.lseek(handle, 0, os.SEEK_SET)
        os.write(handle, text)
    assert os.pread(one, 10, 0) == b"123"
    os.close(one)
    os.close(two)
    assert path.read_bytes() == b"123"


def test_fallocate_and_growing_truncate(area: Area) -> None:
    """D1: posix_fallocate works or says that it cannot; growing by ftruncate gives zeros."""
    handle = os.open(area.here / "fa", os.O_RDWR | os.O_CREAT)
    os.write(handle, b"abc")
    assert error_of(os.posix_fallocate, handle, 0, 100_000) in ("", "EOPNOTSUPP", "EINVAL")
    os.ftruncate(handle, 200_000)
    assert os.fstat(handle).st_size == 200_000
    assert os.pread(handle, 10, 0) == b"abc" + bytes(7)
    assert os.pread(handle, 5, 199_995) == bytes(5)
    assert os.pread(handle, 5, 200_000) == b""
    os.close(handle)
    area.settle()
    assert (area.back / "fa").stat().st_size == 200_000


def test_holes_and_writes_beyond_the_end(area: Area) -> None:
    """A write far beyond the end leaves zeros; shrinking and growing again never shows the old bytes."""
    path = area.here / "h"
    with path.open("wb") as file:
        file.seek(3_000_000)
        file.write(b"end")
    assert path.read_bytes() == bytes(3_000_000) + b"end"
    with path.open("r+b") as file:
        file.write(b"\7" * 10_000)
        file.truncate(100)
        file.truncate(20_000)
        file.seek(15_000)
        file.write(b"x")
    expected = b"\7" * 100 + bytes(14_900) + b"x" + bytes(4_999)
    assert path.read_bytes() == expected
    area.settle()
    assert (area.back / "h").read_bytes() == expected


def test_open_flags(area: Area) -> None:
    """O_EXCL, O_TRUNC, O_DIRECTORY, O_NOFOLLOW and read-only handles behave as on a local disk."""
    path = area.here / "f"
    path.write_text("content")
    os.symlink("f", area.here / "l")
    opened = []

    def open_with(name: str, flags: int) -> None:
        opened.append(os.open(area.here / name, flags))

    assert error_of(open_with, "f", os.O_CREAT | os.O_EXCL | os.O_WRONLY) == "EEXIST"
    assert error_of(open_with, "none", os.O_RDONLY) == "ENOENT"
    assert error_of(open_with, "f", os.O_RDONLY | os.O_DIRECTORY) == "ENOTDIR"
    assert error_of(open_with, ".", os.O_WRONLY) == "EISDIR"
    assert error_of(open_with, "l", os.O_RDONLY | os.O_NOFOLLOW) == "ELOOP"
    assert error_of(open_with, "f", os.O_RDONLY) == ""
    assert error_of(os.write, opened[0], b"x") == "EBADF"
    assert os.pread(opened[0], 7, 0) == b"content"
    assert error_of(open_with, "f", os.O_WRONLY | os.O_TRUNC) == ""
    assert path.stat().st_size == 0
    assert os.pread(opened[0], 7, 0) == b""
    assert error_of(open_with, "new", os.O_CREAT | os.O_EXCL | os.O_WRONLY) == ""
    for handle in opened:
        os.close(handle)
    area.settle()
    assert (area.back / "f").read_bytes() == b""
    assert (area.back / "new").read_bytes() == b""


def test_created_read_only_file_takes_its_writes(area: Area) -> None:
    """A file created with mode 0444 is written through the handle that created it (git objects, cp)."""
    handle = os.open(area.here / "ro", os.O_CREAT | os.O_WRONLY, 0o444)
    os.write(handle, b"object")
    os.close(handle)
    area.settle()
    assert (area.back / "ro").read_bytes() == b"object"
    assert (area.back / "ro").stat().st_mode & 0o777 == 0o444


def test_readers_and_writers_of_one_file_see_each_other(area: Area) -> None:
    """What one handle writes another reads at once, committed or not (W1), from a second process too."""
    path = area.here / "w"
    path.write_bytes(b"old" * 1000)
    area.settle()
    with path.open("rb", 0) as reader, path.open("r+b", 0) as writer:
        assert reader.read(3) == b"old"
        for i in range(50):
            writer.seek(i * 7)
            writer.write(b"%07d" % i)
            assert os.pread(reader.fileno(), 7, i * 7) == b"%07d" % i
        output = subprocess.run(["cat", str(path)], capture_output=True, check=True, timeout=20).stdout
        assert output[343:350] == b"0000049"
        assert len(output) == 3000
        os.fsync(writer.fileno())
        writer.seek(0)
        writer.write(b"A")
        assert os.pread(reader.fileno(), 1, 0) == b"A"


def test_writes_during_and_after_commits(area: Area) -> None:
    """A handle that goes on writing after each fsync ends with all bytes committed, none lost between."""
    path = area.here / "w"
    with path.open("wb", 0) as writer:
        for i in range(30):
            writer.write(b"%04d" % i)
            if i % 3 == 0:
                os.fsync(writer.fileno())
                assert (area.back / "w").read_bytes()[-4:] == b"%04d" % i
    area.settle()
    assert (area.back / "w").read_bytes() == b"".join(b"%04d" % i for i in range(30))


def test_large_file_round_trip(area: Area) -> None:
    """48 MiB in odd pieces come back the same through the mount and lie the same in the backing."""
    path = area.here / "big"
    digest = hashlib.sha256()
    with path.open("wb", 0) as writer:
        piece = os.urandom(1_234_567)
        for i in range(40):
            part = piece[i:]
            digest.update(part)
            assert writer.write(part) == len(part)
    area.settle()
    for place in (path, area.back / "big"):
        with place.open("rb") as reader:
            assert hashlib.file_digest(reader, "sha256").digest() == digest.digest()


def test_kernel_copies(area: Area) -> None:
    """copy_file_range, sendfile and SEEK_DATA work through the kernel's own fallbacks."""
    data = os.urandom(2_000_000)
    (area.here / "s").write_bytes(data)
    with (area.here / "s").open("rb") as source, (area.here / "c").open("wb") as target:
        left = len(data)
        while left:
            left -= os.copy_file_range(source.fileno(), target.fileno(), left)
    assert (area.here / "c").read_bytes() == data
    with (area.here / "s").open("rb") as source, (area.here / "d").open("wb") as target:
        offset = 0
        while offset < len(data):
            offset += os.sendfile(target.fileno(), source.fileno(), offset, len(data))
    assert (area.here / "d").read_bytes() == data
    with (area.here / "s").open("rb") as source:
        assert os.lseek(source.fileno(), 0, os.SEEK_DATA) == 0
        assert os.lseek(source.fileno(), 0, os.SEEK_HOLE) == len(data)


def test_direct_io_reads_the_same_bytes(area: Area) -> None:
    """A handle with O_DIRECT reads what was written."""
    import mmap

    data = os.urandom(8192)
    (area.here / "o").write_bytes(data)
    handle = os.open(area.here / "o", os.O_RDONLY | os.O_DIRECT)
    try:
        with mmap.mmap(-1, 8192) as buffer:
            assert os.preadv(handle, [buffer], 0) == 8192
            assert buffer[:] == data
    finally:
        os.close(handle)


def test_interrupted_reader_dies_at_once(area: Area) -> None:
    """SIGINT ends a reader in the middle of a file, and the mount goes on."""
    (area.here / "cold").write_bytes(bytes(50 << 20))
    source = (
        "import sys\nf=open(sys.argv[1],'rb',0)\nprint('go',flush=True)\n"
        "while True:\n f.seek(0)\n while f.read(1<<20): pass"
    )
    reader = subprocess.Popen(
        [sys.executable, "-c", source, str(area.here / "cold")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert reader.stdout is not None
    assert reader.stdout.readline() == b"go\n"
    reader.send_signal(signal.SIGINT)
    reader.stdout.close()
    reader.wait(5)
    assert (area.here / "cold").stat().st_size == 50 << 20


def test_interval_timer_during_io(area: Area) -> None:
    """With a restarting 1 ms timer no call is short or fails with anything else than the timer's restart."""
    for i in range(200):
        (area.here / f"n{i}").touch()
    source = (
        "import signal,os,sys\n"
        "signal.signal(signal.SIGALRM,lambda *a:None); signal.siginterrupt(signal.SIGALRM,False)\n"
        "signal.setitimer(signal.ITIMER_REAL,.001,.001)\n"
        "m=sys.argv[1]\n"
        "for r in range(20):\n"
        "    assert len(os.listdir(m))>=200\n"
        "    f=open(m+'/sig','wb'); f.write(b'x'*10**6); f.close()\n"
        "    assert os.path.getsize(m+'/sig')==10**6\n"
        "    with open(m+'/sig','rb') as f: assert f.read()==b'x'*10**6\n"
        "signal.setitimer(signal.ITIMER_REAL,0)\n"
    )
    subprocess.run([sys.executable, "-c", source, str(area.here)], check=True, timeout=60)


def test_fsync_of_files_and_directories(area: Area) -> None:
    """fsync and fdatasync of files and fsync of a directory succeed, and the file is then in the backing."""
    for i in range(4):
        with (area.here / f"__{i}_0.distcp").open("wb") as file:
            file.write(os.urandom(100_000))
            file.flush()
            os.fsync(file.fileno())
            os.fdatasync(file.fileno())
            assert (area.back / f"__{i}_0.distcp").stat().st_size == 100_000
    directory = os.open(area.here, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(directory)
    os.close(directory)
    os.sync()
