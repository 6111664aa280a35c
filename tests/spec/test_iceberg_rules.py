"""Every rule for Iceberg tables has tests; here is which, and that they are there."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

RULES: dict[str, dict[str, tuple[str, ...]]] = {
    "I1 the names of the transaction layer, single-spec fast path": {
        "spec/test_002_units.py": (
            "test_group_files_by_spec_empty",
            "test_group_files_by_spec_single_spec",
            "test_group_files_by_spec_multiple_specs",
            "test_group_files_by_spec_v1_defaults_to_zero",
            "test_validate_accepts_any_valid_spec",
            "test_validate_rejects_unknown_spec",
            "test_validate_rejects_unknown_spec_with_clear_message",
        ),
        "spec/test_002_evolution.py": (
            "test_delete_with_partition_evolution",
            "test_update_with_partition_evolution",
            "test_merge_with_partition_evolution",
            "test_update_writes_new_files_with_default_spec",
            "test_position_delete_inherits_the_spec_and_the_tuple_of_its_data_file",
        ),
        "cross/test_matrix.py": ("test_what_we_make_of_a_table_is_what_spark_makes_of_its_twin",),
        "cross/test_made_without_spark.py": ("test_spark_reads_and_changes_a_table_made_without_it",),
    },
    "I2 any spec is accepted, an unknown one refused by its id, one that evolves meanwhile is right": {
        "iceberg/test_commits.py": ("test_an_unknown_spec_is_refused_by_its_id_and_nothing_is_left",),
        "iceberg/test_commit_conflicts.py": ("test_a_spec_that_changed_meanwhile_is_kept_apart",),
        "iceberg/test_iceberg_concurrency.py": (
            "test_a_merge_overtaken_by_a_new_spec_and_new_rows_plans_again",
        ),
        "cross/test_between_plan_and_commit.py": ("test_a_merge_meets_another_commit",),
    },
    "I3 deletes inherit spec and tuple, new data has the default spec": {
        "iceberg/test_commits.py": (
            "test_deleted_rows_are_gone_and_the_delete_file_has_the_spec_and_tuple_of_its_file",
        ),
        "iceberg/test_iceberg_table.py": (
            "test_files_of_another_spec_keep_it_and_new_ones_have_the_default",
        ),
    },
    "I4 sources renamed, promoted, nested or dropped": {
        "iceberg/test_operations_tables.py": (
            "test_a_source_that_was_dropped",
            "test_a_source_that_was_renamed_and_promoted",
            "test_a_source_inside_of_a_struct",
        ),
    },
    "I5 versions 1, 2 and 3, both modes, row lineage": {
        "iceberg/test_iceberg_table.py": (
            "test_version_1_has_copies_only",
            "test_modes_come_from_the_argument_then_the_properties",
            "test_vectors_take_over_what_was_deleted_before",
        ),
        "iceberg/test_operations_tables.py": ("test_row_ids_stay_with_their_rows",),
        "cross/test_engines_take_turns.py": ("test_rows_keep_their_ids_when_they_are_updated_or_moved",),
    },
    "I6 existing deletes are applied": {
        "iceberg/test_operations_tables.py": (
            "test_rows_that_equality_deletes_took_do_not_come_back",
            "test_deletes_of_before_an_upgrade_are_taken_over",
        ),
    },
    "I7 one operation is one snapshot, nothing commits nothing, branches": {
        "iceberg/test_operations.py": (
            "test_one_operation_is_one_snapshot_and_a_dry_run_is_none",
            "test_an_operation_that_changes_nothing_commits_nothing",
            "test_a_branch_is_read_and_changed_alone",
        ),
        "iceberg/test_commits.py": ("test_a_summary_has_the_fields_that_java_writes",),
    },
    "I8 validation, retry, unknown outcomes, nothing left after a known failure": {
        "iceberg/test_iceberg_table.py": (
            "test_a_change_of_nothing_is_still_validated",
            "test_the_isolation_level_of_an_operation_decides_on_new_files",
        ),
        "iceberg/test_commit_retries.py": (
            "test_between_tries_the_table_is_looked_at_again",
            "test_an_unknown_outcome_removes_nothing_and_says_what_to_look_for",
            "test_after_too_many_tries_nothing_is_left",
        ),
        "crash/test_kill_iceberg.py": (
            "test_a_kill_or_an_error_at_any_call_leaves_an_iceberg_table_old_or_new",
        ),
    },
    "I9 any catalog: SQLite shared with Spark, REST, version 3 on both": {
        "iceberg/test_iceberg_table.py": ("test_the_embedded_catalog_has_the_form_that_java_shares",),
        "iceberg/test_commit_retries.py": ("test_version_3_metadata_of_the_embedded_catalog_is_whole",),
        "cross/test_rest_catalog.py": ("test_operations_are_right_on_a_rest_catalog",),
    },
    "I10 properties are honoured or refused by name, metrics as Java writes them": {
        "iceberg/test_operations_properties.py": (
            "test_what_cannot_be_done_is_refused_by_name_and_nothing_is_written",
            "test_metrics_are_those_that_the_table_asks_for",
        ),
    },
    "I11 MERGE has clauses, a row hit twice is an error": {
        "contract/test_merge_matched.py": (
            "test_update_sets_only_the_named_columns_from_both_sides",
            "test_update_all_replaces_the_row",
            "test_delete_removes_the_row",
            "test_the_first_clause_that_applies_decides",
        ),
        "contract/test_merge_condition.py": ("test_a_target_row_matched_twice_is_an_error",),
        "contract/test_merge_not_matched.py": (
            "test_insert_all_takes_the_source_row",
            "test_rows_without_a_source_row_are_updated_or_deleted",
        ),
    },
    "I12 compact, z-order and deduplicate work across specs": {
        "iceberg/test_operations.py": ("test_a_second_compaction_finds_nothing_to_do",),
        "cross/test_matrix.py": ("test_what_we_make_of_a_table_is_what_spark_makes_of_its_twin",),
    },
    "I13 Spark and another reader agree, both ways": {
        "cross/test_engines_take_turns.py": ("test_spark_changes_and_rewrites_our_table_and_we_go_on",),
        "cross/test_checks.py": ("test_all_readers_agree_about_tables_of_spark", "test_damage_is_found"),
    },
}
"""By rule the files with its tests, and those among them that stand for it."""


@cache
def _names(file: str) -> frozenset[str]:
    tree = ast.parse((TESTS / file).read_text())
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def test_there_are_thirteen_rules() -> None:
    assert [rule.split()[0] for rule in RULES] == [f"I{number}" for number in range(1, 14)]


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_has_its_tests(rule: str) -> None:
    missing = [
        f"{file}::{name}" for file, names in RULES[rule].items() for name in names if name not in _names(file)
    ]
    assert missing == []
    assert all(RULES[rule].values())
