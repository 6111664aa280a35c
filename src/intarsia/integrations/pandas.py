"""pandas: a DataFrame is merged and written by ``df.intarsia``, once this module is imported."""

from __future__ import annotations

import pandas as pd

from intarsia.integrations.frames import FrameMethods

__all__ = ["DataFrameAccessor"]


@pd.api.extensions.register_dataframe_accessor("intarsia")
class DataFrameAccessor(FrameMethods):
    """What ``df.intarsia`` has: a DataFrame as the source of a merge or a write.

    The levels of an index that have a name are columns, and may be keys; an index without one is left out.

    Example:
        >>> import pandas as pd, intarsia.integrations.pandas
        >>> changes = pd.DataFrame({"id": [2, 3], "n": ["b2", "c"]}).set_index("id")
        >>> changes.intarsia.merge_into("lake/orders", on="id").updated
        1
    """
