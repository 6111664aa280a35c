"""Errors: what they are, what they say, and that they travel between processes."""

from __future__ import annotations

import errno
import pickle

import pyarrow as pa
import pytest

from intarsia import errors
from intarsia.errors import (
    ColumnNotFound,
    CommitConflict,
    CommitUnknown,
    DamagedTable,
    EngineError,
    InputError,
    IntarsiaError,
    KeyColumnError,
    NothingMatched,
    NotSupported,
    PartitionColumnNotFound,
    PartitionMoveError,
    SchemaMismatch,
    StorageError,
    UnsafePath,
)

EVERY = [
    value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, IntarsiaError)
]


@pytest.mark.parametrize(
    ("error", "kinds"),
    [
        (InputError, (ValueError,)),
        (KeyColumnError, (ValueError, InputError)),
        (PartitionMoveError, (ValueError, InputError)),
        (UnsafePath, (ValueError, InputError)),
        (ColumnNotFound, (ValueError, pa.ArrowKeyError, KeyError)),
        (SchemaMismatch, (ValueError, TypeError, pa.ArrowInvalid, pa.ArrowTypeError)),
        (NothingMatched, (FileNotFoundError, OSError)),
        (PartitionColumnNotFound, (ColumnNotFound, NothingMatched)),
        (StorageError, (OSError, pa.ArrowIOError)),
        (CommitConflict, (RuntimeError,)),
        (CommitUnknown, (RuntimeError,)),
        (EngineError, (RuntimeError,)),
        (NotSupported, (NotImplementedError,)),
        (DamagedTable, (pa.ArrowInvalid,)),
    ],
)
def test_an_error_is_caught_as_what_one_would_expect(error, kinds):
    assert issubclass(error, IntarsiaError)
    assert all(issubclass(error, kind) for kind in kinds)


@pytest.mark.parametrize("error", EVERY, ids=lambda error: error.__name__)
def test_every_error_pickles_with_all_it_carries(error):
    raised = error("no", path="/lake", hint="try again", changed=None, txid="t1")
    copy = pickle.loads(pickle.dumps(raised))
    assert type(copy) is error
    assert (str(copy), copy.path, copy.hint, copy.changed, copy.txid) == (
        "no [/lake] Hint: try again", "/lake", "try again", None, "t1"
    )  # fmt: skip


@pytest.mark.parametrize("error", EVERY, ids=lambda error: error.__name__)
def test_every_error_says_that_nothing_changed_unless_told_otherwise(error):
    assert error("no").changed is False
    assert str(error("no")) == "no"


def test_a_path_that_is_in_the_message_is_not_said_twice():
    assert str(InputError("cannot read /lake", path="/lake")) == "cannot read /lake"


def test_a_storage_error_keeps_its_number():
    raised = StorageError("full", errno=errno.ENOSPC, path="/lake")
    assert raised.errno == errno.ENOSPC
    assert pickle.loads(pickle.dumps(raised)).errno == errno.ENOSPC


def test_every_error_is_drawn_in_the_tree():
    assert all(error.__name__ in errors.__doc__ for error in EVERY)
