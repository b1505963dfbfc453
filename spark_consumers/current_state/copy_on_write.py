"""Commits to tables without deletion vectors, by delta-rs alone: files are rewritten as a whole."""

from collections.abc import Mapping, Sequence

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from spark_consumers.current_state.log import Action, Snapshot, commit_path
from spark_consumers.current_state.storage import Storage, written_by_delta_rs


def commit_by_delta_rs(
    storage: Storage, snapshot: Snapshot, actions: Sequence[Action], info: Mapping[str, str]
) -> bool:
    """Commit on top of a version; False if another program's commit came before."""
    table = DeltaTable(storage.url, version=snapshot.version, storage_options=storage.options)
    marks = [Transaction(a["txn"]["appId"], a["txn"]["version"]) for a in actions if "txn" in a]
    properties = CommitProperties(
        app_transactions=marks, custom_metadata=dict(info), max_commit_retries=0
    )
    files: list[AddAction | RemoveAction] = [
        _file(action) for action in actions if "txn" not in action
    ]
    with written_by_delta_rs(storage.url):
        try:
            table.create_write_transaction(
                files, mode="append", schema=table.schema(), commit_properties=properties
            )
        except CommitFailedError:
            if storage.written(commit_path(snapshot.version + 1)) is None:
                raise
            return False
        return True


def _file(action: Action) -> AddAction | RemoveAction:
    if add := action.get("add"):
        return AddAction(
            path=add["path"],
            size=add["size"],
            partition_values={},
            modification_time=add["modificationTime"],
            data_change=add["dataChange"],
            stats=add["stats"],
        )
    remove = action["remove"]
    return RemoveAction(
        path=remove["path"],
        deletion_timestamp=remove["deletionTimestamp"],
        data_change=remove["dataChange"],
        partition_values={},
        size=remove["size"],
    )
