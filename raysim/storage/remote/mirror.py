"""Mirrors a folder at a URI: all work is done on this machine's copy, whose whole files are uploaded.

The copy lies in the cache, under mirrors/<digest of the URI>/. All code that reads or writes a run uses paths only. An
index beside the files lists the allowed contents of each, so that a reader detects damage. It is written twice: before
an upload, with the old and the new content, and after it, with the new content.

Files are whole under their names, because raysim writes them aside and renames them; names that begin with a dot are
skipped. Checkpoints are uploaded after the rows and the client states that they need, and old ones are deleted last. So
the folder at the URI can be resumed at any time, even if this machine fails.
"""

from __future__ import annotations

import logging
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path, PurePosixPath

from raysim.config.section import replaced
from raysim.errors import RemoteError, within
from raysim.storage import atomic, disk, lock, sealed
from raysim.storage.cache import hasher
from raysim.storage.inside import in_cache, inside
from raysim.storage.reading import content, parsing
from raysim.storage.remote import mirrored_files, removed, uploads
from raysim.storage.remote.index import INDEX, Content, Index, Known, Record, Stretch, descends, flaw
from raysim.storage.remote.remote import Remote

log = logging.getLogger("raysim")

FETCH_ATTEMPTS = 3

WRITERS = ".writers"
"""The file beside a copy that those who change the copy have locked."""

RECORD = "experiment.json"
"""What every run's folder has."""


class OvertakenError(RemoteError):
    """Another machine has written after this one: trying again does not help."""


class Mirror:
    """One folder with its copy; any number of processes of this machine may hold one.

    Args:
        home: the place of the copy and of its record; see `of`.
        remote: the folder at the URI.
    """

    def __init__(self, home: Path, remote: Remote) -> None:
        self._home, self._remote, self._has_swept = in_cache(home, RemoteError), remote, False
        name = PurePosixPath(remote.uri.partition("?")[0].partition("://")[2]).name
        self.path = in_cache(home / (name if flaw(name) is None else "folder"), RemoteError)
        """This machine's copy."""

    @property
    def uri(self) -> str:
        """The folder's URI."""
        return self._remote.uri

    @classmethod
    def of(cls, uri: str) -> Mirror:
        """Return the mirror of a URI, on this machine."""
        remote = Remote(uri)
        digest = hasher()
        digest.update(remote.uri.encode())
        return cls(removed.copies() / digest.hexdigest()[:16], remote)

    @classmethod
    def around(cls, path: Path) -> Mirror | None:
        """Return the mirror whose copy is or contains `path`; None if there is none."""
        copy = removed.copy_around(path)
        return None if copy is None else cls(copy.parent, Remote(_stored_record(copy.parent / INDEX).uri))

    def pull(self) -> None:
        """Update the copy from the URI: fetch and check missing and changed files.

        If no other machine wrote there after this one, the copy may be ahead, as a killed writer leaves it: files that
        were lost in it are fetched, and those that were lost at the URI are put there again by the next `push`. Else a
        copy that is ahead is set aside, with a warning. A copy is ahead, too, where the state at the URI was not made
        from the one that this machine knew there. And a copy is set aside that was changed though nobody has said so
        (`changing`).

        Raises:
            RemoteError: nothing answers, a file there differs from the index, or a run there has lost its index.
            OvertakenError: another machine wrote there, and a process of this one changes the copy.
        """
        with self._alone():
            for attempt in range(1, FETCH_ATTEMPTS + 1):
                record, index = self._record(), self._index()
                try:
                    if index is None or self._is_as_left(record, index):
                        self._complete(record, index)
                    else:
                        self._take(record, index)
                    return
                except OSError as error:
                    raise RemoteError(f"{self.uri} could not be copied to {self.path}: {within(error)}.") from error
                except RemoteError:
                    # Another machine may have written meanwhile.
                    if attempt == FETCH_ATTEMPTS or self._index() == index:
                        raise

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Say that the block changes the copy, before its first change, so that the changes are ahead of the URI.

        The record says so until everything is put and nobody changes the copy any more. If this process is killed, a
        later `pull` or `changing` looks again.

        Raises:
            DiskError: the record cannot be written.
        """
        try:
            with ExitStack() as held:
                with disk.writing(self._home / WRITERS):
                    held.enter_context(lock.among_others(self._home / WRITERS))
                with self._alone():
                    if not (record := self._record()).ahead:
                        self._keep(replaced(record, ahead=True), flushed=True)
                yield
        finally:
            # Without the note the copy counts as ahead, which costs nothing but a look.
            with suppress(OSError), self._alone():
                if (record := self._record()).ahead:
                    self._keep(self._looked_at(record))

    def push(self) -> int:
        """Upload the changes in the copy since the last call; return the number of files.

        Raises:
            RemoteError: nothing answers, or another machine writes there. The copy is whole, and the next call
                continues.
        """
        with self._alone():
            record, index = self._record(), self._index()
            if index is None:
                before = self._known_there(record, self._remote.sizes())
                record = _with_nothing_there(record)
            else:
                before = index.files
                self._check_is_own(record, index)
                record = replaced(record, changes=index.changes, line=index.line)
            # The lock keeps others away: what is here was left by a process that ended.
            atomic.sweep(self._home, older_than_s=0)
            if not self._has_swept:
                self._remote.sweep()
                self._has_swept = True
            outgoing = atomic.beside(self._home / "outgoing")
            try:
                # Of a file that an upload was to replace which was cut, nobody knows what lies there.
                known = {name: each for name, each in record.files.items() if len(before.get(name, ())) <= 1}
                # Before the pinning: what is deleted meanwhile may belong to a checkpoint that is put now.
                noted = removed.noted(self._home)
                pinned = mirrored_files.pin(self.path, known, outgoing)
                # A checkpoint that is pinned next time takes the place of those that are deleted there.
                return self._put(record, before, known, pinned.files, noted if pinned.is_whole else ())
            except OSError as error:
                raise RemoteError(
                    f"{self.path} could not be pinned, to be put at {self.uri}: {within(error)}."
                ) from error
            finally:
                shutil.rmtree(outgoing, ignore_errors=True)

    def behind(self) -> list[str]:
        """Return the names of files that are missing or different at the URI."""
        return mirrored_files.compared(self.path, self._record().files)[1]

    def _is_as_left(self, record: Record, index: Index) -> bool:
        """Return whether only this machine's raysim has written, at the URI and in the copy, since they were equal."""
        return index.version in record.versions and (record.ahead or not self.behind())

    def _looked_at(self, record: Record) -> Record:
        """Return the record after a look at the copy: with the times of the files that are equal, and `ahead`."""
        if lock.is_held(self._home / WRITERS):
            return replaced(record, ahead=True)
        files, changed = mirrored_files.compared(self.path, record.files)
        return replaced(record, files=files, ahead=bool(changed))

    def _complete(self, record: Record, index: Index | None) -> None:
        """Fetch what this machine's copy has lost, and forget what the URI has lost, so that it is put there again."""
        there = self._remote.sizes()
        if index is None:
            self._known_there(record, there)
        gone = set(removed.noted(self._home))
        # Who changes the copy may have deleted a file just now.
        is_changed = lock.is_held(self._home / WRITERS)
        files = dict(record.files)
        allowed: Mapping[str, tuple[Content | None, ...]] = {
            name: (each.content,) for name, each in record.files.items()
        }
        if index is not None:
            allowed = index.files
        # The index names, too, what an upload put that was cut before its end.
        for name in dict.fromkeys((*record.files, *allowed)):
            target = inside(self.path, name, f"{self._home / INDEX}", RemoteError)
            contents = [each for each in allowed.get(name, ()) if each is not None]
            if target.exists():
                if name in files and contents and there.get(name) not in [each.num_bytes for each in contents]:
                    if self._index() != index:
                        raise RemoteError(f"{self.uri} is changed by another machine while it is read: try again.")
                    log.warning("%s/%s was lost or replaced there: what goes on here puts it again", self.uri, name)
                    del files[name]
            elif is_changed or name in gone:
                continue
            elif contents and (name in there or (index is not None and name in files)):
                log.warning("%s was lost on this machine, and is fetched from %s", target, self.uri)
                content = _fetch_file(self._remote, name, target, contents)
                files[name] = mirrored_files.record_of(PurePosixPath(name), content, target.stat().st_mtime_ns)
        self._keep(self._looked_at(replaced(record, files=files)))

    def _known_there(self, record: Record, there: Mapping[str, int]) -> dict[str, tuple[Content | None, ...]]:
        """Return what an index would allow of what lies there without one; RemoteError if this machine knows it not."""
        if not record.versions and RECORD in there:
            raise RemoteError(
                f"{self.uri} has a run's folder without its {INDEX}, which says what belongs to it. Resume on the "
                f"machine that wrote there, which has a whole copy; or copy the folder to this machine."
            )
        if not record.versions:
            return {}
        found: dict[str, tuple[Content | None, ...]] = {}
        here = dict(mirrored_files.files(self.path))
        for name, num_bytes in there.items():
            if name == INDEX or flaw(name) is not None:
                continue
            # A killed upload may have put what is in the copy.
            known = {record.files[name].content} if name in record.files else set()
            known |= {mirrored_files.content(here[name])} if name in here else set()
            may_be_known = num_bytes in {each.num_bytes for each in known}
            found[name] = (self._content_there(name) if may_be_known else None, None)
            if found[name][0] not in known:
                raise RemoteError(
                    f"{self.uri} has lost its {INDEX}, and {name} there is not what this machine knew: another one may "
                    f"have written it. Resume on the machine that wrote there last. If that is this one, move the "
                    f"files there away: its copy is whole, {self.path}, and is put there again."
                )
        return found

    def _content_there(self, name: str) -> Content:
        digest, num_bytes = hasher(), 0
        for piece in self._remote.read(name):
            digest.update(piece)
            num_bytes += len(piece)
        return Content(num_bytes, digest.hexdigest())

    def _take(self, record: Record, index: Index) -> None:
        if record.ahead and lock.is_held(self._home / WRITERS):
            # What it puts later would be compared with this index, from which its content did not come.
            raise OvertakenError(
                f"{self.uri} was changed by another machine, and a process of this machine changes its own copy, "
                f"{self.path}: nothing is fetched meanwhile. End that process, and give the same command again."
            )
        self._set_aside(record, index)
        files: dict[str, Known] = {}
        try:
            self._fetch_all(index, files)
        except BaseException:
            # What was fetched is not ahead of the URI when this is tried again; nor is the copy any known state.
            self._keep(replaced(record, versions=(), files={**record.files, **files}))
            raise
        for name, file in list(mirrored_files.files(self.path)):
            if name not in files:
                file.unlink()
        self.path.mkdir(parents=True, exist_ok=True)
        removed.forget(self._home, len(removed.noted(self._home)))
        known = {"versions": (index.version,), "changes": index.changes, "line": index.line}
        self._keep(Record(uri=self.uri, ahead=False, files=files, **known))

    def _fetch_all(self, index: Index, files: dict[str, Known]) -> None:
        """Fetch what differs here, and add the record of each file to `files`."""
        for name, allowed in index.files.items():
            target = inside(self.path, name, f"{self.uri}/{INDEX}", RemoteError)
            content = mirrored_files.content(target) if target.is_file() else None
            # While it is replaced there, either content is whole, but not beside files that need the other one.
            if content is None or allowed != (content,):
                if None in allowed and not self._remote.has(name):
                    continue
                content = _fetch_file(self._remote, name, target, [each for each in allowed if each is not None])
            files[name] = mirrored_files.record_of(PurePosixPath(name), content, target.stat().st_mtime_ns)

    def _set_aside(self, record: Record, index: Index) -> None:
        """Keep the copy aside, with a warning, if it may have what the URI has not."""
        is_own = index.version in record.versions
        # Restored from a backup for one, and perhaps changed since: then the copy has what the URI has no more.
        went_back = not is_own and _went_back(record, index)
        if not (went_back or self.behind()):
            return
        if is_own:
            why = "is as it was, but something else than raysim has changed this machine's copy"
        elif went_back:
            why = "went back to an older state, and this machine's copy was ahead"
        else:
            why = "was changed by another machine, and this machine's copy was ahead"
        if not self.path.exists():
            log.warning("%s %s, but is lost", self.uri, why)
            return
        aside = self._home / f"{self.path.name}.aside-{uuid.uuid4().hex[:8]}"
        # First the warning: a process that is killed between the two must not lose it.
        log.warning("%s %s: it is now %s", self.uri, why, aside)
        self.path.rename(aside)

    def _put(
        self,
        record: Record,
        before: Mapping[str, tuple[Content | None, ...]],
        known: Mapping[str, Known],
        pinned: Mapping[str, tuple[Path, Known]],
        noted: Sequence[str],
    ) -> int:
        """Put what is pinned.

        before: what the index there allows; known: the files of which that is certain; noted: what was deleted here.
        """
        new = [name for name, (_, found) in pinned.items() if name not in known or known[name].content != found.content]
        files = {**record.files, **{name: found for name, (_, found) in pinned.items()}}
        of_cut = {name: allowed for name, allowed in before.items() if name not in files}
        # What others deleted in the copy stays at the URI. What is noted, and is there, was written again.
        lacking = {*record.files, *of_cut} - {name for name, _ in mirrored_files.files(self.path)}
        gone = [name for name in (*record.files, *of_cut) if name in lacking.intersection(noted)]
        if not new and not gone:
            self._keep(replaced(record, files=files))
            removed.forget(self._home, len(noted))
            return 0
        old = {name: each.content for name, each in record.files.items()}
        either = {
            name: tuple(dict.fromkeys((*before.get(name, ()), old.get(name), found.content)))
            for name, found in files.items()
        }
        with uploads.claimed(self._remote, lambda: self._check_is_own(record, self._index())) as is_alone:
            put = self._write_index(record, {**of_cut, **either})
            for name in sorted(new, key=mirrored_files.needs_others):
                self._check_is_own(put, self._index())
                self._remote.put(pinned[name][0], name)
            self._check_is_own(put, self._index())
            left = {name: found for name, found in files.items() if name not in gone}
            stay = {name: allowed for name, allowed in of_cut.items() if name not in gone}
            put = self._write_index(put, {**stay, **{name: (found.content,) for name, found in left.items()}})
            if not is_alone():
                # Of what is there, either may have put any file: whoever goes on puts all of them again.
                self._keep(replaced(put, files={}))
                raise self._overtaken()
            for name in gone:
                self._remote.delete(name)
        self._keep(replaced(put, versions=put.versions[-1:], files=left))
        removed.forget(self._home, len(noted))
        return len(new)

    def _check_is_own(self, record: Record, index: Index | None) -> None:
        """Raise OvertakenError if the index there is another machine's, which may have begun when this one did."""
        if index is not None and index.version not in record.versions:
            raise self._overtaken()

    def _overtaken(self) -> OvertakenError:
        return OvertakenError(
            f"{self.uri} was changed by another machine meanwhile: a folder has one writer at a time. Nothing more is "
            f"put there; what this one wrote is in {self.path}."
        )

    def _write_index(self, record: Record, files: Mapping[str, tuple[Content | None, ...]]) -> Record:
        changes, writer = record.changes + 1, record.writer or uuid.uuid4().hex
        line = (*(each for each in record.line if each.writer != writer), Stretch(writer, changes))
        index = Index(version=uuid.uuid4().hex, changes=changes, line=line, files=dict(files))
        record = replaced(record, versions=(*record.versions, index.version), writer=writer)
        # First locally: even if this process ends now, the version is known to be this machine's.
        self._keep(record)
        file = self._home / f".{INDEX}.there"
        # Whatever lies there, a link for one, is replaced and not written through.
        atomic.write(file, lambda aside: sealed.write(aside, index.model_dump_json().encode()))
        self._remote.put(file, INDEX)
        return replaced(record, changes=changes, line=line)

    def _index(self) -> Index | None:
        text = self._remote.find(INDEX)
        if text is None:
            self._remote.check()
            return None
        if (why := sealed.flaw(text)) is not None:
            raise RemoteError(
                f"{self.uri}/{INDEX} {why}. Delete it, and resume on the machine that wrote there: it has a whole "
                f"copy, and puts it there again."
            )
        with parsing(f"{self.uri}/{INDEX}", "an index", RemoteError):
            return Index.model_validate_json(text)

    def _record(self) -> Record:
        try:
            return _stored_record(self._home / INDEX)
        except RemoteError:
            # No record: the copy is compared with the URI, and set aside if it differs.
            return Record(uri=self.uri)

    def _keep(self, record: Record, flushed: bool = False) -> None:
        made = record.model_dump_json().encode()
        atomic.write(self._home / INDEX, lambda file: sealed.write(file, made), flushed)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with ExitStack() as held:
            with disk.writing(self._home):
                held.enter_context(lock.alone(self._home / lock.FILE))
            yield


def _went_back(record: Record, index: Index) -> bool:
    """Return whether the state there was not made from the one that this machine knew."""
    if record.line:
        return not descends(index.line, record.line)
    # Of an earlier raysim, which has counted at most.
    return 0 < record.changes >= index.changes


def _with_nothing_there(record: Record) -> Record:
    """Return the record once the URI has lost its index: all files are put there again."""
    return Record(uri=record.uri, changes=record.changes, line=record.line, writer=record.writer)


def _stored_record(file: Path) -> Record:
    """Read a record; raise RemoteError if it is missing or damaged."""
    found = content(file, RemoteError)
    if (why := sealed.flaw(found)) is not None:
        raise RemoteError(f"{file} {why}. Delete it: the copy beside it is then compared with the URI.")
    with parsing(file, "a mirror's record", RemoteError):
        return Record.model_validate_json(found)


def _fetch_file(remote: Remote, name: str, target: Path, allowed: Sequence[Content]) -> Content:
    """Fetch one file, whole and as in the index, or not at all; return its content.

    Raises:
        RemoteError: the file has no allowed content, or cannot be read; `target` does not change.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with atomic.aside(target) as aside:
        most = max((each.num_bytes for each in allowed), default=0)
        with aside.open("wb") as file:
            for piece in remote.read(name):
                # A file that is longer than the index says is not fetched to its end: it might have none.
                if file.tell() <= most:
                    file.write(piece)
                else:
                    break
        found = mirrored_files.content(aside)
        if found not in allowed:
            expected = " or ".join(f"{each.num_bytes} bytes with blake2b {each.blake2b}" for each in allowed)
            raise RemoteError(
                f"{remote.uri}/{name} is damaged: expected {expected}, as in {INDEX} there, found "
                f"{found.num_bytes} bytes with {found.blake2b}"
            )
    return found
