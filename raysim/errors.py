"""Every error that raysim raises on purpose.

RaysimError
├── ExperimentError (ValueError)   a key, value or combination in the experiment
├── DataError (ValueError)         a file, table or client that is not as promised
│   └── MissingFileError           a file of a source that is not there
├── ModelError (ValueError)        a module whose shapes, outputs or loss do not fit
├── ResourceError                  more workers, cores or cards than there are
│   └── DeviceMemoryError          work that a device's memory is too small for, also when tried again
├── RunFolderError                 a run folder that exists, is in use, or lacks what is needed
├── UnknownRunError                no run of that name is under way
├── CheckpointError                a checkpoint that cannot be written or read
├── RemoteError                    a folder on another file system that cannot be reached or trusted
├── DivergedError                  a server step made the model non-finite
├── DiskError (OSError)            a file that cannot be written, such as on a full disk
├── ClientError                    user code failed while a client was trained or evaluated
└── WorkerLostError                workers died more often than the budget allows, or a driver or a local Ray died
"""

from __future__ import annotations


def within(error: BaseException) -> str:
    """Return an error's text for the middle of a sentence: without its full stop; its kind, if it has no text.

    >>> within(ValueError("a.toml is missing."))
    'a.toml is missing'
    >>> within(AssertionError())
    'AssertionError'
    """
    return str(error).removesuffix(".") or type(error).__name__


class RaysimError(Exception):
    """Root of the tree; the message alone carries the facts, so it survives pickling."""


class ExperimentError(RaysimError, ValueError):
    """The experiment asks for something that is not defined."""


class DataError(RaysimError, ValueError):
    """A dataset, a file of one, or a client of one is not as promised."""


class MissingFileError(DataError):
    """A published file is not in the source's folder; says where to get it."""


class ModelError(RaysimError, ValueError):
    """A module does not fit the data, the loss or the engine."""


class ResourceError(RaysimError):
    """The machine or cluster has less than was asked for."""


class DeviceMemoryError(ResourceError):
    """A unit of work does not fit into a device's memory, and its retries are used up; names them and the keys."""


class RunFolderError(RaysimError):
    """A run folder is in the way, or is not one, or another process writes to it."""


class UnknownRunError(RaysimError):
    """No run of that name is under way on the cluster."""


class CheckpointError(RaysimError):
    """A checkpoint could not be written or read; the one before it is untouched."""


class RemoteError(RaysimError):
    """A folder named by a URI cannot be reached, or does not hold what it should."""


class DivergedError(RaysimError):
    """A server step made the model non-finite; names the round, the optimizer and the last good state."""


class DiskError(RaysimError, OSError):
    """A file could not be written; names it, what is missing, and how to go on."""


class ClientError(RaysimError):
    """Local training or evaluation of a client failed in user code.

    The message names client, chunk, round and worker, and ends with the worker's own traceback.
    """


class WorkerLostError(RaysimError):
    """The budget for lost workers is spent, or a process died without which no run goes on."""
