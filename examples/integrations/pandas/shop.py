"""pandas on a lake: a frame with an index is merged by it, and rows are read back. Run it twice."""

import pandas as pd

import intarsia as it
import intarsia.integrations.pandas


def run() -> pd.DataFrame:
    """Merge a frame by its index, and read what costs more than a limit."""
    orders = pd.DataFrame({"order_id": range(1000), "amount": pd.array(range(1000), "Int64")}).set_index(
        "order_id"
    )
    result = orders.intarsia.merge_into("lake/orders", on="order_id")
    print(f"{result.inserted} inserted, {result.updated} updated")
    return it.read("lake/orders", where="amount >= 990").read_pandas()


if __name__ == "__main__":
    print(run())
