"""The data set: paths of files, divided among ranks and workers, in an order that can be resumed.

It joins what others know: the files (`listing`), their order (`order`), the rank (`ranks`), the epoch
(`epochs`), and where each file is read (`nearby`). Batches, and positions counted by what was consumed, are
the loader's (`loader`).

*Concurrency:* files are listed once, when it is made, in the main process; workers get the list with the
data set. No thread, lock or open file is held, so that it may be forked and pickled.
"""

from __future__ import annotations

import multiprocessing
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch.utils.data
from torch.utils.data import IterableDataset

from volfs_client import ranks
from volfs_client.epochs import Progress
from volfs_client.errors import StateMismatch, TooFewFiles
from volfs_client.listing import AnyPath, Filter, find
from volfs_client.nearby import Nearby
from volfs_client.order import TAILS, Grid, Pass, Tail, permutation
from volfs_client.paths import LocalFile, LocalPath
from volfs_client.stateful import Identity, OnChange, Position

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["UCVolumeDataset", "VolumeDataset"]


class VolumeDataset(IterableDataset[Any]):
    """Paths of the files in a volume, or in any directory, divided among all ranks and workers.

    Each item is a `LocalPath`: a str to open, whose `source` is the path in the volume; with `as_path` a
    pathlib.Path; with `transform` what that makes of it, in the worker. On a volfs mount the path to
    open is a local file that the mount has verified.

    paths           a directory, a file, or several of them; files named outright keep their order
    pattern         a glob or several: "*.jpg", "train/**/*.jpg". `exclude` likewise, of directories too
    recursive       whether directories below are looked into
    include_hidden  whether names that begin with _ or . are taken
    shuffle, seed   a new order in each epoch, the same for the same seed and epoch everywhere
    batch_size      files a step, unless the loader of this library says it. With any other loader give both
                    the same number: the order then does not depend on the number of workers
    tail            what becomes of a last step that is not full: "pad" repeats files of the same epoch's
                    beginning, "drop" leaves it out, "error" raises TooFewFiles
    shard           False: every rank sees every file
    rank, world_size, process_group
                    who shares the data, if it is not all ranks of the job: ranks of one tensor-parallel
                    group must see the same
    prefetch        how many files ahead each worker tells the mount what it will open; 0: none
    transform       called with the path, in the worker
    on_change       "warn" goes on from a position although the files changed since
    cache_dir       off volfs: a local directory to copy files into, for all processes of the machine
                    (`nearby` says what is kept there)
    handoff         False: read through the mount, not beside it

    Make it after `init_process_group`, on all ranks: rank 0 then lists for all. A pass that was begun
    counts as an epoch, also when it was left early; `set_epoch` says another one. Under PyTorch's own
    DataLoader with workers this process does not hear that a pass began: call `set_epoch` there.

    Raises NoFiles, TooFewFiles, RankUnknown, AlreadySharded, and OSError where files cannot be listed or
    are gone.
    """

    def __init__(
        self,
        paths: AnyPath | Iterable[AnyPath],
        *,
        pattern: str | Sequence[str] | None = None,
        recursive: bool = True,
        exclude: str | Sequence[str] | None = None,
        include_hidden: bool = False,
        shuffle: bool = False,
        seed: int = 0,
        batch_size: int | None = None,
        tail: Tail = "pad",
        shard: bool = True,
        rank: int | None = None,
        world_size: int | None = None,
        process_group: ProcessGroup | None = None,
        prefetch: int = 256,
        transform: Callable[[Any], Any] | None = None,
        as_path: bool = False,
        on_change: OnChange = "error",
        cache_dir: AnyPath | None = None,
        handoff: bool = True,
    ) -> None:
        if tail not in TAILS:
            raise ValueError(f"tail is one of {', '.join(TAILS)}, not {tail!r}")
        if on_change not in ("error", "warn"):
            raise ValueError(f"on_change is 'error' or 'warn', not {on_change!r}")
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"batch_size is at least 1, not {batch_size}")
        if prefetch < 0:
            raise ValueError(f"prefetch is a number of files, not {prefetch}")
        wanted = Filter(_several(pattern), _several(exclude), recursive, include_hidden)
        given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
        self.batch_size = batch_size
        self.tail: Tail = tail
        self.progress = Progress()
        self._shard = shard
        self._asked = rank, world_size
        self._group = process_group
        # What a process said when it gave the data set away, and which: it counts in the workers of that one.
        self._given: tuple[ranks.Rank, int] | None = None
        self._prefetch = prefetch
        self._transform = transform
        self._as_path = as_path
        self._on_change: OnChange = on_change
        self._cache_dir = None if cache_dir is None else os.path.abspath(cache_dir)
        self._handoff = handoff
        if shard and rank is None and world_size is None:
            self._listing = ranks.share(lambda: find(given, wanted), process_group)
        else:
            self._listing = find(given, wanted)
        self._identity = Identity(len(self._listing), seed if shuffle else None, self._listing.fingerprint)

    # -- what it is of -------------------------------------------------------------

    @property
    def files(self) -> Sequence[str]:
        """The paths of all files, in the order of the listing: a copy."""
        return [file.path for file in self._listing]

    @property
    def total(self) -> int:
        """How many files there are, for all ranks together."""
        return len(self._listing)

    @property
    def fingerprint(self) -> str:
        """What tells this set of files from another: paths below the directories, and sizes."""
        return self._listing.fingerprint

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration goes through."""
        return self.progress.epoch

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is of this epoch. Workers that live on hear it too."""
        self.progress.set_epoch(epoch)

    def __len__(self) -> int:
        """Items that the next iteration has on this rank, padding included; all workers together."""
        this = self.next_pass()
        return this.steps * this.grid.batch - self.progress.next.taken

    def next_pass(self, batch: int | None = None) -> Pass:
        """What the next iteration goes through, in batches of this size. Raises as an iteration does."""
        return self._pass(self.progress.next, batch)

    # -- positions -----------------------------------------------------------------

    @property
    def identity(self) -> Identity:
        """What saved positions are positions of."""
        return self._identity

    def state_dict(self) -> dict[str, Any]:
        """The position, for an iteration of the data set itself.

        Between two steps of one process it fits any number of ranks and workers, as the loader's does.
        In a worker (a StatefulDataLoader asks there) or within a step it fits the same numbers only.
        """
        return self._identity.save(self.progress.reached)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The next iteration goes on from the position. Raises StateMismatch or FilesChanged."""
        at = self._identity.load(state_dict, self._on_change)
        if torch.utils.data.get_worker_info() is None:
            self.progress.load(at)
        else:
            self.progress.load_in_worker(at)

    # -- iteration -----------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        led = self.progress.published(self.total, self.tail)
        if led is not None:
            self._forbid_resharding(led)
            return self._items(led, worker, workers)
        if info is None:
            this = self.next_pass()
            at = self.progress.take()
        else:
            at, again = self.progress.take_in_worker(worker)
            this = self._pass(at)
            if again and self._identity.seed is not None:
                warnings.warn(
                    f"epoch {at.epoch} is gone through once more, in the same order: call set_epoch, or use "
                    "volfs_client.DataLoader, which counts epochs by itself",
                    stacklevel=2,
                )
        grid = f"{this.grid.world} {this.grid.batch} {workers} {worker}"
        if at.taken and at.grid != grid:
            raise StateMismatch(
                "the position was saved within a step or in a worker: world, batch, workers and worker were "
                f"{at.grid}, and are {grid}; volfs_client.DataLoader saves positions that fit any"
            )
        items = self._counted(this, at.taken, worker, workers, grid)
        if info is None:
            self.progress.follow(items)
        return items

    def _counted(self, this: Pass, taken: int, worker: int, workers: int, grid: str) -> Iterator[Any]:
        """The items, and how far they have come in this process."""
        batch = this.grid.batch
        for item in self._items(this, worker, workers, taken):
            taken += 1
            if workers == 1 and taken % batch == 0:
                consumed = this.consumed(taken // batch)
                over = taken // batch == this.steps
                self.progress.reach(None if over else Position(this.epoch, consumed))
            else:
                self.progress.reach(Position(this.epoch, this.start, taken, grid))
            yield item
        if workers == 1:
            self.progress.reach(None)  # also of a pass that had no steps
        self.progress.end()

    def _items(self, this: Pass, worker: int, workers: int, skip: int = 0) -> Iterator[Any]:
        seed = self._identity.seed
        order = range(self.total) if seed is None else permutation(self.total, seed, this.epoch)

        def indexes() -> Iterator[int]:
            for number, place in enumerate(this.places(worker, workers)):
                if number >= skip:
                    yield order[place]

        nearby = Nearby(self._listing, indexes(), self._prefetch, self._cache_dir, self._handoff)
        for index in indexes():
            path = nearby.place(self._listing[index])
            if self._transform is None:
                yield self._item(path)
            else:
                yield self._transformed(nearby, path, self._transform)

    def _transformed(self, nearby: Nearby, path: LocalPath, transform: Callable[[Any], Any]) -> Any:
        try:
            return transform(self._item(path))
        except FileNotFoundError:
            # Another process that had the same file handed out may have released it between two of our calls.
            if path == path.source or os.path.exists(path):
                raise
            return transform(self._item(LocalPath(path.source)))
        finally:
            nearby.release(path)

    def _item(self, path: LocalPath) -> LocalPath | LocalFile:
        return LocalFile.of(path) if self._as_path else path

    # -- ranks ---------------------------------------------------------------------

    def _pass(self, at: Position, batch: int | None = None) -> Pass:
        rank = self._rank()
        this = Pass(self.total, self.tail, at.epoch, at.consumed, Grid(*rank, batch or self.batch_size or 1))
        self._forbid_resharding(this)
        width = this.grid.width
        if self.tail == "drop" and self.total < width:
            raise TooFewFiles(
                f"{self.total} files do not fill one step of {width} ({rank.world} ranks of "
                f"{this.grid.batch}), and tail='drop' would leave nothing: use tail='pad' or smaller batches"
            )
        if self.tail == "error" and not this.is_even:
            raise TooFewFiles(
                f"the {self.total - at.consumed} files that are left of the epoch do not fill steps of "
                f"{width} ({rank.world} ranks of {this.grid.batch}): use tail='pad' or tail='drop'"
            )
        return this

    def _rank(self) -> ranks.Rank:
        if self._given is not None and torch.utils.data.get_worker_info() is not None:
            rank, pid = self._given
            parent = multiprocessing.parent_process()
            if parent is not None and parent.pid == pid:
                return rank
        return ranks.find_rank(*self._asked, self._group) if self._shard else ranks.Rank(0, 1)

    def _forbid_resharding(self, this: Pass) -> None:
        if this.grid.world > 1:
            ranks.forbid_resharding()

    def __getstate__(self) -> dict[str, Any]:
        # A spawned worker knows of no process group: the rank goes with what it gets.
        rank = self._rank()
        if rank.world > 1:
            ranks.forbid_resharding()
        return self.__dict__ | {"_group": None, "_given": (rank, os.getpid())}


def _several(globs: str | Sequence[str] | None) -> tuple[str, ...]:
    if globs is None:
        return ()
    return (globs,) if isinstance(globs, str) else tuple(globs)


#: The name in the reference product, so that changing the import ports a script.
UCVolumeDataset = VolumeDataset
