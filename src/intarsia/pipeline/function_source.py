"""What of a Python file belongs to one of its functions; the declarations of a pipeline around it do not."""

from __future__ import annotations

import ast
import os
import symtable
from collections.abc import Iterator
from typing import TypeGuard

from intarsia.errors import InputError
from intarsia.pipeline.local_modules import parse_module

__all__ = ["describe_function_source"]


def describe_function_source(path: str, name: str, text: bytes) -> bytes:
    """Bytes that change with whatever a function may depend on in its file.

    They are the whole text of a file that declares no pipeline. Of one that does, they leave out the calls of
    the pipeline's methods and the functions of its other sources which this one does not use: another step
    in the file is no reason to compute a source again.

    Raises:
        InputError: the function uses a parameter of the pipeline as a global, which would be its
            placeholder.
    """
    module = parse_module(path, text)
    pipelines = set(_find_pipelines(module))
    if not pipelines:
        return text
    used_by = _list_globals(path, text)
    calls = [statement for statement in module.body if _is_declaration(statement, pipelines)]
    sources = {one.name: one for one in module.body if _is_source(one, pipelines)}
    rest = [one for one in module.body if one not in calls and one not in sources.values()]
    kept: list[ast.stmt] = [sources[name]] if name in sources else []
    needed: set[str] = set().union(*(_list_used(one, used_by) for one in (*rest, *kept)))
    for other in (found := sorted(needed & sources.keys())):  # and those that they use in turn
        if sources[other] not in kept:
            kept.append(sources[other])
            more = _list_used(sources[other], used_by)
            needed |= more
            found += sorted(more & sources.keys() - set(found))
    for call in calls:
        bound = set(_list_bound(call)) & needed
        if bound and _is_param(call):
            raise InputError(
                f"{os.path.basename(path)}:{name} uses the parameter {min(bound)!r} of the pipeline, line"
                f" {call.lineno}, from outside.",
                path=path,
                hint=f"make it a parameter of the function: def {name}(..., {min(bound)}).",
            )
        if bound and not bound <= pipelines:
            kept.append(call)
    order = sorted((*rest, *kept), key=lambda one: one.lineno)
    return "\n".join(ast.unparse(_without_decorators(one, pipelines)) for one in order).encode()


def _find_pipelines(module: ast.Module) -> Iterator[str]:
    """The names at the top of a module that ``Pipeline(...)`` is assigned to."""
    for statement in module.body:
        value = getattr(statement, "value", None)
        if isinstance(statement, (ast.Assign, ast.AnnAssign)) and isinstance(value, ast.Call):
            called = value.func
            spelled = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if spelled == "Pipeline":
                yield from _list_bound(statement)


def _is_declaration(statement: ast.stmt, pipelines: set[str]) -> bool:
    """Whether a statement makes a pipeline or calls a method of one, or runs only as a program."""
    if isinstance(statement, (ast.Assign, ast.AnnAssign, ast.Expr)) and statement.value is not None:
        makes = not isinstance(statement, ast.Expr) and set(_list_bound(statement)) & pipelines
        return bool(makes) or _is_call_of(statement.value, pipelines)
    return isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test)


def _is_source(statement: ast.stmt, pipelines: set[str]) -> TypeGuard[ast.FunctionDef]:
    return isinstance(statement, ast.FunctionDef) and any(
        _is_call_of(one, pipelines) for one in statement.decorator_list
    )


def _is_call_of(node: ast.expr, pipelines: set[str]) -> bool:
    """Whether it is a method of a pipeline, called or not."""
    called = node.func if isinstance(node, ast.Call) else node
    owner = called.value if isinstance(called, ast.Attribute) else None
    return isinstance(owner, ast.Name) and owner.id in pipelines


def _is_param(statement: ast.stmt) -> bool:
    called = getattr(getattr(statement, "value", None), "func", None)
    return isinstance(called, ast.Attribute) and called.attr == "param"


def _list_bound(statement: ast.stmt) -> Iterator[str]:
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def _list_globals(path: str, text: bytes) -> dict[str, set[str]]:
    """By function at the top of a file: the globals that its body uses."""

    def collect(table: symtable.SymbolTable) -> set[str]:
        own = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_global()}
        return own.union(*map(collect, table.get_children()))

    whole = symtable.symtable(text.decode("utf-8"), path, "exec")
    return {table.get_name(): collect(table) for table in whole.get_children()}


def _list_used(statement: ast.stmt, used_by: dict[str, set[str]]) -> set[str]:
    """The globals that a statement uses; of a function, those of its body."""
    if isinstance(statement, ast.FunctionDef):
        return used_by.get(statement.name, set())
    return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}


def _without_decorators(statement: ast.stmt, pipelines: set[str]) -> ast.stmt:
    if isinstance(statement, ast.FunctionDef):
        statement.decorator_list = [
            one for one in statement.decorator_list if not _is_call_of(one, pipelines)
        ]
    return statement
