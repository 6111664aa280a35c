"""Locks on files, which the system frees when their holder dies: flock, or one byte by msvcrt on Windows."""

from __future__ import annotations

import errno
import importlib
import os
from typing import Any

from intarsia.common import system
from intarsia.common.log import get_logger

__all__ = ["is_locked", "remove_lock", "try_lock", "unlock"]

log = get_logger(__name__)


def try_lock(path: str, mode: int = 0o666) -> int | None:
    """A descriptor that holds the lock on a file, made where it is missing; None when another has it.

    None also when the file, or its directory, was removed meanwhile: then try again. Raises OSError.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | system.BINARY, mode)
    except FileNotFoundError:  # its holder has just removed the directory
        return None
    try:
        if _take(descriptor) and _is_still_at(descriptor, path):
            return descriptor
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def unlock(descriptor: int) -> None:
    """Free a lock."""
    try:
        if system.WINDOWS:
            msvcrt: Any = importlib.import_module("msvcrt")
            os.lseek(descriptor, 0, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)
        else:
            import fcntl

            # A forked child may share the description: unlocking frees it there, closing alone would not.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def remove_lock(descriptor: int, path: str) -> None:
    """Free a lock and remove its file, which nobody else can have taken in between."""
    if system.WINDOWS:  # removes no file that is open: freed first, and whoever has it by then keeps it
        unlock(descriptor)
        try:
            os.unlink(path)
        except (FileNotFoundError, PermissionError) as error:
            log.debug("the lock %s stays: %s", path, error)
        return
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    finally:
        unlock(descriptor)


def is_locked(path: str) -> bool:
    """Whether somebody holds the lock on a file that exists; writes nothing and does not wait.

    The lock is taken for an instant, on Unix shared with others: who asks then asks again.
    """
    descriptor = os.open(path, (os.O_RDWR if system.WINDOWS else os.O_RDONLY) | system.BINARY)
    if system.WINDOWS:
        if _take(descriptor):
            unlock(descriptor)
            return False
        os.close(descriptor)
        return True
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _take(descriptor: int) -> bool:
    """Take the lock if it is free."""
    if system.WINDOWS:
        msvcrt: Any = importlib.import_module("msvcrt")
        os.lseek(descriptor, 0, os.SEEK_SET)  # a range is locked from here on; it may be beyond the end
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EDEADLK):
                raise
            return False
        return True
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_still_at(descriptor: int, path: str) -> bool:
    """Whether the locked file is the one under ``path``; a holder may have removed it meanwhile."""
    if system.WINDOWS:  # which removes no file that is open
        return True
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False
